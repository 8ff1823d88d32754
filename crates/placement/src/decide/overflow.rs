//! Groups of physical clusters that are filled in order: replicas without room in one group go to the next.

use super::{PlacementPlanner, replica_split};
use crate::{divide::ReplicaShare, select::Candidate};

/// Gives each group as many replicas as fit, in their order, and divides them within the group. If only the total has
/// changed, growth takes no replica away, and shrinking begins with the last group.
pub(super) fn parts_by_group<'a>(
    planner: &PlacementPlanner<'a>,
    replicas: i64,
    taken: &[Candidate<'a>],
    is_same: bool,
) -> Vec<i64> {
    let shares = replica_split::shares_within(planner, taken);
    let mut tiers: Vec<usize> = taken.iter().map(|c| c.tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    let groups: Vec<Vec<usize>> =
        tiers.iter().map(|tier| (0..taken.len()).filter(|at| taken[*at].tier == *tier).collect()).collect();
    let sum = |group: &[usize], of: &dyn Fn(&ReplicaShare) -> i64| {
        group.iter().map(|at| of(&shares[*at])).fold(0, i64::saturating_add)
    };
    let present: Vec<i64> = groups.iter().map(|group| sum(group, &|share| share.previous)).collect();
    let room: Vec<i64> = groups.iter().map(|group| sum(group, &|share| share.cap.unwrap_or(i64::MAX))).collect();
    let total: i64 = present.iter().sum();
    let mut targets = if is_same { present.clone() } else { vec![0; groups.len()] };
    let mut left = replicas - targets.iter().sum::<i64>();
    for (target, room) in targets.iter_mut().zip(&room) {
        let more = left.clamp(0, (*room - *target).max(0));
        (*target, left) = (*target + more, left - more);
    }
    for target in targets.iter_mut().rev() {
        let less = (-left).clamp(0, *target);
        (*target, left) = (*target - less, left + less);
    }
    let mut parts = vec![0; taken.len()];
    for (group, target) in groups.iter().zip(targets) {
        let own: Vec<ReplicaShare> = group.iter().map(|at| shares[*at].clone()).collect();
        let given = replica_split::divided(target, own, is_same && total > 0);
        group.iter().zip(given).for_each(|(at, part)| parts[*at] = part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{
        decide::PlacementDecision,
        fixtures::{PlacementCase, chosen, cluster, deployment, policy, uid},
    };

    /// `a` holds three pods and `b` two, in two groups; `c` and `d`, which are without bounds, are the third.
    fn overflow(replicas: i64) -> PlacementCase {
        let clusters = vec![cluster("a").bounded("3"), cluster("b").bounded("2"), cluster("c x=y"), cluster("d x=y")];
        let fallback = json!([{"names": ["b"]}, {"selector": {"matchLabels": {"x": "y"}}}]);
        let spec = json!({
            "clusters": {"names": ["a"], "fallback": fallback, "fallbackMode": "Overflow"},
            "replicas": {"mode": "Divide"}, "count": "All",
        });
        PlacementCase::new(deployment(replicas), clusters).by(policy(1, "p", spec))
    }

    /// Decides, and carries the decision out.
    fn next(case: &mut PlacementCase, replicas: i64) -> PlacementDecision {
        case.workload.replicas = Some(replicas);
        case.workload.pods = replicas;
        let decision = case.decide();
        let was = case.previous.clone();
        case.previous.clusters = crate::fixtures::record(&chosen(&decision)).clusters;
        case.previous.divided_by = decision.divided_by.clone();
        for facts in &mut case.clusters {
            let pods = |record: &portolan_types::placement::PlacementRecord| {
                record.on(&facts.info.uid).and_then(|copy| copy.replicas).unwrap_or(0)
            };
            let used = facts.used.get("cpu").map_or(0, |cpu| cpu.units()) + pods(&case.previous) - pods(&was);
            facts.used.insert("cpu".into(), used.to_string().parse().unwrap());
        }
        decision
    }

    #[test]
    fn growth_spills_to_the_next_group_and_contracts_in_reverse() {
        let mut case = overflow(2);
        for (replicas, expected) in [
            (2, "a*2"),
            (3, "a*3"),
            (4, "a*3 b*1"),
            (8, "a*3 b*2 c*2 d*1"),
            (7, "a*3 b*2 c*1 d*1"),
            (5, "a*3 b*2"),
            (4, "a*3 b*1"),
            (1, "a*1"),
            (9, "a*3 b*2 c*2 d*2"),
            (0, "a*0"),
        ] {
            assert_eq!(chosen(&next(&mut case, replicas)), expected, "{replicas}");
        }
    }

    #[test]
    fn a_group_that_is_gone_gives_its_replicas_to_the_others_and_nothing_else_moves() {
        let mut case = overflow(6);
        next(&mut case, 6);
        assert_eq!(crate::fixtures::words(&case.previous), "a*3 b*2 c*1");
        case.clusters[1] = cluster("b").deleting();
        assert_eq!(chosen(&next(&mut case, 6)), "a*3 c*2 d*1");
        case.clusters[1] = cluster("b").bounded("2");
        assert_eq!(chosen(&next(&mut case, 6)), "a*3 c*2 d*1", "what runs is not called back");
        assert_eq!(chosen(&next(&mut case, 7)), "a*3 b*1 c*2 d*1", "growth begins with the first group that has room");
    }

    #[test]
    fn room_that_others_take_pushes_nothing_out() {
        let mut case = overflow(3);
        next(&mut case, 3);
        case.clusters[0].used.insert("cpu".into(), "5".parse().unwrap());
        assert_eq!(chosen(&case.decide()), "a*3", "growth of others evicts nothing");
        assert_eq!(chosen(&next(&mut case, 5)), "a*3 b*2");
        assert!(case.previous.divided_by.as_ref().unwrap().groups.contains_key(&uid("b")));
    }

    #[test]
    fn another_order_of_the_groups_is_another_division() {
        let mut case = overflow(4);
        next(&mut case, 4);
        let mut spec = case.policies[0].policy.spec.clone();
        spec.clusters.names = vec!["b".into()];
        spec.clusters.fallback[0].names = vec!["a".into()];
        case.policies[0].policy = std::sync::Arc::new(crate::CompiledPolicy::compile(spec));
        assert_eq!(chosen(&next(&mut case, 4)), "a*2 b*2");
    }
}
