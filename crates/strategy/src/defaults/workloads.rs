//! Conditional defaults of apps/v1, batch/v1 and replication controllers.

use portolan_types::object::child_mut;
use serde_json::{Value, json};

use super::{Fields, Function, child, core::has, default_to, default_unset, is_set, items, text};

/// Functions by type.
pub(super) const FUNCTIONS: &[(&str, Function)] = &[
    ("io.k8s.api.apps.v1.DeploymentStrategy", deployment_strategy),
    ("io.k8s.api.apps.v1.DaemonSetUpdateStrategy", daemon_set_strategy),
    ("io.k8s.api.apps.v1.DaemonSet", daemon_set),
    ("io.k8s.api.apps.v1.StatefulSetSpec", stateful_set_spec),
    ("io.k8s.api.batch.v1.Job", job),
    ("io.k8s.api.core.v1.ReplicationController", replication_controller),
];

/// Defaults a strategy. A strategy of another type may contain `rollingUpdate`, also in other kinds. kube-apiserver
/// stores its fields as integers, so absent fields become 0.
fn deployment_strategy(strategy: &mut Fields) {
    default_unset(strategy, "type", "RollingUpdate");
    let is_rolling = text(strategy, "type") == "RollingUpdate";
    if is_rolling || child(strategy, "rollingUpdate").is_some() {
        let unsaid = if is_rolling { json!("25%") } else { json!(0) };
        let rolling = child_mut(strategy, "rollingUpdate");
        default_to(rolling, "maxUnavailable", unsaid.clone());
        default_to(rolling, "maxSurge", unsaid);
    }
}

fn daemon_set_strategy(strategy: &mut Fields) {
    default_unset(strategy, "type", "RollingUpdate");
    let is_rolling = text(strategy, "type") == "RollingUpdate";
    if is_rolling || child(strategy, "rollingUpdate").is_some() {
        let rolling = child_mut(strategy, "rollingUpdate");
        default_to(rolling, "maxUnavailable", i32::from(is_rolling));
        default_to(rolling, "maxSurge", 0);
    }
}

/// Defaults a DaemonSet. Old clients read the generation of the template from an annotation. kube-apiserver stores it
/// as an integer, so an absent one becomes 0.
fn daemon_set(fields: &mut Fields) {
    let annotations = child_mut(child_mut(fields, "metadata"), "annotations");
    default_to(annotations, "deprecated.daemonset.template.generation", "0");
}

/// Defaults a StatefulSetSpec, with its strategy: only a strategy without a type gets an empty `rollingUpdate`.
fn stateful_set_spec(spec: &mut Fields) {
    let strategy = child_mut(spec, "updateStrategy");
    if text(strategy, "type").is_empty() {
        strategy.insert("type".into(), "RollingUpdate".into());
        default_to(strategy, "rollingUpdate", json!({}));
    }
    if let Some(rolling) = child(strategy, "rollingUpdate") {
        default_to(rolling, "partition", 0);
    }
    for claim in items(spec, "volumeClaimTemplates") {
        claim.insert("apiVersion".into(), "v1".into());
        claim.insert("kind".into(), "PersistentVolumeClaim".into());
    }
}

/// Copies the labels of a job's pods to the job, if it has none.
fn job(fields: &mut Fields) {
    let labels = fields.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels")).cloned();
    labels_from(fields, labels);
    // The template of a CronJob has a JobSpec too, but its defaults are those of the job that is made from it.
    if let Some(spec) = child(fields, "spec") {
        if !is_set(spec, "completions") && !is_set(spec, "parallelism") {
            spec.insert("completions".into(), 1.into());
        }
        default_to(spec, "parallelism", 1);
        let backoff = if is_set(spec, "backoffLimitPerIndex") { i32::MAX } else { 6 };
        default_to(spec, "backoffLimit", backoff);
        default_to(spec, "completionMode", "NonIndexed");
        default_to(spec, "suspend", false);
        let replacement = if is_set(spec, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
        default_to(spec, "podReplacementPolicy", replacement);
        default_to(spec, "manualSelector", false);
    }
}

fn replication_controller(fields: &mut Fields) {
    let labels = fields.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels")).cloned();
    let Some(labels) = labels.filter(Value::is_object) else { return };
    if let Some(spec) = child(fields, "spec")
        && !has(spec, "selector")
    {
        spec.insert("selector".into(), labels.clone());
    }
    labels_from(fields, Some(labels));
}

fn labels_from(fields: &mut Fields, labels: Option<Value>) {
    let Some(labels) = labels.filter(|labels| labels.as_object().is_some_and(|labels| !labels.is_empty())) else {
        return;
    };
    let metadata = child_mut(fields, "metadata");
    if !has(metadata, "labels") {
        metadata.insert("labels".into(), labels);
    }
}
