//! Classes of storage, and capacities of volumes.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Errors, FieldError, names, view::At};

/// Most parameters, and most bytes of them.
const MAX_PARAMETERS: usize = 512;
const MAX_SIZE: usize = 256 * 1024;

pub(super) fn storage(object: &At<'_>, errors: &mut Errors) {
    provisioner(object, "provisioner", errors);
    parameters(object, errors);
    object.one_of_if_set("reclaimPolicy", &["Delete", "Retain"], errors);
    if object.has("volumeBindingMode") {
        object.supported("volumeBindingMode", &["Immediate", "WaitForFirstConsumer"], errors)
    } else {
        errors.required("volumeBindingMode", "")
    }
    topologies(object, errors);
}

pub(super) fn storage_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    for name in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        new.immutable(old, name, errors);
    }
}

fn provisioner(object: &At<'_>, name: &str, errors: &mut Errors) {
    if object.needs(name, errors) {
        let lower = object.text(name).to_lowercase();
        errors.invalid_each(object.path(name), &lower.as_str().into(), names::qualified_name(&lower));
    }
}

fn parameters(object: &At<'_>, errors: &mut Errors) {
    let path = object.path("parameters");
    if object.count("parameters") > MAX_PARAMETERS {
        errors.push(FieldError::too_long(path, MAX_PARAMETERS));
        return;
    }
    let mut size = 0;
    for (key, value) in object.entries("parameters") {
        if key.is_empty() {
            errors.invalid(&path, &key.into(), "field can not be empty.");
        }
        size += key.len() + value.as_text().len();
    }
    if size > MAX_SIZE {
        errors.push(FieldError::too_long(path, MAX_SIZE));
    }
}

fn topologies(object: &At<'_>, errors: &mut Errors) {
    let count = object.count("allowedTopologies");
    // kube-apiserver starts with as many empty terms in the comparison.
    let mut earlier: Vec<BTreeMap<&str, BTreeSet<&str>>> = vec![BTreeMap::new(); count];
    for term in object.items("allowedTopologies") {
        let mut own = BTreeMap::new();
        for expression in term.items("matchLabelExpressions") {
            let mut values = BTreeSet::new();
            if expression.count("values") == 0 {
                errors.required(expression.path("values"), "");
            }
            for value in expression.items("values") {
                if !values.insert(value.as_text()) {
                    errors.duplicate(&value.path, value.value);
                }
            }
            expression.follows("key", names::qualified_name, errors);
            if own.insert(expression.text("key"), values).is_some() {
                errors.duplicate(expression.path("key"), expression.get("key"));
            }
        }
        for _ in earlier.iter().filter(|other| **other == own) {
            errors.duplicate(term.path("matchLabelExpressions"), &"".into());
        }
        earlier.push(own);
    }
}

pub(super) fn attributes(object: &At<'_>, errors: &mut Errors) {
    provisioner(object, "driverName", errors);
    parameters(object, errors);
    if object.count("parameters") == 0 {
        errors.required("parameters", "must contain at least one key/value pair");
    }
}

pub(super) fn attributes_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    for name in ["driverName", "parameters"].into_iter().filter(|name| old.get(name) != new.get(name)) {
        errors.forbidden(name, &format!("updates to {name} are forbidden."));
    }
}
