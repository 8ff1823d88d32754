//! Limits of one scaling step of a Deployment's ReplicaSets. Pure.

use serde_json::Value;

use crate::fields::{int_or_percent, text};

/// Numbers of one ReplicaSet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScaledReplicaSet {
    /// `spec.replicas`.
    pub(super) replicas: i64,
    /// Available replicas, of those that are to stay: a status from before the last scaling counts no more than
    /// `replicas`.
    pub(super) available: i64,
    /// Replicas that exist at all.
    pub(super) existing: i64,
}

/// `spec.strategy`, with its numbers resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RolloutStrategy {
    Recreate,
    Rolling { surge: i64, unavailable: i64 },
}

impl RolloutStrategy {
    pub(super) fn of(deployment: &Value, desired: i64) -> Self {
        if text(deployment, "/spec/strategy/type") == "Recreate" {
            return Self::Recreate;
        }
        let rolling = |key: &str| deployment.pointer(&format!("/spec/strategy/rollingUpdate/{key}"));
        let surge = int_or_percent(rolling("maxSurge"), desired, (desired + 3) / 4, true);
        let unavailable = int_or_percent(rolling("maxUnavailable"), desired, desired / 4, false);
        // Both zero would never move (as Kubernetes resolves it).
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable.min(desired) };
        Self::Rolling { surge, unavailable }
    }
}

/// The next `spec.replicas` of the new ReplicaSet, and of each old one; the old ones are ordered from the oldest on.
pub(super) fn next(
    strategy: RolloutStrategy,
    desired: i64,
    new: ScaledReplicaSet,
    old: &[ScaledReplicaSet],
) -> (i64, Vec<i64>) {
    match strategy {
        RolloutStrategy::Recreate if old.iter().any(|set| set.existing > 0) => {
            (new.replicas.min(desired), vec![0; old.len()])
        }
        RolloutStrategy::Recreate => (desired, vec![0; old.len()]),
        RolloutStrategy::Rolling { surge, unavailable } => {
            let total = new.replicas + old.iter().map(|set| set.replicas).sum::<i64>();
            let room = (desired + surge - total).max(0);
            (new.replicas.saturating_add(room).min(desired), shrink(desired - unavailable, new, old))
        }
    }
}

/// Scales the old sets down so that `floor` replicas still serve: first those of every set that do not serve, then
/// others. New pods that do not serve yet free no room.
fn shrink(floor: i64, new: ScaledReplicaSet, old: &[ScaledReplicaSet]) -> Vec<i64> {
    let unhealthy = |set: &ScaledReplicaSet| (set.replicas - set.available).max(0);
    let serving = |set: &ScaledReplicaSet| set.available;
    let available = new.available + old.iter().map(serving).sum::<i64>();
    let mut bound = (available + old.iter().map(unhealthy).sum::<i64>() - floor).max(0);
    let mut take = |count: i64| {
        let taken = count.min(bound);
        bound -= taken;
        taken
    };
    let unhealthy: Vec<i64> = old.iter().map(|set| take(unhealthy(set))).collect();
    let mut spare = (available - floor).max(0);
    let healthy = old.iter().map(|set| {
        let taken = set.available.min(spare);
        spare -= taken;
        taken
    });
    old.iter().zip(unhealthy).zip(healthy).map(|((set, sick), well)| set.replicas - sick - well).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn set(replicas: i64, available: i64) -> ScaledReplicaSet {
        ScaledReplicaSet { replicas, available, existing: replicas }
    }

    fn run(strategy: RolloutStrategy, desired: i64) -> (i64, i64) {
        let (mut new, mut old) = (ScaledReplicaSet::default(), set(desired, desired));
        let (mut least, mut most) = (desired, desired);
        for _ in 0..100 {
            let (next_new, next_old) = next(strategy, desired, new, &[old]);
            if (next_new, next_old[0], new.available) == (desired, 0, desired) {
                return (least, most);
            }
            most = most.max(next_new + old.replicas);
            (new, old) = (set(next_new, next_new), set(next_old[0], old.available.min(next_old[0])));
            least = least.min(new.available + old.available);
        }
        panic!("it never ends");
    }

    #[test]
    fn a_rolling_update_stays_within_its_bounds() {
        for (surge, unavailable, desired) in [(1, 0, 3), (0, 1, 3), (2, 1, 10), (1, 1, 1), (10, 0, 10)] {
            let (least, most) = run(RolloutStrategy::Rolling { surge, unavailable }, desired);
            assert!(least >= desired - unavailable, "{surge} {unavailable} {desired}: {least}");
            assert!(most <= desired + surge, "{surge} {unavailable} {desired}: {most}");
        }
    }

    #[test]
    fn old_pods_stay_while_new_pods_are_pending() {
        let strategy = RolloutStrategy::Rolling { surge: 1, unavailable: 0 };
        for (case, new, old, expected) in [
            ("the new one waits", set(1, 0), vec![set(2, 2)], (1, vec![2])),
            ("a change follows one whose pod still waits", set(0, 0), vec![set(2, 2), set(1, 0)], (0, vec![2, 0])),
            ("the one that waited went", set(0, 0), vec![set(2, 2), set(0, 0)], (1, vec![2, 0])),
            ("one of the old does not serve and must be waited for", set(1, 0), vec![set(2, 1)], (1, vec![2])),
            ("a new one serves", set(1, 1), vec![set(2, 2)], (1, vec![1])),
            ("the oldest goes first", set(1, 1), vec![set(1, 1), set(1, 1)], (1, vec![0, 1])),
        ] {
            assert_eq!(next(strategy, 2, new, &old), expected, "{case}");
        }
    }

    #[test]
    fn recreate_waits_until_the_old_ones_are_gone() {
        assert_eq!(next(RolloutStrategy::Recreate, 2, set(0, 0), &[set(2, 2)]), (0, vec![0]));
        let ending = ScaledReplicaSet { existing: 1, ..set(0, 0) };
        assert_eq!(next(RolloutStrategy::Recreate, 2, set(0, 0), &[ending]), (0, vec![0]));
        assert_eq!(next(RolloutStrategy::Recreate, 2, set(0, 0), &[set(0, 0)]), (2, vec![0]));
    }
}
