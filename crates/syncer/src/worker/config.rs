//! Configuration of a worker.

use std::{sync::Arc, time::Duration};

use portolan_types::{LogicalClusterId, Uid, placement::PhysicalClusterSpec};

use super::{SyncLimits, TaskWrapper};
use crate::SyncMemoryBudget;

/// Configuration of one worker.
#[derive(Clone, Debug)]
pub struct SyncerConfig {
    /// Name of the `PhysicalCluster`.
    pub name: String,
    /// Uid of the `PhysicalCluster`.
    pub uid: Uid,
    /// Spec of the `PhysicalCluster`. After a change, a new worker is started.
    pub spec: PhysicalClusterSpec,
    /// Counts the workers of this physical cluster, from the lease: greater than any before.
    pub syncer_epoch: u64,
    /// Pieces of work at a time.
    pub concurrency: usize,
    /// Deadline of one request downstream.
    pub request_timeout: Duration,
    /// Time between two looks at the health of the physical cluster.
    pub heartbeat: Duration,
    /// Time without an answer after which copies count as unreachable.
    pub unreachable_after: Duration,
    /// Time without an answer after which deletions become debts.
    pub deletion_timeout: Duration,
    /// Time that an empty downstream namespace stays.
    pub namespace_linger: Duration,
    /// Weakly proven deletions were stopped when the last worker ended; they stay stopped until an administrator
    /// releases them.
    pub deletions_held: bool,
    /// Limits of the cache of the physical cluster.
    pub limits: SyncLimits,
    /// Budget of memory that the objects of all physical clusters share.
    pub memory: Arc<SyncMemoryBudget>,
    /// Workspace whose share of the budget is used: the topmost one below root that the `PhysicalCluster` is registered
    /// in or under.
    pub workspace: LogicalClusterId,
    /// Wrapper of the tasks of the worker.
    pub tasks: TaskWrapper,
}

impl SyncerConfig {
    /// With the usual times: requests 15 s, heartbeat 10 s, unreachable after 40 s, debts after 5 min, namespaces
    /// linger 5 s.
    pub fn new(name: impl Into<String>, uid: Uid, spec: PhysicalClusterSpec, syncer_epoch: u64) -> Self {
        Self {
            name: name.into(),
            uid,
            spec,
            syncer_epoch,
            concurrency: 8,
            request_timeout: Duration::from_secs(15),
            heartbeat: Duration::from_secs(10),
            unreachable_after: Duration::from_secs(40),
            deletion_timeout: Duration::from_secs(300),
            namespace_linger: Duration::from_secs(5),
            deletions_held: false,
            limits: SyncLimits::default(),
            memory: Arc::default(),
            workspace: LogicalClusterId::ROOT,
            tasks: TaskWrapper::default(),
        }
    }
}
