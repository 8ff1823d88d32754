//! Parts of a policy that have no effect, each with a sentence for the condition `FullyEffective` and for warnings.

use portolan_types::placement::{
    ClusterCount, DivideBy, FallbackMode, MovePace, Override, ReplicaMode, Replicas, VolumeMoves,
};
use serde_json::Value;

use crate::{
    decide::{PER_NODE, WHOLE_ON_ONE},
    object_role::{Role, role_of},
    policy::CompiledPolicy,
};

/// Kinds without a `spec`, of which a copy has nothing to yield.
const WITHOUT_SPEC: [(&str, &str); 3] = [("", "ConfigMap"), ("", "Secret"), ("", "ServiceAccount")];

/// Returns a sentence for each part of the policy that has no effect on the objects that it selects.
pub fn parts_without_effect(policy: &CompiledPolicy) -> Vec<String> {
    let mut found = kinds_without_placement(policy);
    if policy.is_constraint() {
        found.extend(parts_that_constraints_lack(policy));
    } else {
        found.extend(divisions_without_effect(policy));
        found.extend(count_without_effect(policy));
        found.extend(overflow_without_effect(policy));
    }
    found.extend(terms_without_effect(policy));
    found.extend(tolerations_without_effect(policy));
    found.extend(overrides_without_effect(policy));
    found.extend(yields_without_effect(policy));
    found
}

/// Returns the kinds that it names, without `*`.
fn named_kinds(policy: &CompiledPolicy) -> impl Iterator<Item = (&str, &str)> {
    policy.kinds().filter(|(_, kind)| *kind != "*")
}

/// Returns the named kinds that go where others go. They make no pods, and have no replicas.
fn named_followers(policy: &CompiledPolicy) -> Vec<&str> {
    let follows = |(group, kind): &(&str, &str)| role_of(group, kind, &Value::Null).follows();
    named_kinds(policy).filter(follows).map(|(_, kind)| kind).collect()
}

fn kinds_without_placement(policy: &CompiledPolicy) -> Vec<String> {
    let line = |(group, kind): (&str, &str)| match role_of(group, kind, &Value::Null) {
        Role::Never(why) => Some(format!("spec.resources: {kind:?} of the group {group:?} is not placed: {why}")),
        _ => None,
    };
    named_kinds(policy).filter_map(line).collect()
}

fn divisions_without_effect(policy: &CompiledPolicy) -> Vec<String> {
    if policy.divides_by().is_none() {
        return weights_without_effect(policy);
    }
    let among = |kinds: &[(&str, &'static str)]| -> Vec<&str> {
        kinds.iter().filter(|(group, kind)| policy.is_about_kind(group, kind)).map(|(_, kind)| *kind).collect()
    };
    let lines = [
        (among(&WHOLE_ON_ONE), "each runs whole on one physical cluster"),
        (among(&PER_NODE), "it runs on the nodes of each"),
        (named_followers(policy), "each copy has all of it"),
    ];
    let lines = lines.into_iter().filter(|(kinds, _)| !kinds.is_empty());
    let line = |(kinds, instead): (Vec<&str>, &str)| {
        format!("spec.replicas.mode: Divide has no effect on {}: {instead}", kinds.join(", "))
    };
    lines.map(line).chain(weights_without_effect(policy)).collect()
}

fn weights_without_effect(policy: &CompiledPolicy) -> Vec<String> {
    let replicas = policy.spec.replicas.as_ref();
    let mut found = Vec::new();
    if replicas.is_some_and(|r| r.mode == ReplicaMode::Duplicate && divides_unused(r)) {
        found.push("spec.replicas: by, weights and limits have no effect unless mode is Divide".to_owned());
    } else if replicas.is_some_and(|r| r.by != DivideBy::Weight && !r.weights.is_empty()) {
        found.push("spec.replicas: weights have no effect unless by is Weight".to_owned());
    } else if replicas.is_some_and(|r| r.by == DivideBy::Weight && r.weights.is_empty()) {
        found.push("spec.replicas.weights: there is none: all physical clusters weigh the same".to_owned());
    }
    found
}

fn divides_unused(replicas: &Replicas) -> bool {
    replicas.by != DivideBy::Equal || !replicas.weights.is_empty() || !replicas.limits.is_empty()
}

/// Without further choices or divided replicas, nothing can flow over.
fn overflow_without_effect(policy: &CompiledPolicy) -> Option<String> {
    let lacks = match (policy.has_fallback(), policy.divides_by()) {
        (true, Some(_)) => return None,
        (false, _) => "there is no fallback",
        (true, None) => "replicas.mode is not Divide",
    };
    let overflows = policy.spec.clusters.fallback_mode == FallbackMode::Overflow;
    overflows.then(|| format!("spec.clusters.fallbackMode: Overflow has no effect: {lacks}"))
}

/// Objects that go where others go are near to these anyway.
fn terms_without_effect(policy: &CompiledPolicy) -> Option<String> {
    let followers = named_followers(policy).join(", ");
    (policy.has_workload_terms() && !followers.is_empty())
        .then(|| format!("spec.with and spec.apartFrom have no effect on {followers}: they go where others go"))
}

/// A CronJob has one copy: several would each run every Job.
fn count_without_effect(policy: &CompiledPolicy) -> Option<String> {
    let wants_several = matches!(policy.spec.count, Some(ClusterCount::All | ClusterCount::Exactly(2..)));
    let names_it = named_kinds(policy).any(|named| named == ("batch", "CronJob"));
    (wants_several && names_it).then(|| "spec.count has no effect on CronJob: it has one copy".to_owned())
}

fn parts_that_constraints_lack(policy: &CompiledPolicy) -> Option<String> {
    let spec = &policy.spec;
    let fields = [
        ("spec.replicas", spec.replicas.is_some()),
        ("spec.spread", !spec.spread.is_empty()),
        ("spec.moves", spec.moves != MovePace::default()),
        ("spec.volumes", spec.volumes != VolumeMoves::default()),
        ("spec.rollout", spec.rollout.is_some()),
        ("spec.priority", spec.priority != 0),
        ("spec.clusters.fallbackMode", spec.clusters.fallback_mode != FallbackMode::Failover),
        ("spec.count: All", spec.count == Some(ClusterCount::All)),
    ];
    let fields: Vec<&str> = fields.iter().filter(|(_, is_set)| *is_set).map(|(field, _)| *field).collect();
    (!fields.is_empty()).then(|| format!("{} has no effect with enforcement Constraint", fields.join(", ")))
}

fn tolerations_without_effect(policy: &CompiledPolicy) -> Vec<String> {
    let prefers = policy.spec.tolerations.iter().enumerate().filter(|(_, t)| t.effect == "PreferNoSchedule");
    let line = |at| format!("spec.tolerations[{at}]: physical clusters have no taints of the effect PreferNoSchedule");
    prefers.map(|(at, _)| line(at)).collect()
}

fn overrides_without_effect(policy: &CompiledPolicy) -> Vec<String> {
    let followers = named_followers(policy).join(", ");
    let line = |(at, one): (usize, &Override)| {
        if is_empty(one) {
            return Some(format!("spec.overrides[{at}] changes nothing"));
        }
        let of_containers = [("imageRegistry", one.image_registry.is_some()), ("env", !one.env.is_empty())];
        let fields: Vec<&str> = of_containers.iter().filter(|(_, is_set)| *is_set).map(|(field, _)| *field).collect();
        let is_wasted = !followers.is_empty() && !fields.is_empty();
        is_wasted
            .then(|| format!("spec.overrides[{at}]: {} has no effect on {followers}: no containers", fields.join(", ")))
    };
    policy.spec.overrides.iter().enumerate().filter_map(line).collect()
}

fn yields_without_effect(policy: &CompiledPolicy) -> Option<String> {
    let kinds = named_kinds(policy).filter(|named| WITHOUT_SPEC.contains(named)).map(|(_, kind)| kind);
    let kinds: Vec<&str> = kinds.filter(|_| !policy.spec.yields.is_empty()).collect();
    (!kinds.is_empty()).then(|| format!("spec.yield has no effect on {}: no spec", kinds.join(", ")))
}

fn is_empty(one: &Override) -> bool {
    let Override { clusters: _, image_registry, labels, annotations, env, pod_view, patch } = one;
    let is_plain = image_registry.is_none() && pod_view.is_none() && env.is_empty();
    is_plain && labels.is_empty() && annotations.is_empty() && patch.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::parts_without_effect;
    use crate::fixtures::{constraint, policy};

    fn about(kind: &str, mut spec: serde_json::Value) -> serde_json::Value {
        spec["resources"] = json!([{"apiGroup": "*", "kinds": [kind]}]);
        spec
    }

    #[test]
    fn no_part_of_a_policy_is_ignored_silently() {
        let parts = |policy: crate::LeveledPolicy| parts_without_effect(&policy.policy);
        let divide = json!({"replicas": {"mode": "Divide"}});
        assert_eq!(parts(policy(1, "p", about("Deployment", divide.clone()))), Vec::<String>::new());
        assert_eq!(parts(policy(1, "p", about("Job", json!({"count": 2})))), Vec::<String>::new());
        assert_eq!(parts(policy(1, "p", about("Job", divide.clone()))), Vec::<String>::new());
        let scheduled = parts(policy(1, "p", about("CronJob", divide.clone())));
        assert_eq!(scheduled.len(), 1);
        assert!(scheduled[0].starts_with("spec.replicas.mode: Divide has no effect on CronJob: "), "{scheduled:?}");
        let bound = json!({"replicas": {"mode": "Divide"}, "spread": [{"topologyKey": "zone"}], "priority": 3});
        let any = parts(policy(1, "p", divide));
        assert_eq!(any.len(), 2, "a policy about every kind is about those, too: {any:?}");
        let expected = "spec.replicas, spec.spread, spec.priority has no effect with enforcement Constraint";
        assert_eq!(parts(constraint(1, "c", about("Job", bound))), [expected]);
    }

    #[test]
    fn every_field_has_an_effect_on_the_named_kinds_or_a_sentence() {
        let core = |kind: &str, mut spec: serde_json::Value| {
            spec["resources"] = json!([{"apiGroup": "", "kinds": [kind]}]);
            spec
        };
        let registry = json!({"overrides": [{"imageRegistry": "mirror"}, {"env": {"A": "b"}}, {"labels": {"a": "b"}}]});
        let cron = json!({"resources": [{"apiGroup": "batch", "kinds": ["CronJob"]}], "count": 2});
        let own = json!({"resources": [{"apiGroup": "portolan.dev", "kinds": ["Placement"]}]});
        for (case, spec, expected) in [
            ("images of pods", core("Pod", registry.clone()), vec![]),
            (
                "images of a ConfigMap",
                core("ConfigMap", registry),
                vec![
                    "spec.overrides[0]: imageRegistry has no effect on ConfigMap: no containers",
                    "spec.overrides[1]: env has no effect on ConfigMap: no containers",
                ],
            ),
            (
                "replicas of a Service",
                core("Service", json!({"replicas": {"mode": "Divide"}})),
                vec!["spec.replicas.mode: Divide has no effect on Service: each copy has all of it"],
            ),
            ("an empty override", core("Pod", json!({"overrides": [{}]})), vec!["spec.overrides[0] changes nothing"]),
            (
                "fields of a Secret",
                core("Secret", json!({"yield": ["spec.a"]})),
                vec!["spec.yield has no effect on Secret: no spec"],
            ),
            ("copies of a CronJob", cron, vec!["spec.count has no effect on CronJob: it has one copy"]),
            (
                "kinds of the control plane",
                own,
                vec![
                    "spec.resources: \"Placement\" of the group \"portolan.dev\" is not placed: it belongs to the control plane",
                ],
            ),
            (
                "a preference",
                core(
                    "Pod",
                    json!({"tolerations": [{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "PreferNoSchedule"}]}),
                ),
                vec!["spec.tolerations[1]: physical clusters have no taints of the effect PreferNoSchedule"],
            ),
            (
                "weights that are not used",
                core("ReplicationController", json!({"replicas": {"mode": "Divide", "weights": [{"weight": 2}]}})),
                vec!["spec.replicas: weights have no effect unless by is Weight"],
            ),
            (
                "weights of duplicates",
                core("ReplicationController", json!({"replicas": {"by": "Weight"}})),
                vec!["spec.replicas: by, weights and limits have no effect unless mode is Divide"],
            ),
            (
                "groups without replicas to divide",
                core("ReplicationController", json!({"clusters": {"fallback": [{}], "fallbackMode": "Overflow"}})),
                vec!["spec.clusters.fallbackMode: Overflow has no effect: replicas.mode is not Divide"],
            ),
            (
                "neighbors of a Service",
                core("Service", json!({"apartFrom": [{"selector": {"matchLabels": {"a": "b"}}}]})),
                vec!["spec.with and spec.apartFrom have no effect on Service: they go where others go"],
            ),
        ] {
            assert_eq!(parts_without_effect(&policy(1, "p", spec).policy), expected, "{case}");
        }
        let all = parts_without_effect(&constraint(1, "c", core("Pod", json!({"count": "All"}))).policy);
        assert_eq!(all, ["spec.count: All has no effect with enforcement Constraint"]);
    }
}
