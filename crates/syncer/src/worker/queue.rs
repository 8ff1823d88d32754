//! Work queue of a worker, in the runtime's time.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_types::{
    LogicalClusterId, Seams,
    work::{Backoff, NextWork, WorkKey, WorkOutcome, WorkQueue},
};
use tokio::{sync::Notify, time::Instant};

use super::Work;

/// Time between two looks at a queue that is full.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Tenant of a piece of work. Tenants take turns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WorkTenant {
    /// Work for a logical cluster.
    Cluster(LogicalClusterId),
    /// Work for a downstream namespace, which belongs to one logical cluster.
    Namespace(String),
    /// Work for the worker itself.
    Worker,
}

impl WorkKey for Work {
    type Tenant = WorkTenant;

    fn tenant(&self) -> WorkTenant {
        match self {
            Self::Copy(key) => WorkTenant::Cluster(key.cluster),
            Self::Debt(debt) => WorkTenant::Cluster(debt.key.cluster),
            Self::Projection(place) | Self::Event(place) => WorkTenant::Namespace(place.namespace.clone()),
            Self::Namespace(name) | Self::NamespaceLabels(name) => WorkTenant::Namespace(name.clone()),
            Self::Debts | Self::LeftBehind => WorkTenant::Worker,
        }
    }
}

/// Result of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkResult {
    Well(WorkOutcome),
    /// Failed: it is retried with backoff, and not before this time.
    Badly {
        not_before: Option<Duration>,
    },
}

pub(super) struct WorkerQueue {
    queue: Mutex<WorkQueue<Work, Instant>>,
    changed: Notify,
}

impl WorkerQueue {
    pub(super) fn new(seams: &Seams) -> Self {
        Self { queue: Mutex::new(WorkQueue::new(Backoff::default(), seams)), changed: Notify::new() }
    }

    fn queue(&self) -> MutexGuard<'_, WorkQueue<Work, Instant>> {
        self.queue.lock().expect("no code panics under this lock")
    }

    /// Waits while the queue is longer than `limit`, which downstream events could otherwise extend without bound.
    pub(super) async fn wait_for_room(&self, limit: u64) {
        let is_full = || {
            let sizes = self.queue().sizes();
            u64::try_from(sizes.ready + sizes.delayed).unwrap_or(u64::MAX) > limit
        };
        while is_full() {
            tokio::time::sleep(FULL_PAUSE).await;
        }
    }

    /// Asks for `work` now.
    pub(super) fn add(&self, work: Work) {
        self.queue().add(work);
        self.changed.notify_one();
    }

    /// Asks for `work` after `delay`, unless it comes earlier anyway.
    pub(super) fn add_after(&self, work: Work, delay: Duration) {
        self.queue().add_at(work, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Returns the next piece of work. Give it back with [`Self::finish`].
    pub(super) async fn next(&self) -> Work {
        loop {
            let next = {
                let mut queue = self.queue();
                let next = queue.take(Instant::now());
                if queue.sizes().ready > 0 {
                    self.changed.notify_one();
                }
                next
            };
            match next {
                NextWork::Key(work) => return work,
                NextWork::At(at) => drop(tokio::time::timeout_at(at, self.changed.notified()).await),
                NextWork::Nothing => self.changed.notified().await,
            }
        }
    }

    pub(super) fn finish(&self, work: Work, ended: WorkResult) {
        let now = Instant::now();
        match ended {
            WorkResult::Well(outcome) => self.queue().finish(work, outcome, now),
            WorkResult::Badly { not_before } => self.queue().fail(work, not_before.map(|delay| now + delay), now),
        }
        self.changed.notify_one();
    }
}

/// Returns a random time between the half and the whole of `full`.
pub(super) fn jitter(seams: &Seams, full: Duration) -> Duration {
    let mut random = [0_u8; 2];
    seams.entropy.fill(&mut random);
    full.mul_f64(0.5 + f64::from(u16::from_be_bytes(random)) / 131_072.0)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_waits_for_its_time_and_its_condition() {
        let queue = WorkerQueue::new(&Seams::seeded(1, Timestamp::UNIX_EPOCH));
        let namespace = || Work::Namespace("shop".into());
        queue.add_after(namespace(), Duration::from_secs(5));
        queue.add(Work::Debts);
        assert_eq!(queue.next().await, Work::Debts);
        let start = Instant::now();
        queue.finish(Work::Debts, WorkResult::Badly { not_before: Some(Duration::from_secs(60)) });
        assert_eq!(queue.next().await, namespace());
        assert_eq!(start.elapsed().as_secs(), 5);
        queue.finish(namespace(), WorkResult::Well(WorkOutcome::Done));
        assert_eq!(queue.next().await, Work::Debts);
        assert_eq!(start.elapsed().as_secs(), 60);
    }
}
