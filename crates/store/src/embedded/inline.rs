//! Committer without a thread.

use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, ResourceVersion};

use crate::{
    api::StoreError,
    engine::failed,
    maintenance::{SliceProgress, queue::delete_cluster, resource_ids::ResourceIdReclaim},
    write::{
        accounts::PendingLinks,
        core::{CommitResult, StoreCore},
        gate::WritePurpose,
        transaction::PreparedTransaction,
    },
};

/// Committer of a store that never waits. Each call commits in the caller's thread, so that a simulation runs in a
/// deterministic order.
#[derive(Default)]
pub(crate) struct InlineCommitter(Mutex<()>);

impl InlineCommitter {
    pub(crate) fn commit(&self, core: &StoreCore, txn: PreparedTransaction) -> CommitResult {
        let _one = self.0.lock();
        let (mut answers, ()) = core.admit(txn.purpose())?.commit(|plan| (vec![plan.transaction(txn)], ()))?;
        answers.pop().unwrap_or_else(|| Err(StoreError::Unknown))
    }

    pub(crate) fn delete_cluster(&self, core: &StoreCore, cluster: LogicalClusterId) -> CommitResult {
        let _one = self.0.lock();
        let (answer, mut progress) = delete_cluster(core, cluster);
        while progress == SliceProgress::More {
            let admitted = core.admit(WritePurpose::MakeRoom)?;
            let (_, swept) = admitted.commit(|plan| (Vec::new(), plan.sweep(&core.resources, cluster)))?;
            progress = swept?;
        }
        if answer.is_ok() {
            core.damage.remove_cluster(cluster);
        }
        answer
    }

    pub(crate) fn compact(&self, core: &StoreCore, upto: ResourceVersion) -> Result<(), StoreError> {
        let _one = self.0.lock();
        core.hub.marks().check_happened(upto.get())?;
        loop {
            let admitted = core.admit(WritePurpose::MakeRoom)?;
            let (_, compacted) = admitted.commit(|plan| (Vec::new(), plan.compact(core.holds.bound(upto.get()))))?;
            if compacted? == SliceProgress::Done {
                break;
            }
        }
        Self::reclaim(core)
    }

    /// Compacts down to so many bytes of superseded objects.
    pub(crate) fn shrink_history(&self, core: &StoreCore, most: u64) -> Result<(), StoreError> {
        let _one = self.0.lock();
        loop {
            let (admitted, upto) = (core.admit(WritePurpose::MakeRoom)?, core.holds.bound(u64::MAX));
            let (_, compacted) = admitted.commit(|plan| (Vec::new(), plan.compact_to(most, upto)))?;
            if compacted? == SliceProgress::Done {
                return Self::reclaim(core);
            }
        }
    }

    /// Links a logical cluster to its parent.
    pub(crate) fn link(&self, core: &StoreCore, cluster: LogicalClusterId, parent: LogicalClusterId) {
        let links = PendingLinks::default();
        links.add(cluster, parent);
        if let Err(error) = self.commit(core, PreparedTransaction::linking(links.take())) {
            tracing::warn!(%cluster, %error, "a logical cluster is not counted for its parent before its next write");
        }
    }

    fn reclaim(core: &StoreCore) -> Result<(), StoreError> {
        let mut search = ResourceIdReclaim::if_many(&core.resources);
        while let Some(unfinished) = &mut search {
            let admitted = core.admit(WritePurpose::MakeRoom)?;
            if admitted.commit(|plan| (Vec::new(), plan.reclaim(unfinished)))?.1? == SliceProgress::Done {
                search = None;
            }
        }
        Ok(())
    }

    pub(crate) fn close(&self, core: &StoreCore) {
        let _one = self.0.lock();
        core.stop(failed("the store is closed"));
        core.hub.close();
    }
}
