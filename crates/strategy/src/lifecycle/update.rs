//! Updating.

use portolan_merge::preconditions::uid_conflict;
use portolan_types::{GroupKind, Status, object};
use serde_json::Value;

use super::{
    WriteContext,
    create::{check_kind, fill_type, match_name, match_namespace},
    devices, is_removable, keep_server_keys, strategy,
};
use crate::defaults;
use portolan_codec::decode;
use portolan_kinds::{Kind, custom};
use portolan_merge::apply;
use portolan_validation as validation;

/// Result of an update.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// The object is unchanged, and nothing is written.
    Unchanged,
    /// The object to store.
    Changed(Value),
    /// The last finalizer of an object that is being deleted is gone: it must be removed. Contains its last state.
    Removed(Value),
}

/// Returns the object to store, from the stored one and the client's object (or the result of its patch).
///
/// `old` has its resourceVersion. A resourceVersion in `new` is a precondition.
///
/// # Errors
/// 400 if name or namespace contradict `old`; 409 for another uid, if one is required, or another resourceVersion; 422
/// if it is invalid.
pub fn prepare_update(
    ctx: &WriteContext<'_>,
    kind: &Kind,
    subresource: Option<&str>,
    old: &Value,
    mut new: Value,
) -> Result<Update, Status> {
    if !new.is_object() {
        return Err(Status::bad_request("the object provided is not an object"));
    }
    fill_type(kind, &mut new);
    match_namespace(kind, &mut new, Some(object::namespace(old)))?;
    match_name(&mut new, Some(object::name(old)))?;
    let other_uid = other_uid(old, &new);
    if let Some(uid) = other_uid.as_deref().filter(|_| ctx.asks_uid) {
        return Err(uid_conflict(kind, old, uid));
    }
    check_revision(kind, old, &new)?;
    // An apply without a change keeps the object, even if its version would add defaults.
    if !apply::equal_but_bookkeeping(old, &new) {
        defaults::apply(ctx.table, kind, &mut new)?;
    }
    decode::settle(ctx.table, kind, &mut new);
    let has_version = !matches!(object::meta_text(&new, "resourceVersion"), "" | "0");
    keep_system_fields(old, &mut new);
    if subresource.is_none() {
        strategy::allocate(ctx, kind, Some(old), &mut new)?;
    }
    strategy::before_update(ctx, kind, subresource, old, &mut new);
    keep_server_keys(&mut new, Some(old));
    if let Some(uid) = other_uid {
        // It is refused below, beside all else that is wrong.
        object::metadata_mut(&mut new).insert("uid".into(), uid.into());
    }
    let is_same = *old == new && (has_version || kind.unconditional_update);
    if is_same && is_removable(old) {
        return Ok(Update::Removed(new));
    }
    let checked = ctx.as_checked(kind, subresource, Some(old), &new);
    if is_same && *checked == new && !custom::has_rules(kind) {
        return Ok(Update::Unchanged);
    }
    if !has_version && !kind.unconditional_update {
        let resource = GroupKind { group: kind.gvk.group.clone(), kind: kind.resource.clone() };
        return Err(Status::invalid(&resource, object::name(old), vec![validation::no_resource_version()]));
    }
    check_kind(kind, &new)?;
    let check = |new: &Value| {
        let mut errors = validation::check_update(ctx.table, kind, subresource, old, new);
        ctx.warn.iter().for_each(|warn| warn(errors.take_warnings()));
        errors.into_causes()
    };
    let mut causes = devices::refused_access(ctx, kind, subresource, Some(old), &new);
    causes.extend(ctx.causes(kind, subresource, &checked, check));
    if !causes.is_empty() {
        return Err(Status::invalid(&kind.called(), object::name(old), causes));
    }
    strategy::after_validation(kind, &mut new);
    if is_removable(&new) {
        return Ok(Update::Removed(new));
    }
    Ok(if is_same || *old == new { Update::Unchanged } else { Update::Changed(new) })
}

/// Returns the uid of an object that is sent, unless it is that of the stored one.
fn other_uid(old: &Value, new: &Value) -> Option<String> {
    let uid = object::meta_text(new, "uid");
    (!uid.is_empty() && uid != object::meta_text(old, "uid")).then(|| uid.to_owned())
}

fn check_revision(kind: &Kind, old: &Value, new: &Value) -> Result<(), Status> {
    let (before, after) = (object::meta_text(old, "resourceVersion"), object::meta_text(new, "resourceVersion"));
    if !matches!(after, "" | "0") && !before.is_empty() && before != after {
        return Err(Status::modified(&kind.group_resource(), object::name(old)));
    }
    Ok(())
}

/// Restores the fields that no client can change.
pub(super) fn keep_system_fields(old: &Value, new: &mut Value) {
    let before = object::metadata(old);
    let after = object::metadata_mut(new);
    let always = ["uid", "creationTimestamp", "generation", "resourceVersion"];
    for key in always {
        match before.get(key) {
            Some(value) => {
                if after.get(key) != Some(value) {
                    after.insert(key.to_owned(), value.clone());
                }
            }
            None => {
                after.remove(key);
            }
        }
    }
    // One that a client makes up is refused by validation.
    if let Some(time) = before.get("deletionTimestamp") {
        after.insert("deletionTimestamp".into(), time.clone());
    }
    if let (Some(value), None) = (before.get("deletionGracePeriodSeconds"), after.get("deletionGracePeriodSeconds")) {
        after.insert("deletionGracePeriodSeconds".into(), value.clone());
    }
}
