//! Quotas.

use std::collections::BTreeSet;

use super::{
    super::{
        Errors, FieldError, internal,
        view::{At, IMMUTABLE},
    },
    pods,
};

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "VolumeAttributesClass",
    "CrossNamespacePodAffinity",
];
const COMPUTE: [&str; 6] = ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
const EXCLUSIVE: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

fn amounts(at: &At<'_>, list: &str, errors: &mut Errors) {
    for (name, amount) in at.entries(list) {
        pods::quota_name(name, &amount, errors);
        pods::quantity(name, &amount, errors);
    }
}

pub(super) fn spec(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    amounts(&spec, "hard", errors);
    scopes(&spec, errors);
    if let Some(selector) = spec.present("scopeSelector") {
        scope_selector(&spec, &selector, errors);
    }
}

pub(super) fn status(object: &At<'_>, errors: &mut Errors) {
    let status = object.child("status");
    amounts(&status, "hard", errors);
    amounts(&status, "used", errors);
}

/// Returns true if a scope can restrict the count of a resource.
fn can_narrow(scope: &str, resource: &str) -> bool {
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        known if SCOPES.contains(&known) => resource == "pods" || COMPUTE.contains(&resource),
        _ => true,
    }
}

/// Returns the resources of a quota that this scope does not fit, in order of their names.
fn misfits<'v>(spec: &At<'v>, scope: &str) -> impl Iterator<Item = &'v str> {
    let names: BTreeSet<&str> = spec.entries("hard").map(|(name, _)| name).collect();
    let misfit = |name: &&str| pods::is_standard_for_quota(name) && !can_narrow(scope, name);
    names.into_iter().filter(misfit).collect::<Vec<_>>().into_iter()
}

fn scopes(spec: &At<'_>, errors: &mut Errors) {
    let (path, all) = (spec.path("scopes"), spec.get("scopes"));
    for scope in spec.items("scopes") {
        if !SCOPES.contains(&scope.as_text()) {
            errors.invalid(&path, all, "unsupported scope");
        }
        for _ in misfits(spec, scope.as_text()) {
            errors.invalid(&path, all, "unsupported scope applied to resource");
        }
    }
    let has = |wanted: &&str| spec.items("scopes").any(|scope| scope.as_text() == *wanted);
    for _ in EXCLUSIVE.iter().filter(|pair| pair.iter().all(has)) {
        errors.invalid(&path, all, "conflicting scopes");
    }
}

fn scope_selector(spec: &At<'_>, selector: &At<'_>, errors: &mut Errors) {
    let path = selector.path("matchExpressions");
    // kube-apiserver's path has no index of the expression, and lacks `scopeSelector` once.
    let place = spec.path("scopeSelector").child("matchExpressions");
    debug_assert_eq!(path, place);
    for expression in selector.items("matchExpressions") {
        let (scope, operator) = (expression.text("scopeName"), expression.text("operator"));
        if !SCOPES.contains(&scope) {
            errors.invalid(path.child("scopeName"), &scope.into(), "unsupported scope");
        }
        for _ in misfits(spec, scope) {
            let shown = internal::printed_value("ScopeSelector", selector.value);
            errors.push(FieldError::invalid_shown(&path, &shown, "unsupported scope applied to resource"));
        }
        let only_exists = SCOPES.contains(&scope) && !matches!(scope, "PriorityClass" | "VolumeAttributesClass");
        if only_exists && operator != "Exists" {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                 ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
                 ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(path.child("operator"), &operator.into(), why);
        }
        match (operator, expression.count("values")) {
            ("In" | "NotIn", 0) => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.required(path.child("values"), why);
            }
            ("In" | "NotIn", _) | ("Exists" | "DoesNotExist", 0) => {}
            ("Exists" | "DoesNotExist", _) => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.invalid(path.child("values"), expression.get("values"), why);
            }
            _ => errors.push(FieldError::invalid_named(
                path.child("operator"),
                operator,
                "not a valid selector operator",
            )),
        }
    }
    let has = |wanted: &&str| selector.items("matchExpressions").any(|one| one.text("scopeName") == *wanted);
    for _ in EXCLUSIVE.iter().filter(|pair| pair.iter().all(has)) {
        errors.invalid(&path, spec.get("scopes"), "conflicting scopes");
    }
}

pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let set = |object: &At<'_>| -> BTreeSet<String> {
        object.child("spec").items("scopes").map(|scope| scope.as_text().to_owned()).collect()
    };
    if set(old) != set(new) {
        errors.invalid("spec.scopes", new.child("spec").get("scopes"), IMMUTABLE);
    }
}
