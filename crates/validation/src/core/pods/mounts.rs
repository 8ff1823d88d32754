//! Validation of volume mounts.

use std::collections::HashSet;

use super::{
    super::super::{Errors, Path, view::At},
    containers::Volumes,
    volumes::descending_path,
};

pub(super) fn check(container: &At<'_>, volumes: &Volumes<'_>, errors: &mut Errors) {
    let list = container.path("volumeMounts");
    let mut taken = HashSet::new();
    let (names, paths) = names_and_paths(container, "volumeDevices", "devicePath");
    for mount in container.items("volumeMounts") {
        let (name, path) = (mount.text("name"), mount.text("mountPath"));
        mount.needs("name", errors);
        if !volumes.contains_key(name) {
            errors.not_found(mount.path("name"), &name.into());
        }
        mount.needs("mountPath", errors);
        if !taken.insert(path) {
            errors.invalid(mount.path("mountPath"), &path.into(), "must be unique");
        }
        if names.contains(name) {
            errors.invalid(mount.path("name"), &name.into(), "must not already exist in volumeDevices");
        }
        if paths.contains(path) {
            let why = "must not already exist as a path in volumeDevices";
            errors.invalid(mount.path("mountPath"), &path.into(), why);
        }
        sub_path(&mount, &list, errors);
        propagation(container, &mount, &list, errors);
        read_only(&mount, &list.child("recursiveReadOnly"), errors);
    }
}

/// Returns the names and the paths in a list of a container's mounts or devices.
fn names_and_paths<'v>(container: &At<'v>, list: &str, path: &str) -> (HashSet<&'v str>, HashSet<&'v str>) {
    container.items(list).map(|one| (one.text("name"), one.text(path))).unzip()
}

fn sub_path(mount: &At<'_>, list: &Path, errors: &mut Errors) {
    let (fixed, expanded) = (mount.text("subPath"), mount.text("subPathExpr"));
    if !fixed.is_empty() {
        descending_path(fixed, &list.child("subPath"), errors);
    }
    if !expanded.is_empty() {
        if !fixed.is_empty() {
            let why = "subPathExpr and subPath are mutually exclusive";
            errors.invalid(mount.path("subPathExpr"), &expanded.into(), why);
        }
        descending_path(expanded, &list.child("subPathExpr"), errors);
    }
}

fn propagation(container: &At<'_>, mount: &At<'_>, list: &Path, errors: &mut Errors) {
    if !mount.has("mountPropagation") {
        return;
    }
    let (mode, path) = (mount.text("mountPropagation"), list.child("mountPropagation"));
    let known = ["Bidirectional", "HostToContainer", "None"];
    if !known.contains(&mode) {
        errors.not_supported(&path, &mode.into(), &known);
    }
    if mode == "Bidirectional" && !container.child("securityContext").flag("privileged") {
        errors.forbidden(&path, "Bidirectional mount propagation is available only to privileged containers");
    }
}

fn read_only(mount: &At<'_>, path: &Path, errors: &mut Errors) {
    match mount.text("recursiveReadOnly") {
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.flag("readOnly") {
                errors.forbidden(path, "may only be specified when readOnly is true");
            }
            if mount.has("mountPropagation") && mount.text("mountPropagation") != "None" {
                errors.forbidden(path, "may only be specified when mountPropagation is None or not specified");
            }
        }
        other if mount.has("recursiveReadOnly") => {
            errors.not_supported(path, &other.into(), &["Disabled", "Enabled", "IfPossible"]);
        }
        _ => {}
    }
}

pub(super) fn devices(container: &At<'_>, volumes: &Volumes<'_>, errors: &mut Errors) {
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    let (mounted, mount_paths) = names_and_paths(container, "volumeMounts", "mountPath");
    for device in container.items("volumeDevices") {
        let (name, path) = (device.text("name"), device.text("devicePath"));
        let volume = volumes.get(name);
        device.needs("name", errors);
        if names.contains(name) {
            errors.invalid(device.path("name"), &name.into(), "must be unique");
        }
        match volume {
            None => errors.not_found(device.path("name"), &name.into()),
            Some(volume) if ["persistentVolumeClaim", "ephemeral"].iter().all(|kind| volume.get(kind).is_none()) => {
                let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.invalid(device.path("name"), &name.into(), why);
            }
            Some(_) => {}
        }
        device.needs("devicePath", errors);
        if paths.contains(path) {
            errors.invalid(device.path("devicePath"), &path.into(), "must be unique");
        }
        if path.split('/').any(|step| step == "..") {
            errors.invalid(device.path("devicePath"), &path.into(), "can not contain backsteps ('..')");
        } else {
            paths.insert(path);
        }
        if mounted.contains(name) {
            errors.invalid(device.path("name"), &name.into(), "must not already exist in volumeMounts");
        }
        if mount_paths.contains(path) {
            let why = "must not already exist as a path in volumeMounts";
            errors.invalid(device.path("devicePath"), &path.into(), why);
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}
