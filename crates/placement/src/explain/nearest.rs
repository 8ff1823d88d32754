//! The smallest change after which another physical cluster would be chosen.

use portolan_types::placement::{ClusterCount, ReplicaMode};
use serde_json::{Value, json};

use crate::{
    cluster_facts::{ClusterFacts, ClusterInfo},
    decide::{PlacementDecision, PlacementPlanner},
    exclusion_reason::ExclusionReason,
    policy::ConstraintVerdict,
};

/// Most physical clusters for which the decision is made again.
const MAX_TRIED: usize = 16;
/// Name of the filter of physical clusters that fit, and are not needed.
const COUNT: &str = "count";
/// Name of the filter of physical clusters that fit, and would make the spread uneven.
const SPREAD: &str = "spread";

/// The smallest change after which a physical cluster would be chosen that is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearestChange {
    /// Name of the physical cluster.
    pub physical_cluster: String,
    /// Filter that it fails first.
    pub filter: &'static str,
    /// Sentence that says what to change.
    pub change: String,
}

impl NearestChange {
    pub(super) fn to_value(&self) -> Value {
        json!({"physicalCluster": self.physical_cluster, "filter": self.filter, "change": self.change})
    }
}

/// Returns the smallest change: of the physical clusters that fail the fewest filters, the first that would be chosen
/// if it failed none. If others would still be preferred to all of them, the first one, with that change as well.
pub(super) fn nearest(planner: &PlacementPlanner, decision: &PlacementDecision) -> Option<NearestChange> {
    let is_chosen = |cluster: &ClusterFacts| decision.chosen.iter().any(|c| c.uid == cluster.info.uid);
    let others = planner.clusters.iter().filter(|cluster| !is_chosen(cluster));
    let distance = |cluster: &ClusterFacts| {
        (planner.ctx.failing(cluster).count(), planner.candidate_tier(cluster), cluster.info.name.clone())
    };
    let mut others: Vec<_> = others.map(|cluster| (distance(cluster), *cluster)).collect();
    others.sort_by(|a, b| a.0.cmp(&b.0));
    let found = others.iter().take(MAX_TRIED).find_map(|((failed, ..), cluster)| match failed {
        0 => change_of_selection(planner, decision, cluster),
        _ => change_of_filters(planner, cluster).filter(|_| would_be_chosen(planner, cluster)),
    });
    let preferred = || {
        let (_, cluster) = others.iter().find(|((failed, ..), _)| *failed > 0)?;
        // What runs is preferred, unless nothing is decided at all.
        let change = change_of_filters(planner, cluster).filter(|_| !decision.chosen.is_empty())?;
        // One more name in a pin is one more copy.
        if planner.workload().pin.is_some() {
            return Some(change);
        }
        let also = change_of_count(planner, &cluster.info.name);
        Some(NearestChange { change: format!("{}, and {also}", change.change), ..change })
    };
    found.or_else(preferred)
}

fn would_be_chosen(planner: &PlacementPlanner, cluster: &ClusterFacts) -> bool {
    let admitted = PlacementPlanner::admitting(planner.ctx.question, &cluster.info.uid).decide();
    admitted.chosen.iter().any(|chosen| chosen.uid == cluster.info.uid)
}

/// Returns the changes after which a physical cluster passes all filters.
fn change_of_filters(planner: &PlacementPlanner, cluster: &ClusterFacts) -> Option<NearestChange> {
    let failing: Vec<_> = planner.ctx.failing(cluster).collect();
    let (first, _) = failing.first()?;
    let changes: Vec<String> = failing.iter().map(|(_, reason)| remedy(planner, cluster, *reason)).collect();
    Some(NearestChange {
        physical_cluster: cluster.info.name.clone(),
        filter: first.name,
        change: changes.join(", and "),
    })
}

/// Returns the change after which one more physical cluster is chosen.
fn change_of_count(planner: &PlacementPlanner, name: &str) -> String {
    let counted = planner.ctx.rules.winner.and_then(|policy| match policy.policy.count() {
        ClusterCount::Exactly(n) if planner.ctx.rules.most() > n as usize => Some((policy.title(), n)),
        ClusterCount::Exactly(_) | ClusterCount::All => None,
    });
    match counted {
        _ if planner.overflows() => "scale the object up".into(),
        Some((title, n)) => {
            format!("raise spec.count of {title} from {n} to {}, or pin the object to {name}", n.saturating_add(1))
        }
        None => format!("pin the object to {name}"),
    }
}

/// Returns the change after which a physical cluster is chosen that passes all filters.
fn change_of_selection(
    planner: &PlacementPlanner,
    decision: &PlacementDecision,
    cluster: &ClusterFacts,
) -> Option<NearestChange> {
    let rejected = decision.rejected.iter().find(|rejected| rejected.uid == cluster.info.uid)?;
    let name = &cluster.info.name;
    let filter = match rejected.reason {
        ExclusionReason::NotNeeded | ExclusionReason::HeldDown => COUNT,
        ExclusionReason::TooFewReplicas => "replicas",
        ExclusionReason::SpreadKeyMissing | ExclusionReason::SpreadSkew | ExclusionReason::SpreadGroups => SPREAD,
        _ => return None,
    };
    let change = match (rejected.reason, planner.ctx.rules.winner) {
        (ExclusionReason::NotNeeded, Some(_))
            if planner.overflows() && is_in_unused_group(planner, decision, cluster) =>
        {
            format!("scale the object beyond the room of the groups before {name}")
        }
        (ExclusionReason::NotNeeded, _) => change_of_count(planner, name),
        (ExclusionReason::HeldDown, _) => {
            format!("wait until {name} has fitted for long enough, or pin the object to it")
        }
        (reason, Some(policy)) => remedy_in_policy(planner, &policy.title(), cluster, reason),
        (_, None) => return None,
    };
    Some(NearestChange { physical_cluster: name.clone(), filter, change })
}

/// Returns true if no physical cluster of the same group is used.
fn is_in_unused_group(planner: &PlacementPlanner, decision: &PlacementDecision, cluster: &ClusterFacts) -> bool {
    let chosen = |other: &&&ClusterFacts| decision.chosen.iter().any(|chosen| chosen.uid == other.info.uid);
    let tier = planner.candidate_tier(cluster);
    !planner.clusters.iter().filter(chosen).any(|other| planner.candidate_tier(other) == tier)
}

fn remedy_in_policy(
    planner: &PlacementPlanner,
    policy: &str,
    cluster: &ClusterFacts,
    reason: ExclusionReason,
) -> String {
    let spec = planner.ctx.rules.winner.map(|p| &p.policy.spec);
    let spreads = spec.map(|spec| spec.spread.as_slice()).unwrap_or_default();
    let missing = spreads.iter().map(|s| &s.topology_key).find(|key| !cluster.info.labels.contains_key(*key));
    let name = &cluster.info.name;
    match (reason, missing) {
        (ExclusionReason::SpreadKeyMissing, Some(key)) => format!("give {name} the label {key}"),
        (ExclusionReason::TooFewReplicas, _)
            if spec.is_some_and(|s| s.replicas.as_ref().is_some_and(|r| r.mode == ReplicaMode::Divide)) =>
        {
            format!("lower spec.replicas.limits[].min of {policy} for {name}, or leave more replicas for it")
        }
        (ExclusionReason::SpreadGroups, _) => format!("change minGroups or maxGroups in spec.spread of {policy}"),
        _ if spreads.iter().any(|spread| spread.min_groups > 0) => {
            format!("lower minGroups or raise maxSkew in spec.spread of {policy}")
        }
        _ => format!("raise maxSkew in spec.spread of {policy}"),
    }
}

/// Returns the change after which a physical cluster no longer fails for a reason.
fn remedy(planner: &PlacementPlanner, cluster: &ClusterFacts, reason: ExclusionReason) -> String {
    let info: &ClusterInfo = &cluster.info;
    let name = &info.name;
    let policy = planner.ctx.rules.winner.map(|policy| policy.title()).unwrap_or_default();
    match reason {
        ExclusionReason::NotReachable => format!("register {name} in this workspace or an ancestor"),
        ExclusionReason::NoUseRight => format!("grant the workspace the verb \"use\" on physicalclusters {name:?}"),
        ExclusionReason::Deleting => format!("register {name} again once it is deleted"),
        ExclusionReason::PinnedElsewhere => format!("add {name} to the pin"),
        ExclusionReason::Excluded => format!("take {name} out of clusters.exclude of {policy}"),
        ExclusionReason::NotNamed => format!("add {name} to clusters.names of {policy}"),
        ExclusionReason::NotSelected => format!("give {name} the labels that {policy} selects"),
        ExclusionReason::NotMatched => format!("make clusters.cel of {policy} true for {name}"),
        ExclusionReason::ExpressionFailed => {
            format!("give the expression of {} a value for {name}", failing_policy(planner, info, &policy))
        }
        ExclusionReason::PolicyConstraint => format!("let {} allow {name}", failing_policy(planner, info, &policy)),
        ExclusionReason::NotSynced => {
            format!("add {} to spec.syncedResources of {name}", planner.ctx.question.workload.resource)
        }
        ExclusionReason::KindNotServed => {
            format!("serve {} on {name}", planner.ctx.question.workload.kind)
        }
        ExclusionReason::Draining => format!("end the drain of {name}"),
        ExclusionReason::NotReady => format!("make {name} ready"),
        ExclusionReason::Cordoned => format!("set spec.unschedulable of {name} to false"),
        ExclusionReason::TaintNotTolerated => match planner.ctx.untolerated(cluster) {
            Some(fact) => format!("tolerate {}:{}, or remove it from {name}", fact.taint.key, fact.taint.effect),
            None => format!("remove the taints of {name}"),
        },
        ExclusionReason::AffinityNotMet => format!("bring a workload that it runs beside to {name}"),
        ExclusionReason::AntiAffinityNotMet => format!("move the workload that it stays apart from off {name}"),
        ExclusionReason::OutOfBounds => format!("raise spec.bounds of {name}{}", missing_room(planner, cluster, true)),
        ExclusionReason::InsufficientCapacity => {
            format!("add nodes to {name}{}", missing_room(planner, cluster, false))
        }
        other => format!("change that {name} is {}", other.phrase()),
    }
}

/// Returns the title of the constraint that does not allow a physical cluster, or else of the deciding policy.
fn failing_policy(planner: &PlacementPlanner, cluster: &ClusterInfo, policy: &str) -> String {
    match planner.ctx.rules.verdict(planner.ctx.question.workload, cluster) {
        ConstraintVerdict::Forbidden(constraint) | ConstraintVerdict::Unknown(constraint, _) => constraint.title(),
        ConstraintVerdict::Allowed => policy.to_owned(),
    }
}

/// Returns the amounts that are missing, such as ` by cpu 3, pods 3`.
fn missing_room(planner: &PlacementPlanner, cluster: &ClusterFacts, of_bounds: bool) -> String {
    let limits = if of_bounds { &cluster.info.bounds } else { &cluster.info.allocatable };
    let workload = planner.ctx.question.workload;
    let pods = planner.ctx.required_pods();
    let missing = limits.iter().filter_map(|(resource, limit)| {
        let each = match resource.as_str() {
            "pods" => portolan_types::quantity::Quantity::from_units(1),
            _ => crate::cluster_facts::amount(&workload.requests, resource),
        };
        let free = limit.minus(crate::cluster_facts::amount(&cluster.used, resource));
        let lack = each.times(pods).minus(free);
        (lack.nanos() > 0 && each.nanos() > 0).then(|| format!("{resource} {lack}"))
    });
    let missing: Vec<String> = missing.collect();
    if missing.is_empty() { String::new() } else { format!(" by {}", missing.join(", ")) }
}
