//! Protection against privilege escalation: writing a role needs each of its permissions or `escalate`, writing a
//! binding each permission of the role or `bind`. As in kube-apiserver (`pkg/registry/rbac/*/policybased`), changes
//! that only let the object be collected are exempt.

use std::collections::{BTreeSet, HashMap, hash_map::Entry};

use portolan_strategy::rbac::{MASTERS, PolicyRule, Roles as _, uncovered};
use portolan_types::{GroupResource, Status, object};
use serde_json::Value;

use crate::{
    authz::{Authorizer as _, RbacAuthorizer},
    routing::attributes::Attributes,
};

use crate::hooks::{AdmissionRequest, Operation};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) async fn check(
    rbac: &RbacAuthorizer,
    request: &AdmissionRequest<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let Some(object) = object.filter(|_| *request.kind.gvk.group == *GROUP && request.operation != Operation::Delete)
    else {
        return Ok(());
    };
    if request.user.is_in(MASTERS) {
        return Ok(());
    }
    match &*request.kind.resource {
        "roles" | "clusterroles" => roles(rbac, request, object, old).await,
        "rolebindings" | "clusterrolebindings" => bindings(rbac, request, object, old).await,
        _ => Ok(()),
    }
}

async fn roles(
    rbac: &RbacAuthorizer,
    request: &AdmissionRequest<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if old.is_some_and(|old| lets_go_only(old, object)) {
        return Ok(());
    }
    // Checked by the name in the URL: the right to escalate an existing role does not include the right to create it
    // again.
    if allows(rbac, request, right(request, "escalate", &request.kind.resource, request.url_name)).await? {
        return Ok(());
    }
    check_held_rules(rbac, request, object, &PolicyRule::of(object)).await?;
    if is_aggregated(object) || old.is_some_and(is_aggregated) {
        return held_all(rbac, request, object).await;
    }
    Ok(())
}

/// Returns true if only finalizers and owner references change, so that the garbage collector can do its work. Labels
/// count as a change, since they can aggregate a role into others.
fn lets_go_only(old: &Value, new: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        let metadata = object::metadata_mut(&mut object);
        metadata.retain(|key, _| !matches!(key.as_str(), "ownerReferences" | "finalizers" | "managedFields"));
        object
    };
    rest(old) == rest(new)
}

fn is_aggregated(role: &Value) -> bool {
    let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
    selectors.is_some_and(|selectors| !selectors.is_empty())
}

/// Checks an aggregated role, which may come to hold any permission.
async fn held_all(rbac: &RbacAuthorizer, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), Status> {
    let all = || vec!["*".to_owned()];
    let wanted = [
        PolicyRule { verbs: all(), api_groups: all(), resources: all(), ..PolicyRule::default() },
        PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() },
    ];
    let own = rbac.rules(request.cluster.id, request.user, request.namespace).await?;
    if uncovered(&wanted, &own).is_empty() {
        return Ok(());
    }
    let why = "must have cluster-admin privileges to use the aggregationRule";
    Err(Status::forbidden(&request.kind.group_resource(), object::name(object), why))
}

async fn bindings(
    rbac: &RbacAuthorizer,
    request: &AdmissionRequest<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if old.is_some_and(|old| lets_go_only(old, object)) {
        return Ok(());
    }
    let text = |key: &str| object.pointer(&format!("/roleRef/{key}")).and_then(Value::as_str).unwrap_or_default();
    let (kind, name) = (text("kind"), text("name"));
    let resource = if kind == "ClusterRole" { "clusterroles" } else { "roles" };
    if allows(rbac, request, right(request, "bind", resource, name)).await? {
        return Ok(());
    }
    let known = rbac.roles(request.cluster.id).await?;
    let rules = match kind {
        "ClusterRole" => known.cluster_role_rules(name),
        _ => known.role_rules(request.namespace, name),
    };
    let rules = rules.ok_or_else(|| Status::not_found(&GroupResource::new(GROUP, resource), name))?;
    check_held_rules(rbac, request, object, rules).await
}

/// Returns the attributes of a right on roles in the namespace of the request.
fn right(request: &AdmissionRequest<'_>, verb: &str, resource: &str, name: &str) -> Attributes {
    Attributes {
        verb: verb.into(),
        group: GROUP.into(),
        resource: resource.into(),
        name: name.into(),
        namespace: request.namespace.into(),
        ..Attributes::default()
    }
}

async fn allows(rbac: &RbacAuthorizer, request: &AdmissionRequest<'_>, right: Attributes) -> Result<bool, Status> {
    Ok(rbac.authorize(request.cluster.id, request.user, &right).await?.is_allowed())
}

async fn check_held_rules(
    rbac: &RbacAuthorizer,
    request: &AdmissionRequest<'_>,
    object: &Value,
    wanted: &[PolicyRule],
) -> Result<(), Status> {
    let own = rbac.rules(request.cluster.id, request.user, request.namespace).await?;
    let missing = uncovered(wanted, &own);
    if missing.is_empty() {
        return Ok(());
    }
    let lines: BTreeSet<String> = compacted(&missing).iter().map(describe).collect();
    let why = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        request.user.name,
        quoted(&request.user.groups),
        rules_text(&lines)
    );
    Err(Status::forbidden(&request.kind.group_resource(), object::name(object), why))
}

/// Size limit of the missing rules in a message, in bytes. kube-apiserver lists all of them, but a role of a kilobyte
/// can name 100,000 pairs of groups and resources.
const MAX_TOLD: usize = 1 << 20;

fn rules_text(rules: &BTreeSet<String>) -> String {
    let mut text = String::new();
    for (index, rule) in rules.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        if text.len() + rule.len() > MAX_TOLD {
            return format!("{text}and {} more", rules.len() - index);
        }
        text.push_str(rule);
    }
    text
}

/// Merges rules about the same resource into one rule with all their verbs (kube-apiserver's `CompactRules`).
fn compacted(rules: &[PolicyRule]) -> Vec<PolicyRule> {
    let mut all: Vec<PolicyRule> = Vec::new();
    let mut places: HashMap<[Option<&str>; 3], usize> = HashMap::new();
    for rule in rules {
        let place = simple(rule).and_then(|about| match places.entry(about) {
            Entry::Occupied(place) => Some(*place.get()),
            Entry::Vacant(place) => {
                place.insert(all.len());
                None
            }
        });
        match place.and_then(|place| all.get_mut(place)) {
            Some(other) => other.verbs.extend(rule.verbs.iter().cloned()),
            None => all.push(rule.clone()),
        }
    }
    all
}

/// Returns the single group, resource and name of a rule; `None` if it has more.
fn simple(rule: &PolicyRule) -> Option<[Option<&str>; 3]> {
    let one = |list: &[String]| list.len() == 1;
    let is_simple = one(&rule.api_groups)
        && one(&rule.resources)
        && rule.resource_names.len() <= 1
        && rule.non_resource_urls.is_empty();
    let about = [&rule.api_groups, &rule.resources, &rule.resource_names];
    is_simple.then(|| about.map(|list| list.first().map(String::as_str)))
}

fn describe(rule: &PolicyRule) -> String {
    let parts = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ];
    let shown = parts.iter().filter(|(_, list)| !list.is_empty());
    let shown: Vec<String> = shown.map(|(name, list)| format!("{name}:{}", quoted(list))).collect();
    format!("{{{}}}", shown.join(", "))
}

/// Formats a list as Go's `%q`.
fn quoted(list: &[String]) -> String {
    let all: Vec<String> = list.iter().map(|text| format!("{text:?}")).collect();
    format!("[{}]", all.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_missing_rules_is_bounded() {
        let rules = |count: usize| (0..count).map(|n| format!("{n:0>100}")).collect::<BTreeSet<_>>();
        assert_eq!(rules_text(&rules(2)), format!("{:0>100}\n{:0>100}", 0, 1));
        assert_eq!(rules_text(&rules(10_000)).lines().count(), 10_000);
        let many = rules_text(&rules(20_000));
        assert!(
            many.len() < MAX_TOLD + 200 && many.ends_with("\nand 9619 more"),
            "{} bytes: {:?}",
            many.len(),
            many.lines().last()
        );
    }

    #[test]
    fn rules_about_one_resource_are_merged() {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        let rule = |verb: &str, resource: &str| PolicyRule {
            verbs: list(&[verb]),
            api_groups: list(&[""]),
            resources: list(&[resource]),
            ..PolicyRule::default()
        };
        let path = PolicyRule { verbs: list(&["get"]), non_resource_urls: list(&["/x"]), ..PolicyRule::default() };
        let all = [rule("get", "pods"), rule("get", "secrets"), path.clone(), rule("list", "pods"), path];
        let rules_text: Vec<String> = compacted(&all).iter().map(describe).collect();
        assert_eq!(
            rules_text,
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}"#,
                r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#,
                r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#,
                r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#,
            ]
        );
    }
}
