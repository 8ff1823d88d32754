//! Persistent volumes.

use portolan_types::quantity::Quantity;
use serde_json::Value;

use super::{
    super::{
        Errors, internal, names, selectors,
        view::{At, IMMUTABLE, NOT_POSITIVE},
    },
    claims, pods,
    pods::volumes::{self, Source},
};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// Validates the access modes of a volume or claim.
pub(super) fn access_modes(spec: &At<'_>, errors: &mut Errors) {
    let (mut alone, mut shared) = (false, false);
    for mode in spec.items("accessModes") {
        match mode.as_text() {
            "ReadWriteOncePod" => alone = true,
            known if ACCESS_MODES.contains(&known) => shared = true,
            _ => errors.not_supported(spec.path("accessModes"), mode.value, &ACCESS_MODES),
        }
    }
    if alone && shared {
        errors.forbidden(spec.path("accessModes"), "may not use ReadWriteOncePod with other access modes");
    }
}

/// Sources of persistent volumes, in the order in which kube-apiserver checks them.
const SOURCES: [Source; 22] = [
    ("hostPath", "hostPath", "hostPath", volumes::host_path),
    ("gcePersistentDisk", "gcePersistentDisk", "persistentDisk", volumes::gce_disk),
    ("awsElasticBlockStore", "awsElasticBlockStore", "awsElasticBlockStore", volumes::aws_disk),
    ("glusterfs", "glusterfs", "glusterfs", glusterfs),
    ("flocker", "flocker", "flocker", volumes::flocker),
    ("nfs", "nfs", "nfs", volumes::nfs),
    ("rbd", "rbd", "rbd", volumes::rbd),
    ("quobyte", "quobyte", "quobyte", volumes::quobyte),
    ("cephfs", "cephFS", "cephfs", volumes::cephfs),
    ("iscsi", "iscsi", "iscsi", |_, _| {}),
    ("cinder", "cinder", "cinder", volumes::cinder_of_volume),
    ("fc", "fc", "fc", volumes::fibre_channel),
    // kube-apiserver does not check that it is the only one.
    ("flexVolume", "", "flexVolume", volumes::flex),
    ("azureFile", "azureFile", "azureFile", volumes::azure_file_of_volume),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume", volumes::vsphere),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk", volumes::photon),
    ("portworxVolume", "portworxVolume", "portworxVolume", volumes::portworx),
    ("azureDisk", "azureDisk", "azureDisk", volumes::azure_disk),
    ("scaleIO", "scaleIO", "scaleIO", volumes::scale_io),
    ("local", "local", "local", local),
    ("storageos", "storageos", "storageos", volumes::storageos_of_volume),
    ("csi", "csi", "csi", csi),
];

pub(super) fn check(object: &At<'_>, errors: &mut Errors) {
    spec(&object.child("spec"), Some(object.child("metadata").text("name")), errors);
}

const NOT_INLINE: &str = "may not be specified in the context of inline volumes";

/// Checks an inline volume of an attachment.
pub(crate) fn inline(at: &At<'_>, errors: &mut Errors) {
    at.forbids(&["claimRef"], NOT_INLINE, errors);
    if at.count("capacity") > 0 {
        errors.forbidden(at.path("capacity"), NOT_INLINE);
    }
    if !at.has("csi") {
        errors.required(at.path("csi"), "has to be specified in the context of inline volumes");
    }
    spec(at, None, errors);
}

/// Checks the spec of a volume; an inline volume has no name.
fn spec(spec: &At<'_>, name: Option<&str>, errors: &mut Errors) {
    if spec.count("accessModes") == 0 {
        errors.required(spec.path("accessModes"), "");
    }
    access_modes(spec, errors);
    let policy = "persistentVolumeReclaimPolicy";
    if name.is_some() {
        capacity(spec, errors);
        spec.one_of_if_set(policy, &["Delete", "Recycle", "Retain"], errors);
    } else {
        if !matches!(spec.text(policy), "" | "Retain") {
            errors.forbidden(spec.path(policy), "may only be Retain in the context of inline volumes");
        }
        spec.forbids(&["nodeAffinity"], NOT_INLINE, errors);
    }
    if let Some(affinity) = spec.present("nodeAffinity").filter(|_| name.is_some()) {
        match affinity.present("required") {
            Some(required) => pods::node_selector(&required, errors),
            None => errors.required(affinity.path("required"), "must specify required node constraints"),
        }
    }
    volumes::one_source(spec, &SOURCES, errors, |field, first, errors| match field {
        "iscsi" if first => volumes::iscsi_of_volume(name.unwrap_or_default(), &spec.child("iscsi"), errors),
        // One that is inline may not have it, and wants it all the same.
        "local" if first && !(spec.has("nodeAffinity") && name.is_some()) => {
            errors.required(spec.path("nodeAffinity"), "Local volume requires node affinity");
        }
        _ => {}
    });
    let host_path = spec.child("hostPath").text("path");
    if is_root(host_path) && spec.text("persistentVolumeReclaimPolicy") == "Recycle" {
        let why = "may not be 'recycle' for a hostPath mount of '/'";
        errors.forbidden(spec.path("persistentVolumeReclaimPolicy"), why);
    }
    if name.is_some() {
        class_and_mode(spec, errors);
    } else {
        inline_class_and_mode(spec, errors);
    }
}

fn class_and_mode(spec: &At<'_>, errors: &mut Errors) {
    spec.follows_if_set("storageClassName", names::dns_subdomain, errors);
    spec.supported_if_present("volumeMode", &["Block", "Filesystem"], errors);
    let class = "volumeAttributesClassName";
    if spec.has(class) {
        if spec.needs_because(class, "an empty string is disallowed", errors) {
            spec.follows(class, names::dns_subdomain, errors);
        }
        if !spec.has("csi") {
            errors.required(spec.path("csi"), "has to be specified when using volumeAttributesClassName");
        }
    }
}

/// Checks the class and mode of an inline volume. Its `volumeAttributesClassName` is not checked.
fn inline_class_and_mode(spec: &At<'_>, errors: &mut Errors) {
    if !spec.text("storageClassName").is_empty() {
        errors.forbidden(spec.path("storageClassName"), NOT_INLINE);
    }
    if spec.has("volumeMode") && spec.text("volumeMode") != "Filesystem" {
        let why = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        errors.forbidden(spec.path("volumeMode"), why);
    }
}

/// Returns true if a path leads to the root.
fn is_root(path: &str) -> bool {
    let depth = path.split('/').fold(0_usize, |depth, step| match step {
        "" | "." => depth,
        ".." => depth.saturating_sub(1),
        _ => depth + 1,
    });
    path.starts_with('/') && depth == 0
}

fn capacity(spec: &At<'_>, errors: &mut Errors) {
    let at = spec.child("capacity");
    if spec.count("capacity") == 0 {
        errors.required(&at.path, "");
    }
    if !at.has("storage") || spec.count("capacity") > 1 {
        errors.not_supported(&at.path, at.value, &["storage"]);
    }
    for (_, amount) in spec.entries("capacity") {
        claims::not_negative(&amount, errors);
        if selectors::quantity(amount.value).is_some_and(|amount| amount <= Quantity::ZERO) {
            errors.invalid(&amount.path, amount.value, NOT_POSITIVE);
        }
    }
}

fn glusterfs(at: &At<'_>, errors: &mut Errors) {
    volumes::glusterfs(at, errors);
    let name = "endpointsNamespace";
    if at.has(name) {
        match at.text(name) {
            "" => {
                let why = "if the endpointnamespace is set, it must be a valid namespace name";
                errors.invalid(at.path(name), &"".into(), why);
            }
            _ => at.follows(name, names::dns_label, errors),
        }
    }
}

fn local(at: &At<'_>, errors: &mut Errors) {
    if at.needs("path", errors) {
        volumes::back_steps(at.text("path"), &at.path("path"), errors);
    }
}

fn csi(at: &At<'_>, errors: &mut Errors) {
    volumes::csi_driver(at, "driver", errors);
    at.needs("volumeHandle", errors);
    for name in
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"]
    {
        if let Some(secret) = at.present(name) {
            secret.needs_to_follow("name", names::dns_subdomain, errors);
            secret.needs_to_follow("namespace", names::dns_label, errors);
        }
    }
}

/// Sources that can be mounted with options.
const WITH_OPTIONS: [&str; 13] = [
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "nfs",
    "rbd",
    "quobyte",
    "iscsi",
    "cinder",
    "cephfs",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "photonPersistentDisk",
];
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

pub(super) fn mount_options(object: &At<'_>, errors: &mut Errors) {
    let annotations = object.child("metadata").child("annotations");
    if annotations.has(MOUNT_OPTIONS) && !WITH_OPTIONS.iter().any(|name| object.child("spec").has(name)) {
        errors.forbidden(annotations.path(MOUNT_OPTIONS), "may not specify mount options for this volume type");
    }
}

fn only_source(spec: &Value) -> Value {
    let fields = spec.as_object().into_iter().flatten();
    let is_source = |name: &str| SOURCES.iter().any(|(field, ..)| *field == name);
    fields.filter(|(name, _)| is_source(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    let (was, mut is) = (only_source(before.value), only_source(after.value));
    let secret = "controllerExpandSecretRef";
    if was.get("csi").is_some_and(|csi| csi.get(secret).is_none())
        && let Some(csi) = is.get_mut("csi").and_then(Value::as_object_mut)
    {
        csi.remove(secret);
    }
    if was != is {
        let diff = internal::diff("PersistentVolumeSource", &was, &is);
        let why = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        errors.forbidden("spec.persistentvolumesource", &why);
    }
    if before.get("volumeMode") != after.get("volumeMode") {
        errors.invalid("volumeMode", after.get("volumeMode"), IMMUTABLE);
    }
    affinity(&before, &after, errors);
    let class = "volumeAttributesClassName";
    if before.has(class) && !after.has(class) {
        errors.forbidden(after.path(class), "update from non-nil value to nil is forbidden");
    }
}

/// Labels of nodes that got another name.
const RENAMED: [(&str, &str); 5] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

fn affinity(before: &At<'_>, after: &At<'_>, errors: &mut Errors) {
    let (old, new) = (before.child("nodeAffinity"), after.child("nodeAffinity"));
    if old.is_missing() || is_renamed(old.value, new.value) {
        return;
    }
    let shown = internal::printed_value("*VolumeNodeAffinity", new.value);
    let why = format!("{IMMUTABLE}, except for updating from beta label to GA");
    errors.push(super::super::FieldError::invalid_shown("nodeAffinity", &shown, &why));
}

/// Returns true if a key is the same or has its final name now. kube-apiserver takes the final name from a map, which
/// has an empty one for all others.
fn renamed_to(old: Option<&str>, new: Option<&str>) -> bool {
    let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
    let last = RENAMED.iter().find(|(before, _)| *before == old).map_or("", |(_, after)| after);
    old == new || new == last
}

/// Returns true if two values are the same except for label keys that got their final name.
fn is_renamed(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            new.keys().all(|name| old.contains_key(name))
                && old.iter().all(|(name, before)| match (name.as_str(), new.get(name)) {
                    ("key", after) => renamed_to(before.as_str(), after.and_then(Value::as_str)),
                    (_, Some(after)) => is_renamed(before, after),
                    (_, None) => false,
                })
        }
        (Value::Array(old), Value::Array(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(before, after)| is_renamed(before, after))
        }
        _ => old == new,
    }
}
