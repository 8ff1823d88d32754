//! How long the expressions of one call may keep threads that others wait for.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// What all brief evaluations of a call may take together, in microseconds.
const MOST: u64 = 10_000;
/// After so many microseconds others have their turn.
const A_MOMENT: u64 = 500;

/// What the brief evaluations of a call have taken so far, in microseconds.
#[derive(Default)]
pub(crate) struct Brief(AtomicU64);

impl Brief {
    /// Whether there is time for another one.
    pub(super) fn is_left(&self) -> bool {
        self.0.load(Ordering::Relaxed) < MOST
    }

    /// Notes what one has taken, and whether others must have their turn now.
    pub(super) fn spend(&self, taken: Duration) -> bool {
        // What is too short to be measured is counted nevertheless.
        let taken = u64::try_from(taken.as_micros()).unwrap_or(MOST).clamp(1, MOST);
        let before = self.0.fetch_add(taken, Ordering::Relaxed);
        before / A_MOMENT != (before + taken) / A_MOMENT
    }
}
