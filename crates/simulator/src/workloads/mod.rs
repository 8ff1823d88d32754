//! Workload controllers of a simulated cluster, one file per kind. They act as those of kube-controller-manager.

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

use children::ChildKinds;
pub(crate) use children::generated_name;
use portolan_controllers::{Controller, Loops, PlaneError, WorkOutcome, plane::PlaneObject};
use portolan_store::Event;
use portolan_types::{BoxFuture, GroupResource, ObjectKey};

use crate::index::PodIndex;

/// A workload kind, and its reconciliation.
trait SimulatedWorkload: Send + Sync + 'static {
    /// Name in logs.
    const NAME: &'static str;
    /// Its group and kind, of version v1.
    const PARENT: (&'static str, &'static str);
    /// Group and kind of its children.
    const CHILD: (&'static str, &'static str);

    /// Reconciles the objects of `parent` and its status. Each call may do a part of the work.
    fn step(family: &ChildKinds, parent: &PlaneObject) -> impl Future<Output = Result<WorkOutcome, PlaneError>> + Send;
}

/// The loop of one kind of workload.
struct WorkloadLoop<W> {
    family: ChildKinds,
    workload: PhantomData<W>,
}

impl<W: SimulatedWorkload> Controller for WorkloadLoop<W> {
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

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            match self.family.parent(key).await? {
                Some(parent) => {
                    self.family.adopt(&parent).await?;
                    W::step(&self.family, &parent).await
                }
                None => {
                    self.family.forget(key);
                    Ok(WorkOutcome::Done)
                }
            }
        })
    }
}

fn with<W: SimulatedWorkload>(loops: Loops, pods: &Arc<PodIndex>) -> Loops {
    let family = ChildKinds::new(loops.plane().clone(), pods.clone(), W::PARENT, W::CHILD);
    loops.with(WorkloadLoop::<W> { family, workload: PhantomData })
}

/// Adds the loops of all workloads.
pub(crate) fn add(loops: Loops, pods: &Arc<PodIndex>) -> Loops {
    let loops = with::<replica_set::ReplicaSets>(with::<deployment::Deployments>(loops, pods), pods);
    let loops = with::<replica_set::ReplicationControllers>(loops, pods);
    let loops = with::<daemon_set::DaemonSets>(with::<stateful_set::StatefulSets>(loops, pods), pods);
    with::<cron_job::CronJobs>(with::<job::Jobs>(loops, pods), pods)
}
