//! Creating.

use std::collections::HashSet;

use portolan_types::{GroupKind, Reason, Status, number, object};
use serde_json::Value;

use super::{WriteContext, devices, keep_server_keys, strategy};
use crate::defaults;
use portolan_codec::decode;
use portolan_kinds::Kind;
use portolan_kinds::field::FieldError;
use portolan_validation as validation;

/// Random characters at the end of a generated name.
const SUFFIX_LENGTH: usize = 5;
/// Characters of `generateName` that are kept, so that the name fits a DNS label.
const MAX_PREFIX: usize = 63 - SUFFIX_LENGTH;

/// Returns the object to store, from the client's object. `namespace` and `name` are those of the URL.
///
/// # Errors
/// 400 if the object contradicts the URL, 422 if it is invalid.
pub fn prepare_create(
    ctx: &WriteContext<'_>,
    kind: &Kind,
    mut object: Value,
    namespace: Option<&str>,
    name: Option<&str>,
) -> Result<Value, Status> {
    if !object.is_object() {
        return Err(Status::bad_request("the object provided is not an object"));
    }
    fill_type(kind, &mut object);
    match_namespace(kind, &mut object, namespace)?;
    match_name(&mut object, name)?;
    fill_system_fields(ctx, kind, &mut object);
    keep_server_keys(&mut object, None);
    strategy::before_create(ctx, kind, &mut object);
    defaults::apply(ctx.table, kind, &mut object)?;
    strategy::allocate(ctx, kind, None, &mut object)?;
    strategy::after_defaults(ctx, kind, &mut object);
    check_kind(kind, &object)?;
    let checked = ctx.as_checked(kind, None, None, &object);
    let mut causes = devices::refused_access(ctx, kind, None, None, &object);
    causes.extend(ctx.causes(kind, None, &checked, |object| validation::validate_create(ctx.table, kind, object)));
    if !causes.is_empty() {
        return Err(Status::invalid(&kind.called(), object::name(&object), causes));
    }
    strategy::after_validation(kind, &mut object);
    decode::settle(ctx.table, kind, &mut object);
    Ok(object)
}

/// Checks that a new object has no revision. kube-apiserver checks this last, and ignores text that is not a number.
///
/// # Errors
/// 500 if the client has set one.
pub fn check_unset_revision(sent: &str) -> Result<(), Status> {
    match number::unsigned(sent, Some(10)) {
        None | Some(0) => Ok(()),
        Some(_) => Err(Status::new(Reason::Unknown, "resourceVersion should not be set on objects to be created")),
    }
}

/// Removes the fields of a new object that only the server sets. Call it before ownership is recorded, so that no field
/// manager owns them.
pub fn wipe_system_fields(object: &mut Value) {
    let metadata = object::metadata_mut(object);
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "uid", "creationTimestamp"] {
        metadata.remove(key);
    }
}

/// Removes duplicate owners. Returns their uids, once for each removed entry.
pub fn name_owners_once(object: &mut Value) -> Vec<String> {
    let Some(owners) = object::metadata_mut(object).get_mut("ownerReferences").and_then(Value::as_array_mut) else {
        return Vec::new();
    };
    let (mut seen, mut twice) = (HashSet::new(), Vec::new());
    owners.retain(|owner| {
        let text = |key: &str| owner.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let flag = |key: &str| owner.get(key).and_then(Value::as_bool);
        let is = [text("apiVersion"), text("kind"), text("name"), text("uid")];
        let uid = is[3].clone();
        let is_new = seen.insert((is, flag("controller"), flag("blockOwnerDeletion")));
        if !is_new {
            twice.push(uid);
        }
        is_new
    });
    twice
}

/// Objects made inside the server may leave their type out.
pub(super) fn fill_type(kind: &Kind, object: &mut Value) {
    if object.get("kind").is_none() {
        object["kind"] = (*kind.gvk.kind).into();
    }
    if object.get("apiVersion").is_none() {
        object["apiVersion"] = kind.group_version().to_string().into();
    }
}

/// Checks apiVersion and kind, which decoding does not do for custom resources.
///
/// # Errors
/// 422 if one of them differs.
pub(super) fn check_kind(kind: &Kind, object: &Value) -> Result<(), Status> {
    if kind.is_typed() {
        return Ok(());
    }
    let said = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let expected = [("kind", kind.gvk.kind.to_string()), ("apiVersion", kind.group_version().to_string())];
    let others = expected.into_iter().filter(|(key, expected)| said(key) != expected);
    let causes: Vec<_> = others
        .map(|(key, expected)| FieldError::invalid(key, &said(key).into(), &format!("must be {expected}")).into())
        .collect();
    if causes.is_empty() {
        return Ok(());
    }
    let own = GroupKind { group: kind.gvk.group.clone(), kind: said("kind").into() };
    Err(Status::invalid(&own, object::name(object), causes))
}

/// Sets the namespace of the URL in the object.
///
/// # Errors
/// 400 if the object has another.
pub fn match_namespace(kind: &Kind, object: &mut Value, namespace: Option<&str>) -> Result<(), Status> {
    let wanted = if kind.namespaced { namespace.unwrap_or_default() } else { "" };
    let own = object::namespace(object);
    match (own == wanted, own.is_empty(), wanted.is_empty()) {
        (true, ..) => {}
        (_, _, true) => {
            object::metadata_mut(object).remove("namespace");
        }
        (_, true, _) => {
            object::metadata_mut(object).insert("namespace".into(), wanted.into());
        }
        (..) => {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    }
    Ok(())
}

/// Gives the object the name of the URL, where the URL has one.
pub(super) fn match_name(object: &mut Value, name: Option<&str>) -> Result<(), Status> {
    let own = object::name(object);
    match name {
        Some(name) if own.is_empty() => {
            object::metadata_mut(object).insert("name".into(), name.into());
            Ok(())
        }
        Some(name) if own != name => Err(Status::bad_request(format!(
            "the name of the object ({own}) does not match the name on the URL ({name})"
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Sets the fields that only the server sets: uid, time, and a generated name.
fn fill_system_fields(ctx: &WriteContext<'_>, kind: &Kind, object: &mut Value) {
    let metadata = object::metadata_mut(object);
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"] {
        metadata.remove(key);
    }
    metadata.insert("uid".into(), ctx.seams.uid().to_string().into());
    metadata.insert("creationTimestamp".into(), ctx.seams.now_text().into());
    let text = |key| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let prefix = text("generateName");
    if text("name").is_empty() && !prefix.is_empty() {
        let kept: String = prefix.chars().take(MAX_PREFIX).collect();
        // No address becomes another by letters behind it.
        let name = if &*kind.gvk.kind == "IPAddress" && kind.is_kubernetes() {
            prefix.to_owned()
        } else {
            format!("{kept}{}", ctx.seams.name_suffix(SUFFIX_LENGTH))
        };
        metadata.insert("name".into(), name.into());
    }
}
