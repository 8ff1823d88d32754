//! Who waits for which upkeep, slice by slice.

use std::collections::VecDeque;

use portolan_types::LogicalClusterId;
use tokio::sync::oneshot;

use crate::{
    StoreError,
    core::{Answer, Core},
    gate::Purpose,
    plan::Plan,
    upkeep::Progress,
};

type Reply = oneshot::Sender<Result<(), StoreError>>;

/// Work that is done in slices between or beside other writes.
#[derive(Default)]
pub(crate) struct Chores {
    compaction: Option<u64>,
    waiting: Vec<Reply>,
    sweeps: VecDeque<LogicalClusterId>,
}

impl Chores {
    /// With the logical clusters whose deletion was not finished when the store was last open.
    pub(crate) fn resume(sweeps: Vec<LogicalClusterId>) -> Self {
        Self { sweeps: sweeps.into(), ..Self::default() }
    }

    /// Goes on with the deletions that another reading of the disk found.
    pub(crate) fn sweep_only(&mut self, sweeps: Vec<LogicalClusterId>) {
        self.sweeps = sweeps.into();
    }

    /// Adds a logical cluster whose objects are still to be removed.
    pub(crate) fn sweep(&mut self, cluster: LogicalClusterId) {
        self.sweeps.push_back(cluster);
    }

    /// Adds a compaction, which answers when it is over.
    pub(crate) fn compact(&mut self, upto: u64, reply: Reply) {
        self.compaction = self.compaction.max(Some(upto));
        self.waiting.push(reply);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.compaction.is_none() && self.sweeps.is_empty()
    }

    /// Adds a slice to a batch.
    pub(crate) fn slice(&mut self, core: &Core, plan: &mut Plan<'_>) -> Result<(), StoreError> {
        if let Some(cluster) = self.sweeps.front()
            && plan.sweep(&core.resources, *cluster)? == Progress::Done
        {
            self.sweeps.pop_front();
        }
        if let Some(upto) = self.compaction {
            portolan_types::failpoint!("store/compaction-slice");
            if plan.compact(core.holds.bound(upto))? == Progress::Done {
                portolan_types::failpoint!("store/compaction-planned");
                self.compaction = None;
            }
        }
        Ok(())
    }

    /// Answers those who wait for a compaction, when it is over.
    pub(crate) fn answer(&mut self, outcome: Result<(), StoreError>) {
        if outcome.is_err() {
            self.compaction = None;
        }
        if self.compaction.is_none() {
            for reply in self.waiting.drain(..) {
                let _ = reply.send(outcome.clone());
            }
        }
    }
}

/// Marks a logical cluster as gone, in a batch of its own, and tells whether objects of it are left.
pub(crate) fn delete_cluster(core: &Core, cluster: LogicalClusterId) -> (Answer, Progress) {
    let delete = |plan: &mut Plan<'_>| match plan.delete_cluster(&core.resources, cluster) {
        Ok((committed, progress)) => (vec![Ok(committed)], progress),
        Err(error) => (vec![Err(error)], Progress::Done),
    };
    match core.admit(Purpose::MakeRoom).and_then(|admitted| admitted.commit(delete)) {
        Ok((mut answers, progress)) => (answers.pop().unwrap_or_else(|| Err(StoreError::Unknown)), progress),
        Err(error) => (Err(error), Progress::Done),
    }
}
