//! Metadata of all kinds.

use portolan_types::object;
use serde_json::{Value, json};

use super::{Errors, FieldError, Path, names};
use crate::kinds::Kind;

/// Most bytes that keys and values of annotations may have together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// The rule for names of a kind.
fn name_rule(kind: &Kind) -> fn(&str) -> names::Complaints {
    match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("", "Namespace" | "Service") | ("tenancy.kcp.io", "Workspace") => names::dns_label,
        ("rbac.authorization.k8s.io", _) => names::path_segment,
        // Events of old components have all kinds of names; what is not there yet is only checked as a path segment.
        ("" | "events.k8s.io", "Event") => names::dns_subdomain,
        ("apiregistration.k8s.io", "APIService") => names::path_segment,
        ("certificates.k8s.io", _) => names::path_segment,
        _ => names::dns_subdomain,
    }
}

/// Metadata as it stands.
pub(super) fn validate(kind: &Kind, object: &Value, errors: &mut Errors) {
    let path = Path::new("metadata");
    let metadata = object::metadata(object);
    let text = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let rule = name_rule(kind);
    match text("name") {
        "" => errors.required(path.child("name"), "name or generateName is required"),
        name => rule(name).iter().for_each(|detail| errors.invalid(path.child("name"), &name.into(), detail)),
    }
    namespace(kind, text("namespace"), errors);
    labels(&path.child("labels"), metadata.get("labels"), errors);
    annotations(metadata.get("annotations"), errors);
    owners(object, errors);
    finalizers(kind, object, errors);
}

fn namespace(kind: &Kind, namespace: &str, errors: &mut Errors) {
    let path = "metadata.namespace";
    match (kind.namespaced, namespace) {
        (true, "") => errors.required(path, ""),
        (true, name) => names::dns_label(name).iter().for_each(|detail| errors.invalid(path, &name.into(), detail)),
        (false, "") => {}
        (false, _) => errors.forbidden(path, "not allowed on this type"),
    }
}

/// Labels, also those of templates.
pub(super) fn labels(path: &Path, labels: Option<&Value>, errors: &mut Errors) {
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        for detail in names::qualified_name(key) {
            errors.invalid(path, &key.as_str().into(), &detail);
        }
        for detail in names::label_value(value.as_str().unwrap_or_default()) {
            errors.invalid(path, value, &detail);
        }
    }
}

/// Annotations, also those of templates.
pub(super) fn annotations_at(path: &Path, annotations: Option<&Value>, errors: &mut Errors) {
    let mut total = 0;
    for (key, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
        total += key.len() + value.as_str().map_or(0, str::len);
        let lower = key.bytes().any(|b| b.is_ascii_uppercase()).then(|| key.to_ascii_lowercase());
        for detail in names::qualified_name(lower.as_deref().unwrap_or(key)) {
            errors.invalid(path, &key.as_str().into(), &detail);
        }
    }
    if total > MAX_ANNOTATIONS {
        errors.push(FieldError::too_long(path, MAX_ANNOTATIONS));
    }
}

fn annotations(annotations: Option<&Value>, errors: &mut Errors) {
    annotations_at(&Path::new("metadata.annotations"), annotations, errors);
}

fn owners(object: &Value, errors: &mut Errors) {
    let path = Path::new("metadata.ownerReferences");
    let mut controller: Option<String> = None;
    for owner in object::owner_references(object) {
        let text = |key: &str| owner.get(key).and_then(Value::as_str).unwrap_or_default();
        let version = text("apiVersion");
        if version.is_empty() {
            errors.invalid(path.child("apiVersion"), &version.into(), "version must not be empty");
        }
        for key in ["kind", "name", "uid"] {
            if text(key).is_empty() {
                errors.invalid(path.child(key), &"".into(), "must not be empty");
            }
        }
        if version == "v1" && text("kind") == "Event" {
            errors.invalid(&path, owner, "/v1, Kind=Event is disallowed from being an owner");
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            let this = format!("{}/{}", text("kind"), text("name"));
            if let Some(first) = &controller {
                let all = object::owner_references(object);
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                );
                errors.invalid(&path, &json!(all), &detail);
            } else {
                controller = Some(this);
            }
        }
    }
}

/// What is wrong with the short name of a finalizer; only the system's own have one.
pub(super) fn short_finalizer(name: &str) -> Option<&'static str> {
    let standard = matches!(name, "kubernetes" | "orphan" | "foregroundDeletion");
    let why = "name is neither a standard finalizer name nor is it fully qualified";
    (!standard && !name.contains('/')).then_some(why)
}

fn finalizers(kind: &Kind, object: &Value, errors: &mut Errors) {
    let path = "metadata.finalizers";
    let (mut orphan, mut foreground) = (false, false);
    for (at, name) in object::finalizers(object).enumerate() {
        for detail in names::qualified_name(name) {
            errors.invalid(path, &name.into(), &detail);
        }
        if let (true, Some(detail)) = (kind.is_kubernetes(), short_finalizer(name)) {
            errors.invalid(Path::new(path).index(at), &name.into(), detail);
        }
        orphan |= name == "orphan";
        foreground |= name == "foregroundDeletion";
    }
    if orphan && foreground {
        let all: Vec<&str> = object::finalizers(object).collect();
        errors.invalid(path, &json!(all), "finalizer orphan and foregroundDeletion cannot be both set");
    }
}

/// What of metadata may not change. Most of what clients send for it has been replaced before.
pub(super) fn validate_update(old: &Value, new: &Value, errors: &mut Errors) {
    if object::is_deleting(old) {
        let added: Vec<String> = object::finalizers(new)
            .filter(|name| !object::finalizers(old).any(|old| old == *name))
            .map(|name| format!("{name:?}"))
            .collect();
        if !added.is_empty() {
            let mut added = added;
            added.sort();
            let list = added.join(", ");
            let detail = "no new finalizers can be added if the object is being deleted, found new finalizers";
            errors.forbidden("metadata.finalizers", &format!("{detail} []string{{{list}}}"));
        }
    }
    for key in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (before, after) = (object::metadata(old).get(key), object::metadata(new).get(key));
        if before != after {
            errors.invalid(format!("metadata.{key}"), after.unwrap_or(&Value::Null), "field is immutable");
        }
    }
}
