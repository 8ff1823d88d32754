//! Tiers of physical clusters: the first choice of a policy and its fallbacks.

use portolan_types::placement::ClusterCount;

use super::PlacementPlanner;
use crate::{exclusion_reason::ExclusionReason, select::Candidate, workload::MoveStrategy};

/// Seconds for which a physical cluster of an earlier group has to fit before a fallback is left for it.
const HOLD_DOWN_SECONDS: i64 = 300;

/// Outcome of the order of tiers.
#[derive(Default)]
pub(super) struct TierPreference<'a> {
    /// Candidates of tiers that are not used.
    pub(super) left: Vec<(Candidate<'a>, ExclusionReason)>,
    /// Time since when an earlier tier than that in use fits.
    pub(super) since: Option<i64>,
    /// Seconds until the fallback is left.
    pub(super) recheck_in: Option<i64>,
}

impl TierPreference<'_> {
    pub(super) fn note(&self) -> Option<String> {
        self.recheck_in?;
        Some(format!("an earlier choice fits again: it moves there once that has been so for {HOLD_DOWN_SECONDS} s"))
    }
}

/// Keeps the candidates of the first tier that fits. Objects leave a fallback in use after the hold-down. If the policy
/// wants a number of physical clusters, later tiers provide those that the first one lacks.
pub(super) fn prefer<'a>(
    planner: &PlacementPlanner<'a>,
    mut candidates: Vec<Candidate<'a>>,
    count: usize,
) -> (Vec<Candidate<'a>>, TierPreference<'a>) {
    let winner = planner.ctx.rules.winner.filter(|_| planner.workload().pin.is_none());
    let Some(policy) = winner.filter(|policy| policy.policy.has_fallback() && !planner.overflows()) else {
        return (candidates, TierPreference::default());
    };
    let first = |of: &dyn Fn(&&Candidate) -> bool| candidates.iter().filter(of).map(|c| c.tier).min();
    let fits = first(&|c| c.held.is_none());
    let in_use = first(&|c| c.held.is_none() && c.here);
    let mut preference = TierPreference::default();
    let mut group = fits;
    if let (Some(fits), Some(in_use)) = (fits, in_use)
        && in_use > fits
        // Followers have no hold-down: they follow.
        && !planner.workload().role.follows()
    {
        // Workloads that move only on explicit request do not move for this.
        let stays = matches!(planner.workload().moves, MoveStrategy::Restart | MoveStrategy::Stay);
        let since = planner.ctx.question.previous.preferred_since.unwrap_or(planner.ctx.question.now);
        let left = since.saturating_add(HOLD_DOWN_SECONDS).saturating_sub(planner.ctx.question.now);
        if !stays {
            preference.since = Some(since);
            preference.recheck_in = (left > 0).then_some(left);
        }
        if stays || left > 0 {
            group = Some(in_use);
            candidates.iter_mut().filter(|c| c.here).for_each(|c| c.keeps = true);
        }
    }
    // If the policy wants a number, all tiers count, in their order.
    if count != usize::MAX && matches!(policy.policy.spec.count, Some(ClusterCount::Exactly(_))) {
        return (candidates, preference);
    }
    let is_used = |c: &Candidate| c.held.is_some() || Some(c.tier) == group;
    let (used, others): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_used);
    let reason =
        |c: &Candidate| if Some(c.tier) < group { ExclusionReason::HeldDown } else { ExclusionReason::NotNeeded };
    preference.left = others.into_iter().map(|c| (reason(&c), c)).map(|(reason, c)| (c, reason)).collect();
    (used, preference)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        decide::RejectedCluster,
        fixtures::{PlacementCase, chosen, cluster, clusters, deployment, policy, workload},
    };

    fn west_else_east() -> serde_json::Value {
        json!({"clusters": {"names": ["west"], "fallback": [{"names": ["east"]}]}})
    }

    fn web() -> PlacementCase {
        PlacementCase::new(deployment(2), clusters(&["east", "west"])).by(policy(1, "p", west_else_east()))
    }

    #[test]
    fn a_fallback_is_used_only_while_no_earlier_choice_fits() {
        assert_eq!(chosen(&web().decide()), "west", "the first choice fits");
        let down = vec![cluster("east"), cluster("west").down()];
        assert_eq!(chosen(&PlacementCase { clusters: down, ..web() }.decide()), "east", "it does not answer");
        assert_eq!(chosen(&web().on("east west").decide()), "west", "what was on both leaves the fallback");
        let words = |r: &RejectedCluster| format!("{}={}", r.name, r.reason);
        assert_eq!(web().decide().rejected.iter().map(words).collect::<Vec<_>>(), ["east=NotNeeded"]);
    }

    #[test]
    fn a_fallback_is_left_after_the_hold_down() {
        let first = web().on("east").decide();
        assert_eq!(
            (chosen(&first).as_str(), first.preferred_since, first.recheck_in),
            ("east", Some(1_000), Some(300))
        );
        assert_eq!(first.rejected[0].reason, ExclusionReason::HeldDown);
        assert_eq!(first.held.len(), 1);
        let mut later = web().on("east");
        later.previous.preferred_since = first.preferred_since;
        later.now = 1_299;
        assert_eq!(chosen(&later.decide()), "east", "not for long enough");
        later.now = 1_300;
        assert_eq!(chosen(&later.decide()), "west");
        later.clusters[1] = cluster("west").down();
        let lost = later.decide();
        assert_eq!(
            (chosen(&lost).as_str(), lost.preferred_since),
            ("east", None),
            "it starts again when it fits again"
        );
    }

    #[test]
    fn the_order_of_groups_holds_with_a_number_of_clusters_too() {
        let spec = |count: u32| json!({"count": count, "clusters": {"names": ["b"], "fallback": [{"names": ["a"]}, {"names": ["c"]}]}});
        let case =
            |count| PlacementCase::new(deployment(1), clusters(&["a", "b", "c"])).by(policy(1, "p", spec(count)));
        assert_eq!(chosen(&case(1).home("c").decide()), "b", "also against the namespace's default");
        assert_eq!(chosen(&case(2).decide()), "a b", "later groups fill up");
        let nested = json!({"clusters": {"names": ["x"], "fallback": [{"names": ["y"], "fallback": [{"names": ["c"]}]}, {"names": ["a"]}]}});
        let nested = PlacementCase::new(deployment(1), clusters(&["a", "b", "c"])).by(policy(1, "p", nested));
        assert_eq!(chosen(&nested.decide()), "c", "a fallback of a fallback comes before the next one");
    }

    #[test]
    fn run_once_objects_stay_on_their_fallback() {
        let set = workload("apps", "StatefulSet", json!({"metadata": {"name": "db"}, "spec": {"replicas": 1}}));
        let stays = PlacementCase { workload: set, ..web().on("east") }.decide();
        assert_eq!((chosen(&stays).as_str(), stays.recheck_in), ("east", None));
    }
}
