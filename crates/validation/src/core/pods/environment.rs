//! Environment variables of containers, and the fields of a pod that they can show.

use std::collections::HashMap;

use portolan_types::quantity::Quantity;

use super::{
    super::super::{Errors, names, selectors, view::At},
    Part, back_steps,
};

const SOURCES: [&str; 5] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
const FIELD_PATHS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

pub(super) fn check(container: &At<'_>, errors: &mut Errors) {
    for variable in container.items("env") {
        variable.needs_to_follow("name", names::env_name, errors);
        if let Some(from) = variable.present("valueFrom") {
            value_from(&variable, &from, errors);
        }
    }
    for source in container.items("envFrom") {
        source.follows_if_set("prefix", names::env_name, errors);
        let set = ["configMapRef", "secretRef"].iter().filter_map(|name| source.present(name));
        let set = set.inspect(|source| source.needs_to_follow("name", names::dns_subdomain, errors)).count();
        let path = container.path("envFrom");
        match set {
            0 => errors.invalid(path, &"".into(), "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(path, &"".into(), "may not have more than one field specified at a time"),
        }
    }
}

fn value_from(variable: &At<'_>, from: &At<'_>, errors: &mut Errors) {
    if let Some(field) = from.present("fieldRef") {
        field_ref(&field, &FIELD_PATHS, errors);
    }
    if let Some(resource) = from.present("resourceFieldRef") {
        resource_field_ref(&resource, false, errors);
    }
    for name in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(source) = from.present(name) {
            source.follows("name", names::dns_subdomain, errors);
            source.needs_to_follow("key", names::config_key, errors);
        }
    }
    if let Some(file) = from.present("fileKeyRef") {
        file.needs_to_follow("key", names::env_name, errors);
        file.needs_to_follow("volumeName", names::dns_label, errors);
        if file.needs("path", errors) {
            back_steps(file.text("path"), &file.path("path"), errors);
        }
    }
    let why = match SOURCES.iter().filter(|name| from.has(name)).count() {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        _ if !variable.text("value").is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.invalid(&from.path, &"".into(), why);
}

/// Fields of pods that can be named at all.
const PODS_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Splits `metadata.labels['key']` into path and key.
fn subscripted(text: &str) -> Option<(&str, &str)> {
    text.strip_suffix("']")?.split_once("['").filter(|(path, _)| !path.is_empty())
}

/// Checks a reference to a field of the pod; only those in `known` can be used here.
pub(super) fn field_ref(at: &At<'_>, known: &[&str], errors: &mut Errors) {
    if !at.needs("apiVersion", errors) || !at.needs("fieldPath", errors) {
        return;
    }
    let (version, text) = (at.text("apiVersion"), at.text("fieldPath"));
    let path = if text == "spec.host" { "spec.nodeName" } else { text };
    let refused = match subscripted(text) {
        _ if version != "v1" => Some(format!("unsupported pod version: {version}")),
        Some(("metadata.annotations" | "metadata.labels", _)) => None,
        Some(_) => Some(format!("field label does not support subscript: {text}")),
        None if PODS_FIELDS.contains(&path) => None,
        None => Some(format!("field label not supported: {text}")),
    };
    if let Some(why) = refused {
        errors.invalid(at.path("fieldPath"), &text.into(), &format!("error converting fieldPath: {why}"));
        return;
    }
    match subscripted(text) {
        Some(("metadata.annotations", key)) => {
            let key = key.to_lowercase();
            errors.invalid_each(&at.path, &key.as_str().into(), names::qualified_name(&key));
        }
        Some((_, key)) => errors.invalid_each(&at.path, &key.into(), names::qualified_name(key)),
        None if known.contains(&path) => {}
        None => errors.not_supported(at.path("fieldPath"), &path.into(), known),
    }
}

const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const HUGE_PAGES: [&str; 2] = ["limits.hugepages-", "requests.hugepages-"];
const BYTE_DIVISORS: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Checks a reference to a limit or request of a container; in a volume it must name the container.
pub(super) fn resource_field_ref(at: &At<'_>, volume: bool, errors: &mut Errors) {
    let resource = at.text("resource");
    let huge = HUGE_PAGES.iter().any(|start| resource.starts_with(start));
    if volume && at.text("containerName").is_empty() {
        errors.required(at.path("containerName"), "");
    } else if at.needs("resource", errors) && !RESOURCES.contains(&resource) && !huge {
        errors.not_supported(at.path("resource"), &resource.into(), &RESOURCES);
    }
    let Some(divisor) = selectors::quantity(at.get("divisor")).filter(|divisor| *divisor != Quantity::ZERO) else {
        return;
    };
    let of = match resource.split_once('.').map_or("", |(_, name)| name) {
        "cpu" => "cpu",
        "memory" => "memory",
        "ephemeral-storage" => "local ephemeral storage",
        _ if huge => "hugepages",
        _ => return,
    };
    let divisor = divisor.to_string();
    let all = BYTE_DIVISORS.join(", ");
    let (fits, list) = match of {
        "cpu" => (matches!(divisor.as_str(), "1m" | "1"), "1m and 1"),
        _ => (BYTE_DIVISORS.contains(&divisor.as_str()), all.as_str()),
    };
    if !fits {
        let why = format!("only divisor's values {list} are supported with the {of} resource");
        errors.invalid(at.path("divisor"), &resource.into(), &why);
    }
}

/// Files that variables are read from are in empty directories.
pub(super) fn files(part: &Part<'_>, errors: &mut Errors) {
    // Of several with one name, the last one counts.
    let volumes: HashMap<&str, At<'_>> =
        part.spec.items("volumes").map(|volume| (volume.text("name"), volume)).collect();
    for variable in part.containers().flat_map(|container| container.items("env")) {
        let Some(file) = variable.child("valueFrom").present("fileKeyRef") else { continue };
        let name = file.text("volumeName");
        match volumes.get(name) {
            None => errors.not_found(file.path("volumeName"), &name.into()),
            Some(volume) if !volume.has("emptyDir") => {
                let why = "referenced volume must be of type emptyDir";
                errors.invalid(file.path("volumeName"), &name.into(), why);
            }
            Some(_) => {}
        }
    }
}
