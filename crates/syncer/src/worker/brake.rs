//! Stops deletions that come in masses without firm proof: something is wrong with what is read then.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(60);
/// Deletions per window that are always let through.
const ALWAYS: usize = 10;
/// Percent of all copies per window that are let through.
const PERCENT: usize = 5;

/// Counts weakly proven deletions. Once it has stopped them it stays so until somebody lets a number of them go.
#[derive(Debug, Default)]
pub(crate) struct Brake {
    recent: VecDeque<Instant>,
    is_held: bool,
    /// Deletions that somebody has let go, and that did not happen yet.
    released: usize,
}

impl Brake {
    /// Held from the start when the one before it was.
    pub(crate) fn new(is_held: bool) -> Self {
        Self { is_held, ..Self::default() }
    }

    /// Whether one more deletion may happen, of `copies` on the physical cluster.
    pub(crate) fn allows(&mut self, copies: usize) -> bool {
        if self.released > 0 {
            self.released -= 1;
            return true;
        }
        let now = Instant::now();
        while self.recent.front().is_some_and(|at| now.duration_since(*at) > WINDOW) {
            self.recent.pop_front();
        }
        let limit = ALWAYS.max(copies * PERCENT / 100);
        self.is_held |= self.recent.len() >= limit;
        if !self.is_held {
            self.recent.push_back(now);
        }
        !self.is_held
    }

    /// Lets `count` deletions go, and those after them as if none had been held.
    pub(crate) fn release(&mut self, count: usize) {
        *self = Self { released: count, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn masses_are_stopped_until_somebody_lets_go() {
        for (case, copies, expected) in [("few objects", 100, 10), ("many objects", 1000, 50)] {
            let mut brake = Brake::default();
            let allowed = |brake: &mut Brake| (0..copies).filter(|_| brake.allows(copies)).count();
            assert_eq!(allowed(&mut brake), expected, "{case}");
            tokio::time::advance(Duration::from_secs(3600)).await;
            assert_eq!(allowed(&mut brake), 0, "{case}: time alone does not release it");
            brake.release(20);
            assert_eq!(allowed(&mut brake), 20 + expected, "{case}: what was let go, and what always goes");
            brake.release(0);
            assert!(brake.allows(copies), "{case}");
        }
        let mut slow = Brake::default();
        for _ in 0..100 {
            assert!(slow.allows(0), "a few at a time are no mass");
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        assert!(!Brake::new(true).allows(1000), "a new worker goes on where the last one was stopped");
    }
}
