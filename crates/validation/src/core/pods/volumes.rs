//! Volumes of pods, and sources that persistent volumes have too.

use std::collections::{HashMap, HashSet};

use portolan_types::quantity::Quantity;
use serde_json::Value;

use super::{
    super::super::{Errors, FieldError, Path, names, selectors, view::At},
    super::claims,
    Part, projected,
};

/// A source of volumes: the field, its name in errors about more than one (without a name it may be one of several),
/// its name in other errors, and its rule.
pub(in crate::core) type Source = (&'static str, &'static str, &'static str, fn(&At<'_>, &mut Errors));

/// Sources of a pod's volumes, in the order in which kube-apiserver checks them.
const SOURCES: [Source; 30] = [
    ("emptyDir", "emptyDir", "emptyDir", empty_dir),
    ("hostPath", "hostPath", "hostPath", host_path),
    ("gitRepo", "gitRepo", "gitRepo", git_repo),
    ("gcePersistentDisk", "gcePersistentDisk", "persistentDisk", gce_disk),
    ("awsElasticBlockStore", "awsElasticBlockStore", "awsElasticBlockStore", aws_disk),
    ("secret", "secret", "secret", secret),
    ("nfs", "nfs", "nfs", nfs),
    ("iscsi", "iscsi", "iscsi", iscsi),
    ("glusterfs", "glusterfs", "glusterfs", glusterfs),
    ("flocker", "flocker", "flocker", flocker),
    ("persistentVolumeClaim", "persistentVolumeClaim", "persistentVolumeClaim", claim),
    ("rbd", "rbd", "rbd", rbd),
    ("cinder", "cinder", "cinder", cinder),
    ("cephfs", "cephFS", "cephfs", cephfs),
    ("quobyte", "quobyte", "quobyte", quobyte),
    ("downwardAPI", "downwarAPI", "downwardAPI", projected::downward_api),
    ("fc", "fc", "fc", fibre_channel),
    ("flexVolume", "flexVolume", "flexVolume", flex),
    ("configMap", "configMap", "configMap", config_map),
    ("azureFile", "azureFile", "azureFile", azure_file),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume", vsphere),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk", photon),
    ("portworxVolume", "portworxVolume", "portworxVolume", portworx),
    ("azureDisk", "azureDisk", "azureDisk", azure_disk),
    ("storageos", "storageos", "storageos", storageos),
    ("projected", "projected", "projected", projected::check),
    ("scaleIO", "scaleIO", "scaleIO", scale_io),
    ("csi", "csi", "csi", csi),
    ("ephemeral", "ephemeral", "ephemeral", ephemeral),
    ("image", "image", "image", |_, _| {}),
];

/// Checks that `at` has exactly one of `sources`. `more` adds the caller's rules; it learns whether the source is the
/// first.
pub(in crate::core) fn one_source(
    at: &At<'_>,
    sources: &[Source],
    errors: &mut Errors,
    mut more: impl FnMut(&str, bool, &mut Errors),
) {
    let mut found = false;
    for (field, crowd, name, rule) in sources.iter().filter(|(field, ..)| at.has(field)) {
        if found && !crowd.is_empty() {
            errors.forbidden(at.path(crowd), "may not specify more than 1 volume type")
        } else {
            rule(&At { value: at.get(field), path: at.path(name) }, errors)
        }
        more(field, !found, errors);
        found = true;
    }
    if !found {
        errors.required(&at.path, "must specify a volume type");
    }
}

/// Checks the volumes of a pod's spec, and returns the valid ones by name.
pub(super) fn list<'v>(part: &Part<'v>, errors: &mut Errors) -> HashMap<&'v str, &'v Value> {
    let mut known = HashMap::new();
    let pod = part.metadata.get("name").and_then(Value::as_str).filter(|name| part.is_pod && !name.is_empty());
    let volumes = || part.spec.items("volumes");
    let ephemeral = || volumes().filter(|volume| volume.has("ephemeral"));
    let made: HashSet<String> =
        pod.into_iter().flat_map(|pod| ephemeral().map(move |one| format!("{pod}-{}", one.text("name")))).collect();
    for volume in volumes() {
        let mut own = Errors::default();
        one_source(&volume, &SOURCES, &mut own, |field, first, own| match field {
            "iscsi" => iscsi_name(&volume, own),
            "ephemeral" if first => made_claim_name(pod, &volume, own),
            "image" if first => image(&volume.child("image"), part.is_pod, own),
            _ => {}
        });
        volume.needs_to_follow("name", names::dns_label, &mut own);
        let name = volume.text("name");
        if known.contains_key(name) {
            own.duplicate(volume.path("name"), &name.into());
        }
        if own.is_empty() {
            known.insert(name, volume.value);
        }
        errors.append(own);
        let claim = volume.child("persistentVolumeClaim");
        if made.contains(claim.text("claimName")) {
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            errors.invalid(claim.path("claimName"), claim.get("claimName"), why);
        }
    }
    known
}

const TOO_LONG_TARGET: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
     iscsi.initiatorName is specified.";

/// Returns true if the name of an iSCSI volume and its portal are too long together.
pub(in crate::core) fn is_target_too_long(name: &str, target: &At<'_>) -> bool {
    target.has("initiatorName") && name.len() + 1 + target.text("targetPortal").len() > 64
}

fn iscsi_name(volume: &At<'_>, errors: &mut Errors) {
    if is_target_too_long(volume.text("name"), &volume.child("iscsi")) {
        errors.invalid(volume.path("name"), &volume.text("name").into(), TOO_LONG_TARGET);
    }
}

/// Checks an iSCSI target of a persistent volume called `name`.
pub(in crate::core) fn iscsi_of_volume(name: &str, at: &At<'_>, errors: &mut Errors) {
    at.needs("targetPortal", errors);
    if is_target_too_long(name, at) {
        errors.invalid(at.path("targetportal"), at.get("targetPortal"), TOO_LONG_TARGET);
    }
    iscsi_rest(at, true, errors);
}

fn made_claim_name(pod: Option<&str>, volume: &At<'_>, errors: &mut Errors) {
    let name = volume.text("name");
    let Some(pod) = pod.filter(|_| !name.is_empty()) else { return };
    let claim = format!("{pod}-{name}");
    for detail in names::dns_subdomain(&claim) {
        errors.invalid(volume.path("name"), &name.into(), &format!("PVC name {claim:?}: {detail}"));
    }
}

fn empty_dir(at: &At<'_>, errors: &mut Errors) {
    if selectors::quantity(at.get("sizeLimit")).is_some_and(|limit| limit < Quantity::ZERO) {
        errors.forbidden(at.path("sizeLimit"), "SizeLimit field must be a valid resource quantity");
    }
}

const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

pub(in crate::core) fn host_path(at: &At<'_>, errors: &mut Errors) {
    if at.needs("path", errors) {
        back_steps(at.text("path"), &at.path("path"), errors);
        at.supported_if_present("type", &HOST_PATH_TYPES, errors);
    }
}

fn git_repo(at: &At<'_>, errors: &mut Errors) {
    at.needs("repository", errors);
    descending_path(at.text("directory"), &at.path("directory"), errors);
}

fn partition(at: &At<'_>, errors: &mut Errors) {
    let number = at.number("partition");
    if !(0..=255).contains(&number) {
        errors.invalid(at.path("partition"), &number.into(), "must be between 1 and 255, inclusive");
    }
}

pub(in crate::core) fn gce_disk(at: &At<'_>, errors: &mut Errors) {
    at.needs("pdName", errors);
    partition(at, errors);
}

pub(in crate::core) fn aws_disk(at: &At<'_>, errors: &mut Errors) {
    at.needs("volumeID", errors);
    partition(at, errors);
}

/// Checks a mode of files at `name`.
pub(crate) fn file_mode(at: &At<'_>, name: &str, errors: &mut Errors) {
    if !(0..=0o777).contains(&at.number(name)) {
        let why = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(at.path(name), at.get(name), why));
    }
}

/// Checks the mapping of a key to a file.
pub(super) fn key_to_path(item: &At<'_>, errors: &mut Errors) {
    item.needs("key", errors);
    item.needs("path", errors);
    local_path(item.text("path"), &item.path("path"), errors);
    file_mode(item, "mode", errors);
}

fn secret(at: &At<'_>, errors: &mut Errors) {
    at.needs("secretName", errors);
    file_mode(at, "defaultMode", errors);
    at.items("items").for_each(|item| key_to_path(&item, errors));
}

fn config_map(at: &At<'_>, errors: &mut Errors) {
    at.needs("name", errors);
    file_mode(at, "defaultMode", errors);
    at.items("items").for_each(|item| key_to_path(&item, errors));
}

pub(in crate::core) fn nfs(at: &At<'_>, errors: &mut Errors) {
    at.needs("server", errors);
    at.needs("path", errors);
    if !at.text("path").starts_with('/') {
        errors.invalid(at.path("path"), &at.text("path").into(), "must be an absolute path");
    }
}

fn iscsi(at: &At<'_>, errors: &mut Errors) {
    at.needs("targetPortal", errors);
    iscsi_rest(at, false, errors);
}

/// Returns a name that begins as names of iSCSI do, and follows the form of its beginning.
fn iscsi_form(name: &str) -> Option<bool> {
    let alphanumeric = |text: &str, length| text.len() == length && text.bytes().all(|b| b.is_ascii_alphanumeric());
    match name.get(..3)? {
        "iqn" => Some(is_iqn(name)),
        "eui" => Some(name.len() > 4 && alphanumeric(&name[4..], 16)),
        "naa" => Some(name.len() > 4 && alphanumeric(&name[4..], 32)),
        _ => None,
    }
}

/// Returns true for a name like `iqn.2001-04.com.example:storage`.
fn is_iqn(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("iqn.") else { return false };
    let date = rest.as_bytes();
    let digit = |at: usize| date.get(at).is_some_and(u8::is_ascii_digit);
    let dated = [0, 1, 2, 3, 5, 6].into_iter().all(digit) && date.get(4) == Some(&b'-') && date.get(7) == Some(&b'.');
    let Some((authority, target)) = rest.get(8..).filter(|_| dated).and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    let named = |b: u8| b.is_ascii_alphanumeric() || b"-.".contains(&b);
    let plain = |c: char| !",;*&$|".contains(c) && !c.is_whitespace();
    !authority.is_empty() && authority.bytes().all(named) && !target.is_empty() && target.chars().all(plain)
}

fn iscsi_rest(at: &At<'_>, of_volume: bool, errors: &mut Errors) {
    let unknown =
        |long: bool| if long { "must be valid format starting with iqn, eui, or naa" } else { "must be valid format" };
    if at.needs("iqn", errors) {
        match iscsi_form(at.text("iqn")) {
            Some(true) => {}
            Some(false) => errors.invalid(at.path("iqn"), at.get("iqn"), "must be valid format"),
            None => errors.invalid(at.path("iqn"), at.get("iqn"), unknown(!of_volume)),
        }
    }
    let lun = at.number("lun");
    if !(0..=255).contains(&lun) {
        errors.invalid(at.path("lun"), &lun.into(), "must be between 0 and 255, inclusive");
    }
    if (at.flag("chapAuthDiscovery") || at.flag("chapAuthSession")) && !at.has("secretRef") {
        errors.required(at.path("secretRef"), "");
    }
    if let Some(secret) = at.present("secretRef").filter(|_| of_volume) {
        secret.needs("name", errors);
    }
    if at.has("initiatorName") {
        let path = at.path("initiatorname");
        match iscsi_form(at.text("initiatorName")) {
            Some(true) => {}
            Some(false) => errors.invalid(path, at.get("initiatorName"), "must be valid format"),
            None => errors.invalid(path, at.get("initiatorName"), unknown(!of_volume)),
        }
    }
}

pub(in crate::core) fn glusterfs(at: &At<'_>, errors: &mut Errors) {
    at.needs("endpoints", errors);
    at.needs("path", errors);
}

pub(in crate::core) fn flocker(at: &At<'_>, errors: &mut Errors) {
    let (name, uuid) = (at.text("datasetName"), at.text("datasetUUID"));
    if name.is_empty() && uuid.is_empty() {
        errors.required(&at.path, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !uuid.is_empty() {
        let why = "datasetName and datasetUUID can not be specified simultaneously";
        errors.invalid(&at.path, &"resource".into(), why);
    }
    if name.contains('/') {
        errors.invalid(at.path("datasetName"), &name.into(), "must not contain '/'");
    }
}

fn claim(at: &At<'_>, errors: &mut Errors) {
    at.needs("claimName", errors);
}

pub(in crate::core) fn rbd(at: &At<'_>, errors: &mut Errors) {
    if at.count("monitors") == 0 {
        errors.required(at.path("monitors"), "");
    }
    at.needs("image", errors);
}

/// Parts that the secret at `secretRef` must name, if there is one.
fn secret_ref(at: &At<'_>, parts: &[&str], errors: &mut Errors) {
    if let Some(secret) = at.present("secretRef") {
        for part in parts {
            secret.needs(part, errors);
        }
    }
}

fn cinder(at: &At<'_>, errors: &mut Errors) {
    at.needs("volumeID", errors);
    secret_ref(at, &["name"], errors);
}

pub(in crate::core) fn cinder_of_volume(at: &At<'_>, errors: &mut Errors) {
    at.needs("volumeID", errors);
    secret_ref(at, &["name", "namespace"], errors);
}

pub(in crate::core) fn cephfs(at: &At<'_>, errors: &mut Errors) {
    if at.count("monitors") == 0 {
        errors.required(at.path("monitors"), "");
    }
}

pub(in crate::core) fn quobyte(at: &At<'_>, errors: &mut Errors) {
    let why = "must be a host:port pair or multiple pairs separated by commas";
    if at.needs_because("registry", why, errors) {
        if at.text("tenant").len() >= 65 {
            errors.required(at.path("tenant"), "must be a UUID and may not exceed a length of 64 characters");
        } else {
            for _ in at.text("registry").split(',').filter(|pair| !is_host_port(pair)) {
                errors.invalid(at.path("registry"), at.get("registry"), why);
            }
        }
    }
    at.needs("volume", errors);
}

fn is_host_port(text: &str) -> bool {
    match text.strip_prefix('[') {
        Some(rest) => {
            rest.split_once("]:").is_some_and(|(host, port)| !host.contains(['[', ']']) && !port.contains(':'))
        }
        None => text.split_once(':').is_some_and(|(host, port)| !host.contains(['[', ']']) && !port.contains(':')),
    }
}

pub(in crate::core) fn fibre_channel(at: &At<'_>, errors: &mut Errors) {
    let (targets, ids) = (at.count("targetWWNs"), at.count("wwids"));
    let path = at.path("targetWWNs");
    if targets == 0 && ids == 0 {
        errors.required(&path, "must specify either targetWWNs or wwids, but not both");
    }
    if targets != 0 && ids != 0 {
        let why = "targetWWNs and wwids can not be specified simultaneously";
        errors.invalid(&path, at.get("targetWWNs"), why);
    }
    if targets != 0 {
        match at.int("lun") {
            None => errors.required(at.path("lun"), "lun is required if targetWWNs is specified"),
            Some(_) => at.in_range("lun", (0, 255), errors),
        }
    }
}

pub(in crate::core) fn flex(at: &At<'_>, errors: &mut Errors) {
    at.needs("driver", errors);
    for (key, option) in at.entries("options") {
        let domain = format!(".{}", key.split_once('/').map_or(key, |(domain, _)| domain).to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            errors.invalid(&option.path, &key.into(), "kubernetes.io and k8s.io namespaces are reserved");
        }
    }
}

fn azure_file(at: &At<'_>, errors: &mut Errors) {
    at.needs("secretName", errors);
    at.needs("shareName", errors);
}

pub(in crate::core) fn azure_file_of_volume(at: &At<'_>, errors: &mut Errors) {
    azure_file(at, errors);
    if at.has("secretNamespace") {
        at.needs("secretNamespace", errors);
    }
}

pub(in crate::core) fn azure_disk(at: &At<'_>, errors: &mut Errors) {
    at.needs("diskName", errors);
    at.needs("diskURI", errors);
    at.supported_if_present("cachingMode", &["None", "ReadOnly", "ReadWrite"], errors);
    at.supported_if_present("kind", &["Dedicated", "Managed", "Shared"], errors);
    let (kind, uri) = (at.text("kind"), at.text("diskURI"));
    let form = match kind {
        "Managed" if !uri.starts_with("/subscriptions/") => {
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
        }
        "Managed" => return,
        _ if at.has("kind") && !uri.starts_with("https://") => {
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
        }
        _ => return,
    };
    errors.not_supported(at.path("diskURI"), &uri.into(), &[form]);
}

pub(in crate::core) fn vsphere(at: &At<'_>, errors: &mut Errors) {
    at.needs("volumePath", errors);
}

pub(in crate::core) fn photon(at: &At<'_>, errors: &mut Errors) {
    at.needs("pdID", errors);
}

pub(in crate::core) fn portworx(at: &At<'_>, errors: &mut Errors) {
    at.needs("volumeID", errors);
}

pub(in crate::core) fn scale_io(at: &At<'_>, errors: &mut Errors) {
    for name in ["gateway", "system", "volumeName"] {
        at.needs(name, errors);
    }
}

fn storageos(at: &At<'_>, errors: &mut Errors) {
    at.needs_to_follow("volumeName", names::dns_label, errors);
    at.follows_if_set("volumeNamespace", names::dns_label, errors);
    secret_ref(at, &["name"], errors);
}

pub(in crate::core) fn storageos_of_volume(at: &At<'_>, errors: &mut Errors) {
    at.needs_to_follow("volumeName", names::dns_label, errors);
    at.follows_if_set("volumeNamespace", names::dns_label, errors);
    secret_ref(at, &["name", "namespace"], errors);
}

/// Checks the name of a CSI driver at `name`.
pub(crate) fn csi_driver(at: &At<'_>, name: &str, errors: &mut Errors) {
    if !at.needs(name, errors) {
        return;
    }
    let driver = at.text(name);
    if driver.len() > 63 {
        errors.push(FieldError::too_long(at.path(name), 63));
    }
    errors.invalid_each(at.path(name), &driver.into(), names::dns_subdomain(&driver.to_lowercase()));
}

fn csi(at: &At<'_>, errors: &mut Errors) {
    csi_driver(at, "driver", errors);
    let Some(secret) = at.present("nodePublishSecretRef") else { return };
    if secret.needs("name", errors) {
        errors.invalid_each(at.path("name"), secret.get("name"), names::dns_subdomain(secret.text("name")));
    }
}

fn ephemeral(at: &At<'_>, errors: &mut Errors) {
    let Some(template) = at.present("volumeClaimTemplate") else {
        errors.required(at.path("volumeClaimTemplate"), "");
        return;
    };
    claims::template(&template, errors);
}

fn image(at: &At<'_>, of_pod: bool, errors: &mut Errors) {
    if of_pod {
        at.needs("reference", errors);
    }
    at.one_of("pullPolicy", &["Always", "IfNotPresent", "Never"], errors);
}

/// Checks that a path is relative and does not leave its directory.
pub(super) fn descending_path(text: &str, path: &Path, errors: &mut Errors) {
    if text.starts_with('/') {
        errors.invalid(path, &text.into(), "must be a relative path");
    }
    back_steps(text, path, errors);
}

/// Checks that a path does not leave its directory, and is none of those reserved for volumes.
pub(crate) fn local_path(text: &str, path: &Path, errors: &mut Errors) {
    descending_path(text, path, errors);
    if text.starts_with("..") && !text.starts_with("../") {
        errors.invalid(path, &text.into(), "must not start with '..'");
    }
}

/// Checks that a path has no `..`.
pub(crate) fn back_steps(text: &str, path: &Path, errors: &mut Errors) {
    if text.split('/').any(|step| step == "..") {
        errors.invalid(path, &text.into(), "must not contain '..'");
    }
}
