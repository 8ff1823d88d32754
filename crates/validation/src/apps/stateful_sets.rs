//! Stateful sets.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    super::{Errors, FieldError, core, internal, metadata, names, selectors, view::At},
    MISMATCH, keeps_running, selector,
};

/// Scope of the checks of a StatefulSet.
#[derive(Clone, Copy)]
struct Extent {
    /// The name of its service and its templates of claims.
    fixed: bool,
    /// The template of its pods, as such.
    template: bool,
}

/// Checks a new StatefulSet.
pub(super) fn new(object: &At<'_>, errors: &mut Errors) {
    check(object, Extent { fixed: true, template: true }, errors);
}

fn check(object: &At<'_>, extent: Extent, errors: &mut Errors) {
    let spec = object.child("spec");
    let policy = "podManagementPolicy";
    if spec.needs(policy, errors) && !matches!(spec.text(policy), "OrderedReady" | "Parallel") {
        errors.invalid(spec.path(policy), spec.get(policy), "must be 'OrderedReady' or 'Parallel'");
    }
    strategy(&spec.child("updateStrategy"), errors);
    if let Some(retention) = spec.present("persistentVolumeClaimRetentionPolicy") {
        for name in ["whenDeleted", "whenScaled"] {
            retention.supported(name, &["Retain", "Delete"], errors);
        }
    }
    if extent.fixed {
        for claim in spec.items("volumeClaimTemplates") {
            core::claim_spec(&claim.child("spec"), errors);
        }
    }
    spec.nonnegatives(&["replicas", "minReadySeconds"], errors);
    spec.child("ordinals").nonnegative("start", errors);
    if extent.fixed {
        spec.follows_if_set("serviceName", names::dns_label, errors);
    }
    selector(&spec, "statefulset", errors);
    template(&spec, extent, errors);
    keeps_running(&spec.child("template"), "StatefulSet", errors);
}

fn strategy(at: &At<'_>, errors: &mut Errors) {
    match at.text("type") {
        "" => errors.required(&at.path, ""),
        "OnDelete" => {
            if let Some(rolling) = at.present("rollingUpdate") {
                let shown = internal::printed_value("RollingUpdateStatefulSetStrategy", rolling.value);
                let why = "only allowed for updateStrategy 'RollingUpdate'";
                errors.push(FieldError::invalid_shown(&rolling.path, &shown, why));
            }
        }
        "RollingUpdate" => {
            let rolling = at.child("rollingUpdate");
            rolling.nonnegative("partition", errors);
            if let Some(unavailable) = rolling.present("maxUnavailable") {
                selectors::int_or_percent(&unavailable, errors);
                if selectors::is_zero(unavailable.value) {
                    errors.invalid(&unavailable.path, unavailable.value, "cannot be 0");
                }
                selectors::at_most_100_percent(&unavailable, errors);
            }
        }
        _ => {
            let shown = internal::printed_value("StatefulSetUpdateStrategy", at.value);
            let why = "must be 'RollingUpdate' or 'OnDelete'";
            errors.push(FieldError::invalid_shown(&at.path, &shown, why));
        }
    }
}

fn template(spec: &At<'_>, extent: Extent, errors: &mut Errors) {
    let own = spec.child("template");
    let labels = own.child("metadata").child("labels");
    let selector = spec.child("selector");
    let fits = if selector.is_missing() { Some(false) } else { selectors::matches(selector.value, labels.value) };
    match fits {
        None => {
            let shown = internal::printed_value("LabelSelector", selector.value);
            errors.push(FieldError::invalid_shown(&selector.path, &shown, ""));
            return;
        }
        Some(false) if selector.is_missing() || !selectors::is_empty(&selector) => {
            errors.invalid(&labels.path, labels.value, MISMATCH)
        }
        Some(_) => {}
    }
    if extent.template {
        let made = as_made(spec, own.value);
        core::template(&At { value: &made, path: own.path.clone() }, errors);
    }
    let metadata = own.get("metadata");
    metadata::labels(&own.path("labels"), metadata.get("labels"), errors);
    metadata::annotations_at(&own.path("annotations"), metadata.get("annotations"), errors);
    core::template_annotations(&own, errors);
}

/// Returns the template with the volumes and without the names that the set gives to its pods.
fn as_made(spec: &At<'_>, template: &Value) -> Value {
    let mut template = template.clone();
    // Claims with the same name are one volume, as in kube-apiserver.
    let claims: BTreeSet<&str> =
        spec.items("volumeClaimTemplates").map(|claim| claim.child("metadata").text("name")).collect();
    let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut) else { return template };
    for name in ["subdomain", "hostname"] {
        pod.remove(name);
    }
    if !claims.is_empty() {
        let mut volumes: Vec<Value> =
            claims.iter().map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}})).collect();
        let own = pod.get("volumes").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_own = |volume: &Value| !volume["name"].as_str().is_some_and(|name| claims.contains(name));
        volumes.extend(own.into_iter().filter(is_own));
        pod.insert("volumes".into(), volumes.into());
    }
    template
}

const MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let extent = Extent { fixed: false, template: true };
    let mut own = Errors::default();
    check(new, extent, &mut own);
    if !own.is_empty() {
        // Errors that the old template has are forgiven.
        let mut before = Errors::default();
        check(old, extent, &mut before);
        let was_wrong = !before.is_empty();
        own.tolerate(0, || before);
        if was_wrong {
            own = Errors::default();
            check(new, Extent { template: false, ..extent }, &mut own);
        }
    }
    errors.append(own);
    let rest = |object: &At<'_>| {
        let mut spec = object.get("spec").clone();
        if let Some(fields) = spec.as_object_mut() {
            fields.retain(|name, _| !MUTABLE.contains(&name.as_str()));
        }
        spec
    };
    if rest(old) != rest(new) {
        let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
             'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are \
             forbidden";
        errors.forbidden("spec", why);
    }
}

pub(super) fn status(object: &At<'_>, errors: &mut Errors) {
    let status = object.child("status");
    let parts = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    status.nonnegative("replicas", errors);
    status.nonnegatives(&parts, errors);
    status.nonnegatives(&["observedGeneration", "collisionCount"], errors);
    status.at_most("replicas", &parts, "status.replicas", errors);
    status.at_most("readyReplicas", &["availableReplicas"], "status.readyReplicas", errors);
}
