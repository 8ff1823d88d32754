//! Sharing replicas out: largest remainder, with ties going to who had more before, so that little moves.

/// One physical cluster's part in a division.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share<'a> {
    /// Its name, the last tie-break.
    pub name: &'a str,
    /// In proportion to what it gets replicas.
    pub weight: u64,
    /// The most it may get; `None` is no limit.
    pub cap: Option<i64>,
    /// What it had.
    pub previous: i64,
}

/// Divides `replicas` in proportion to the weights, within the caps. The sum is `replicas`, or the sum of all caps where that
/// is less. Equal shares in any order give each name an equal result. All weights 0 count as all 1.
pub fn divide(replicas: i64, shares: &[Share]) -> Vec<i64> {
    let mut given = vec![0; shares.len()];
    let mut left = replicas.max(0);
    let mut open: Vec<usize> = (0..shares.len()).collect();
    // Each round closes a share at least, so there are at most as many rounds as shares.
    while left > 0 && !open.is_empty() {
        let parts = apportion(left, &open, shares);
        let over = |at: &usize, part: &i64| shares[*at].cap.is_some_and(|cap| *part > cap.max(0));
        let full: Vec<usize> = open.iter().zip(&parts).filter(|(at, part)| over(at, part)).map(|(at, _)| *at).collect();
        if full.is_empty() {
            open.iter().zip(parts).for_each(|(at, part)| given[*at] = part);
            break;
        }
        for at in &full {
            given[*at] = shares[*at].cap.unwrap_or(0).max(0);
            left -= given[*at];
        }
        open.retain(|at| !full.contains(at));
    }
    given
}

/// Largest remainder (Hamilton) of `total` over the open shares.
fn apportion(total: i64, open: &[usize], shares: &[Share]) -> Vec<i64> {
    let zero = open.iter().all(|at| shares[*at].weight == 0);
    let weight = |at: usize| if zero { 1 } else { i128::from(shares[at].weight) };
    let sum: i128 = open.iter().map(|at| weight(*at)).sum();
    let exact = |at: usize| i128::from(total) * weight(at);
    let mut parts: Vec<i64> = open.iter().map(|at| i64::try_from(exact(*at) / sum).unwrap_or(total)).collect();
    let mut order: Vec<usize> = (0..open.len()).collect();
    order.sort_by_key(|i| {
        let share = &shares[open[*i]];
        let had_more = share.previous > parts[*i];
        (std::cmp::Reverse(exact(open[*i]) % sum), !had_more, share.name)
    });
    let rest = total - parts.iter().sum::<i64>();
    let some = order.iter().filter(|i| weight(open[**i]) > 0);
    let rest = usize::try_from(rest).unwrap_or(0);
    some.take(rest).for_each(|i| parts[*i] += 1);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

    fn check(case: &str, replicas: i64, shares: &[(u64, Option<i64>, i64)], expected: &[i64]) {
        let of = |(at, (weight, cap, previous)): (usize, &(u64, Option<i64>, i64))| Share {
            name: NAMES[at],
            weight: *weight,
            cap: *cap,
            previous: *previous,
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
                .map(|(at, (weight, cap, previous))| Share { name: NAMES[at], weight: *weight, cap: *cap, previous: *previous })
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
            // What was shared out stays where it is when nothing changes.
            let kept: Vec<_> = shares.iter().zip(&given).map(|(s, part)| Share { previous: *part, ..s.clone() }).collect();
            prop_assert_eq!(divide(replicas, &kept), given);
        }
    }
}
