//! The queue of a worker, in the runtime's own time.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_types::{
    LogicalClusterId, Seams,
    work::{Backoff, Next, Outcome, WorkKey, WorkQueue},
};
use tokio::{sync::Notify, time::Instant};

use super::Work;

/// Time between two looks at a queue that is full.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Who waits for a turn in a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Tenant {
    /// What belongs to a logical cluster.
    Cluster(LogicalClusterId),
    /// What was seen in a namespace downstream, which is of one logical cluster.
    Namespace(String),
    /// The worker itself.
    Worker,
}

impl WorkKey for Work {
    type Tenant = Tenant;

    fn tenant(&self) -> Tenant {
        match self {
            Self::Copy(key) => Tenant::Cluster(key.cluster),
            Self::Debt(debt) => Tenant::Cluster(debt.key.cluster),
            Self::Below(place) | Self::Event(place) => Tenant::Namespace(place.namespace.clone()),
            Self::Namespace(name) | Self::NamespaceLabels(name) => Tenant::Namespace(name.clone()),
            Self::Debts | Self::LeftBehind => Tenant::Worker,
        }
    }
}

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Well(Outcome),
    /// It comes again, later each time, and not before this time.
    Badly {
        not_before: Option<Duration>,
    },
}

pub(super) struct Queue {
    queue: Mutex<WorkQueue<Work, Instant>>,
    changed: Notify,
}

impl Queue {
    pub(super) fn new(seams: &Seams) -> Self {
        Self { queue: Mutex::new(WorkQueue::new(Backoff::default(), seams)), changed: Notify::new() }
    }

    fn queue(&self) -> MutexGuard<'_, WorkQueue<Work, Instant>> {
        self.queue.lock().expect("no code panics under this lock")
    }

    /// Waits while more work is asked for than `limit`, which what is seen downstream could make without end.
    pub(super) async fn room(&self, limit: u64) {
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

    /// The next piece of work. Give it back with [`Self::finish`].
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
                Next::Key(work) => return work,
                Next::At(at) => drop(tokio::time::timeout_at(at, self.changed.notified()).await),
                Next::Nothing => self.changed.notified().await,
            }
        }
    }

    pub(super) fn finish(&self, work: Work, ended: Ended) {
        let now = Instant::now();
        match ended {
            Ended::Well(outcome) => self.queue().finish(work, outcome, now),
            Ended::Badly { not_before } => self.queue().fail(work, not_before.map(|delay| now + delay), now),
        }
        self.changed.notify_one();
    }
}

/// A random time between the half and the whole of `full`.
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
    async fn work_waits_for_its_time_and_for_what_it_was_told() {
        let queue = Queue::new(&Seams::seeded(1, Timestamp::UNIX_EPOCH));
        let namespace = || Work::Namespace("shop".into());
        queue.add_after(namespace(), Duration::from_secs(5));
        queue.add(Work::Debts);
        assert_eq!(queue.next().await, Work::Debts);
        let start = Instant::now();
        queue.finish(Work::Debts, Ended::Badly { not_before: Some(Duration::from_secs(60)) });
        assert_eq!(queue.next().await, namespace());
        assert_eq!(start.elapsed().as_secs(), 5);
        queue.finish(namespace(), Ended::Well(Outcome::Done));
        assert_eq!(queue.next().await, Work::Debts);
        assert_eq!(start.elapsed().as_secs(), 60);
    }
}
