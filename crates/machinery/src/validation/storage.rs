//! Persistent volumes, claims and storage classes.

use portolan_types::quantity::Quantity;
use serde_json::Value;

use super::{Errors, names, selectors, view::At, workloads::equal_but};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

pub(super) fn claim(object: &At<'_>, errors: &mut Errors) {
    claim_spec(&object.child("spec"), errors);
}

/// The spec of a claim, also of templates of claims.
pub(super) fn claim_spec(spec: &At<'_>, errors: &mut Errors) {
    access_modes(spec, "at least 1 access mode is required", errors);
    selectors::selector(&spec.child("selector"), errors);
    let path = spec.path("resources").key("storage");
    match spec.get("resources").pointer("/requests/storage") {
        None => errors.required(path, ""),
        Some(amount) if selectors::quantity(amount).is_some_and(|amount| amount <= Quantity::ZERO) => {
            errors.invalid(path, amount, "must be greater than zero");
        }
        Some(_) => {}
    }
    for name in ["storageClassName", "volumeAttributesClassName"] {
        if !spec.text(name).is_empty() {
            spec.follows(name, names::dns_subdomain, errors);
        }
    }
    spec.one_of_if_set("volumeMode", &["Block", "Filesystem"], errors);
    for name in ["dataSource", "dataSourceRef"] {
        let source = spec.child(name);
        if !source.is_missing() {
            source.needs("name", errors);
            source.needs("kind", errors);
        }
    }
}

fn access_modes(spec: &At<'_>, none: &str, errors: &mut Errors) {
    if spec.count("accessModes") == 0 {
        errors.required(spec.path("accessModes"), none);
    }
    let (mut alone, mut shared) = (false, false);
    for mode in spec.items("accessModes") {
        match mode.as_text() {
            "ReadWriteOncePod" => alone = true,
            known if ACCESS_MODES.contains(&known) => shared = true,
            _ => errors.not_supported(spec.path("accessModes"), mode.value, &ACCESS_MODES),
        }
    }
    if alone && shared {
        errors.forbidden(spec.path("accessModes"), "may not use ReadWriteOncePod with other access modes");
    }
}

pub(super) fn claim_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    let bound = new.get("status").get("phase").and_then(Value::as_str) == Some("Bound");
    let mut may_change = Vec::new();
    if before.text("volumeName").is_empty() {
        may_change.push("volumeName");
    }
    if !before.has("storageClassName") {
        may_change.push("storageClassName");
    }
    if bound {
        may_change.extend(["resources", "volumeAttributesClassName"]);
    }
    if !equal_but(before.value, after.value, &may_change) {
        let why =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.forbidden("spec", why);
    }
    let size = |spec: &At<'_>| spec.get("resources").pointer("/requests/storage").and_then(selectors::quantity);
    let capacity = old.get("status").pointer("/capacity/storage").and_then(selectors::quantity);
    if let (Some(was), Some(is)) = (size(&before), size(&after))
        && is < was
        && is <= capacity.unwrap_or(Quantity::ZERO)
    {
        errors.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
    }
    if before.get("volumeMode") != after.get("volumeMode") {
        errors.invalid("volumeMode", after.get("volumeMode"), "field is immutable");
    }
}

/// Fields of a volume's spec that are no source.
const NO_SOURCE: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

fn sources(spec: &Value) -> Vec<(&String, &Value)> {
    let fields = spec.as_object().into_iter().flatten();
    fields.filter(|(name, value)| !NO_SOURCE.contains(&name.as_str()) && !value.is_null()).collect()
}

pub(super) fn volume(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    access_modes(&spec, "", errors);
    let capacity = spec.child("capacity");
    match (spec.count("capacity"), capacity.get("storage")) {
        (0, _) => {
            errors.required(&capacity.path, "");
            errors.not_supported(&capacity.path, capacity.value, &["storage"]);
        }
        (1, storage) if !storage.is_null() => {
            if selectors::quantity(storage).is_some_and(|amount| amount <= Quantity::ZERO) {
                errors.invalid(capacity.path.key("storage"), storage, "must be greater than zero");
            }
        }
        _ => errors.not_supported(&capacity.path, capacity.value, &["storage"]),
    }
    let policies = ["Delete", "Recycle", "Retain"];
    spec.one_of_if_set("persistentVolumeReclaimPolicy", &policies, errors);
    let all = sources(spec.value);
    match all.as_slice() {
        [] => errors.required(&spec.path, "must specify a volume type"),
        [_, others @ ..] => {
            for (name, _) in others {
                errors.forbidden(spec.path(name), "may not specify more than 1 volume type");
            }
        }
    }
    if !spec.text("storageClassName").is_empty() {
        spec.follows("storageClassName", names::dns_subdomain, errors);
    }
    spec.one_of_if_set("volumeMode", &["Block", "Filesystem"], errors);
}

pub(super) fn volume_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    if sources(before.value) != sources(after.value) {
        errors.forbidden("spec.persistentvolumesource", "spec.persistentvolumesource is immutable after creation");
    }
    if before.get("volumeMode") != after.get("volumeMode") {
        errors.invalid("volumeMode", after.get("volumeMode"), "field is immutable");
    }
}

pub(super) fn class(object: &At<'_>, errors: &mut Errors) {
    if object.needs("provisioner", errors) {
        let name = object.text("provisioner");
        let details = names::qualified_name(&name.to_lowercase());
        details.iter().for_each(|detail| errors.invalid("provisioner", &name.into(), detail));
    }
    for (key, entry) in object.entries("parameters") {
        if key.is_empty() {
            errors.invalid(&entry.path, &key.into(), "field can not be empty.");
        }
    }
    object.one_of("reclaimPolicy", &["Delete", "Retain"], errors);
    object.one_of("volumeBindingMode", &["Immediate", "WaitForFirstConsumer"], errors);
}

pub(super) fn class_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    for name in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        new.immutable(old, name, errors);
    }
}
