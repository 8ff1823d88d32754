//! Division of replicas by Webster's method (Sainte-Laguë), within a floor and a cap per physical cluster.

use std::{cmp::Ordering, collections::BinaryHeap};

/// Share of one physical cluster in a division.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaShare<'a> {
    /// Name, the last tie-break.
    pub name: &'a str,
    /// Weight: replicas are divided in proportion to it.
    pub weight: u64,
    /// Least replicas.
    pub floor: i64,
    /// Most replicas; `None` means no limit. A cap below the floor counts as the floor.
    pub cap: Option<i64>,
    /// Present replicas: of equal claims to the last replica, the share with more wins.
    pub previous: i64,
}

impl ReplicaShare<'_> {
    fn least(&self) -> i64 {
        self.floor.max(0)
    }

    fn most(&self) -> i64 {
        self.cap.map_or(i64::MAX, |cap| cap.max(self.least()))
    }
}

/// Divides `replicas` in proportion to the weights, within floors and caps. The sum is `replicas`, or the sum of all
/// caps if that is less, or of all floors if that is more. The result does not depend on the order of the shares. All
/// weights 0 count as all 1.
///
/// Webster's method is house-monotone: one replica more takes none from anybody.
pub fn divide(replicas: i64, shares: &[ReplicaShare]) -> Vec<i64> {
    let mut given: Vec<i64> = shares.iter().map(ReplicaShare::least).collect();
    let mut left = replicas.max(0);
    let mut open: Vec<usize> = (0..shares.len()).collect();
    // Each round fixes at least one share. The sums of the bounds decide if shares at the floor or at the cap are fixed
    // first: fixing the other side too early could be wrong, because its part still changes.
    while !open.is_empty() {
        let parts = apportion(left, &open, shares);
        let bounded: Vec<i64> =
            open.iter().zip(&parts).map(|(at, part)| (*part).clamp(shares[*at].least(), shares[*at].most())).collect();
        let excess: i128 =
            parts.iter().zip(&bounded).map(|(part, bounded)| i128::from(*bounded) - i128::from(*part)).sum();
        let closes = |part: i64, bounded: i64| match excess.cmp(&0) {
            Ordering::Equal => true,
            Ordering::Greater => bounded > part,
            Ordering::Less => bounded < part,
        };
        let mut still_open = Vec::new();
        for (at, (part, bounded)) in open.iter().zip(parts.iter().zip(&bounded)) {
            if closes(*part, *bounded) {
                given[*at] = *bounded;
                left = left.saturating_sub(*bounded).max(0);
            } else {
                still_open.push(*at);
            }
        }
        open = still_open;
    }
    given
}

/// Claim of a share to its next replica: its weight over twice its replicas plus one.
struct ReplicaClaim<'a> {
    weight: u128,
    taken: i64,
    /// Index among the open shares.
    at: usize,
    share: &'a ReplicaShare<'a>,
}

impl ReplicaClaim<'_> {
    fn divisor(&self) -> u128 {
        2 * u128::from(self.taken.unsigned_abs()) + 1
    }
}

impl Ord for ReplicaClaim<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let had_more = |claim: &Self| claim.share.previous > claim.taken;
        (self.weight * other.divisor())
            .cmp(&(other.weight * self.divisor()))
            .then_with(|| had_more(self).cmp(&had_more(other)))
            .then_with(|| other.share.name.cmp(self.share.name))
            .then_with(|| other.at.cmp(&self.at))
    }
}

impl PartialOrd for ReplicaClaim<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ReplicaClaim<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ReplicaClaim<'_> {}

/// Divides `total` over the open shares, without bounds.
///
/// No part of Webster's differs from the rounded quota by more than half the number of shares, since all parts grow
/// together as the divisor falls. So most replicas are distributed at once, and only the rest one by one.
fn apportion(total: i64, open: &[usize], shares: &[ReplicaShare]) -> Vec<i64> {
    let all_zero = open.iter().all(|at| shares[*at].weight == 0);
    let weight = |at: usize| if all_zero { 1 } else { u128::from(shares[at].weight) };
    let sum: u128 = open.iter().map(|at| weight(*at)).sum();
    let slack = i64::try_from(open.len() / 2 + 1).unwrap_or(i64::MAX);
    let at_once = |at: &usize| {
        let rounded = (2 * u128::from(total.unsigned_abs()) * weight(*at) + sum) / (2 * sum);
        i64::try_from(rounded).unwrap_or(total).saturating_sub(slack).max(0)
    };
    let mut parts: Vec<i64> = open.iter().map(at_once).collect();
    let claim = |at: usize, taken: i64| ReplicaClaim { weight: weight(open[at]), taken, at, share: &shares[open[at]] };
    let mut claims: BinaryHeap<ReplicaClaim> = (0..open.len()).map(|at| claim(at, parts[at])).collect();
    for _ in 0..total - parts.iter().sum::<i64>() {
        let Some(best) = claims.pop() else { break };
        parts[best.at] += 1;
        claims.push(claim(best.at, parts[best.at]));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

    fn check(case: &str, replicas: i64, shares: &[(u64, Option<i64>, i64)], expected: &[i64]) {
        let of = |(at, (weight, cap, previous)): (usize, &(u64, Option<i64>, i64))| ReplicaShare {
            name: NAMES[at],
            weight: *weight,
            cap: *cap,
            previous: *previous,
            floor: 0,
        };
        let shares: Vec<_> = shares.iter().enumerate().map(of).collect();
        assert_eq!(divide(replicas, &shares), expected, "{case}");
    }

    #[test]
    fn replicas_are_shared_out() {
        check("equal, the rest to the first by name", 7, &[(1, None, 0), (1, None, 0), (1, None, 0)], &[3, 2, 2]);
        check("the rest stays with who had it", 7, &[(1, None, 2), (1, None, 2), (1, None, 3)], &[2, 2, 3]);
        check("by weight", 6, &[(2, None, 0), (1, None, 0)], &[4, 2]);
        check("weight 0 gets nothing", 5, &[(0, None, 0), (1, None, 0)], &[0, 5]);
        check("all weights 0 are equal", 4, &[(0, None, 0), (0, None, 0)], &[2, 2]);
        check("what does not fit goes to the others", 10, &[(1, Some(2), 0), (1, None, 0), (1, None, 0)], &[2, 4, 4]);
        check("never more than fits", 10, &[(1, Some(2), 0), (1, Some(3), 0)], &[2, 3]);
        check("none", 0, &[(1, None, 3)], &[0]);
        check("nobody", 3, &[], &[]);
    }

    proptest! {
        #[test]
        fn the_sum_is_kept_caps_hold_and_order_does_not_matter(
            replicas in 0_i64..1000,
            parts in proptest::collection::vec((0_u64..10, proptest::option::of(0_i64..200), 0_i64..100), 0..8),
            seed in any::<u64>(),
        ) {
            let shares: Vec<_> = parts.iter().enumerate()
                .map(|(at, (weight, cap, previous))| ReplicaShare { name: NAMES[at], weight: *weight, cap: *cap, previous: *previous, floor: 0 })
                .collect();
            let given = divide(replicas, &shares);
            let most = shares.iter().try_fold(0_i64, |sum, s| s.cap.map(|cap| sum + cap));
            prop_assert_eq!(given.iter().sum::<i64>(), if shares.is_empty() { 0 } else { most.map_or(replicas, |m| m.min(replicas)) });
            for (share, part) in shares.iter().zip(&given) {
                prop_assert!(*part >= 0 && share.cap.is_none_or(|cap| *part <= cap));
            }
            let mut turned = shares.clone();
            turned.rotate_left((seed as usize) % shares.len().max(1));
            let again = divide(replicas, &turned);
            for (share, part) in shares.iter().zip(&given) {
                let at = turned.iter().position(|s| s.name == share.name).unwrap();
                prop_assert_eq!(again[at], *part);
            }
            // A division is stable while nothing changes.
            let kept: Vec<_> = shares.iter().zip(&given).map(|(s, part)| ReplicaShare { previous: *part, ..s.clone() }).collect();
            prop_assert_eq!(divide(replicas, &kept), given);
        }

        #[test]
        fn growth_takes_no_replica_away_and_shrinking_adds_none(
            weights in proptest::collection::vec((0_u64..10, proptest::option::of(0_i64..60)), 1..8),
            totals in proptest::collection::vec(0_i64..200, 1..12),
        ) {
            let mut present: Vec<i64> = vec![0; weights.len()];
            for total in totals {
                let before: i64 = present.iter().sum();
                let grows = total >= before;
                let share = |at: usize| ReplicaShare {
                    name: NAMES[at],
                    weight: weights[at].0,
                    floor: if grows { present[at] } else { 0 },
                    cap: if grows { weights[at].1 } else { Some(present[at]) },
                    previous: present[at],
                };
                let shares: Vec<_> = (0..weights.len()).map(share).collect();
                let next = divide(total, &shares);
                for (now, was) in next.iter().zip(&present) {
                    prop_assert!(if grows { now >= was } else { now <= was }, "{present:?} to {next:?}");
                }
                let most = shares.iter().try_fold(0_i64, |sum, share| share.cap.map(|cap| sum + cap.max(share.floor)));
                prop_assert_eq!(next.iter().sum::<i64>(), most.map_or(total, |most| most.min(total)));
                present = next;
            }
        }

        #[test]
        fn without_bounds_the_result_is_that_of_giving_one_replica_after_the_other(
            weights in proptest::collection::vec(0_u64..1000, 1..8),
            replicas in 0_i64..300,
        ) {
            let share = |at: usize| ReplicaShare { name: NAMES[at], weight: weights[at], ..ReplicaShare::default() };
            let shares: Vec<_> = (0..weights.len()).map(share).collect();
            let all_zero = weights.iter().all(|weight| *weight == 0);
            let mut expected = vec![0_i64; weights.len()];
            for _ in 0..replicas {
                let claim = |at: &usize| (if all_zero { 1 } else { weights[*at] }, 2 * expected[*at] as u64 + 1);
                let best = (0..weights.len()).reduce(|best, at| {
                    let ((w, n), (v, m)) = (claim(&at), claim(&best));
                    if w * m > v * n { at } else { best }
                });
                expected[best.unwrap()] += 1;
            }
            prop_assert_eq!(divide(replicas, &shares), expected);
        }
    }

    #[test]
    fn of_three_to_three_to_one_no_share_falls_as_the_total_grows() {
        let weights = [3, 3, 1];
        let share = |at: usize| ReplicaShare { name: NAMES[at], weight: weights[at], ..ReplicaShare::default() };
        let shares: Vec<_> = (0..3).map(share).collect();
        let mut before = vec![0; 3];
        for total in 0..=50 {
            let now = divide(total, &shares);
            assert_eq!(now.iter().sum::<i64>(), total);
            assert!(now.iter().zip(&before).all(|(now, before)| now >= before), "{before:?} to {now:?}");
            before = now;
        }
        assert_eq!(divide(4, &shares), [2, 2, 0]);
        assert_eq!(divide(7, &shares), [3, 3, 1]);
    }

    #[test]
    fn the_largest_number_of_replicas_is_divided_at_once() {
        let share = |at: usize| ReplicaShare { name: NAMES[at], weight: 1 + at as u64, ..ReplicaShare::default() };
        let shares: Vec<_> = (0..4).map(share).collect();
        assert_eq!(divide(i64::from(i32::MAX), &shares).iter().sum::<i64>(), i64::from(i32::MAX));
    }

    #[test]
    fn floors_and_caps_hold_together() {
        let share = |name, floor, cap| ReplicaShare { name, weight: 1, floor, cap, previous: 0 };
        let shares = [share("a", 8, None), share("b", 0, Some(1)), share("c", 0, None)];
        assert_eq!(divide(12, &shares), [8, 1, 3]);
        assert_eq!(divide(4, &shares), [8, 0, 0], "floors come first");
    }
}
