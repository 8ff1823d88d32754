//! Who waits for which upkeep, slice by slice.

use std::collections::VecDeque;

use portolan_types::LogicalClusterId;
use tokio::sync::oneshot;

use crate::{
    StoreError,
    core::{Answer, Core},
    gate::Purpose,
    plan::Plan,
    reclaim::Reclaim,
    upkeep::Progress,
};

type Reply = oneshot::Sender<Result<(), StoreError>>;

/// Work that is done in slices between or beside other writes.
#[derive(Default)]
pub(crate) struct Chores {
    compaction: Option<u64>,
    waiting: Vec<Reply>,
    /// Follows a compaction.
    reclaim: Option<Reclaim>,
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
        self.compaction.is_none() && self.reclaim.is_none() && self.sweeps.is_empty()
    }

    /// Adds a slice to a batch, after all that it writes.
    pub(crate) fn slice(&mut self, core: &Core, plan: &mut Plan<'_>) -> Result<(), StoreError> {
        self.sweep_slice(core, plan);
        if let Some(upto) = self.compaction {
            portolan_types::failpoint!("store/compaction-slice");
            if plan.compact(core.holds.bound(upto))? == Progress::Done {
                portolan_types::failpoint!("store/compaction-planned");
                self.compaction = None;
                self.reclaim = self.reclaim.take().or_else(|| Reclaim::if_many(&core.resources));
            }
        }
        if let Some(search) = &mut self.reclaim
            && plan.reclaim(search)? == Progress::Done
        {
            self.reclaim = None;
        }
        Ok(())
    }

    /// A deletion that meets damage is put aside until the next start, and holds up nothing else.
    fn sweep_slice(&mut self, core: &Core, plan: &mut Plan<'_>) {
        let Some(cluster) = self.sweeps.front().copied() else { return };
        match plan.sweep(&core.resources, cluster) {
            Ok(Progress::More) => return,
            Ok(Progress::Done) => {}
            Err(error) => {
                tracing::error!(%cluster, %error, "objects of a deleted logical cluster cannot be removed before the next start");
            }
        }
        self.sweeps.pop_front();
    }

    /// Answers those who wait for a compaction, when it is over.
    pub(crate) fn answer(&mut self, outcome: Result<(), StoreError>) {
        if outcome.is_err() {
            (self.compaction, self.reclaim) = (None, None);
        }
        if self.compaction.is_none() && self.reclaim.is_none() {
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
