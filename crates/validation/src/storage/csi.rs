//! Validation of CSI drivers, nodes, storage capacity and volume attachments.

use std::collections::{HashMap, HashSet};

use portolan_types::quantity::Quantity;

use super::super::{
    Errors, FieldError, core, internal, names, selectors,
    view::{At, IMMUTABLE, NEGATIVE, is_same},
};

/// Maximum of bytes in the metadata of an attachment, and in an error.
const MAX_ATTACHED: usize = 256 * 1024;
const MAX_MESSAGE: usize = 1024;
const MAX_NODE_ID: usize = 256;

pub(super) fn attachment(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    core::csi_driver(&spec, "attacher", errors);
    let source = spec.child("source");
    let which = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (source.present("inlineVolumeSpec"), source.has("persistentVolumeName")) {
        (None, false) => errors.required(&source.path, which),
        (Some(_), true) => errors.forbidden(&source.path, which),
        (None, true) => {
            source.needs_because("persistentVolumeName", "must specify non empty persistentVolumeName", errors);
        }
        (Some(volume), false) => core::inline_volume(&volume, errors),
    }
    spec.follows("nodeName", names::dns_subdomain, errors);
    let status = object.child("status");
    let size = status.entries("attachmentMetadata").map(|(key, value)| key.len() + value.as_text().len());
    if size.sum::<usize>() > MAX_ATTACHED {
        errors.push(FieldError::too_long(status.path("attachmentMetadata"), MAX_ATTACHED));
    }
    for error in ["attachError", "detachError"].map(|name| status.child(name)) {
        if error.text("message").len() > MAX_MESSAGE {
            errors.push(FieldError::too_long(error.path("message"), MAX_ATTACHED));
        }
        error.in_range("errorCode", (0, i64::from(i32::MAX)), errors);
    }
    if source.has("persistentVolumeName") {
        source.follows("persistentVolumeName", names::dns_subdomain, errors);
    }
}

pub(super) fn attachment_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if old.get("spec") != new.get("spec") {
        let shown = internal::printed_value("VolumeAttachmentSpec", new.get("spec"));
        errors.push(FieldError::invalid_shown("spec", &shown, IMMUTABLE));
    }
}

pub(super) fn node(object: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for driver in object.child("spec").items("drivers") {
        core::csi_driver(&driver, "name", errors);
        if driver.needs("nodeID", errors) && driver.text("nodeID").len() > MAX_NODE_ID {
            let why = format!("must be {MAX_NODE_ID} characters or less");
            errors.invalid(driver.path("nodeID"), driver.get("nodeID"), &why);
        }
        driver.child("allocatable").nonnegative("count", errors);
        if !taken.insert(driver.text("name")) {
            errors.duplicate(driver.path("name"), &driver.text("name").into());
        }
        let mut keys = HashSet::new();
        for key in driver.items("topologyKeys").map(|key| key.as_text()) {
            if key.is_empty() {
                errors.required(&driver.path, "");
            }
            if !keys.insert(key) {
                errors.duplicate(&driver.path, &key.into());
            }
            errors.invalid_each(&driver.path, &key.into(), names::qualified_name(key));
        }
    }
}

pub(super) fn node_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let mutable = |driver: &At<'_>| {
        let mut driver = driver.value.clone();
        driver.as_object_mut().map(|fields| fields.remove("allocatable"));
        driver
    };
    let spec = new.child("spec");
    let mut named: HashMap<&str, Vec<At<'_>>> = HashMap::new();
    for after in spec.items("drivers") {
        named.entry(after.text("name")).or_default().push(after);
    }
    for before in old.child("spec").items("drivers") {
        for after in named.get(before.text("name")).into_iter().flatten() {
            let (was, is) = (mutable(&before), mutable(after));
            if was != is {
                let shown = internal::printed_value("CSINodeDriver", &is);
                errors.push(FieldError::invalid_shown(spec.path("drivers"), &shown, IMMUTABLE));
            }
        }
    }
}

/// Shortest time between updates, and times that tokens may be asked for, in seconds.
const MIN_PERIOD: i64 = 10;
const TOKEN_SECONDS: (i64, i64) = (600, 1 << 32);

pub(super) fn driver(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if !spec.has("attachRequired") {
        errors.required(spec.path("attachedRequired"), "");
    }
    for name in ["podInfoOnMount", "storageCapacity"].into_iter().filter(|name| !spec.has(name)) {
        errors.required(spec.path(name), "");
    }
    spec.supported_if_present("fsGroupPolicy", &["File", "None", "ReadWriteOnceWithFSType"], errors);
    let mut audiences = HashSet::new();
    for request in spec.items("tokenRequests") {
        if !audiences.insert(request.text("audience")) {
            errors.duplicate(request.path("audience"), &request.text("audience").into());
            continue;
        }
        let (path, seconds) = (request.path("expirationSeconds"), request.get("expirationSeconds"));
        if seconds.as_i64().is_some_and(|seconds| seconds < TOKEN_SECONDS.0) {
            errors.invalid(&path, seconds, "may not specify a duration less than 10 minutes");
        }
        if seconds.as_i64().is_some_and(|seconds| seconds > TOKEN_SECONDS.1) {
            errors.invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds");
        }
    }
    let modes = ["Persistent", "Ephemeral"];
    for mode in spec.items("volumeLifecycleModes").filter(|mode| !modes.contains(&mode.as_text())) {
        errors.not_supported(spec.path("volumeLifecycleModes"), mode.value, &modes);
    }
    if !spec.has("seLinuxMount") {
        errors.required(spec.path("seLinuxMount"), "");
    }
    let period = "nodeAllocatableUpdatePeriodSeconds";
    if spec.int(period).is_some_and(|seconds| seconds < MIN_PERIOD) {
        errors.invalid(spec.path(period), spec.get(period), "must be greater than or equal to 10 seconds");
    }
    let secrets = "serviceAccountTokenInSecrets";
    if spec.has(secrets) && spec.count("tokenRequests") == 0 {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.invalid(spec.path(secrets), spec.get(secrets), why);
    }
}

pub(super) fn driver_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (old, new) = (old.child("spec"), new.child("spec"));
    if old.get("attachRequired") != new.get("attachRequired") {
        errors.invalid(new.path("attachedRequired"), new.get("attachRequired"), IMMUTABLE);
    }
    new.immutable(&old, "volumeLifecycleModes", errors);
}

pub(super) fn capacity(object: &At<'_>, errors: &mut Errors) {
    selectors::tolerated_selector(&object.child("nodeTopology"), errors);
    object.follows("storageClassName", names::dns_subdomain, errors);
    if selectors::quantity(object.get("capacity")).is_some_and(|amount| amount < Quantity::ZERO) {
        errors.invalid("capacity", object.get("capacity"), NEGATIVE);
    }
}

pub(super) fn capacity_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if !is_same(old.get("nodeTopology"), new.get("nodeTopology")) {
        let shown = internal::printed_value("*LabelSelector", new.get("nodeTopology"));
        errors.push(FieldError::invalid_shown("nodeTopology", &shown, IMMUTABLE));
    }
    if old.text("storageClassName") != new.text("storageClassName") {
        errors.invalid("storageClassName", &new.text("storageClassName").into(), IMMUTABLE);
    }
}
