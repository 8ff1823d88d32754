//! Portolan's own kinds and kcp's workspaces.

use std::collections::HashSet;

use portolan_cel::{cluster_expression, object_expression};
use portolan_types::{
    annotations::UNREACHABLE_TAINT,
    json_patch::json_len,
    object,
    placement::{MAX_DRAINED_CLUSTERS, MAX_MAPPED_IDENTITIES, MAX_MOVING, MAX_POLICY_BYTES, MovePace, PodAccess},
};
use serde_json::Value;

use super::{
    Errors, FieldError, core, metadata, names, policy_terms,
    rules::{
        Rules,
        Step::{Became, Enumerations, Is, Metadata, MetadataChange},
    },
    selectors, tenancy,
    view::{At, IMMUTABLE},
};
use portolan_kinds::{FieldKind, Kind, KindTable, TypeId};

pub(super) static RULES: &[(&str, Rules)] = &[
    (
        "PhysicalCluster",
        Rules {
            create: &[Metadata, Enumerations, Is(physical_cluster), Is(bounded_resources)],
            update: &[MetadataChange, Metadata, Enumerations, Is(physical_cluster), Became(physical_cluster_update)],
            subresources: &[],
        },
    ),
    (
        "Drain",
        Rules {
            create: &[Metadata, Enumerations, Is(drain)],
            update: &[MetadataChange, Metadata, Enumerations, Is(drain), Became(drain_update)],
            subresources: &[],
        },
    ),
    ("PlacementPolicy", POLICY),
    ("ClusterPlacementPolicy", POLICY),
    ("Placement", REFERENCE),
    ("PlacementExplanation", REFERENCE),
];

const POLICY: Rules = Rules {
    create: &[Metadata, Enumerations, Is(placement_policy)],
    update: &[MetadataChange, Metadata, Enumerations, Is(placement_policy)],
    subresources: &[],
};
const REFERENCE: Rules = Rules {
    create: &[Metadata, Enumerations, Is(reference)],
    update: &[MetadataChange, Metadata, Enumerations, Is(reference)],
    subresources: &[],
};

pub(super) static CORE_KCP: &[(&str, Rules)] = &[(
    "LogicalCluster",
    Rules {
        create: &[Metadata, Is(logical_cluster)],
        update: &[MetadataChange, Metadata, Is(logical_cluster)],
        subresources: &[],
    },
)];

pub(super) static TENANCY: &[(&str, Rules)] = &[
    (
        "Workspace",
        Rules { create: &[Metadata], update: &[MetadataChange, Metadata, Became(workspace_update)], subresources: &[] },
    ),
    (
        "WorkspaceType",
        Rules {
            create: &[Metadata, Enumerations, Is(tenancy::workspace_type)],
            update: &[MetadataChange, Metadata, Enumerations, Is(tenancy::workspace_type)],
            subresources: &[],
        },
    ),
];

/// Checks enumerations of the kind table. Built-in kinds check theirs by hand, in kube-apiserver's order and words.
pub(super) fn enumerations(table: &KindTable, kind: &Kind, object: &At<'_>, errors: &mut Errors) {
    enumerations_of(table, kind.schema, object, errors);
}

fn enumerations_of(table: &KindTable, id: TypeId, at: &At<'_>, errors: &mut Errors) {
    let schema = table.get(id);
    if !schema.name.starts_with("dev.portolan.") {
        return;
    }
    for field in &schema.fields {
        let value = at.child(&field.name);
        if value.is_missing() {
            continue;
        }
        if !field.values.is_empty() {
            let known: Vec<&str> = field.values.iter().map(|word| &**word).collect();
            at.one_of_if_set(&field.name, &known, errors);
        }
        match &field.kind {
            FieldKind::Message(below) => enumerations_of(table, *below, &value, errors),
            FieldKind::List(element) => {
                if let FieldKind::Message(below) = **element {
                    at.items(&field.name).for_each(|item| enumerations_of(table, below, &item, errors));
                }
            }
            FieldKind::Map(_) | FieldKind::Scalar(_) | FieldKind::Special(_) => {}
        }
    }
}

/// Most bytes of the hash of a plan.
const MAX_PLAN_HASH: usize = 128;

const CONNECTORS: [&str; 3] = ["direct", "tunnel", "simulated"];
/// Most bytes of the name of a user or group.
const MAX_IDENTITY: usize = 256;

fn physical_cluster(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    let connection = spec.child("connection");
    let set: Vec<&str> = CONNECTORS.into_iter().filter(|name| connection.has(name)).collect();
    if set.is_empty() {
        errors.required(&connection.path, "exactly one of `direct`, `tunnel`, `simulated` must be set");
    }
    for other in set.iter().skip(1) {
        errors.forbidden(connection.path(other), "may not specify more than 1 connection");
    }
    if connection.has("direct") {
        let secret = connection.child("direct").child("kubeconfigSecretRef");
        for (name, rule) in [("namespace", names::dns_label as fn(&str) -> _), ("name", names::dns_subdomain)] {
            if secret.needs(name, errors) {
                secret.follows(name, rule, errors);
            }
        }
        if !secret.text("key").is_empty() {
            secret.follows("key", names::config_key, errors);
        }
    }
    connection.child("simulated").nonnegative("nodes", errors);
    taints(&spec, errors);
    for (name, amount) in spec.entries("bounds") {
        core::quantity(name, &amount, errors);
    }
    for resource in spec.items("syncedResources") {
        let details = names::dns_subdomain(resource.as_text());
        details.iter().for_each(|detail| errors.invalid(&resource.path, resource.value, detail));
    }
    pod_access(&spec.child("podAccess"), errors);
    for list in ["users", "groups"] {
        mapped_identities(&spec.child("access"), list, errors);
    }
}

/// Checks the addresses by which pods reach Portolan, and the life of their tokens.
fn pod_access(access: &At<'_>, errors: &mut Errors) {
    let given = PodAccess { server: access.text("server").to_owned(), ..PodAccess::default() };
    if let (false, Err(rule)) = (given.server.is_empty(), given.server_address()) {
        errors.invalid(access.path("server"), access.get("server"), rule);
    }
    let dns = access.text("dns");
    if !dns.is_empty() && dns.parse::<std::net::IpAddr>().is_err() {
        errors.invalid(access.path("dns"), access.get("dns"), "must be an IP address");
    }
    if access.get("tokenSeconds").as_i64().is_some_and(|seconds| !PodAccess::TOKEN_BOUNDS.contains(&seconds)) {
        errors.invalid(access.path("tokenSeconds"), access.get("tokenSeconds"), "must be from 60 to 86400");
    }
}

/// Checks the users or groups that have access to a physical cluster. The components of a cluster are out of reach.
fn mapped_identities(access: &At<'_>, list: &str, errors: &mut Errors) {
    if access.count(list) > MAX_MAPPED_IDENTITIES {
        errors.forbidden(access.path(list), "may not map more than 256 names");
    }
    let mut taken = HashSet::new();
    for identity in access.items(list).take(MAX_MAPPED_IDENTITIES) {
        if !taken.insert(identity.text("name")) {
            errors.duplicate(&identity.path, identity.value);
        }
        identity.needs("name", errors);
        for field in ["name", "as"] {
            let text = identity.text(field);
            if text.len() > MAX_IDENTITY || text.chars().any(char::is_control) {
                let why = "must be at most 256 bytes without control characters";
                errors.invalid(identity.path(field), &text.into(), why);
            }
        }
        let is_mapped = !identity.text("as").is_empty();
        let (field, downstream) = if is_mapped { ("as", identity.text("as")) } else { ("name", identity.text("name")) };
        if downstream.starts_with("system:") {
            let why = "must name an identity of the physical cluster that does not begin with system:";
            errors.invalid(identity.path(field), &downstream.into(), why);
        }
    }
}

/// Resources that pods can request, besides huge pages and extended resources; `pods` counts the pods themselves.
const BOUNDED: [&str; 4] = ["cpu", "ephemeral-storage", "memory", "pods"];

/// Checks the name of a bound. A bound on a resource that no pod can request would never hold anything back.
fn bounded_resource(name: &str, amount: &At<'_>, errors: &mut Errors) {
    let details = names::qualified_name(name);
    if !details.is_empty() {
        details.iter().for_each(|detail| errors.invalid(&amount.path, &name.into(), detail));
    } else if !BOUNDED.contains(&name) && !name.starts_with("hugepages-") && !core::is_extended(name) {
        let why = "must be a resource that pods request: cpu, ephemeral-storage, memory, hugepages-<size>, or an extended resource \
                   such as nvidia.com/gpu; or pods, their number";
        errors.invalid(&amount.path, &name.into(), why);
    }
}

fn taints(spec: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for taint in spec.items("taints") {
        if taint.needs("key", errors) {
            selectors::label_name(&taint, "key", errors);
        }
        if taint.text("key") == UNREACHABLE_TAINT {
            errors.forbidden(taint.path("key"), "the server sets this taint, in the status");
        }
        taint.follows("value", names::label_value, errors);
        taint.needs("effect", errors);
        if !taken.insert((taint.text("key"), taint.text("effect"))) {
            errors.duplicate(&taint.path, taint.value);
        }
    }
}

/// Keeps the naming of downstream namespaces: it cannot change under existing copies. Checks the names of new bounds.
fn physical_cluster_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (old, new) = (old.child("spec"), new.child("spec"));
    new.immutable(&old, "namespaceMapping", errors);
    let known = old.child("bounds");
    new.entries("bounds")
        .filter(|(name, _)| !known.has(name))
        .for_each(|(name, amount)| bounded_resource(name, &amount, errors));
}

fn bounded_resources(object: &At<'_>, errors: &mut Errors) {
    object.child("spec").entries("bounds").for_each(|(name, amount)| bounded_resource(name, &amount, errors));
}

fn drain(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    let named = spec.count("physicalClusters");
    if named == 0 {
        errors.required(spec.path("physicalClusters"), "must name at least one physical cluster");
    }
    if named > MAX_DRAINED_CLUSTERS {
        errors.forbidden(spec.path("physicalClusters"), "may not name more than 16 physical clusters");
    }
    let mut taken = HashSet::new();
    for name in spec.items("physicalClusters").take(MAX_DRAINED_CLUSTERS) {
        let details = names::dns_subdomain(name.as_text());
        details.iter().for_each(|detail| errors.invalid(&name.path, name.value, detail));
        if !taken.insert(name.as_text()) {
            errors.duplicate(&name.path, name.value);
        }
    }
    let budget = spec.child("budget");
    let ranges = [("maxUnavailable", (0, i64::from(i32::MAX))), ("maxMoving", (1, i64::from(MAX_MOVING)))];
    for (field, range) in ranges.into_iter().filter(|(field, _)| budget.has(field)) {
        budget.in_range(field, range, errors);
    }
    if spec.text("expectPlan").len() > MAX_PLAN_HASH {
        errors.forbidden(spec.path("expectPlan"), "may not be longer than 128 bytes");
    }
}

/// Keeps the scope and the end of a drain: moves in progress cannot be revoked.
fn drain_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    after.immutable(&before, "physicalClusters", errors);
    let deletes = object::controller_of(old.value).is_some_and(|owner| owner["kind"] == "PhysicalCluster");
    for field in ["abort", "undo"] {
        if before.get(field) == &Value::Bool(true) && after.get(field) != &Value::Bool(true) {
            errors.forbidden(after.path(field), "may not be taken back; create another Drain");
        }
        if deletes && before.get(field) != &Value::Bool(true) && after.get(field) == &Value::Bool(true) {
            errors.forbidden(after.path(field), "the PhysicalCluster is being deleted, which cannot be taken back");
        }
    }
}

fn placement_policy(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if json_len(object.get("spec")) > MAX_POLICY_BYTES {
        errors.forbidden(spec.path.clone(), "may not be larger than 131072 bytes");
    }
    if spec.count("resources") == 0 {
        errors.required(spec.path("resources"), "must name at least one kind of object");
    }
    for resource in spec.items("resources") {
        if !resource.text("apiGroup").is_empty() {
            resource.follows("apiGroup", names::dns_subdomain, errors);
        }
        selectors::selector(&resource.child("selector"), errors);
        policy_terms::expression(&resource, object_expression, errors);
    }
    clusters(&spec.child("clusters"), 0, errors);
    policy_terms::contradictions(&spec, errors);
    policy_terms::workload_terms(&spec, errors);
    policy_terms::suspension(&spec.child("suspend"), errors);
    count(&spec, errors);
    let mut keys = HashSet::new();
    for spread in spec.items("spread") {
        if spread.needs("topologyKey", errors) {
            selectors::label_name(&spread, "topologyKey", errors);
        }
        if !keys.insert(spread.text("topologyKey")) {
            errors.duplicate(spread.path("topologyKey"), spread.get("topologyKey"));
        }
        if spread.int("maxSkew").is_some_and(|skew| skew < 1) {
            errors.invalid(spread.path("maxSkew"), spread.get("maxSkew"), "must be greater than zero");
        }
        policy_terms::groups(&spec, &spread, errors);
    }
    replicas(&spec.child("replicas"), errors);
    let moves = spec.child("moves");
    moves.in_range("addressGracePeriodSeconds", (0, i64::from(MovePace::MAX_GRACE_SECONDS)), errors);
    moves.in_range("timeoutSeconds", (0, i64::from(MovePace::MAX_TIMEOUT_SECONDS)), errors);
    policy_terms::rollout(&spec.child("rollout"), errors);
    core::tolerations(&spec, errors);
    overrides(&spec, errors);
    let bytes: usize = spec.items("yield").map(|path| path.as_text().len()).sum();
    if bytes > MAX_YIELDS {
        errors.forbidden(spec.path("yield"), "may not be larger than 4096 bytes together");
    }
    for path in spec.items("yield") {
        if !is_field_path(path.as_text()) {
            errors.invalid(&path.path, path.value, "must be a path of fields below `spec`, such as `spec.replicas`");
        }
    }
    if spec.int("priority").is_some_and(|priority| i32::try_from(priority).is_err()) {
        let why = "must be between -2147483648 and 2147483647, inclusive";
        errors.invalid(spec.path("priority"), spec.get("priority"), why);
    }
}

fn is_field_path(path: &str) -> bool {
    let mut steps = path.trim_start_matches('.').split('.');
    let word = |step: &str| !step.is_empty() && step.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let below = steps.next() == Some("spec");
    below && steps.next().is_some_and(word) && steps.all(word)
}

/// Choices of choices.
const MAX_FALLBACK_DEPTH: usize = 4;

fn clusters(at: &At<'_>, depth: usize, errors: &mut Errors) {
    selectors::selector(&at.child("selector"), errors);
    policy_terms::expression(at, cluster_expression, errors);
    if depth > 0 {
        at.forbids(&["fallbackMode"], "may only be used in `spec.clusters`", errors);
    }
    for list in ["names", "exclude"] {
        for name in at.items(list) {
            let details = names::dns_subdomain(name.as_text());
            details.iter().for_each(|detail| errors.invalid(&name.path, name.value, detail));
        }
    }
    if depth >= MAX_FALLBACK_DEPTH && at.count("fallback") > 0 {
        errors.forbidden(at.path("fallback"), "may not be nested more than 4 deep");
        return;
    }
    at.items("fallback").for_each(|choice| clusters(&choice, depth + 1, errors));
}

fn count(spec: &At<'_>, errors: &mut Errors) {
    match spec.get("count") {
        Value::Null => {}
        Value::String(text) if text == "All" => {}
        Value::Number(number) if number.as_i64().is_some_and(|count| count >= 0) => {}
        other => errors.invalid(spec.path("count"), other, "must be a number from 0 or \"All\""),
    }
}

fn replicas(at: &At<'_>, errors: &mut Errors) {
    let divides = at.text("mode") == "Divide";
    if at.has("by") && !divides {
        errors.forbidden(at.path("by"), "may only be used when `mode` is 'Divide'");
    }
    if at.count("weights") > 0 && at.text("by") != "Weight" {
        errors.forbidden(at.path("weights"), "may only be used when `by` is 'Weight'");
    }
    let mut sum = 0_i64;
    for weight in at.items("weights") {
        weight.nonnegative("weight", errors);
        selectors::selector(&weight.child("selector"), errors);
        let number = weight.int("weight").unwrap_or(0);
        if number > 1_000_000 {
            errors.invalid(weight.path("weight"), weight.get("weight"), "must be less than or equal to 1000000");
        }
        sum = sum.saturating_add(number);
    }
    policy_terms::replica_limits(at, divides, errors);
    if at.count("weights") > 0 && sum == 0 {
        errors.invalid(at.path("weights"), at.get("weights"), "at least one weight must be greater than zero");
    }
}

const OPERATIONS: [&str; 6] = ["add", "copy", "move", "remove", "replace", "test"];
/// Maximum of bytes in all fields that a policy yields: the placement record of every object holds them, like
/// overrides.
const MAX_YIELDS: usize = 4 * 1024;
/// Maximum of bytes in all overrides of a policy: the placement record of every object that they change holds them.
const MAX_OVERRIDES: usize = 16 * 1024;

fn overrides(spec: &At<'_>, errors: &mut Errors) {
    let bytes = spec.get("overrides").to_string().len();
    if bytes > MAX_OVERRIDES {
        errors.forbidden(spec.path("overrides"), "may not be larger than 16384 bytes together");
    }
    spec.items("overrides").for_each(|one| override_of(&one, errors));
}

/// Returns true for a host with an optional port and path.
fn is_registry(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._:/".contains(&b);
    !text.is_empty() && !text.starts_with('/') && !text.contains("//") && text.bytes().all(fits)
}

/// Keys that are Portolan's own, on which copies are distinguished.
fn no_own_keys(at: &At<'_>, field: &str, errors: &mut Errors) {
    for (key, entry) in at.entries(field) {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        if ["portolan.dev", "kcp.io"].iter().any(|own| domain == *own || domain.ends_with(&format!(".{own}"))) {
            errors.forbidden(&entry.path, "is set by the server only");
        }
    }
}

fn override_of(at: &At<'_>, errors: &mut Errors) {
    clusters(&at.child("clusters"), 0, errors);
    at.child("clusters").forbids(&["fallbackMode"], "may only be used in `spec.clusters`", errors);
    metadata::labels(&at.path("labels"), Some(at.get("labels")), errors);
    metadata::annotations_at(&at.path("annotations"), Some(at.get("annotations")), errors);
    ["labels", "annotations"].iter().for_each(|field| no_own_keys(at, field, errors));
    if at.has("imageRegistry") && !is_registry(at.text("imageRegistry")) {
        let why = "must be a host, with a port and a path if need be, such as mirror.example:5000/hub";
        errors.invalid(at.path("imageRegistry"), at.get("imageRegistry"), why);
    }
    for (name, entry) in at.entries("env") {
        names::env_name(name).iter().for_each(|detail| errors.invalid(&entry.path, &name.into(), detail));
    }
    for operation in at.items("patch") {
        operation.one_of("op", &OPERATIONS, errors);
        let known = OPERATIONS.contains(&operation.text("op"));
        if known && serde_json::from_value::<json_patch::PatchOperation>(operation.value.clone()).is_err() {
            let why = "must be an operation of a JSON patch: `add`, `replace` and `test` need a `value`, `copy` and `move` a `from`";
            errors.invalid(&operation.path, operation.value, why);
        }
        if !operation.text("path").starts_with('/') {
            errors.invalid(operation.path("path"), operation.get("path"), "must be a JSON pointer");
        }
        let root = ["/apiVersion", "/kind", "/metadata/name", "/metadata/namespace", "/metadata/uid"];
        if root.iter().any(|root| operation.text("path").starts_with(root)) || operation.text("path") == "/metadata" {
            errors.forbidden(operation.path("path"), "may not change what the object is");
        }
    }
}

/// Names of workspaces become parts of paths.
fn workspace_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    for name in ["cluster", "URL", "type"] {
        if before.has(name) && before.get(name) != after.get(name) {
            errors.invalid(after.path(name), after.get(name), IMMUTABLE);
        }
    }
}

/// Checks that the only logical cluster object is named `cluster`.
fn logical_cluster(object: &At<'_>, errors: &mut Errors) {
    let name = object.get("metadata").get("name").and_then(Value::as_str).unwrap_or_default();
    if name != "cluster" {
        errors.push(FieldError::invalid("metadata.name", &name.into(), "must be 'cluster'"));
    }
}

fn reference(object: &At<'_>, errors: &mut Errors) {
    let about = object.child("spec").child("object");
    for name in ["apiVersion", "kind", "name"] {
        about.needs(name, errors);
    }
}
