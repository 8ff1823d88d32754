//! The group policy.

use super::{
    Errors, FieldError, internal, metadata,
    rules::{Rules, Step::Is},
    selectors,
    view::At,
};

pub(super) static RULES: &[(&str, Rules)] = &[(
    "PodDisruptionBudget",
    Rules { create: &[Is(budget)], update: &[Is(budget)], subresources: &[("status", &[Is(status)])] },
)];

fn budget(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.has("minAvailable") && spec.has("maxUnavailable") {
        let shown = internal::printed_value("PodDisruptionBudgetSpec", spec.value);
        let why = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid_shown(&spec.path, &shown, why));
    }
    for name in ["minAvailable", "maxUnavailable"] {
        selectors::int_or_percent(&spec.child(name), errors);
        selectors::at_most_100_percent(&spec.child(name), errors);
    }
    selectors::tolerated_selector(&spec.child("selector"), errors);
    spec.supported_if_present("unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"], errors);
}

fn status(object: &At<'_>, errors: &mut Errors) {
    let status = object.child("status");
    metadata::conditions(&status, errors);
    status.nonnegatives(&["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"], errors);
}
