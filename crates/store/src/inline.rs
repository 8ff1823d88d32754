//! Committing without a thread.

use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, ResourceVersion};

use crate::{
    StoreError,
    chores::delete_cluster,
    core::{Answer, Core},
    gate::Purpose,
    kv::failed,
    plan::PreparedTransaction,
    reclaim::Reclaim,
    upkeep::Progress,
};

/// The committer of a store that never waits: each call commits on its own, in the caller's thread, so that a simulation
/// runs in one order.
#[derive(Default)]
pub(crate) struct Inline(Mutex<()>);

impl Inline {
    pub(crate) fn commit(&self, core: &Core, txn: PreparedTransaction) -> Answer {
        let _one = self.0.lock();
        let (mut answers, ()) = core.admit(txn.purpose())?.commit(|plan| (vec![plan.transaction(txn)], ()))?;
        answers.pop().unwrap_or_else(|| Err(StoreError::Unknown))
    }

    pub(crate) fn delete_cluster(&self, core: &Core, cluster: LogicalClusterId) -> Answer {
        let _one = self.0.lock();
        let (answer, mut progress) = delete_cluster(core, cluster);
        while progress == Progress::More {
            let admitted = core.admit(Purpose::MakeRoom)?;
            let (_, swept) = admitted.commit(|plan| (Vec::new(), plan.sweep(&core.resources, cluster)))?;
            progress = swept?;
        }
        if answer.is_ok() {
            core.damage.remove_cluster(cluster);
        }
        answer
    }

    pub(crate) fn compact(&self, core: &Core, upto: ResourceVersion) -> Result<(), StoreError> {
        let _one = self.0.lock();
        core.hub.marks().check_happened(upto.get())?;
        loop {
            let admitted = core.admit(Purpose::MakeRoom)?;
            let (_, compacted) = admitted.commit(|plan| (Vec::new(), plan.compact(core.holds.bound(upto.get()))))?;
            if compacted? == Progress::Done {
                break;
            }
        }
        let mut search = Reclaim::if_many(&core.resources);
        while let Some(unfinished) = &mut search {
            let admitted = core.admit(Purpose::MakeRoom)?;
            if admitted.commit(|plan| (Vec::new(), plan.reclaim(unfinished)))?.1? == Progress::Done {
                search = None;
            }
        }
        Ok(())
    }

    pub(crate) fn close(&self, core: &Core) {
        let _one = self.0.lock();
        core.stop(failed("the store is closed"));
        core.hub.close();
    }
}
