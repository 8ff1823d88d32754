//! Filter of objects that only an explicit policy places: the physical cluster has to take and serve their kind.

use portolan_types::{
    object,
    placement::{CustomKindStatus, PhysicalClusterSpec, PhysicalClusterStatus, PlacementPolicySpec},
};
use serde_json::Value;

use crate::{
    cluster_facts::{ClusterFacts, ClusterInfo},
    exclusion_reason::ExclusionReason,
    expressions::ExpressionSubject,
    filters::FilterContext,
    object_role::Role,
    policy::{CompiledPolicy, SelectorMatch},
    workload::Workload,
};

/// Returns true if the `clusters` of a policy allow a `PhysicalCluster`: the policy's objects are synced there.
pub fn allows_cluster(policy: &PlacementPolicySpec, physical: &Value) -> bool {
    let Some(uid) = object::uid(physical) else { return false };
    let part = |key: &str| physical.get(key).cloned().unwrap_or_default();
    let spec: PhysicalClusterSpec = serde_json::from_value(part("spec")).unwrap_or_default();
    let status: PhysicalClusterStatus = serde_json::from_value(part("status")).unwrap_or_default();
    let mut info = ClusterInfo::new(object::name(physical), uid, spec, status, |_| 0);
    let labels = object::metadata(physical).get("labels").and_then(Value::as_object).into_iter().flatten();
    info.labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    info.subject = ExpressionSubject::of_cluster(physical);
    let policy = CompiledPolicy::compile(policy.clone());
    policy.fault().is_none() && matches!(policy.standing(&info), SelectorMatch::Tier(_))
}

/// Returns what the physical cluster reports about the kind of a workload, with the most versions.
fn status_of<'a>(cluster: &'a ClusterInfo, workload: &Workload) -> Option<&'a CustomKindStatus> {
    let about = cluster.custom_kinds.iter().filter(|entry| entry.is_about(&workload.resource, &workload.kind.kind));
    about.max_by_key(|entry| entry.versions.len())
}

/// Checks that a physical cluster takes and serves the kind. An existing copy stays.
pub(crate) fn check(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    let workload = ctx.question.workload;
    if workload.role != Role::Explicit || ctx.is_here(cluster) {
        return Ok(());
    }
    match status_of(&cluster.info, workload) {
        None => Err(ExclusionReason::NotSynced),
        Some(status) if status.versions.contains(&workload.version) => Ok(()),
        Some(_) => Err(ExclusionReason::KindNotServed),
    }
}

/// Explains a rejection.
pub(crate) fn message(ctx: &FilterContext, cluster: &ClusterFacts) -> String {
    let workload = ctx.question.workload;
    let (resource, kind) = (&workload.resource, &workload.kind);
    match status_of(&cluster.info, workload) {
        None => format!(
            "it does not take {resource}: neither its syncedResources nor a ClusterPlacementPolicy of the workspace where it is \
             registered names them"
        ),
        Some(status) if !status.message.is_empty() => format!("it does not serve {kind}: {}", status.message),
        Some(status) if status.versions.is_empty() => format!("it does not serve {kind}"),
        Some(status) => {
            format!("it serves {kind} in {}, not in {}", status.versions.join(", "), workload.version)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fixtures::{PlacementCase, chosen, cluster, policy, workload};

    #[test]
    fn a_custom_resource_goes_where_its_kind_is_taken_and_served() {
        let entry = |entry: serde_json::Value| vec![serde_json::from_value(entry).unwrap()];
        let served = json!({"group": "example.com", "kind": "Widget", "resource": "widgets", "versions": ["v2", "v1"]});
        let older = json!({"group": "example.com", "kind": "Widget", "resource": "widgets", "versions": ["v1beta1"]});
        let absent = json!({"group": "example.com", "kind": "Widget"});
        let refused = json!({"group": "example.com", "kind": "Widget", "message": "it is cluster-scoped there"});
        for (case, kinds, on, expected, reason) in [
            ("served in its version", entry(served.clone()), "", "east", None),
            ("not taken", Vec::new(), "", "", Some("NotSynced")),
            ("not served", entry(absent.clone()), "", "", Some("KindNotServed")),
            ("served in another version", entry(older), "", "", Some("KindNotServed")),
            ("not to be served", entry(refused), "", "", Some("KindNotServed")),
            ("no longer served, and there", entry(absent), "east", "east", None),
        ] {
            let object = json!({"apiVersion": "example.com/v1", "metadata": {"name": "w"}, "spec": {}});
            let east = cluster("east").with(|info| info.custom_kinds = kinds);
            let by = policy(1, "p", json!({"resources": [{"apiGroup": "example.com", "kinds": ["Widget"]}]}));
            let case_ = PlacementCase::new(workload("example.com", "Widget", object), vec![east]).by(by).on(on);
            let decision = case_.decide();
            assert_eq!(chosen(&decision), expected, "{case}");
            assert_eq!(decision.rejected.first().map(|rejected| rejected.reason.word()), reason, "{case}");
        }
    }

    #[test]
    fn matched_objects_go_to_the_clusters_of_the_policy() {
        let physical = json!({"metadata": {"name": "east", "uid": "u", "labels": {"region": "eu"}}, "spec": {}});
        for (clusters, expected) in [
            (json!({}), true),
            (json!({"names": ["east"]}), true),
            (json!({"names": ["west"]}), false),
            (json!({"exclude": ["east"]}), false),
            (json!({"selector": {"matchLabels": {"region": "eu"}}}), true),
            (json!({"selector": {"matchLabels": {"region": "us"}}}), false),
            (json!({"names": ["west"], "fallback": [{"names": ["east"]}]}), true),
        ] {
            let spec = serde_json::from_value(json!({"clusters": clusters})).unwrap();
            assert_eq!(super::allows_cluster(&spec, &physical), expected, "{clusters}");
        }
    }

    #[test]
    fn a_policy_for_any_group_is_not_about_custom_kinds_unless_it_only_restricts() {
        let about = |group: &str, enforcement: &str| {
            let spec = json!({"resources": [{"apiGroup": group}], "enforcement": enforcement});
            policy(1, "p", spec).policy.is_about_kind("example.com", "Widget")
        };
        assert!(!about("*", "Default"), "their controllers run upstream");
        assert!(about("example.com", "Default"));
        assert!(about("*", "Constraint"));
    }
}
