//! Brake on mass deletions without firm proof, which hint at wrong reads.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(60);
/// Deletions per window that are always let through.
const ALWAYS: usize = 10;
/// Percent of all copies per window that are let through.
const PERCENT: usize = 5;

/// Counter of weakly proven deletions. Once it has stopped them, they stay stopped until an administrator releases all
/// of them.
#[derive(Debug, Default)]
pub(crate) struct DeletionBrake {
    recent: VecDeque<Instant>,
    is_held: bool,
    released: Option<ReleasedDeletions>,
}

/// Deletions that were released and have not happened yet.
#[derive(Clone, Copy, Debug)]
struct ReleasedDeletions {
    left: usize,
    at: Instant,
}

impl DeletionBrake {
    /// Held from the start when the one before it was.
    pub(crate) fn new(is_held: bool) -> Self {
        Self { is_held, ..Self::default() }
    }

    /// Returns true when one more of `copies` on the physical cluster may be deleted, and counts it.
    pub(crate) fn allows(&mut self, copies: usize) -> bool {
        let now = Instant::now();
        let is_recent = |at: Instant| now.duration_since(at) <= WINDOW;
        while self.recent.front().is_some_and(|at| !is_recent(*at)) {
            self.recent.pop_front();
        }
        self.released = self.released.filter(|release| release.left > 0 && is_recent(release.at));
        match &mut self.released {
            Some(release) => release.left -= 1,
            None => self.is_held |= self.recent.len() >= ALWAYS.max(copies * PERCENT / 100),
        }
        let is_allowed = self.released.is_some() || !self.is_held;
        if is_allowed {
            self.recent.push_back(now);
        }
        is_allowed
    }

    /// Permits `count` of the `held` deletions within the window. They count as all deletions do, so that no others
    /// come on top of them.
    pub(crate) fn release(&mut self, count: usize, held: usize) {
        self.released = Some(ReleasedDeletions { left: count.min(held), at: Instant::now() });
        self.is_held &= count < held || held == 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn mass_deletions_are_held_until_an_administrator_releases_them() {
        for (case, copies, expected) in [("few objects", 100, 10), ("many objects", 1000, 50)] {
            let mut brake = DeletionBrake::default();
            let allowed = |brake: &mut DeletionBrake| (0..copies).filter(|_| brake.allows(copies)).count();
            assert_eq!(allowed(&mut brake), expected, "{case}");
            tokio::time::advance(Duration::from_secs(3600)).await;
            assert_eq!(allowed(&mut brake), 0, "{case}: time alone does not release it");
            brake.release(5, 90);
            assert_eq!(allowed(&mut brake), 5, "{case}: what was let go, and the others stay");
            brake.release(1000, 85);
            assert_eq!(allowed(&mut brake), 85, "{case}: no more than were held");
            tokio::time::advance(Duration::from_secs(3600)).await;
            assert_eq!(allowed(&mut brake), 0, "{case}: more than were held are held anew");
        }
        let mut slow = DeletionBrake::default();
        for _ in 0..100 {
            assert!(slow.allows(0), "a few at a time do not count as a mass");
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        let mut late = DeletionBrake::default();
        assert_eq!((0..20).filter(|_| late.allows(0)).count(), 10);
        late.release(5, 10);
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(!late.allows(0), "what was let go ends after a minute");
        late.release(10, 10);
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(
            (0..20).filter(|_| late.allows(0)).count(),
            10,
            "when all were let go, it is as if none had been held"
        );
        let mut unknown = DeletionBrake::new(true);
        unknown.release(5, 0);
        assert!(!unknown.allows(1000), "what is not known to be held is not let go");
        assert!(!DeletionBrake::new(true).allows(1000), "a new worker goes on where the last one was stopped");
    }
}
