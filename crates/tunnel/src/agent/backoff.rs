//! Backoff of reconnects, with full jitter, so that the agents of a restarted server do not reconnect at the same time.

use std::time::Duration;

use portolan_types::Seams;

/// Bound of the first pause.
const FIRST: Duration = Duration::from_millis(500);
/// Largest bound of a pause.
const LONGEST: Duration = Duration::from_secs(30);
/// Minimum pause, so that a permanent fault causes no busy loop.
const SHORTEST: Duration = Duration::from_millis(50);

/// Backoff after failures.
pub(super) struct Backoff {
    seams: Seams,
    bound: Duration,
}

impl Backoff {
    pub(super) fn new(seams: Seams) -> Self {
        Self { seams, bound: FIRST }
    }

    /// Returns the pause before the next attempt: random, up to a bound that doubles.
    pub(super) fn pause(&mut self) -> Duration {
        let bound = self.bound;
        self.bound = (bound * 2).min(LONGEST);
        self.within(bound)
    }

    /// Returns a random pause up to `bound`.
    pub(super) fn within(&self, bound: Duration) -> Duration {
        let mut bytes = [0; 4];
        self.seams.entropy.fill(&mut bytes);
        let share = f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX);
        SHORTEST + bound.mul_f64(share)
    }

    /// Starts again after a success.
    pub(super) fn reset(&mut self) {
        self.bound = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_random_and_their_bound_doubles() {
        let mut backoff = Backoff::new(Seams::seeded(1, "2026-01-01T00:00:00Z".parse().unwrap()));
        let mut bound = FIRST;
        for _ in 0..12 {
            let pause = backoff.pause();
            assert!((SHORTEST..=SHORTEST + bound).contains(&pause), "{pause:?} of {bound:?}");
            bound = (bound * 2).min(LONGEST);
        }
        backoff.reset();
        assert!(backoff.pause() <= SHORTEST + FIRST);
        let pauses: Vec<_> = (0..100).map(|_| backoff.within(LONGEST)).collect();
        let early = pauses.iter().filter(|pause| **pause < LONGEST / 2).count();
        assert!((30..70).contains(&early), "{early} of 100 in the first half");
    }
}
