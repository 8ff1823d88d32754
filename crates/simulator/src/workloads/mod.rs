//! What kube-controller-manager does for workloads.

mod children;
mod cron_job;
mod daemon_set;
mod deployment;
mod job;
mod replica_set;
mod rollout;
mod stateful_set;

use std::sync::Arc;

use portolan_controllers::{Plane, run};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Starts all workload loops.
pub(crate) fn spawn_all(plane: &Arc<Plane>, shutdown: &CancellationToken, tasks: &mut JoinSet<()>) {
    tasks.spawn(run(plane.clone(), deployment::Deployments::new(plane.clone()), shutdown.clone()));
    tasks.spawn(run(plane.clone(), replica_set::ReplicaSets::new(plane.clone()), shutdown.clone()));
    tasks.spawn(run(plane.clone(), stateful_set::StatefulSets::new(plane.clone()), shutdown.clone()));
    tasks.spawn(run(plane.clone(), daemon_set::DaemonSets::new(plane.clone()), shutdown.clone()));
    tasks.spawn(run(plane.clone(), job::Jobs::new(plane.clone()), shutdown.clone()));
    tasks.spawn(run(plane.clone(), cron_job::CronJobs::new(plane.clone()), shutdown.clone()));
}
