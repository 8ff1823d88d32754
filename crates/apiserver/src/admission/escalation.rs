//! Nobody grants what they do not hold: roles need every permission in them or `escalate`, bindings every permission of the
//! role or `bind`.

use portolan_machinery::rbac::{MASTERS, PolicyRule, Roles as _, uncovered};
use portolan_types::{GroupResource, Status, object};
use serde_json::Value;

use crate::{ApiServer, attributes::Attributes, authz::Authorizer as _};

use super::{Operation, Request};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) async fn check(
    api: &ApiServer,
    request: &Request<'_>,
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
        "roles" | "clusterroles" => roles(api, request, object, old).await,
        "rolebindings" | "clusterrolebindings" => bindings(api, request, object, old).await,
        _ => Ok(()),
    }
}

async fn roles(api: &ApiServer, request: &Request<'_>, object: &Value, old: Option<&Value>) -> Result<(), Status> {
    let same = |key: &str| old.is_some_and(|old| old.get(key) == object.get(key));
    if same("rules") && same("aggregationRule") {
        return Ok(());
    }
    if may(api, request, "escalate", &request.kind.resource, object::name(object)).await? {
        return Ok(());
    }
    let mut wanted = PolicyRule::of(object);
    if object.get("aggregationRule").is_some() {
        // An aggregated role can come to hold anything.
        let all = || vec!["*".to_owned()];
        wanted.push(PolicyRule { verbs: all(), api_groups: all(), resources: all(), ..PolicyRule::default() });
        wanted.push(PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() });
    }
    held(api, request, object, &wanted).await
}

async fn bindings(api: &ApiServer, request: &Request<'_>, object: &Value, old: Option<&Value>) -> Result<(), Status> {
    let same = |key: &str| old.is_some_and(|old| old.get(key) == object.get(key));
    if same("roleRef") && same("subjects") {
        return Ok(());
    }
    let text = |key: &str| object.pointer(&format!("/roleRef/{key}")).and_then(Value::as_str).unwrap_or_default();
    let (kind, name) = (text("kind"), text("name"));
    let resource = if kind == "ClusterRole" { "clusterroles" } else { "roles" };
    if may(api, request, "bind", resource, name).await? {
        return Ok(());
    }
    let known = api.rbac.roles(request.cluster.id).await?;
    let rules = match kind {
        "ClusterRole" => known.cluster_role_rules(name),
        _ => known.role_rules(request.namespace, name),
    };
    let rules = rules.ok_or_else(|| Status::not_found(&GroupResource::new(GROUP, resource), name))?;
    held(api, request, object, rules).await
}

async fn may(api: &ApiServer, request: &Request<'_>, verb: &str, resource: &str, name: &str) -> Result<bool, Status> {
    let asked = Attributes {
        verb: verb.into(),
        group: GROUP.into(),
        resource: resource.into(),
        name: name.into(),
        namespace: request.namespace.into(),
        ..Attributes::default()
    };
    Ok(api.rbac.authorize(request.cluster.id, request.user, &asked).await?.is_allowed())
}

async fn held(api: &ApiServer, request: &Request<'_>, object: &Value, wanted: &[PolicyRule]) -> Result<(), Status> {
    let own = api.rbac.rules(request.cluster.id, request.user, request.namespace).await?;
    let missing = uncovered(wanted, &own);
    if missing.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = missing.iter().map(describe).collect();
    let why = format!(
        "user {:?} (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{}",
        request.user.name,
        request.user.groups,
        lines.join("\n")
    );
    Err(Status::forbidden(&request.kind.group_resource(), object::name(object), why))
}

fn describe(rule: &PolicyRule) -> String {
    let parts = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("ResourceNames", &rule.resource_names),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("Verbs", &rule.verbs),
    ];
    let shown: Vec<String> =
        parts.iter().filter(|(_, list)| !list.is_empty()).map(|(name, list)| format!("{name}:{list:?}")).collect();
    format!("{{{}}}", shown.join(", "))
}
