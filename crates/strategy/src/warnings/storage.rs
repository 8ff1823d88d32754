//! Warnings about volumes, claims and classes of storage.

use serde_json::Value;

use super::{Warnings, annotations, is_fractional, items, nodes, pods, text};

const TOKENS_IN_VIEW: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to \
     prevent possible logging of tokens in volume attributes";

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

pub(super) fn claim(claim: &Value, warnings: &mut Warnings) {
    old_annotations(claim, &OLD_ANNOTATIONS[..1], warnings);
    sizes(claim.get("spec"), "spec", warnings);
}

/// Warns of sizes in the spec of a claim at `path` that are not whole numbers of bytes.
pub(super) fn sizes(spec: Option<&Value>, path: &str, warnings: &mut Warnings) {
    for list in ["requests", "limits"] {
        let size = spec.and_then(|spec| spec.pointer(&format!("/resources/{list}/storage")));
        if let Some(size) = size.filter(|size| is_fractional(size)) {
            let why = format!("fractional byte value {size} is invalid, must be an integer");
            warnings.add(format!("{path}.resources.{list}[storage]: {why}"));
        }
    }
}

pub(super) fn volume(volume: &Value, warnings: &mut Warnings) {
    old_annotations(volume, &OLD_ANNOTATIONS, warnings);
    if text(volume, "/spec/persistentVolumeReclaimPolicy") == "Recycle" {
        let why = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.";
        warnings.add(format!("spec.persistentVolumeReclaimPolicy: {why}"));
    }
    for (index, term) in items(volume, "/spec/nodeAffinity/required/nodeSelectorTerms").enumerate() {
        let path = format!("spec.nodeAffinity.required.nodeSelectorTerms[{index}]");
        nodes::expressions(term, &path, false, warnings);
    }
    for (plugin, path) in [
        ("cephfs", "cephfs"),
        ("photonPersistentDisk", "photonPersistentDisk"),
        ("scaleIO", "scaleIO"),
        ("storageos", "storageOS"),
        ("glusterfs", "glusterfs"),
        ("rbd", "rbd"),
    ] {
        if volume.pointer(&format!("/spec/{plugin}")).is_some() {
            warnings.add(format!("spec.{path}: {}", pods::end_of(plugin)));
        }
    }
}

pub(super) fn class(class: &Value, warnings: &mut Warnings) {
    for (index, topology) in items(class, "/allowedTopologies").enumerate() {
        for (at, expression) in items(topology, "/matchLabelExpressions").enumerate() {
            if let Some(what) = nodes::old_label(text(expression, "/key")) {
                warnings.add(format!("allowedTopologies[{index}].matchLabelExpressions[{at}].key: {what}"));
            }
        }
    }
}

pub(super) fn capacity(capacity: &Value, warnings: &mut Warnings) {
    let Some(topology) = capacity.get("nodeTopology") else { return };
    nodes::expressions(topology, "nodeTopology", false, warnings);
    for (key, what) in nodes::old_keys(topology.get("matchLabels")) {
        warnings.add(format!("nodeTopology.matchLabels.{key}: {what}"));
    }
}

/// Warns of a driver that newly requests tokens.
pub(super) fn driver(old: Option<&Value>, new: &Value, warnings: &mut Warnings) {
    let requests = |driver: &Value| items(driver, "/spec/tokenRequests").cloned().collect::<Vec<_>>();
    let asked = requests(new);
    let is_new = old.is_none_or(|old| requests(old) != asked);
    let unset = new.pointer("/spec/serviceAccountTokenInSecrets").is_none_or(Value::is_null);
    if is_new && !asked.is_empty() && unset {
        warnings.add(TOKENS_IN_VIEW);
    }
}
