//! What upstream warns clients of when they make or change an object that is good, and means less than they may think.

mod paths;
mod pods;
mod schemas;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use portolan_types::{labels::key_faults, object};
use serde_json::Value;

use crate::{custom, kinds::Kind};

/// The warnings about a new object. Defaults have been applied.
pub fn on_create(kind: &Kind, object: &Value) -> Vec<String> {
    let mut warnings = Warnings::default();
    match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("", "Pod") => pods::pod("", object, &mut warnings),
        ("", "Service") => service(object, &mut warnings),
        ("", "PersistentVolume") => volume(object, &mut warnings),
        ("", "PersistentVolumeClaim") => claim(object, &mut warnings),
        ("apps", "StatefulSet") => history(object, &mut warnings),
        ("discovery.k8s.io", "EndpointSlice") if text(object, "/addressType") == "FQDN" => {
            warnings.add("spec.addressType: FQDN endpoints are deprecated");
        }
        ("networking.k8s.io", "Ingress")
            if annotations(object).any(|(key, _)| key == "kubernetes.io/ingress.class")
                && object.pointer("/spec/ingressClassName").is_none() =>
        {
            let why = "is deprecated, please use 'spec.ingressClassName' instead";
            warnings.add(format!("annotation \"kubernetes.io/ingress.class\" {why}"));
        }
        ("storage.k8s.io", "CSIDriver") => {
            let asks =
                object.pointer("/spec/tokenRequests").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
            if asks && object.pointer("/spec/serviceAccountTokenInSecrets").is_none_or(Value::is_null) {
                warnings.add(TOKENS_IN_VIEW);
            }
        }
        (custom::GROUP, "CustomResourceDefinition") => {
            schemas::formats(object).into_iter().for_each(|format| warnings.add(schemas::unrecognized(&format)));
        }
        _ => {}
    }
    if !kind.is_typed() {
        finalizers(None, object, &mut warnings);
    }
    template(kind, object, &mut warnings);
    warnings.0
}

/// The warnings about a changed object: of workloads, when what they run may have changed.
pub fn on_update(kind: &Kind, old: &Value, new: &Value) -> Vec<String> {
    let mut warnings = Warnings::default();
    let generation = |object: &Value| object.pointer("/metadata/generation").cloned();
    match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("", "Service") => service(new, &mut warnings),
        ("", "PersistentVolume") => volume(new, &mut warnings),
        ("", "PersistentVolumeClaim") => claim(new, &mut warnings),
        ("apps", "StatefulSet") => history(new, &mut warnings),
        (custom::GROUP, "CustomResourceDefinition") => {
            let before = schemas::formats(old);
            let fresh = schemas::formats(new).into_iter().filter(|format| !before.contains(format));
            fresh.for_each(|format| warnings.add(schemas::unrecognized(&format)));
        }
        _ => {}
    }
    if !kind.is_typed() {
        finalizers(Some(old), new, &mut warnings);
    }
    if generation(old) != generation(new) {
        template(kind, new, &mut warnings);
    }
    warnings.0
}

const TOKENS_IN_VIEW: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to \
     prevent possible logging of tokens in volume attributes";

/// Warnings about one object. An answer holds fewer, and what is repeated in lists could make any number of them.
const MOST: usize = 128;
/// Elements of a list that one of them is compared with.
const MOST_COMPARED: usize = 128;

/// Texts in upstream's order.
#[derive(Debug, Default)]
struct Warnings(Vec<String>);

impl Warnings {
    fn add(&mut self, text: impl Into<String>) {
        if self.0.len() < MOST {
            self.0.push(text.into());
        }
    }
}

fn text<'o>(object: &'o Value, pointer: &str) -> &'o str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn items<'o>(object: &'o Value, pointer: &str) -> impl Iterator<Item = &'o Value> + use<'o> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn annotations(object: &Value) -> impl Iterator<Item = (&str, &str)> {
    let all = object.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
    all.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}

/// Where a kind keeps the template of its pods.
fn template(kind: &Kind, object: &Value, warnings: &mut Warnings) {
    let path = match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
        | ("batch", "Job")
        | ("", "ReplicationController") => "spec.template",
        ("batch", "CronJob") => "spec.jobTemplate.spec.template",
        ("", "PodTemplate") => "template",
        _ => return,
    };
    if let Some(template) = object.pointer(&format!("/{}", path.replace('.', "/"))) {
        pods::pod(path, template, warnings);
    }
}

fn history(set: &Value, warnings: &mut Warnings) {
    if set.pointer("/spec/revisionHistoryLimit").and_then(Value::as_i64).is_some_and(|limit| limit < 0) {
        let why = "a negative value retains all historical revisions; a value >= 0 is recommended";
        warnings.add(format!("spec.revisionHistoryLimit: {why}"));
    }
}

fn service(service: &Value, warnings: &mut Warnings) {
    let external = text(service, "/spec/type") == "ExternalName";
    let headless =
        !external && text(service, "/spec/type") == "ClusterIP" && text(service, "/spec/clusterIP") == "None";
    let has_external = items(service, "/spec/externalIPs").next().is_some();
    if headless {
        if !text(service, "/spec/loadBalancerIP").is_empty() {
            warnings.add("spec.loadBalancerIP is ignored for headless services");
        }
        if has_external {
            warnings.add("spec.externalIPs is ignored for headless services");
        }
        if text(service, "/spec/sessionAffinity") != "None" {
            warnings.add("spec.SessionAffinity is ignored for headless services");
        }
    }
    if has_external && !headless && !external {
        warnings.add("spec.externalIPs is deprecated and may no longer be implemented in some clusters");
    }
    if external && has_external {
        warnings.add("spec.externalIPs is ignored when spec.type is \"ExternalName\"");
    }
    if !external && !text(service, "/spec/externalName").is_empty() {
        warnings.add("spec.externalName is ignored when spec.type is not \"ExternalName\"");
    }
    if text(service, "/spec/trafficDistribution") == "PreferClose" {
        warnings.add("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"");
    }
}

/// Annotations of storage that have become fields.
const OLD_ANNOTATIONS: [(&str, &str); 2] = [
    ("volume.beta.kubernetes.io/storage-class", "deprecated since v1.8; use \"storageClassName\" attribute instead"),
    ("volume.beta.kubernetes.io/mount-options", "deprecated since v1.31; use \"mountOptions\" attribute instead"),
];

fn old_annotations(object: &Value, known: &[(&str, &str)], warnings: &mut Warnings) {
    for (key, why) in known {
        if annotations(object).any(|(own, _)| own == *key) {
            warnings.add(format!("metadata.annotations[{key}]: {why}"));
        }
    }
}

fn claim(claim: &Value, warnings: &mut Warnings) {
    old_annotations(claim, &OLD_ANNOTATIONS[..1], warnings);
}

fn volume(volume: &Value, warnings: &mut Warnings) {
    old_annotations(volume, &OLD_ANNOTATIONS, warnings);
    if text(volume, "/spec/persistentVolumeReclaimPolicy") == "Recycle" {
        let why = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.";
        warnings.add(format!("spec.persistentVolumeReclaimPolicy: {why}"));
    }
    for plugin in ["cephfs", "photonPersistentDisk", "scaleIO", "storageOS", "glusterfs", "rbd"] {
        if volume.pointer(&format!("/spec/{plugin}")).is_some() {
            warnings.add(format!("spec.{plugin}: {}", pods::end_of(plugin)));
        }
    }
}

/// Finalizers that a custom object has come to have, and whose names others may choose, too.
fn finalizers(old: Option<&Value>, new: &Value, warnings: &mut Warnings) {
    let had = |name: &&str| old.is_some_and(|old| object::finalizers(old).any(|own| own == *name));
    let added: BTreeSet<&str> = object::finalizers(new).filter(|name| !had(name)).collect();
    for name in added {
        let mut warn = |why: &str| warnings.add(format!("metadata.finalizers: {name:?}: {why}"));
        key_faults(name).iter().for_each(|why| warn(why));
        if !name.contains('/') && !matches!(name, "orphan" | "foregroundDeletion" | "kubernetes") {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            let why = "to avoid accidental conflicts with other finalizer writers";
            warn(&format!("prefer a domain-qualified finalizer name{path} {why}"));
        }
    }
}
