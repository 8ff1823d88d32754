//! Validation of the match rules of a webhook or policy: resources, operations, and conditions.

use std::collections::HashSet;

use portolan_cel::policy::PolicyCompiler;

use super::{
    super::{Errors, FieldError, names, selectors, view::At},
    expressions,
};

const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
/// Operations whose objects admission can change.
const MUTABLE: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
/// Most conditions of one webhook or policy.
const MAX_CONDITIONS: usize = 64;

/// Checks the field `failurePolicy`, where it is set.
pub(super) fn failure_policy(at: &At<'_>, errors: &mut Errors) {
    at.supported_if_present("failurePolicy", &FAILURE_POLICIES, errors);
}

/// Checks the field `matchPolicy`, where it is set.
pub(super) fn match_policy(at: &At<'_>, errors: &mut Errors) {
    at.supported_if_present("matchPolicy", &MATCH_POLICIES, errors);
}

/// Returns true if `*` is used beside other values.
fn is_wild_among_others(at: &At<'_>, name: &str) -> bool {
    at.count(name) > 1 && at.items(name).any(|one| one.as_text() == "*")
}

fn alone(at: &At<'_>, name: &str, what: &str, errors: &mut Errors) {
    if is_wild_among_others(at, name) {
        errors.invalid(at.path(name), at.get(name), &format!("if '*' is present, must not specify other {what}"));
    }
}

fn needs_some(at: &At<'_>, name: &str, errors: &mut Errors) {
    if at.count(name) == 0 {
        errors.required(at.path(name), "");
    }
}

/// Checks a rule: its operations and resources.
pub(super) fn rule(at: &At<'_>, errors: &mut Errors) {
    needs_some(at, "operations", errors);
    alone(at, "operations", "operations", errors);
    for operation in at.items("operations").filter(|one| !OPERATIONS.contains(&one.as_text())) {
        errors.not_supported(&operation.path, operation.value, &OPERATIONS);
    }
    needs_some(at, "apiGroups", errors);
    alone(at, "apiGroups", "API groups", errors);
    needs_some(at, "apiVersions", errors);
    alone(at, "apiVersions", "API versions", errors);
    for version in at.items("apiVersions").filter(|one| one.as_text().is_empty()) {
        errors.required(&version.path, "");
    }
    resources(at, errors);
    at.supported_if_present("scope", &SCOPES, errors);
}

fn resources(at: &At<'_>, errors: &mut Errors) {
    needs_some(at, "resources", errors);
    let (mut wild_below, mut wild_above): (HashSet<&str>, HashSet<&str>) = (HashSet::new(), HashSet::new());
    let (mut all, mut plain_all, mut plain) = (false, false, false);
    for one in at.items("resources") {
        let text = one.as_text();
        if text.is_empty() {
            errors.required(&one.path, "");
            continue;
        }
        all |= text == "*/*";
        plain_all |= text == "*";
        let Some((resource, below)) = text.split_once('/') else {
            plain = text != "*";
            continue;
        };
        if wild_below.contains(resource) {
            let why = format!("if '{resource}/*' is present, must not specify {text}");
            errors.invalid(&one.path, one.value, &why);
        }
        if wild_above.contains(below) {
            errors.invalid(&one.path, one.value, &format!("if '*/{below}' is present, must not specify {text}"));
        }
        if below == "*" {
            wild_below.insert(resource);
        }
        if resource == "*" {
            wild_above.insert(below);
        }
    }
    let path = at.path("resources");
    if at.count("resources") > 1 && all {
        errors.invalid(&path, at.get("resources"), "if '*/*' is present, must not specify other resources");
    }
    if plain_all && plain {
        let why = "if '*' is present, must not specify other resources without subresources";
        errors.invalid(&path, at.get("resources"), why);
    }
}

/// Validates the match constraints of a policy or binding.
pub(super) fn constraints(at: &At<'_>, errors: &mut Errors) {
    if at.has("matchPolicy") {
        match_policy(at, errors)
    } else {
        errors.required(at.path("matchPolicy"), "")
    }
    for name in ["namespaceSelector", "objectSelector"] {
        match at.present(name) {
            Some(selector) => selectors::selector(&selector, errors),
            None => errors.required(at.path(name), ""),
        }
    }
    for rules in ["resourceRules", "excludeResourceRules"] {
        at.items(rules).for_each(|one| named_rule(&one, errors));
    }
}

fn named_rule(at: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for name in at.items("resourceNames") {
        errors.invalid_each(&name.path, name.value, names::path_segment(name.as_text()));
        if !taken.insert(name.as_text()) {
            errors.duplicate(&name.path, name.value);
        }
    }
    rule(at, errors);
}

/// Operations of the rules of `at` must be such that there is something to change.
pub(super) fn only_mutable(at: &At<'_>, errors: &mut Errors) {
    let path = at.path("resourceRules").child("operations");
    for operation in at.items("resourceRules").flat_map(|rule| rule.items("operations")) {
        if !MUTABLE.contains(&operation.as_text()) {
            errors.not_supported(&path, operation.value, &MUTABLE);
        }
    }
}

/// Checks the list `matchConditions`; with `has_params` they see the parameters of a policy.
pub(super) fn conditions(at: &At<'_>, has_params: bool, errors: &mut Errors) {
    let count = at.count("matchConditions");
    if count > MAX_CONDITIONS {
        errors.push(FieldError::too_many(at.path("matchConditions"), count, MAX_CONDITIONS));
    }
    if count == 0 {
        return;
    }
    let (mut taken, compiler) = (HashSet::new(), PolicyCompiler::new(has_params));
    for condition in at.items("matchConditions") {
        expressions::compiles_trimmed(&condition, "expression", "", |text| compiler.condition(text), errors);
        let name = condition.text("name");
        condition.needs_to_follow("name", names::qualified_name, errors);
        if name.is_empty() {
            continue;
        }
        if !taken.insert(name) {
            errors.duplicate(condition.path("name"), &name.into());
        }
    }
}
