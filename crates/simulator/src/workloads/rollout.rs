//! How far a Deployment's ReplicaSets may be scaled in one step. Pure.

use serde_json::Value;

use crate::fields::{int_or_percent, text};

/// The numbers that a step depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// `spec.replicas` of the Deployment.
    pub(super) desired: i64,
    /// `spec.replicas` of the ReplicaSet of the present template.
    pub(super) new: i64,
    /// Available replicas of it.
    pub(super) new_available: i64,
    /// Sum of `spec.replicas` of all others.
    pub(super) old: i64,
    /// Available replicas of those.
    pub(super) old_available: i64,
    /// Replicas of those that exist at all.
    pub(super) old_existing: i64,
}

/// `spec.strategy`, with its numbers resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    Recreate,
    Rolling { surge: i64, unavailable: i64 },
}

impl Strategy {
    pub(super) fn of(deployment: &Value, desired: i64) -> Self {
        if text(deployment, "/spec/strategy/type") == "Recreate" {
            return Self::Recreate;
        }
        let rolling = |key: &str| deployment.pointer(&format!("/spec/strategy/rollingUpdate/{key}"));
        let surge = int_or_percent(rolling("maxSurge"), desired, (desired + 3) / 4, true);
        let unavailable = int_or_percent(rolling("maxUnavailable"), desired, desired / 4, false);
        // Both zero would never move (as upstream resolves it).
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable.min(desired) };
        Self::Rolling { surge, unavailable }
    }
}

/// The next `spec.replicas` of the new ReplicaSet, and of all old ones together.
pub(super) fn next(strategy: Strategy, counts: Counts) -> (i64, i64) {
    let Counts { desired, new, new_available, old, old_available, old_existing } = counts;
    match strategy {
        Strategy::Recreate if old_existing > 0 => (new.min(desired), 0),
        Strategy::Recreate => (desired, 0),
        Strategy::Rolling { surge, unavailable } => {
            let room = (desired + surge - new - old).max(0);
            let next_new = if new > desired { desired } else { (new + room).min(desired) };
            // What does not serve may always go; what serves only down to the floor.
            let floor = desired - unavailable;
            let unhealthy_old = (old - old_available).max(0);
            let spare = (new_available + old_available - floor).max(0);
            (next_new, (old - unhealthy_old - spare.min(old_available)).max(0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(strategy: Strategy, desired: i64, old: i64) -> (usize, i64, i64) {
        let mut c = Counts { desired, new: 0, new_available: 0, old, old_available: old, old_existing: old };
        let (mut least, mut most) = (old, old);
        for step in 0..100 {
            let (new, old) = next(strategy, c);
            if (new, old, c.new_available) == (desired, 0, desired) {
                return (step, least, most);
            }
            most = most.max(new + c.old);
            c = Counts {
                new,
                new_available: new,
                old,
                old_available: c.old_available.min(old),
                old_existing: old,
                ..c
            };
            least = least.min(c.new_available + c.old_available);
        }
        panic!("it never ends");
    }

    #[test]
    fn a_rolling_update_stays_within_its_bounds() {
        for (surge, unavailable, desired) in [(1, 0, 3), (0, 1, 3), (2, 1, 10), (1, 1, 1), (10, 0, 10)] {
            let (_, least, most) = run(Strategy::Rolling { surge, unavailable }, desired, desired);
            assert!(least >= desired - unavailable, "{surge} {unavailable} {desired}: {least}");
            assert!(most <= desired + surge, "{surge} {unavailable} {desired}: {most}");
        }
    }

    #[test]
    fn recreate_waits_until_the_old_ones_are_gone() {
        let counts = Counts { desired: 2, new: 0, new_available: 0, old: 2, old_available: 2, old_existing: 2 };
        assert_eq!(next(Strategy::Recreate, counts), (0, 0));
        assert_eq!(next(Strategy::Recreate, Counts { old: 0, old_available: 0, old_existing: 0, ..counts }), (2, 0));
    }
}
