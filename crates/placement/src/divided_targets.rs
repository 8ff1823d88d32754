//! Numbers of autoscalers and disruption budgets, divided with the replicas that they count.
//!
//! A copy of an autoscaler or budget counts the pods of its own physical cluster. Where the copies of its target share
//! the replicas, each copy of the autoscaler or budget gets its part of the bounds, so that they hold in all.
//! Percentages hold as they are. A budget that permits any disruption permits one on each physical cluster that has
//! pods: none of their nodes could be drained otherwise. An autoscaler goes no further than the limit of its target's
//! copy.

use std::collections::BTreeMap;

use portolan_types::{
    GroupKind, GroupVersionKind, LabelSelector, Uid,
    labels::LabelSelectorSpec,
    object,
    placement::{DivideBy, Override, PlacedCopy, PlacedOverride, PlacementRecord, PolicyRef},
};
use serde_json::{Value, json};

use crate::divide::{ReplicaShare, divide};

/// Workload whose copies share its replicas, or are limited by the bounds of their physical clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DividedTarget {
    kind: GroupKind,
    name: String,
    pod_labels: BTreeMap<String, String>,
    policy: PolicyRef,
    /// Replicas of the active copies.
    parts: BTreeMap<Uid, i64>,
    /// Weights of the active copies.
    weights: BTreeMap<Uid, u64>,
    /// `spec.replicas`.
    replicas: i64,
    /// The copies share the replicas; otherwise each has all, within its limit.
    is_divided: bool,
    /// The copies share ordinals: no autoscaler changes a part, as the ordinals would not follow one another.
    has_ordinals: bool,
    /// Most replicas that the bounds admit, for active copies that have a limit.
    limits: BTreeMap<Uid, i64>,
}

impl DividedTarget {
    /// Reads a workload; `None` when its copies neither share replicas nor have limits.
    pub fn of(workload: &Value) -> Option<Self> {
        let record = PlacementRecord::of(workload)?;
        let replicas = workload.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
        let is_divided = record.active().all(|copy| copy.replicas.is_some());
        let part = |copy: &PlacedCopy| copy.replicas.unwrap_or_else(|| record.replicas_of(copy, replicas));
        let parts: BTreeMap<Uid, i64> = record.active().map(|copy| (copy.uid.clone(), part(copy))).collect();
        let limits = record.limits.iter().filter(|(uid, _)| parts.contains_key(*uid));
        let limits: BTreeMap<Uid, i64> = limits.map(|(uid, limit)| (uid.clone(), *limit)).collect();
        if parts.is_empty() || (!is_divided && limits.is_empty()) {
            return None;
        }
        let text = |key: &str| workload.get(key).and_then(Value::as_str);
        let labels = workload.pointer("/spec/template/metadata/labels").and_then(Value::as_object);
        let labels = labels.into_iter().flatten();
        let weigh = |uid: &Uid, part: i64| match &record.divided_by {
            Some(basis) if basis.by != DivideBy::Capacity => basis.weights.get(uid).copied().unwrap_or(1),
            // Free room has no fixed weight: the present replicas are used instead.
            _ => part.max(0).unsigned_abs(),
        };
        let weights = parts.iter().map(|(uid, part)| (uid.clone(), weigh(uid, *part))).collect();
        let default = || PolicyRef {
            kind: "ClusterPlacementPolicy".into(),
            workspace: String::new(),
            namespace: None,
            name: "default".into(),
        };
        Some(Self {
            kind: GroupVersionKind::parse(text("apiVersion")?, text("kind")?).ok()?.group_kind(),
            name: object::name(workload).to_owned(),
            pod_labels: labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect(),
            policy: record.policy.unwrap_or_else(default),
            parts,
            weights,
            replicas,
            is_divided,
            has_ordinals: !record.ordinals.is_empty(),
            limits,
        })
    }

    /// Returns true while shares overlap: a copy that stays has to reach its part before another may leave or shrink.
    fn is_moving(&self) -> bool {
        self.is_divided && self.parts.values().sum::<i64>() > self.replicas
    }
}

/// Returns the parts that the copies of an autoscaler or disruption budget get, as changes of the copies.
pub fn shares_of(kind: &GroupKind, object: &Value, targets: &[DividedTarget]) -> Vec<PlacedOverride> {
    match (&*kind.group, &*kind.kind) {
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler_shares(object, targets),
        ("policy", "PodDisruptionBudget") => budget_shares(object, targets),
        _ => Vec::new(),
    }
}

fn autoscaler_shares(scaler: &Value, targets: &[DividedTarget]) -> Vec<PlacedOverride> {
    let reference = &scaler["spec"]["scaleTargetRef"];
    let group =
        reference["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
    let is_target = |target: &&DividedTarget| {
        reference["kind"] == *target.kind.kind && reference["name"] == *target.name && *target.kind.group == *group
    };
    let Some(target) = targets.iter().find(is_target) else { return Vec::new() };
    let number = |field: &str| scaler["spec"][field].as_i64();
    let (least, Some(most)) = (number("minReplicas").unwrap_or(1), number("maxReplicas")) else { return Vec::new() };
    if target.has_ordinals {
        return fixed_shares(target);
    }
    let each = |number: i64| target.parts.keys().map(|uid| (uid.clone(), number)).collect();
    let mut mins: BTreeMap<Uid, i64> =
        if target.is_divided { part_of(least, &target.weights, &|_| least.min(1)) } else { each(least) };
    if target.is_moving() {
        // With a lower minimum, the other copy might never leave.
        for (uid, min) in &mut mins {
            *min = (*min).max(target.parts.get(uid).copied().unwrap_or(0));
        }
    }
    let floor = |uid: &Uid| mins.get(uid).copied().unwrap_or(1);
    let maxs = if target.is_divided { part_of(most, &target.weights, &floor) } else { each(most) };
    let share = |(uid, max): (&Uid, &i64)| {
        // `maxReplicas` is 1 at least.
        let max = target.limits.get(uid).map_or(*max, |limit| (*max).min(*limit).max(1));
        let min = floor(uid).min(max);
        ((min, max) != (least, most)).then(|| bounds_of_autoscaler(target, uid, min, max))
    };
    maxs.iter().filter_map(share).collect()
}

/// Returns bounds that keep each part as it is. `maxReplicas` is 1 at least; a copy with none is not scaled.
fn fixed_shares(target: &DividedTarget) -> Vec<PlacedOverride> {
    let parts = target.parts.iter().map(|(uid, part)| (uid, (*part).max(1)));
    parts.map(|(uid, part)| bounds_of_autoscaler(target, uid, part, part)).collect()
}

fn bounds_of_autoscaler(target: &DividedTarget, uid: &Uid, min: i64, max: i64) -> PlacedOverride {
    let patch = vec![
        json!({"op": "add", "path": "/spec/minReplicas", "value": min}),
        json!({"op": "add", "path": "/spec/maxReplicas", "value": max}),
    ];
    placed(&target.policy, uid, patch)
}

fn budget_shares(budget: &Value, targets: &[DividedTarget]) -> Vec<PlacedOverride> {
    let selector = budget.pointer("/spec/selector").cloned().unwrap_or_default();
    let selector = serde_json::from_value::<LabelSelectorSpec>(selector).ok();
    let Some(selector) = selector.and_then(|spec| LabelSelector::try_from(&spec).ok()) else { return Vec::new() };
    let counted: Vec<_> =
        targets.iter().filter(|target| target.is_divided && selector.matches_map(&target.pod_labels)).collect();
    let Some(first) = counted.first() else { return Vec::new() };
    let mut pods: BTreeMap<Uid, u64> = BTreeMap::new();
    for (uid, part) in counted.iter().flat_map(|target| &target.parts) {
        *pods.entry(uid.clone()).or_default() += part.max(&0).unsigned_abs();
    }
    let number = |field: &'static str| Some((field, budget["spec"][field].as_i64()?));
    let Some((field, all)) = number("minAvailable").or_else(|| number("maxUnavailable")) else { return Vec::new() };
    let total = i64::try_from(pods.values().sum::<u64>()).unwrap_or(i64::MAX);
    let own = |uid: &Uid| pods.get(uid).map_or(0, |pods| i64::try_from(*pods).unwrap_or(i64::MAX));
    let (permits_any, is_least) = match field {
        "minAvailable" => (all < total, true),
        _ => (all > 0, false),
    };
    let floor = |uid: &Uid| i64::from(permits_any && !is_least && own(uid) > 0);
    let mut parts = part_of(all, &pods, &floor);
    // One pod may be disrupted wherever there are any.
    for (uid, part) in parts.iter_mut().filter(|_| permits_any && is_least) {
        *part = (*part).min(own(uid) - 1).max(0);
    }
    let share = |(uid, part): (&Uid, &i64)| {
        let patch = vec![json!({"op": "replace", "path": format!("/spec/{field}"), "value": part})];
        (*part != all).then(|| placed(&first.policy, uid, patch))
    };
    parts.iter().filter_map(share).collect()
}

fn part_of(total: i64, weights: &BTreeMap<Uid, u64>, floor: &dyn Fn(&Uid) -> i64) -> BTreeMap<Uid, i64> {
    let share = |(uid, weight): (&'_ Uid, &u64)| (uid.clone(), *weight, floor(uid));
    let all: Vec<(Uid, u64, i64)> = weights.iter().map(share).collect();
    let shares: Vec<ReplicaShare> = all
        .iter()
        .map(|(uid, weight, floor)| ReplicaShare {
            name: uid.as_str(),
            weight: *weight,
            floor: *floor,
            cap: None,
            previous: 0,
        })
        .collect();
    let parts = divide(total, &shares);
    all.into_iter().zip(parts).map(|((uid, ..), part)| (uid, part)).collect()
}

fn placed(policy: &PolicyRef, on: &Uid, patch: Vec<Value>) -> PlacedOverride {
    PlacedOverride { policy: policy.clone(), on: vec![on.clone()], change: Override { patch, ..Override::default() } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::record;

    fn target(parts: &str, replicas: i64) -> DividedTarget {
        let mut web = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": replicas, "template": {"metadata": {"labels": {"app": "web"}}}}});
        record(parts).write_to(&mut web);
        DividedTarget::of(&web).unwrap()
    }

    /// `east 2..5` is an autoscaler's part on east.
    fn words(shares: &[PlacedOverride]) -> String {
        let word = |share: &PlacedOverride| {
            let values: Vec<String> = share.change.patch.iter().map(|one| one["value"].to_string()).collect();
            format!("{} {}", share.on[0].trim_start_matches("uid-"), values.join(".."))
        };
        shares.iter().map(word).collect::<Vec<_>>().join(", ")
    }

    fn kind(group: &str, kind: &str) -> GroupKind {
        GroupKind { group: group.into(), kind: kind.into() }
    }

    #[test]
    fn the_bounds_of_an_autoscaler_hold_in_all() {
        let scaler = |min: i64, max: i64| {
            json!({"spec": {"minReplicas": min, "maxReplicas": max,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}})
        };
        let of = |scaler: Value, parts: &str, replicas: i64| {
            words(&shares_of(&kind("autoscaling", "HorizontalPodAutoscaler"), &scaler, &[target(parts, replicas)]))
        };
        assert_eq!(of(scaler(3, 10), "east*2 west*2", 4), "east 2..5, west 1..5");
        assert_eq!(of(scaler(1, 10), "east*2 west*2", 4), "east 1..5, west 1..5", "an autoscaler has one at least");
        assert_eq!(of(scaler(3, 10), "east*4", 4), "", "one copy has all");
        assert_eq!(
            of(scaler(3, 10), "east*6 west*3", 6),
            "east 6..7, west 3..3",
            "what stays in a move has to reach its part"
        );
        let other = json!({"spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "api"}}});
        assert_eq!(of(other, "east*2 west*2", 4), "", "another target");
    }

    #[test]
    fn an_autoscaler_goes_no_further_than_the_limits_of_its_target() {
        let scaler = json!({"spec": {"minReplicas": 3, "maxReplicas": 10,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
        let of = |parts: &str, limits: &[(&str, i64)]| {
            let mut web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 8}});
            let mut record = record(parts);
            record.limits = limits.iter().map(|(name, limit)| (crate::fixtures::uid(name), *limit)).collect();
            record.write_to(&mut web);
            let targets: Vec<_> = DividedTarget::of(&web).into_iter().collect();
            words(&shares_of(&kind("autoscaling", "HorizontalPodAutoscaler"), &scaler, &targets))
        };
        assert_eq!(of("east", &[]), "");
        assert_eq!(of("east", &[("east", 5)]), "east 3..5", "one copy that has all");
        assert_eq!(of("east west", &[("east", 2)]), "east 2..2", "the other copy has no limit");
        assert_eq!(of("east", &[("east", 0)]), "east 1..1");
        assert_eq!(of("east", &[("west", 5)]), "", "the limit of a copy that has left");
        assert_eq!(of("east*4 west*4", &[("east", 4)]), "east 2..4, west 1..5");
    }

    #[test]
    fn a_disruption_budget_is_divided_with_the_pods() {
        let budget =
            |field: &str, value: Value| json!({"spec": {field: value, "selector": {"matchLabels": {"app": "web"}}}});
        let of = |budget: Value| {
            words(&shares_of(&kind("policy", "PodDisruptionBudget"), &budget, &[target("east*3 west*3", 6)]))
        };
        assert_eq!(of(budget("minAvailable", json!(4))), "east 2, west 2");
        assert_eq!(of(budget("minAvailable", json!(5))), "east 2, west 2", "one may go on each");
        assert_eq!(of(budget("minAvailable", json!(6))), "east 3, west 3", "none may go");
        assert_eq!(of(budget("maxUnavailable", json!(1))), "", "one may go on each");
        assert_eq!(of(budget("maxUnavailable", json!(0))), "", "none may go");
        assert_eq!(of(budget("maxUnavailable", json!(2))), "east 1, west 1");
        assert_eq!(of(budget("minAvailable", json!("50%"))), "", "percentages hold as they are");
        assert_eq!(of(json!({"spec": {"minAvailable": 4, "selector": {"matchLabels": {"app": "api"}}}})), "");
    }
}
