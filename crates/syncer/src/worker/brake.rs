//! Stops deletions that come in masses without firm proof: something is wrong with what is read then.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(60);
/// Deletions per window that are always let through.
const ALWAYS: usize = 10;
/// Percent of all copies per window that are let through.
const PERCENT: usize = 5;

/// Counts weakly proven deletions. Once it has stopped them it stays so until somebody lets all of them go.
#[derive(Debug, Default)]
pub(crate) struct Brake {
    recent: VecDeque<Instant>,
    is_held: bool,
    released: Option<Release>,
}

/// Deletions that somebody has let go, and that did not happen yet.
#[derive(Clone, Copy, Debug)]
struct Release {
    left: usize,
    at: Instant,
}

impl Brake {
    /// Held from the start when the one before it was.
    pub(crate) fn new(is_held: bool) -> Self {
        Self { is_held, ..Self::default() }
    }

    /// Whether one more deletion may happen, of `copies` on the physical cluster.
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

    /// Lets `count` of the `held` deletions go, within the window. What is let go counts as all deletions do, so that no others
    /// come on top of it.
    pub(crate) fn release(&mut self, count: usize, held: usize) {
        self.released = Some(Release { left: count.min(held), at: Instant::now() });
        self.is_held &= count < held || held == 0;
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
            brake.release(5, 90);
            assert_eq!(allowed(&mut brake), 5, "{case}: what was let go, and the others stay");
            brake.release(1000, 85);
            assert_eq!(allowed(&mut brake), 85, "{case}: no more than were held");
            tokio::time::advance(Duration::from_secs(3600)).await;
            assert_eq!(allowed(&mut brake), 0, "{case}: more than were held are held anew");
        }
        let mut slow = Brake::default();
        for _ in 0..100 {
            assert!(slow.allows(0), "a few at a time are no mass");
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        let mut late = Brake::default();
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
        let mut unknown = Brake::new(true);
        unknown.release(5, 0);
        assert!(!unknown.allows(1000), "what is not known to be held is not let go");
        assert!(!Brake::new(true).allows(1000), "a new worker goes on where the last one was stopped");
    }
}
