//! Backoff of repeated creations and repairs: another downstream writer deletes or changes the object each time.

use std::{collections::HashMap, time::Duration};

use portolan_types::ObjectKey;
use tokio::time::Instant;

use super::{Work, Worker};

/// Copies of one object that are made again without a wait.
const FREE: u32 = 3;
/// First wait after those, doubled with each further copy.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// After so long a stay the next copy is made without a wait again.
const STAYED: Duration = Duration::from_secs(600);

/// Recreations of one object's copies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RecreationBackoff {
    last: Instant,
    in_a_row: u32,
}

impl RecreationBackoff {
    fn next(before: Option<Self>, now: Instant) -> Self {
        let in_a_row = before.filter(|before| now - before.last < STAYED).map_or(0, |before| before.in_a_row);
        Self { last: now, in_a_row: in_a_row.saturating_add(1) }
    }

    /// Pause before the next copy.
    fn wait(self, now: Instant) -> Option<Duration> {
        let doubled = self.in_a_row.checked_sub(FREE)?.min(16);
        let wait = FIRST_WAIT.saturating_mul(1 << doubled).min(LONGEST_WAIT);
        wait.checked_sub(now - self.last).filter(|rest| !rest.is_zero())
    }
}

/// Maximum number of remembered repairs. Beyond it, those of objects that have stayed unchanged since are forgotten.
const MAX_REPAIRS: usize = 10_000;

/// Repairs of foreign downstream changes, each with its wanted state. Another wanted state resets the backoff.
#[derive(Default)]
pub(super) struct RepairBackoffs(HashMap<Work, (String, RecreationBackoff)>);

impl RepairBackoffs {
    fn backoff_of(&self, work: &Work, wanted: &str) -> Option<RecreationBackoff> {
        self.0.get(work).filter(|(before, _)| before == wanted).map(|(_, repairs)| *repairs)
    }

    fn note(&mut self, work: Work, wanted: String, now: Instant) {
        let next = RecreationBackoff::next(self.backoff_of(&work, &wanted), now);
        self.0.insert(work, (wanted, next));
        if self.0.len() > MAX_REPAIRS {
            self.0.retain(|_, (_, repairs)| now - repairs.last < STAYED);
        }
    }
}

impl Worker {
    /// Returns the backoff of the next repair.
    pub(super) fn repair_wait(&self, work: &Work, wanted: &str) -> Option<Duration> {
        self.state().repairs.backoff_of(work, wanted)?.wait(Instant::now())
    }

    /// Records a repair by `work`, which writes the state `wanted`.
    pub(super) fn record_repair(&self, work: Work, wanted: String) {
        self.state().repairs.note(work, wanted, Instant::now());
    }

    /// Returns the backoff of the next creation of an object's copy.
    pub(super) fn recreation_wait(&self, key: &ObjectKey) -> Option<Duration> {
        let mut recreation = None;
        self.state().known_trouble(key, |trouble| recreation = trouble.recreation);
        recreation?.wait(Instant::now())
    }

    /// Records that a copy was created. A copy that was reported before existed already.
    pub(super) fn record_creation(&self, key: &ObjectKey) {
        let mut state = self.state();
        if state.reported.contains_key(key) {
            let now = Instant::now();
            state.trouble(key, |trouble| trouble.recreation = Some(RecreationBackoff::next(trouble.recreation, now)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_copy_that_goes_each_time_is_made_less_and_less_often() {
        let (mut recreation, mut waits) = (None, Vec::new());
        for _ in 0..12 {
            let wait = recreation.and_then(|known: RecreationBackoff| known.wait(Instant::now())).unwrap_or_default();
            tokio::time::advance(wait).await;
            waits.push(wait.as_secs());
            recreation = Some(RecreationBackoff::next(recreation, Instant::now()));
        }
        assert_eq!(waits, [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        tokio::time::advance(STAYED).await;
        let stayed = RecreationBackoff::next(recreation, Instant::now());
        assert_eq!(stayed.wait(Instant::now()), None, "it had stayed for long");
    }
}
