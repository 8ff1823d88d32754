//! The group `apps`: workloads.

mod daemon_sets;
mod deployments;
mod stateful_sets;

use serde_json::Value;

use super::{
    Errors, FieldError, internal,
    rules::{
        Rules,
        Step::{Became, Is, Metadata, MetadataChange},
    },
    selectors,
    view::{At, is_same},
};

pub(super) static RULES: &[(&str, Rules)] = &[
    (
        "ControllerRevision",
        Rules {
            create: &[Metadata, Is(revision), Is(revision_data)],
            update: &[MetadataChange, Metadata, Is(revision), Became(revision_update)],
            subresources: &[],
        },
    ),
    (
        "DaemonSet",
        Rules {
            create: &[Metadata, Is(daemon_sets::check)],
            update: &[MetadataChange, Became(same_selector), Is(daemon_sets::check)],
            subresources: &[("status", &[MetadataChange, Is(daemon_sets::status), Became(collisions)])],
        },
    ),
    (
        "Deployment",
        Rules {
            create: &[Metadata, Is(deployments::check)],
            update: &[MetadataChange, Is(deployments::check), Became(same_selector)],
            subresources: &[("status", &[MetadataChange, Is(deployments::status), Became(collisions)])],
        },
    ),
    (
        "ReplicaSet",
        Rules {
            create: &[Metadata, Is(deployments::replica_set)],
            update: &[MetadataChange, Is(deployments::replica_set), Became(same_selector)],
            subresources: &[("status", &[MetadataChange, Is(deployments::replica_set_status)])],
        },
    ),
    (
        "StatefulSet",
        Rules {
            create: &[Metadata, Is(stateful_sets::new)],
            update: &[MetadataChange, Became(stateful_sets::update)],
            subresources: &[("status", &[Is(stateful_sets::status), MetadataChange, Became(collisions)])],
        },
    ),
];

pub(super) const MISMATCH: &str = "`selector` does not match template `labels`";

/// Checks the required `spec.selector` of a workload whose kind errors call `name`.
fn selector(spec: &At<'_>, name: &str, errors: &mut Errors) {
    let Some(selector) = spec.present("selector") else {
        errors.required(spec.path("selector"), "");
        return;
    };
    selectors::selector(&selector, errors);
    not_empty(&selector, name, errors);
}

fn not_empty(selector: &At<'_>, name: &str, errors: &mut Errors) {
    if selectors::is_empty(selector) {
        let shown = internal::printed_value("LabelSelector", selector.value);
        let why = format!("empty selector is invalid for {name}");
        errors.push(FieldError::invalid_shown(&selector.path, &shown, &why));
    }
}

/// Checks that the template has the selected labels; returns `None` if the selector is invalid.
fn selects(spec: &At<'_>, every: bool, errors: &mut Errors) -> Option<()> {
    let (selector, labels) = (spec.child("selector"), spec.child("template").child("metadata").child("labels"));
    let matches = if selector.is_missing() { Some(false) } else { selectors::matches(selector.value, labels.value) }?;
    // Here an empty selector selects nothing; elsewhere it selects everything.
    if !matches && (every || selector.is_missing() || !selectors::is_empty(&selector)) {
        errors.invalid(&labels.path, labels.value, MISMATCH);
    }
    Some(())
}

/// Checks the restart policy: the pods of a workload run until the workload ends them.
pub(super) fn keeps_running(template: &At<'_>, name: &str, errors: &mut Errors) {
    let pod = template.child("spec");
    pod.supported("restartPolicy", &["Always"], errors);
    let why = format!("activeDeadlineSeconds in {name} is not Supported");
    pod.forbids(&["activeDeadlineSeconds"], &why, errors);
}

/// Checks that the selector does not change.
fn same_selector(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec").child("selector"), new.child("spec").child("selector"));
    if !is_same(before.value, after.value) {
        let shown = internal::printed_value("*LabelSelector", after.value);
        errors.push(FieldError::invalid_shown(&after.path, &shown, super::view::IMMUTABLE));
    }
}

/// Checks that the count of collisions does not decrease.
fn collisions(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("status").int("collisionCount"), new.child("status").int("collisionCount"));
    if before.is_some_and(|before| after.is_none_or(|after| after < before)) {
        errors.invalid("status.collisionCount", &after.unwrap_or(0).into(), "cannot be decremented");
    }
}

fn revision(object: &At<'_>, errors: &mut Errors) {
    object.nonnegative("revision", errors);
}

fn revision_data(object: &At<'_>, errors: &mut Errors) {
    match object.get("data") {
        Value::Object(_) => {}
        Value::Null => errors.required("data", "data is mandatory"),
        _ => errors.required("data", "data must be a valid JSON object"),
    }
}

fn revision_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if old.get("data") != new.get("data") {
        errors.invalid("data", new.get("data"), super::view::IMMUTABLE);
    }
}
