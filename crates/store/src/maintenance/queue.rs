//! Queue of maintenance work that the committer does in slices: compaction, sweeps of deleted logical clusters, links
//! of accounts.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use portolan_types::{LogicalClusterId, MonotonicInstant};
use tokio::sync::oneshot;

use crate::{
    api::StoreError,
    engine::guard::guarded,
    maintenance::{SliceProgress, resource_ids::ResourceIdReclaim},
    read::state::backend,
    write::{
        accounts::PendingLinks,
        core::{CommitResult, StoreCore},
        gate::WritePurpose,
        plan::BatchPlan,
        transaction::PreparedTransaction,
    },
};

type Reply = oneshot::Sender<Result<(), StoreError>>;

/// Backoff after a failed sweep: the first one, doubled each time, and the longest one.
const SWEEP_RETRY: (Duration, Duration) = if cfg!(test) {
    (Duration::from_millis(1), Duration::from_millis(10))
} else {
    (Duration::from_secs(1), Duration::from_secs(300))
};

/// Deleted logical cluster whose objects are being removed.
struct PendingSweep {
    cluster: LogicalClusterId,
    /// Backoff after the next failure.
    backoff: Duration,
}

impl PendingSweep {
    fn of(cluster: LogicalClusterId) -> Self {
        Self { cluster, backoff: SWEEP_RETRY.0 }
    }

    /// Returns the time of the next try after a failure, and the sweep with a doubled backoff.
    fn defer(self, now: MonotonicInstant) -> (MonotonicInstant, Self) {
        (now + self.backoff, Self { backoff: (self.backoff * 2).min(SWEEP_RETRY.1), ..self })
    }
}

/// Maintenance work, done in slices between or within batches of writes. The present time is an argument of each
/// method.
#[derive(Default)]
pub(crate) struct MaintenanceQueue {
    /// Revision up to which history is compacted.
    compaction: Option<u64>,
    /// Bytes of superseded objects down to which history is compacted.
    shrink: Option<u64>,
    links: Arc<PendingLinks>,
    waiting: Vec<Reply>,
    /// Search that follows a compaction.
    reclaim: Option<ResourceIdReclaim>,
    sweeps: VecDeque<PendingSweep>,
    /// Failed sweeps, and the times of their next tries.
    deferred: Vec<(MonotonicInstant, PendingSweep)>,
}

impl MaintenanceQueue {
    /// Creates a queue with the logical clusters whose sweep was not finished when the store was last open.
    pub(crate) fn resume(sweeps: Vec<LogicalClusterId>, links: Arc<PendingLinks>) -> Self {
        Self { sweeps: sweeps.into_iter().map(PendingSweep::of).collect(), links, ..Self::default() }
    }

    /// Replaces the sweeps by those that the recovered store has.
    pub(crate) fn sweep_only(&mut self, sweeps: Vec<LogicalClusterId>) {
        self.sweeps = sweeps.into_iter().map(PendingSweep::of).collect();
        self.deferred.clear();
    }

    /// Adds a sweep, unless it is queued or deferred already.
    pub(crate) fn sweep(&mut self, cluster: LogicalClusterId) {
        let mut known = self.sweeps.iter().chain(self.deferred.iter().map(|(_, sweep)| sweep));
        if known.all(|sweep| sweep.cluster != cluster) {
            self.sweeps.push_back(PendingSweep::of(cluster));
        }
    }

    /// Adds a compaction up to a revision; it is answered at its end.
    pub(crate) fn compact(&mut self, upto: u64, reply: Reply) {
        self.compaction = self.compaction.max(Some(upto));
        self.waiting.push(reply);
    }

    /// Adds a compaction down to `most` bytes of superseded objects; it is answered at its end.
    pub(crate) fn shrink_history(&mut self, most: u64, reply: Reply) {
        self.shrink = Some(self.shrink.map_or(most, |shrink| shrink.min(most)));
        self.waiting.push(reply);
    }

    /// Adds a compaction of all history, without an answer.
    pub(crate) fn compact_all(&mut self) {
        self.shrink = Some(0);
    }

    /// Returns true while history is compacted down to a number of bytes.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.shrink.is_some()
    }

    /// Returns true if there is nothing to do now.
    pub(crate) fn is_idle(&self, now: MonotonicInstant) -> bool {
        self.compaction.is_none()
            && self.shrink.is_none()
            && self.links.is_empty()
            && self.reclaim.is_none()
            && self.sweeps.is_empty()
            && self.next_due(now).is_none_or(|rest| !rest.is_zero())
    }

    /// Returns the time until the next deferred sweep is due, if there is any.
    pub(crate) fn next_due(&self, now: MonotonicInstant) -> Option<Duration> {
        let first = self.deferred.iter().map(|(until, _)| *until).min()?;
        Some(first.saturating_duration_since(now))
    }

    /// Defers all sweeps as if they had failed: no batch can be planned.
    pub(crate) fn defer_all(&mut self, now: MonotonicInstant) {
        self.resume_due(now);
        self.deferred.extend(self.sweeps.drain(..).map(|sweep| sweep.defer(now)));
    }

    /// Queues the deferred sweeps that are due.
    fn resume_due(&mut self, now: MonotonicInstant) {
        self.sweeps.extend(self.deferred.extract_if(.., |(until, _)| *until <= now).map(|(_, sweep)| sweep));
    }

    /// Adds a slice of the work to a batch, after all transactions.
    pub(crate) fn plan_slice(
        &mut self,
        core: &StoreCore,
        plan: &mut BatchPlan<'_>,
        now: MonotonicInstant,
    ) -> Result<(), StoreError> {
        self.sweep_slice(core, plan, now);
        if let Some(upto) = self.compaction {
            portolan_types::failpoint!("store/compaction-slice");
            if plan.compact(core.holds.bound(upto))? == SliceProgress::Done {
                portolan_types::failpoint!("store/compaction-planned");
                self.compaction = None;
                self.reclaim = self.reclaim.take().or_else(|| ResourceIdReclaim::if_many(&core.resources));
            }
        }
        self.shrink_slice(core, plan)?;
        let links = self.links.take();
        if !links.is_empty() {
            plan.transaction(PreparedTransaction::linking(links))?;
        }
        if let Some(search) = &mut self.reclaim
            && plan.reclaim(search)? == SliceProgress::Done
        {
            self.reclaim = None;
        }
        Ok(())
    }

    /// Compacts a slice of the history if it has more bytes than the disk has space for, or than was requested.
    fn shrink_slice(&mut self, core: &StoreCore, plan: &mut BatchPlan<'_>) -> Result<(), StoreError> {
        let room = core.room.history_budget(core.gate.is_short_of_room());
        if plan.superseded() > room.most {
            // A quarter less, so that not every batch compacts.
            let most = room.most / 4 * 3;
            self.shrink = Some(self.shrink.map_or(most, |shrink| shrink.min(most)));
        }
        let Some(most) = self.shrink else { return Ok(()) };
        let upto = if room.ends_holds(plan.superseded()) { u64::MAX } else { core.holds.bound(u64::MAX) };
        if plan.compact_to(most, upto)? == SliceProgress::Done {
            self.shrink = None;
            self.reclaim = self.reclaim.take().or_else(|| ResourceIdReclaim::if_many(&core.resources));
        }
        Ok(())
    }

    /// Sweeps a slice of a logical cluster. A failed sweep is deferred and delays nothing else.
    fn sweep_slice(&mut self, core: &StoreCore, plan: &mut BatchPlan<'_>, now: MonotonicInstant) {
        self.resume_due(now);
        let Some(sweep) = self.sweeps.pop_front() else { return };
        match plan_sweep(core, plan, sweep.cluster) {
            Ok(SliceProgress::More) => self.sweeps.push_front(PendingSweep::of(sweep.cluster)),
            Ok(SliceProgress::Done) => core.damage.remove_cluster(sweep.cluster),
            Err(error) => {
                let (cluster, again) = (sweep.cluster, sweep.backoff);
                tracing::error!(%cluster, %error, ?again, "the sweep of a deleted logical cluster failed; retrying");
                self.deferred.push(sweep.defer(now));
            }
        }
    }

    /// Answers the waiting compactions, if they have ended or failed.
    pub(crate) fn answer(&mut self, outcome: Result<(), StoreError>) {
        if outcome.is_err() {
            (self.compaction, self.shrink, self.reclaim) = (None, None, None);
        }
        if self.compaction.is_none() && self.shrink.is_none() && self.reclaim.is_none() {
            for reply in self.waiting.drain(..) {
                let _ = reply.send(outcome.clone());
            }
        }
    }
}

/// Plans a slice of a sweep. A panic of the engine on a damaged file counts as a failure: nothing is planned before the
/// whole slice has been read.
fn plan_sweep(
    core: &StoreCore,
    plan: &mut BatchPlan<'_>,
    cluster: LogicalClusterId,
) -> Result<SliceProgress, StoreError> {
    guarded("reading the store", "its files are", || Ok(plan.sweep(&core.resources, cluster))).map_err(backend)?
}

/// Marks a logical cluster as deleted, in a batch of its own, and returns whether objects are left to sweep.
pub(crate) fn delete_cluster(core: &StoreCore, cluster: LogicalClusterId) -> (CommitResult, SliceProgress) {
    let delete = |plan: &mut BatchPlan<'_>| match plan.delete_cluster(&core.resources, cluster) {
        Ok((committed, progress)) => (vec![Ok(committed)], progress),
        Err(error) => (vec![Err(error)], SliceProgress::Done),
    };
    match core.admit(WritePurpose::MakeRoom).and_then(|admitted| admitted.commit(delete)) {
        Ok((mut answers, progress)) => (answers.pop().unwrap_or_else(|| Err(StoreError::Unknown)), progress),
        Err(error) => (Err(error), SliceProgress::Done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deferred_sweep_waits_longer_each_time() {
        let mut chores =
            MaintenanceQueue::resume(vec![LogicalClusterId::new(7), LogicalClusterId::new(8)], Arc::default());
        let (mut now, mut waits) = (MonotonicInstant::now(), Vec::new());
        for _ in 0..6 {
            assert!(!chores.is_idle(now));
            chores.defer_all(now);
            assert!(chores.is_idle(now), "nothing is due yet");
            let rest = chores.next_due(now).unwrap();
            assert!(chores.is_idle(now + (rest - Duration::from_nanos(1))));
            waits.push(rest);
            now = now + rest;
        }
        let doubled = |n: u32| (SWEEP_RETRY.0 * 2_u32.pow(n)).min(SWEEP_RETRY.1);
        assert_eq!(waits, (0..6).map(doubled).collect::<Vec<_>>());
        assert_eq!(chores.deferred.len(), 2, "no sweep is lost");
        chores.sweep(LogicalClusterId::new(7));
        assert_eq!(chores.sweeps.len(), 0, "no sweep is queued twice");
        chores.sweep(LogicalClusterId::new(9));
        assert!(!chores.is_idle(now), "a new sweep is due at once");
    }
}
