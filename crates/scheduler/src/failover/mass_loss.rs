//! Losses of most physical clusters at once, which are likely a fault of the server's own network.

use std::time::Duration;

use portolan_types::{LogicalClusterId, ObjectKey, Uid};

use super::pulse::ClusterPulse;
use crate::facts::RegisteredCluster;

/// Age of a taint after which a loss is settled: it no longer counts when others are lost.
const SETTLED_SECONDS: i64 = 3_600;

/// Physical cluster whose heartbeats are followed.
#[derive(Clone, Debug)]
pub(crate) struct WatchedCluster {
    pub(crate) uid: Uid,
    pub(crate) key: ObjectKey,
    /// Lost, or not well for long enough since.
    pub(crate) is_lost: bool,
    /// Silent for long enough to be in doubt.
    pub(crate) is_silent: bool,
    /// Lost for so long that all has been done about it.
    pub(crate) is_settled: bool,
    /// Time of its taint, in seconds since the epoch.
    pub(crate) tainted_at: Option<i64>,
    pub(crate) is_ready: bool,
    pub(crate) silence: Duration,
}

impl WatchedCluster {
    /// Returns the physical cluster as it is at `now`, in seconds since the epoch.
    pub(crate) fn new(uid: Uid, known: RegisteredCluster, pulse: &ClusterPulse, now: i64) -> Self {
        let taint = known.info.taints.iter().find(|fact| fact.is_unreachable());
        let tainted_at = taint.map(|fact| fact.since);
        Self {
            uid,
            is_lost: pulse.is_lost(),
            is_silent: pulse.is_doubted(),
            is_settled: tainted_at.is_some_and(|at| now.saturating_sub(at) > SETTLED_SECONDS),
            tainted_at,
            is_ready: known.info.is_ready(),
            silence: pulse.silence(),
            key: known.key,
        }
    }
}

/// Number of lost physical clusters among those that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MassLoss {
    pub(crate) lost: usize,
    pub(crate) total: usize,
}

/// Returns the loss of more than half of the physical clusters whose home `counts`, of those that `looks_lost`. Homes
/// are a logical cluster and its ancestors: registrations of tenants below prove nothing about the network of others.
pub(crate) fn mass_loss(
    all: &[WatchedCluster],
    counts: impl Fn(LogicalClusterId) -> bool,
    looks_lost: impl Fn(&WatchedCluster) -> bool,
) -> Option<MassLoss> {
    let compared = || all.iter().filter(|one| counts(one.key.cluster) && !one.is_settled);
    let (lost, total) = (compared().filter(|one| looks_lost(one)).count(), compared().count());
    (lost * 2 > total).then_some(MassLoss { lost, total })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `shop/a!` is lost and registered in `root:shop`, `b?` silent and in root, `c.` lost for long.
    fn watched(text: &str) -> Vec<WatchedCluster> {
        let one = |word: &str| {
            let (home, rest) = word
                .split_once('/')
                .map_or((LogicalClusterId::ROOT, word), |(_, rest)| (LogicalClusterId::new(7), rest));
            let name = rest.trim_end_matches(['!', '?', '.']);
            WatchedCluster {
                uid: name.parse().unwrap(),
                key: ObjectKey::cluster_scoped(home, crate::kinds::physical_clusters(), name.parse().unwrap()),
                is_lost: rest.ends_with(['!', '.']),
                is_silent: rest.ends_with('?'),
                is_settled: rest.ends_with('.'),
                tainted_at: None,
                is_ready: true,
                silence: Duration::ZERO,
            }
        };
        text.split_whitespace().map(one).collect()
    }

    #[test]
    fn most_at_once_is_more_than_half_of_what_the_home_reaches() {
        let of = |text: &str, homes: &[u64]| {
            let looks_lost = |one: &WatchedCluster| one.is_lost || one.is_silent;
            let loss = mass_loss(&watched(text), |home| homes.contains(&home.get()), looks_lost);
            loss.map(|loss| (loss.lost, loss.total))
        };
        let (root, shop) = (LogicalClusterId::ROOT.get(), 7);
        for (case, all, homes, expected) in [
            ("none is lost", "a b c", vec![root], None),
            ("one of three", "a! b c", vec![root], None),
            ("two of three", "a! b! c", vec![root], Some((2, 3))),
            ("one of two is not most", "a! b", vec![root], None),
            ("one that is silent counts too", "a! b? c", vec![root], Some((2, 3))),
            ("one that has long been gone does not", "a! b. c d", vec![root], None),
            ("the only one", "a!", vec![root], Some((1, 1))),
            ("tenants' are none of root's", "a! b c shop/d! shop/e! shop/f!", vec![root], None),
            ("root's are their tenants'", "a b shop/c! shop/d!", vec![root, shop], None),
            ("and theirs count for them", "a shop/c! shop/d!", vec![root, shop], Some((2, 3))),
        ] {
            assert_eq!(of(all, &homes), expected, "{case}");
        }
    }
}
