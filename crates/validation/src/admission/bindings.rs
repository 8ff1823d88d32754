//! Bindings of admission policies.

use std::collections::HashSet;

use super::{
    super::{Errors, names, selectors, view::At},
    matching,
};

const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];

pub(super) fn validating(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    check_policy_and_parameters(&spec, errors);
    actions(&spec, errors);
}

pub(super) fn mutating(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    check_policy_and_parameters(&spec, errors);
    matching::only_mutable(&spec.child("matchResources"), errors);
}

fn check_policy_and_parameters(spec: &At<'_>, errors: &mut Errors) {
    spec.needs_to_follow("policyName", names::dns_subdomain, errors);
    if let Some(reference) = spec.present("paramRef") {
        parameters(&reference, errors);
    }
    if let Some(constraints) = spec.present("matchResources") {
        matching::constraints(&constraints, errors);
    }
}

fn parameters(at: &At<'_>, errors: &mut Errors) {
    let (named, selected) = (!at.text("name").is_empty(), at.has("selector"));
    let both = "name and selector are mutually exclusive";
    if named {
        at.follows("name", names::path_segment, errors);
        if selected {
            errors.forbidden(at.path("name"), both);
        }
    }
    selectors::selector(&at.child("selector"), errors);
    if named && selected {
        errors.forbidden(at.path("selector"), both);
    }
    if !named && !selected {
        errors.required(&at.path, "one of name or selector must be specified");
    }
    at.one_of("parameterNotFoundAction", &["Deny", "Allow"], errors);
}

fn actions(spec: &At<'_>, errors: &mut Errors) {
    let path = spec.path("validationActions");
    let mut taken = HashSet::new();
    for action in spec.items("validationActions") {
        if !ACTIONS.contains(&action.as_text()) {
            errors.not_supported(&action.path, action.value, &ACTIONS);
        }
        if !taken.insert(action.as_text()) {
            errors.duplicate(&action.path, action.value);
        }
    }
    if taken.contains("Deny") && taken.contains("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.invalid(&path, spec.get("validationActions"), why);
    }
    if taken.is_empty() {
        errors.required(&path, "at least one validation action is required");
    }
}
