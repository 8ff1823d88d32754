//! Metadata of all kinds.

use std::collections::HashSet;

use portolan_types::object;
use serde_json::{Value, json};

use super::{Errors, FieldError, Path, internal, managers, names, view::At};
use portolan_kinds::Kind;

/// Most bytes that keys and values of annotations may have together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Returns the rule for names of a kind.
fn name_rule(kind: &Kind) -> fn(&str) -> names::Complaints {
    match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("", "Namespace" | "Service") | ("apps", "StatefulSet") | ("tenancy.kcp.io", "Workspace") => names::dns_label,
        ("rbac.authorization.k8s.io" | "apiregistration.k8s.io" | "certificates.k8s.io", _) => names::path_segment,
        ("networking.k8s.io", "IPAddress") => names::canonical_ip,
        _ if declares_names(kind) => names::long_name,
        _ => names::dns_subdomain,
    }
}

/// Validates metadata by the rules of the kind.
pub(super) fn validate(kind: &Kind, object: &Value, errors: &mut Errors) {
    checked(kind, object, (name_rule(kind), !declares_names(kind)), errors);
    system_finalizers(kind, object, errors);
}

/// Returns true if a kind declares its own name rule: then `generateName` is not checked, and a name that is too long
/// has another message.
fn declares_names(kind: &Kind) -> bool {
    matches!((&*kind.gvk.group, &*kind.gvk.kind), ("", "ReplicationController") | ("resource.k8s.io", "DeviceClass"))
}

/// Validates metadata by the rules for every kind.
pub(super) fn validate_any(kind: &Kind, object: &Value, errors: &mut Errors) {
    checked(kind, object, (names::path_segment, true), errors);
}

/// Checks metadata of an object inside of another, at its path. It need have no name.
pub(super) fn embedded(path: &Path, metadata: &Value, errors: &mut Errors) {
    let metadata = At { value: metadata, path: path.clone() };
    let (prefix, name) = (metadata.text("generateName"), metadata.text("name"));
    if !prefix.is_empty() {
        errors.invalid_each(metadata.path("generateName"), &prefix.into(), names::path_segment_prefix(prefix));
    }
    if !name.is_empty() {
        metadata.follows("name", names::path_segment, errors);
    }
    metadata.follows_if_set("namespace", names::dns_label, errors);
    metadata.nonnegative("generation", errors);
    parts(&metadata, errors);
    finalizers(&metadata, errors);
    managers::validate(&metadata, errors);
}

/// Rule for names, and whether it also applies to `generateName`.
type NameRule = (fn(&str) -> names::Complaints, bool);

fn checked(kind: &Kind, object: &Value, (rule, with_prefix): NameRule, errors: &mut Errors) {
    let metadata = At::root(object).child("metadata");
    let prefix = metadata.text("generateName");
    if with_prefix && !prefix.is_empty() {
        errors.invalid_each(metadata.path("generateName"), &prefix.into(), rule(&names::masked(prefix)));
    }
    if metadata.needs_because("name", "name or generateName is required", errors) {
        metadata.follows("name", rule, errors);
    }
    namespace(kind, metadata.text("namespace"), errors);
    metadata.nonnegative("generation", errors);
    parts(&metadata, errors);
    finalizers(&metadata, errors);
    managers::validate(&metadata, errors);
}

/// Validates the parts of metadata that are checked on create and on update.
fn parts(metadata: &At<'_>, errors: &mut Errors) {
    labels(&metadata.path("labels"), Some(metadata.get("labels")), errors);
    annotations_at(&metadata.path("annotations"), Some(metadata.get("annotations")), errors);
    owners(metadata, errors);
}

fn namespace(kind: &Kind, namespace: &str, errors: &mut Errors) {
    let path = "metadata.namespace";
    match (kind.namespaced, namespace) {
        (true, "") => errors.required(path, ""),
        (true, name) => errors.invalid_each(path, &name.into(), names::dns_label(name)),
        (false, "") => {}
        (false, _) => errors.forbidden(path, "not allowed on this type"),
    }
}

/// Checks labels of objects and templates.
pub fn labels(path: &Path, labels: Option<&Value>, errors: &mut Errors) {
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        for detail in names::qualified_name(key) {
            errors.invalid(path, &key.as_str().into(), &detail);
        }
        for detail in names::label_value(value.as_str().unwrap_or_default()) {
            errors.invalid(path, value, &detail);
        }
    }
}

/// Fields of metadata that templates may not have, under kube-apiserver's names and in its order.
const NOT_IN_TEMPLATES: [&str; 13] = [
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uID",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// Checks the metadata of a template of claims: only labels and annotations may be given.
pub(super) fn of_claim_template(own: &At<'_>, errors: &mut Errors) {
    annotations_at(&own.path("annotations"), Some(own.get("annotations")), errors);
    labels(&own.path("labels"), Some(own.get("labels")), errors);
    for told in NOT_IN_TEMPLATES {
        let name = if told == "uID" { "uid" } else { told };
        if own.has(name) {
            errors.forbidden(own.path(told), "cannot be set");
        }
    }
}

/// Checks annotations of objects and templates.
pub fn annotations_at(path: &Path, annotations: Option<&Value>, errors: &mut Errors) {
    for key in annotations.and_then(Value::as_object).into_iter().flat_map(|map| map.keys()) {
        let lower = key.bytes().any(|b| b.is_ascii_uppercase()).then(|| key.to_ascii_lowercase());
        errors.invalid_each(path, &key.as_str().into(), names::qualified_name(lower.as_deref().unwrap_or(key)));
    }
    annotations_size(path, annotations.unwrap_or(&Value::Null), errors);
}

/// Annotations may not take more room than they are worth.
pub(super) fn annotations_size(path: &Path, annotations: &Value, errors: &mut Errors) {
    let entries = annotations.as_object().into_iter().flatten();
    if entries.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum::<usize>() > MAX_ANNOTATIONS {
        errors.push(FieldError::too_long(path, MAX_ANNOTATIONS));
    }
}

fn owners(metadata: &At<'_>, errors: &mut Errors) {
    let path = metadata.path("ownerReferences");
    let mut controller: Option<String> = None;
    for owner in metadata.items("ownerReferences") {
        let version = owner.text("apiVersion");
        // A version that cannot be split into group and version is empty.
        if version.is_empty() || version.ends_with('/') || version.matches('/').count() > 1 {
            errors.invalid(path.child("apiVersion"), &version.into(), "version must not be empty");
        }
        for key in ["kind", "name", "uid"] {
            if owner.text(key).is_empty() {
                errors.invalid(path.child(key), &"".into(), "must not be empty");
            }
        }
        if matches!(version, "v1" | "/v1") && owner.text("kind") == "Event" {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid_shown(&path, &internal::printed_value("OwnerReference", owner.value), why));
        }
        if owner.flag("controller") {
            let this = format!("{}/{}", owner.text("kind"), owner.text("name"));
            if let Some(first) = &controller {
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                );
                let all = internal::printed_value("[]OwnerReference", metadata.get("ownerReferences"));
                errors.push(FieldError::invalid_shown(&path, &all, &why));
            } else {
                controller = Some(this);
            }
        }
    }
}

/// Returns the fault of a finalizer name without a domain; only the system's own are allowed.
pub(super) fn short_finalizer(name: &str) -> Option<&'static str> {
    let standard = matches!(name, "kubernetes" | "orphan" | "foregroundDeletion");
    let why = "name is neither a standard finalizer name nor is it fully qualified";
    (!standard && !name.contains('/')).then_some(why)
}

fn system_finalizers(kind: &Kind, object: &Value, errors: &mut Errors) {
    let path = Path::new("metadata.finalizers");
    // These groups follow the rules of apimachinery, not those of the core groups.
    let group = &*kind.gvk.group;
    let is_lax = matches!(
        group,
        "admissionregistration.k8s.io" | "coordination.k8s.io" | "node.k8s.io" | portolan_kinds::custom::GROUP
    );
    for (at, name) in object::finalizers(object).enumerate().filter(|_| kind.is_kubernetes() && !is_lax) {
        if let Some(detail) = short_finalizer(name) {
            errors.invalid(path.index(at), &name.into(), detail);
        }
    }
}

fn finalizers(metadata: &At<'_>, errors: &mut Errors) {
    let path = metadata.path("finalizers");
    let all: Vec<&str> = metadata.items("finalizers").map(|name| name.value.as_str().unwrap_or_default()).collect();
    for name in &all {
        errors.invalid_each(&path, &(*name).into(), names::qualified_name(name));
    }
    if all.contains(&"orphan") && all.contains(&"foregroundDeletion") {
        errors.invalid(&path, &json!(all), "finalizer orphan and foregroundDeletion cannot be both set");
    }
}

/// Validates immutable metadata by the rules of the kind.
pub(super) fn validate_update(kind: &Kind, old: &Value, new: &Value, errors: &mut Errors) {
    validate_update_any(old, new, errors);
    system_finalizers(kind, new, errors);
}

/// Validates immutable metadata. Most client-sent values have been replaced before.
pub(super) fn validate_update_any(old: &Value, new: &Value, errors: &mut Errors) {
    if object::is_deleting(old) {
        let had: HashSet<&str> = object::finalizers(old).collect();
        let mut added: Vec<String> =
            object::finalizers(new).filter(|name| !had.contains(name)).map(|name| format!("{name:?}")).collect();
        added.sort();
        added.dedup();
        if !added.is_empty() {
            let detail = "no new finalizers can be added if the object is being deleted, found new finalizers";
            errors.forbidden("metadata.finalizers", &format!("{detail} []string{{{}}}", added.join(", ")));
        }
    }
    let (old, new) = (At::root(old).child("metadata"), At::root(new).child("metadata"));
    for key in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        new.immutable(&old, key, errors);
    }
    parts(&new, errors);
    managers::validate(&new, errors);
}

const REASON_RULE: &str = "a condition reason must start with alphabetic character, optionally followed by a string of \
     alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  \
     or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is \
     '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
/// Longest reason and message of a condition.
const MAX_REASON: usize = 1024;
const MAX_MESSAGE: usize = 32 * 1024;

/// Conditions of a status, in the form of new kinds.
pub(super) fn conditions(status: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for condition in status.items("conditions") {
        let kind = condition.text("type");
        if !taken.insert(kind) {
            errors.duplicate(condition.path("type"), &kind.into());
        }
        condition.follows("type", names::qualified_name, errors);
        condition.supported("status", &["False", "True", "Unknown"], errors);
        if condition.number("observedGeneration") < 0 {
            let why = "must be greater than or equal to zero";
            errors.invalid(condition.path("observedGeneration"), condition.get("observedGeneration"), why);
        }
        condition.needs("lastTransitionTime", errors);
        let reason = condition.text("reason");
        let good = |b: u8| b.is_ascii_alphanumeric() || b"_,:".contains(&b);
        let ends = reason.starts_with(|c: char| c.is_ascii_alphabetic()) && !reason.ends_with([',', ':']);
        if condition.needs("reason", errors) && !(ends && reason.bytes().all(good)) {
            errors.invalid(condition.path("reason"), &reason.into(), REASON_RULE);
        }
        for (name, most) in [("reason", MAX_REASON), ("message", MAX_MESSAGE)] {
            if condition.text(name).len() > most {
                errors.push(FieldError::too_long(condition.path(name), most));
            }
        }
    }
}
