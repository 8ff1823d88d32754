//! What kube-controller-manager does for workloads: a file per kind of them.

mod adopt;
mod children;
mod cron_job;
mod daemon_set;
mod deployment;
mod job;
mod progress;
mod replica_set;
mod revisions;
mod rollout;
mod stateful_set;

use std::{marker::PhantomData, sync::Arc, time::Duration};

use children::Family;
pub(crate) use children::generated_name;
use portolan_controllers::{Controller, Loops, Outcome, PlaneError, plane::Found};
use portolan_store::Event;
use portolan_types::{BoxFuture, GroupResource, ObjectKey};

use crate::index::PodIndex;

/// A kind of workload, and what it does.
trait Workload: Send + Sync + 'static {
    /// Name in logs.
    const NAME: &'static str;
    /// Its group and kind, of version v1.
    const PARENT: (&'static str, &'static str);
    /// Group and kind of what it makes.
    const CHILD: (&'static str, &'static str);

    /// Brings what `parent` made to what it wants, and its status up to date. Each look may take a part of the way.
    fn step(family: &Family, parent: &Found) -> impl Future<Output = Result<Outcome, PlaneError>> + Send;
}

/// The loop of one kind of workload.
struct Loop<W> {
    family: Family,
    workload: PhantomData<W>,
}

impl<W: Workload> Controller for Loop<W> {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        W::NAME
    }

    fn resources(&self) -> Vec<GroupResource> {
        self.family.resources()
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        self.family.keys(event)
    }

    fn linger(&self, event: &Event, key: &ObjectKey) -> Duration {
        if event.key == *key { Duration::ZERO } else { self.family.linger(event) }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            match self.family.parent(key).await? {
                Some(parent) => {
                    self.family.adopt(&parent).await?;
                    W::step(&self.family, &parent).await
                }
                None => {
                    self.family.forget(key);
                    Ok(Outcome::Done)
                }
            }
        })
    }
}

fn with<W: Workload>(loops: Loops, pods: &Arc<PodIndex>) -> Loops {
    let family = Family::new(loops.plane().clone(), pods.clone(), W::PARENT, W::CHILD);
    loops.with(Loop::<W> { family, workload: PhantomData })
}

/// Adds the loops of all workloads.
pub(crate) fn add(loops: Loops, pods: &Arc<PodIndex>) -> Loops {
    let loops = with::<replica_set::ReplicaSets>(with::<deployment::Deployments>(loops, pods), pods);
    let loops = with::<replica_set::ReplicationControllers>(loops, pods);
    let loops = with::<daemon_set::DaemonSets>(with::<stateful_set::StatefulSets>(loops, pods), pods);
    with::<cron_job::CronJobs>(with::<job::Jobs>(loops, pods), pods)
}
