//! The type check of ValidatingAdmissionPolicies: selection of the kinds, and the reported errors.

use std::collections::BTreeSet;

use portolan_cel::{
    DeclaredType, RuleSchema,
    policy::{TypedKind, type_warnings},
};
use portolan_types::GroupVersionKind;
use serde_json::{Value, json};

use portolan_kinds::{Kind, Served, Surface, openapi};

/// Maximum of kinds per rule that are checked; once it is reached, later rules are not (`maxTypesToCheck`).
const MAX_KINDS: usize = 10;
/// Maximum of rules, and of kinds of all rules, that are checked.
const MAX_RULES: usize = 1000;
const MAX_KINDS_OF_ALL: usize = 100;
/// Maximum of bytes in the schemas of these kinds, as JSON with all referenced schemas; once it is reached, later kinds
/// are not checked.
const MAX_SCHEMA_BYTES: usize = 64 * 1024 * 1024;

/// Returns the new `observedGeneration` and `typeChecking` of a policy, checked with the kinds of its logical cluster;
/// `None` if its present generation has been checked.
pub fn checked(policy: &Value, surface: &Surface) -> Option<Value> {
    let number = |pointer: &str| policy.pointer(pointer).and_then(Value::as_i64).unwrap_or_default();
    let generation = number("/metadata/generation");
    if generation <= number("/status/observedGeneration") {
        return None;
    }
    let warnings = warnings(policy.get("spec").unwrap_or(&Value::Null), surface, MAX_SCHEMA_BYTES);
    let warnings: Vec<Value> =
        warnings.into_iter().map(|(field, warning)| json!({"fieldRef": field, "warning": warning})).collect();
    let found = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
    Some(json!({"observedGeneration": generation, "typeChecking": found}))
}

/// Returns the type errors of a policy's expressions against its kinds, by the paths of the expressions; `room` is the
/// budget for the schemas of these kinds.
fn warnings(spec: &Value, surface: &Surface, mut room: usize) -> Vec<(String, String)> {
    let mut known = |gvk: &GroupVersionKind| typed(gvk, &surface.kind(gvk)?, &mut room);
    let text = |name: &str| spec.pointer(&format!("/paramKind/{name}")).and_then(Value::as_str);
    let params = text("apiVersion").zip(text("kind"));
    let params = params.and_then(|(version, kind)| GroupVersionKind::parse(version, kind).ok());
    let params = params.as_ref().and_then(&mut known);
    let kinds = kinds(spec, surface);
    type_warnings(spec, kinds.iter().take(MAX_KINDS_OF_ALL).filter_map(known), params.as_ref())
}

/// Returns a kind with its type; `None` where its schema is larger than the room that is left.
fn typed(gvk: &GroupVersionKind, served: &Served, room: &mut usize) -> Option<TypedKind> {
    if *room == 0 {
        return None;
    }
    let schema = openapi::resolved(&served.table, served.kind.schema);
    let left = room.checked_sub(schema.to_string().len());
    *room = left.unwrap_or_default();
    left.map(|_| TypedKind {
        shown: format!("{}/{}, Kind={}", gvk.group, gvk.version, gvk.kind),
        name: gvk.kind.to_string(),
        declared: DeclaredType::of(&RuleSchema::from_json(&schema), true),
    })
}

/// Returns the kinds that the rules of a policy name one by one.
fn kinds(spec: &Value, surface: &Surface) -> BTreeSet<GroupVersionKind> {
    let mut found = BTreeSet::new();
    let rules = spec.pointer("/matchConstraints/resourceRules").and_then(Value::as_array);
    for rule in rules.into_iter().flatten().take(MAX_RULES) {
        let own = MatchedKinds::new(rule).kinds(surface);
        let is_full = own.len() >= MAX_KINDS;
        found.extend(own.into_iter().take(MAX_KINDS));
        if is_full {
            break;
        }
    }
    found
}

/// Kinds that a rule names, sorted. A rule with a wildcard among its groups or versions names none; wildcards among
/// its resources and subresources are left out.
struct MatchedKinds {
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
}

impl MatchedKinds {
    fn new(rule: &Value) -> Self {
        let texts = |name: &str| -> Vec<String> {
            let list = rule.get(name).and_then(Value::as_array).into_iter().flatten();
            let texts: BTreeSet<String> = list.filter_map(Value::as_str).map(str::to_owned).collect();
            Vec::from_iter(texts)
        };
        let all_or_none = |texts: Vec<String>| if texts.iter().any(|text| text.contains('*')) { vec![] } else { texts };
        // Kubernetes' REST mapper looks them up in lower case.
        let resources = texts("resources").into_iter().filter(|name| !name.contains(['*', '/']));
        let resources: BTreeSet<String> = resources.map(|name| name.to_lowercase()).collect();
        Self {
            groups: all_or_none(texts("apiGroups")),
            versions: all_or_none(texts("apiVersions")),
            resources: Vec::from_iter(resources),
        }
    }

    /// Returns the served kinds by group, version and resource. If the core group is named, every group matches, as in
    /// Kubernetes' REST mapper.
    fn kinds(&self, surface: &Surface) -> Vec<GroupVersionKind> {
        let served = surface.kinds().map(|(_, kind)| kind).filter(|kind| kind.served);
        let places = served
            .enumerate()
            .flat_map(|(order, kind)| self.places(kind).into_iter().map(move |place| (place, order, kind.gvk.clone())));
        // Each once: the singular may be like the plural.
        let places: BTreeSet<_> = places.collect();
        places.into_iter().map(|(.., gvk)| gvk).collect()
    }

    /// Returns the positions at which a kind is named.
    fn places(&self, kind: &Kind) -> Vec<[usize; 3]> {
        let place = |list: &[String], name: &str| list.binary_search_by(|own| own.as_str().cmp(name)).ok();
        let Some(version) = place(&self.versions, &kind.gvk.version) else { return Vec::new() };
        let groups = [&*kind.gvk.group, ""].into_iter().filter_map(|group| place(&self.groups, group));
        let resources = [&*kind.resource, &*kind.singular].map(|resource| place(&self.resources, resource));
        groups.flat_map(|group| resources.into_iter().flatten().map(move |at| [group, version, at])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(groups: &[&str], resources: &[&str], expression: &str) -> Value {
        json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 1}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": groups, "apiVersions": ["v1"], "resources": resources}]},
            "validations": [{"expression": expression}]}})
    }

    fn warned(policy: &Value) -> Vec<String> {
        let status = checked(policy, &Surface::builtin()).expect("a new generation");
        assert_eq!(status["observedGeneration"], 2);
        let warnings = status.pointer("/typeChecking/expressionWarnings").and_then(Value::as_array).cloned();
        let warnings = warnings.unwrap_or_default();
        assert!(warnings.iter().all(|warning| warning["fieldRef"] == "spec.validations[0].expression"));
        warnings.iter().map(|warning| warning["warning"].as_str().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn policies_are_checked_by_the_kinds_that_they_name() {
        let none: &[&str] = &[];
        let deployment = &["apps/v1, Kind=Deployment"][..];
        for (case, groups, resources, expression, wrong) in [
            ("a field that is there", ["apps"], vec!["deployments"], "object.spec.replicas > 1", none),
            ("one that is not", ["apps"], vec!["deployments"], "object.spec.x > 1", deployment),
            ("in capitals", ["apps"], vec!["Deployments"], "object.spec.x > 1", deployment),
            ("a group in capitals", ["Apps"], vec!["deployments"], "object.spec.x > 1", none),
            ("by the singular", ["apps"], vec!["deployment", "deployments"], "object.spec.x > 1", deployment),
            ("a type that does not fit", ["apps"], vec!["deployments"], "object.spec.replicas == 'x'", deployment),
            (
                "several kinds",
                ["apps"],
                vec!["deployments", "daemonsets", "replicasets"],
                "object.spec.replicas > 1",
                &["apps/v1, Kind=DaemonSet"],
            ),
            ("any group", ["*"], vec!["deployments"], "object.x", none),
            ("any resource, and subresources", ["apps"], vec!["*", "deployments/scale"], "object.x", none),
            ("in the core group", [""], vec!["configmaps"], "object.x", &["/v1, Kind=ConfigMap"]),
            (
                "of any group where it is the core group's",
                [""],
                vec!["events"],
                "object.x",
                &["/v1, Kind=Event", "events.k8s.io/v1, Kind=Event"],
            ),
            (
                "numbers or texts are either",
                ["apps"],
                vec!["deployments"],
                "object.spec.strategy.rollingUpdate.maxSurge == '1'",
                none,
            ),
            (
                "quantities have no type that is known",
                ["apps"],
                vec!["deployments"],
                "object.spec.template.spec.containers.all(c, has(c.resources.limits))",
                deployment,
            ),
        ] {
            let told = warned(&policy(&groups, &resources, expression)).concat();
            let starts: Vec<&str> = told.lines().filter_map(|line| Some(line.split_once(": ERROR: ")?.0)).collect();
            assert_eq!(starts, wrong, "{case}: {told}");
        }
    }

    #[test]
    fn ten_kinds_of_a_rule_are_checked() {
        let all: Vec<String> = Surface::builtin()
            .kinds()
            .filter(|(_, kind)| kind.served && kind.gvk.group.is_empty() && !kind.is_only_created())
            .map(|(_, kind)| kind.resource.to_string())
            .collect();
        assert!(all.len() > MAX_KINDS);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let mut policy = policy(&[""], &all, "object.x");
        let more = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]});
        policy["spec"]["matchConstraints"]["resourceRules"].as_array_mut().unwrap().push(more);
        let told = warned(&policy).concat();
        assert_eq!(told.matches(", Kind=").count(), MAX_KINDS, "{told}");
        assert!(!told.contains("Deployment"), "{told}");
    }

    #[test]
    fn kinds_are_checked_within_the_bound_of_their_schemas() {
        let policy = policy(&["apps"], &["daemonsets", "deployments"], "object.x");
        let all = Surface::builtin();
        let of_one = openapi::resolved(
            &all.kind(&GroupVersionKind::new("apps", "v1", "DaemonSet")).unwrap().table,
            all.kind(&GroupVersionKind::new("apps", "v1", "DaemonSet")).unwrap().kind.schema,
        )
        .to_string()
        .len();
        for (room, looked_at) in [(usize::MAX, 2), (of_one + 1, 1), (of_one - 1, 0)] {
            let told = warnings(&policy["spec"], &all, room);
            assert_eq!(told.iter().map(|(_, text)| text.matches("Kind=").count()).sum::<usize>(), looked_at, "{room}");
        }
    }

    #[test]
    fn warnings_are_in_kube_apiservers_words() {
        let told = warned(&policy(&["apps"], &["deployments"], "object.spec.foo == 1"));
        let expected = "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'foo'\n | object.spec.foo == 1\n | ...........^\n";
        assert_eq!(told, [expected]);
    }

    #[test]
    fn an_observed_generation_is_not_checked_again() {
        let mut policy = policy(&["apps"], &["deployments"], "object.x");
        policy["status"]["observedGeneration"] = 2.into();
        assert_eq!(checked(&policy, &Surface::builtin()), None);
    }
}
