//! Deployments and replica sets.

use super::{
    super::{Errors, FieldError, core, internal, selectors, view::At},
    keeps_running, selector, selects,
};

pub(super) fn check(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    spec.nonnegative("replicas", errors);
    template(&spec, errors);
    strategy(&spec.child("strategy"), errors);
    spec.nonnegatives(&["minReadySeconds", "revisionHistoryLimit"], errors);
    let deadline = "progressDeadlineSeconds";
    spec.nonnegative(deadline, errors);
    if spec.int(deadline).is_some_and(|seconds| seconds <= spec.number("minReadySeconds")) {
        errors.invalid(spec.path(deadline), spec.get(deadline), "must be greater than minReadySeconds");
    }
}

fn template(spec: &At<'_>, errors: &mut Errors) {
    selector(spec, "deployment", errors);
    let Some(()) = selects(spec, false, errors) else {
        let shown = internal::printed_value("LabelSelector", spec.get("selector"));
        errors.push(FieldError::invalid_shown(spec.path("selector"), &shown, "invalid label selector"));
        return;
    };
    core::template(&spec.child("template"), errors);
    keeps_running(&spec.child("template"), "ReplicaSet", errors);
}

fn strategy(at: &At<'_>, errors: &mut Errors) {
    let rolling = at.child("rollingUpdate");
    match at.text("type") {
        "Recreate" if !rolling.is_missing() => {
            errors.forbidden(&rolling.path, "may not be specified when strategy `type` is 'Recreate'");
        }
        "Recreate" => {}
        "RollingUpdate" if rolling.is_missing() => {
            errors.required(&rolling.path, "this should be defaulted and never be nil");
        }
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
            selectors::int_or_percent(&unavailable, errors);
            selectors::int_or_percent(&surge, errors);
            if selectors::is_zero(unavailable.value) && selectors::is_zero(surge.value) {
                errors.invalid(&unavailable.path, unavailable.value, "may not be 0 when `maxSurge` is 0");
            }
            selectors::at_most_100_percent(&unavailable, errors);
        }
        _ => {
            let shown = internal::printed_value("DeploymentStrategy", at.value);
            errors.push(FieldError::not_supported_shown(&at.path, &shown, &["Recreate", "RollingUpdate"]));
        }
    }
}

pub(super) fn replica_set(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    spec.nonnegatives(&["replicas", "minReadySeconds"], errors);
    template(&spec, errors);
}

pub(super) fn status(object: &At<'_>, errors: &mut Errors) {
    let status = object.child("status");
    let numbers = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    status.nonnegatives(&numbers, errors);
    status.at_most("replicas", &["updatedReplicas", "readyReplicas", "availableReplicas"], "status.replicas", errors);
    status.at_most("readyReplicas", &["availableReplicas"], "readyReplicas", errors);
}

pub(super) fn replica_set_status(object: &At<'_>, errors: &mut Errors) {
    let status = object.child("status");
    let parts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    status.nonnegative("replicas", errors);
    status.nonnegatives(&parts, errors);
    status.nonnegatives(&["observedGeneration", "terminatingReplicas"], errors);
    status.at_most("replicas", &parts, "status.replicas", errors);
    status.at_most("readyReplicas", &["availableReplicas"], "readyReplicas", errors);
}
