//! Replication controllers.

use super::{
    super::{Errors, apps, view::At},
    pods,
};

pub(super) fn check(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    spec.nonnegative("minReadySeconds", errors);
    if spec.count("selector") == 0 {
        errors.required(spec.path("selector"), "");
    }
    if spec.has("replicas") {
        spec.nonnegative("replicas", errors)
    } else {
        errors.required(spec.path("replicas"), "")
    }
    let Some(template) = spec.present("template") else {
        errors.required(spec.path("template"), "");
        return;
    };
    let labels = template.child("metadata").child("labels");
    if spec.entries("selector").any(|(key, value)| labels.get(key) != value.value) {
        errors.invalid(&labels.path, labels.value, apps::MISMATCH);
    }
    pods::template(&template, errors);
    apps::keeps_running(&template, "ReplicationController", errors);
}

pub(super) fn status(object: &At<'_>, errors: &mut Errors) {
    let status = object.child("status");
    let parts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    status.nonnegative("replicas", errors);
    status.nonnegatives(&parts, errors);
    status.nonnegative("observedGeneration", errors);
    status.at_most("replicas", &parts, "status.replicas", errors);
    status.at_most("readyReplicas", &["availableReplicas"], "readyReplicas", errors);
}
