//! Devices (resource.k8s.io): fields behind closed feature gates, and fields that the server fills in.

use std::collections::HashSet;

use portolan_types::StatusCause;
use serde_json::Value;

use super::WriteContext;
use portolan_kinds::Kind;
use portolan_kinds::field::FieldError;

/// Label that allows claims of a namespace to have admin access to devices, with the value `true`.
pub const ADMIN_ACCESS: &str = "resource.kubernetes.io/admin-access";

/// Returns the first path at which `new` requests or gets admin access to devices: a new claim or template, or the
/// status of a claim that had none (Kubernetes' `AuthorizedForAdmin`). Its namespace has to allow that.
pub fn asks_for_admin_access(
    kind: &Kind,
    subresource: Option<&str>,
    old: Option<&Value>,
    new: &Value,
) -> Option<String> {
    let requests = ("spec.devices.requests", "/exactly/adminAccess");
    let results = ("status.allocation.devices.results", "/adminAccess");
    let first = |list: Option<&Value>, (path, flag): (&str, &str)| {
        let at = list?.as_array()?.iter().position(|one| one.pointer(flag) == Some(&Value::Bool(true)))?;
        Some(format!("{path}[{at}].adminAccess"))
    };
    let given = |claim: &Value| first(claim.pointer("/status/allocation/devices/results"), results);
    match (&*kind.gvk.group, &*kind.gvk.kind, subresource) {
        ("resource.k8s.io", "ResourceClaim", None) if old.is_none() => {
            first(new.pointer("/spec/devices/requests"), requests)
        }
        ("resource.k8s.io", "ResourceClaimTemplate", None) if old.is_none() => {
            first(new.pointer("/spec/spec/devices/requests"), requests)
        }
        ("resource.k8s.io", "ResourceClaim", Some("status")) if old.and_then(given).is_none() => given(new),
        _ => None,
    }
}

/// Returns the reason against admin access.
pub(super) fn refused_access(
    ctx: &WriteContext<'_>,
    kind: &Kind,
    subresource: Option<&str>,
    old: Option<&Value>,
    new: &Value,
) -> Vec<StatusCause> {
    let asked = asks_for_admin_access(kind, subresource, old, new).filter(|_| !ctx.grants_admin_access);
    let why = format!("admin access to devices requires the `{ADMIN_ACCESS}: true` label on the containing namespace");
    asked.into_iter().map(|path| FieldError::forbidden(path, &why).into()).collect()
}

fn devices(slice: &Value) -> impl Iterator<Item = &Value> {
    slice.pointer("/spec/devices").and_then(Value::as_array).into_iter().flatten()
}

fn devices_mut(slice: &mut Value) -> impl Iterator<Item = &mut Value> {
    slice.pointer_mut("/spec/devices").and_then(Value::as_array_mut).into_iter().flatten()
}

/// Values of an attribute of which there are several.
const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];

/// Drops lists of values and mappings to resources of the node, unless `old` uses them.
pub(super) fn drop_gated(old: &Value, slice: &mut Value) {
    let attributes = |device: &Value| device.get("attributes").and_then(Value::as_object).cloned().unwrap_or_default();
    let has_lists = devices(old).flat_map(attributes).any(|(_, one)| LISTS.iter().any(|name| one.get(*name).is_some()));
    let has_mappings = devices(old).any(|device| device.get("nodeAllocatableResourceMappings").is_some());
    for device in devices_mut(slice).filter_map(Value::as_object_mut) {
        if !has_mappings {
            device.remove("nodeAllocatableResourceMappings");
        }
        let attributes = device.get_mut("attributes").and_then(Value::as_object_mut).filter(|_| !has_lists);
        for attribute in attributes.into_iter().flat_map(|all| all.values_mut()).filter_map(Value::as_object_mut) {
            attribute.retain(|name, _| !LISTS.contains(&name.as_str()));
        }
    }
}

/// Sets `timeAdded` of taints without one to the present time.
pub(super) fn date_taints(ctx: &WriteContext<'_>, slice: &mut Value) {
    for device in devices_mut(slice) {
        let taints = device.get_mut("taints").and_then(Value::as_array_mut).into_iter().flatten();
        for taint in taints.filter_map(Value::as_object_mut) {
            if taint.get("timeAdded").is_none_or(Value::is_null) {
                taint.insert("timeAdded".to_owned(), ctx.seams.now_text().into());
            }
        }
    }
}

/// Drops the reported status of devices that the claim does not have any more.
pub(super) fn drop_given_back(old: &Value, claim: &mut Value) {
    let id = |device: &Value| ["driver", "pool", "device", "shareID"].map(|name| device.get(name).cloned());
    let given = |claim: &Value| -> HashSet<_> {
        let results = claim.pointer("/status/allocation/devices/results").and_then(Value::as_array);
        results.into_iter().flatten().map(id).collect()
    };
    let (before, after) = (given(old), given(claim));
    let Some(status) = claim.get_mut("status").and_then(Value::as_object_mut) else { return };
    let Some(devices) = status.get_mut("devices").and_then(Value::as_array_mut) else { return };
    devices.retain(|device| !before.contains(&id(device)) || after.contains(&id(device)));
    if devices.is_empty() {
        status.remove("devices");
    }
}
