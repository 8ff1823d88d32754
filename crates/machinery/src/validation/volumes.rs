//! Volumes of pods.

use std::collections::HashSet;

use super::{Errors, FieldError, names, selectors, view::At};

/// The volumes of a pod's spec; gives their names.
pub(super) fn list<'v>(spec: &At<'v>, errors: &mut Errors) -> HashSet<&'v str> {
    let mut known = HashSet::new();
    for volume in spec.items("volumes") {
        let mut own = Errors::default();
        source(&volume, &mut own);
        if volume.needs("name", &mut own) {
            volume.follows("name", names::dns_label, &mut own);
        }
        let name = volume.text("name");
        if known.contains(name) {
            own.duplicate(volume.path("name"), &name.into());
        }
        if own.is_empty() {
            known.insert(name);
        }
        errors.append(own);
    }
    known
}

fn source(volume: &At<'_>, errors: &mut Errors) {
    let kinds: Vec<&String> = volume
        .value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, value)| *name != "name" && !value.is_null())
        .map(|(name, _)| name)
        .collect();
    let Some((first, others)) = kinds.split_first() else {
        errors.required(&volume.path, "must specify a volume type");
        return;
    };
    details(first, &volume.child(first), errors);
    for other in others {
        errors.forbidden(volume.path(other), "may not specify more than 1 volume type");
    }
}

fn details(kind: &str, at: &At<'_>, errors: &mut Errors) {
    match kind {
        "hostPath" => {
            at.needs("path", errors);
            if at.text("path").split('/').any(|step| step == "..") {
                errors.invalid(at.path("path"), at.get("path"), "must not contain '..'");
            }
        }
        "configMap" => {
            at.needs("name", errors);
            mode(at, "defaultMode", errors);
            items(at, errors);
        }
        "secret" => {
            at.needs("secretName", errors);
            mode(at, "defaultMode", errors);
            items(at, errors);
        }
        "persistentVolumeClaim" => {
            at.needs("claimName", errors);
        }
        "emptyDir" => {
            let negative = selectors::quantity(at.get("sizeLimit"))
                .is_some_and(|limit| limit < portolan_types::quantity::Quantity::ZERO);
            if negative {
                errors.forbidden(at.path("sizeLimit"), "SizeLimit field must be a valid resource quantity");
            }
        }
        "nfs" => {
            at.needs("server", errors);
            at.needs("path", errors);
            if !at.text("path").starts_with('/') {
                errors.invalid(at.path("path"), &at.text("path").into(), "must be an absolute path");
            }
        }
        "csi" => {
            at.needs("driver", errors);
        }
        "projected" => {
            mode(at, "defaultMode", errors);
            for source in at.items("sources") {
                let set =
                    source.value.as_object().map_or(0, |map| map.values().filter(|value| !value.is_null()).count());
                if set > 1 {
                    errors.forbidden(&source.path, "may not specify more than 1 volume type per source");
                }
                for (kind, name) in [("secret", "name"), ("configMap", "name"), ("serviceAccountToken", "path")] {
                    if source.has(kind) {
                        source.child(kind).needs(name, errors);
                    }
                }
            }
        }
        "ephemeral" if !at.has("volumeClaimTemplate") => errors.required(at.path("volumeClaimTemplate"), ""),
        _ => {}
    }
}

fn items(at: &At<'_>, errors: &mut Errors) {
    for item in at.items("items") {
        item.needs("key", errors);
        if item.needs("path", errors) {
            let path = item.text("path");
            if path.starts_with('/') {
                errors.invalid(item.path("path"), &path.into(), "must be a relative path");
            }
            if path.split('/').any(|step| step == "..") {
                errors.invalid(item.path("path"), &path.into(), "must not contain '..'");
            }
        }
        mode(&item, "mode", errors);
    }
}

fn mode(at: &At<'_>, name: &str, errors: &mut Errors) {
    if at.int(name).is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        let why = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(at.path(name), at.get(name), why));
    }
}
