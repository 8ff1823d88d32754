//! Who waits for which upkeep, slice by slice.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use portolan_types::LogicalClusterId;
use tokio::sync::oneshot;

use crate::{
    StoreError,
    core::{Answer, Core},
    gate::Purpose,
    kv::guard::guarded,
    plan::Plan,
    read::backend,
    reclaim::Reclaim,
    upkeep::Progress,
};

type Reply = oneshot::Sender<Result<(), StoreError>>;

/// After how long a deletion that failed is tried again, at first and at most; each time after twice as long.
const AGAIN: (Duration, Duration) = match cfg!(test) {
    true => (Duration::from_millis(1), Duration::from_millis(10)),
    false => (Duration::from_secs(1), Duration::from_secs(300)),
};

/// A logical cluster whose objects are being removed.
struct Sweep {
    cluster: LogicalClusterId,
    /// How long it is put aside for should it fail.
    patience: Duration,
}

impl Sweep {
    fn of(cluster: LogicalClusterId) -> Self {
        Self { cluster, patience: AGAIN.0 }
    }

    /// Until when it waits after a failure; should it fail again, twice as long.
    fn put_aside(self, now: Instant) -> (Instant, Self) {
        (now + self.patience, Self { patience: (self.patience * 2).min(AGAIN.1), ..self })
    }
}

/// Work that is done in slices between or beside other writes. Time comes in with each question.
#[derive(Default)]
pub(crate) struct Chores {
    compaction: Option<u64>,
    waiting: Vec<Reply>,
    /// Follows a compaction.
    reclaim: Option<Reclaim>,
    sweeps: VecDeque<Sweep>,
    /// Those that failed, and until when they wait.
    aside: Vec<(Instant, Sweep)>,
}

impl Chores {
    /// With the logical clusters whose deletion was not finished when the store was last open.
    pub(crate) fn resume(sweeps: Vec<LogicalClusterId>) -> Self {
        Self { sweeps: sweeps.into_iter().map(Sweep::of).collect(), ..Self::default() }
    }

    /// Goes on with the deletions that another reading of the disk found.
    pub(crate) fn sweep_only(&mut self, sweeps: Vec<LogicalClusterId>) {
        self.sweeps = sweeps.into_iter().map(Sweep::of).collect();
        self.aside.clear();
    }

    /// Adds a logical cluster whose objects are still to be removed, unless it is known: also one that waits after a failure.
    pub(crate) fn sweep(&mut self, cluster: LogicalClusterId) {
        let mut known = self.sweeps.iter().chain(self.aside.iter().map(|(_, sweep)| sweep));
        if known.all(|sweep| sweep.cluster != cluster) {
            self.sweeps.push_back(Sweep::of(cluster));
        }
    }

    /// Adds a compaction, which answers when it is over.
    pub(crate) fn compact(&mut self, upto: u64, reply: Reply) {
        self.compaction = self.compaction.max(Some(upto));
        self.waiting.push(reply);
    }

    /// Whether nothing is to be done now.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.compaction.is_none()
            && self.reclaim.is_none()
            && self.sweeps.is_empty()
            && self.rest(now).is_none_or(|rest| !rest.is_zero())
    }

    /// How long it takes until something that was put aside is to be tried again, if anything is.
    pub(crate) fn rest(&self, now: Instant) -> Option<Duration> {
        let first = self.aside.iter().map(|(until, _)| *until).min()?;
        Some(first.saturating_duration_since(now))
    }

    /// No batch can be planned, so that nothing can be removed either: all deletions wait as if they had failed.
    pub(crate) fn put_off(&mut self, now: Instant) {
        self.take_up(now);
        self.aside.extend(self.sweeps.drain(..).map(|sweep| sweep.put_aside(now)));
    }

    /// What has waited long enough is to be tried again.
    fn take_up(&mut self, now: Instant) {
        self.sweeps.extend(self.aside.extract_if(.., |(until, _)| *until <= now).map(|(_, sweep)| sweep));
    }

    /// Adds a slice to a batch, after all that it writes.
    pub(crate) fn slice(&mut self, core: &Core, plan: &mut Plan<'_>, now: Instant) -> Result<(), StoreError> {
        self.sweep_slice(core, plan, now);
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

    /// A deletion that fails is put aside for a while, and holds up nothing else.
    fn sweep_slice(&mut self, core: &Core, plan: &mut Plan<'_>, now: Instant) {
        self.take_up(now);
        let Some(sweep) = self.sweeps.pop_front() else { return };
        match swept(core, plan, sweep.cluster) {
            Ok(Progress::More) => self.sweeps.push_front(Sweep::of(sweep.cluster)),
            Ok(Progress::Done) => core.damage.remove_cluster(sweep.cluster),
            Err(error) => {
                let (cluster, again) = (sweep.cluster, sweep.patience);
                tracing::error!(%cluster, %error, ?again, "objects of a deleted logical cluster cannot be removed now");
                self.aside.push(sweep.put_aside(now));
            }
        }
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

/// Removes a slice of the objects of a logical cluster. An engine that panics on a damaged file has failed: nothing is planned
/// before all of the slice has been read.
fn swept(core: &Core, plan: &mut Plan<'_>, cluster: LogicalClusterId) -> Result<Progress, StoreError> {
    guarded("reading the store", "its files are", || Ok(plan.sweep(&core.resources, cluster))).map_err(backend)?
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_off_waits_longer_each_time_and_is_never_tried_without_a_pause() {
        let mut chores = Chores::resume(vec![LogicalClusterId::new(7), LogicalClusterId::new(8)]);
        let (mut now, mut waits) = (Instant::now(), Vec::new());
        for _ in 0..6 {
            assert!(!chores.is_idle(now));
            chores.put_off(now);
            assert!(chores.is_idle(now), "nothing is to be done before its time");
            let rest = chores.rest(now).unwrap();
            assert!(chores.is_idle(now + rest - Duration::from_nanos(1)));
            waits.push(rest);
            now += rest;
        }
        let doubled = |n: u32| (AGAIN.0 * 2_u32.pow(n)).min(AGAIN.1);
        assert_eq!(waits, (0..6).map(doubled).collect::<Vec<_>>());
        assert_eq!(chores.aside.len(), 2, "none is forgotten");
        chores.sweep(LogicalClusterId::new(7));
        assert_eq!(chores.sweeps.len(), 0, "nor known twice");
        chores.sweep(LogicalClusterId::new(9));
        assert!(!chores.is_idle(now), "what is new need not wait");
    }
}
