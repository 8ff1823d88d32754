//! Validation of a claim's status.

use std::{collections::HashSet, net::IpAddr};

use serde_json::{Value, json};

use super::{
    super::{
        Errors, FieldError, core, internal, metadata, names, selectors,
        view::{At, IMMUTABLE, is_same},
    },
    MAX_CONFIGS,
    claims::{self, MAX_REQUESTS},
    parts,
};

/// Most users of a claim, conditions of a device, and addresses of one.
const MAX_RESERVED: usize = 256;
const MAX_CONDITIONS: usize = 8;
const MAX_ADDRESSES: usize = 16;
/// Longest names of an interface and of hardware.
const MAX_INTERFACE: usize = 256;
const MAX_HARDWARE: usize = 128;

pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, status) = (old.child("status"), new.child("status"));
    let devices = new.child("spec").child("devices");
    let uid = |user: &At<'_>| user.text("uid").into();
    parts::set(&status, "reservedFor", MAX_RESERVED, user, uid, errors);
    let allocation = status.child("allocation");
    let allocated: HashSet<Value> = allocation.child("devices").items("results").map(|one| device_id(&one)).collect();
    let device = |one: &At<'_>, errors: &mut Errors| device(&allocated, one, errors);
    let twice = |at: &At<'_>, id: &Value| FieldError::duplicate_shown(&at.path, &printed_id(id), "");
    parts::set_with_error(&status, "devices", usize::MAX, device, (device_id, twice), errors);
    reserved(&before, &status, new.child("metadata").has("deletionTimestamp"), errors);
    match (before.present("allocation"), allocation.is_missing()) {
        (_, true) => {}
        (None, false) => self::allocation(&devices, &allocation, errors),
        (Some(before), false) if !is_same(before.value, allocation.value) => {
            let shown = internal::printed_value("AllocationResult", allocation.value);
            errors.push(FieldError::invalid_shown(&allocation.path, &shown, IMMUTABLE));
        }
        (Some(_), false) => {}
    }
}

fn user(at: &At<'_>, errors: &mut Errors) {
    for name in ["resource", "name", "uid"] {
        at.needs(name, errors);
    }
}

fn reserved(before: &At<'_>, status: &At<'_>, deleting: bool, errors: &mut Errors) {
    if status.count("reservedFor") == 0 {
        return;
    }
    let had: HashSet<&Value> = before.items("reservedFor").map(|user| user.value).collect();
    if !status.has("allocation") {
        errors.forbidden(status.path("reservedFor"), "may not be specified when `allocated` is not set");
    } else if deleting && status.items("reservedFor").any(|user| !had.contains(&user.value)) {
        let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.forbidden(status.path("reservedFor"), why);
    }
}

/// Returns the identity of a device.
fn device_id(at: &At<'_>) -> Value {
    json!({"Driver": at.text("driver"), "Pool": at.text("pool"), "Device": at.text("device"), "ShareID": at.text("shareID")})
}

/// Prints an id with its parts in kube-apiserver's order.
fn printed_id(id: &Value) -> String {
    let part = |name: &str| format!("{name:?}:{}", id.get(name).unwrap_or(&Value::Null));
    format!("{{{}}}", ["Driver", "Pool", "Device", "ShareID"].map(part).join(","))
}

fn device(allocated: &HashSet<Value>, at: &At<'_>, errors: &mut Errors) {
    core::csi_driver(at, "driver", errors);
    parts::pool_name(at, "pool", errors);
    at.follows("device", names::dns_label, errors);
    parts::share_id(at, errors);
    let id = device_id(at);
    if !allocated.contains(&id) {
        let why = "must be an allocated device in the claim";
        errors.push(FieldError::invalid_shown(&at.path, &printed_id(&id), why));
    }
    if at.count("conditions") > MAX_CONDITIONS {
        errors.push(FieldError::too_many(at.path("conditions"), at.count("conditions"), MAX_CONDITIONS));
    }
    metadata::conditions(at, errors);
    if at.has("data") {
        parts::raw(at, "data", parts::MAX_RAW, errors);
    }
    if let Some(network) = at.present("networkData") {
        for (name, most) in [("interfaceName", MAX_INTERFACE), ("hardwareAddress", MAX_HARDWARE)] {
            if network.text(name).len() > most {
                errors.push(FieldError::too_long(network.path(name), most));
            }
        }
        parts::set(&network, "ips", MAX_ADDRESSES, address, parts::by_itself, errors);
    }
}

/// Checks an address with the length of its network.
fn address(at: &At<'_>, errors: &mut Errors) {
    let Some((ip, length)) = selectors::cidr(at.as_text()) else {
        let why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return errors.invalid(&at.path, at.value, why);
    };
    let canonical = match ip {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => format!("{v4}/{}", length.saturating_sub(96)),
            None => format!("{v6}/{length}"),
        },
        IpAddr::V4(v4) => format!("{v4}/{length}"),
    };
    if canonical != at.as_text() {
        errors.invalid(&at.path, at.value, &format!("must be in canonical form ({canonical:?})"));
    }
}

fn allocation(devices: &At<'_>, at: &At<'_>, errors: &mut Errors) {
    let of_devices = at.child("devices");
    let result = |one: &At<'_>, errors: &mut Errors| {
        claims::request_name(devices, &one.child("request"), errors);
        core::csi_driver(one, "driver", errors);
        parts::pool_name(one, "pool", errors);
        one.follows("device", names::dns_label, errors);
        parts::binding(one, errors);
        parts::share_id(one, errors);
    };
    parts::each(&of_devices, "results", MAX_REQUESTS, result, errors);
    let configuration = |one: &At<'_>, errors: &mut Errors| {
        one.one_of("source", &["FromClaim", "FromClass"], errors);
        claims::of_requests(devices, one, errors);
        parts::configuration(one, errors);
    };
    parts::each(&of_devices, "config", 2 * MAX_CONFIGS, configuration, errors);
    if let Some(selector) = at.present("nodeSelector") {
        core::node_selector(&selector, errors);
    }
}
