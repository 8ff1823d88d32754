//! Conversion between the version a client uses and the version objects are stored in.
//!
//! Most resources are stored as they are served. Some are not: `events.k8s.io/v1` events are core events,
//! autoscaling/v1 horizontal pod autoscalers are autoscaling/v2 ones, and exports and bindings of apis.kcp.io/v1alpha1
//! are v1alpha2 ones; fields that the old version lacks travel in annotations.

mod apis;
mod events;
mod internal;
mod metrics;
mod scaling;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::decode::structural;
use portolan_kinds::Kind;

pub use internal::served;
pub use internal::{blank, hides_number, internal, is_internal};

/// The fields of an object.
type Fields = Map<String, Value>;

/// Returns true if objects of `kind` are stored in another form than they are served in, or may have been stored by
/// another definition.
pub fn is_needed(kind: &Kind) -> bool {
    is_other_version(kind) || !kind.is_typed()
}

/// Returns true if an object that is stored in the version of `kind` is served unchanged as JSON.
pub fn is_served_as_stored(kind: &Kind, body: &[u8]) -> bool {
    !is_other_version(kind) && kind.content.as_ref().is_none_or(|content| content.is_served_as_stored(body))
}

fn is_other_version(kind: &Kind) -> bool {
    kind.storage.group != kind.gvk.group || kind.storage.version != kind.gvk.version
}

/// Returns the stored form of an object of `kind`.
pub fn to_storage(kind: &Kind, object: Value) -> Value {
    let mut object = convert(kind, object, &TO_STORAGE, storage_version(kind));
    if let Some(content) = &kind.content {
        structural::store(content, &mut object);
    }
    object
}

/// Returns true if the version of `kind` cannot express the order of the stored form's parts.
pub fn loses_order(kind: &Kind) -> bool {
    is_scaler(kind) && is_other_version(kind)
}

/// Returns the stored form of an object after a write of its status: the spec remains that of `stored`.
pub fn status_to_storage(kind: &Kind, object: &Value, stored: &Value) -> Value {
    let mut object = to_storage(kind, object.clone());
    object["spec"] = stored.get("spec").cloned().unwrap_or_default();
    object
}

/// Returns a stored object in the form that `kind` serves.
pub fn from_storage(kind: &Kind, object: Value) -> Value {
    let mut object = convert(kind, object, &FROM_STORAGE, kind.group_version().to_string());
    if let Some(content) = &kind.content {
        structural::serve(content, &mut object);
    }
    object
}

/// Fills in the fields that a round trip through the internal form adds: kube-apiserver reads autoscalers of every
/// version into one form. Annotations of the old version have no effect in the new one.
pub fn pass_through(kind: &Kind, object: &mut Value) {
    match (is_scaler(kind), object.as_object_mut()) {
        (true, Some(_)) if is_other_version(kind) => *object = from_storage(kind, to_storage(kind, object.take())),
        (true, Some(fields)) => scaling::drop_annotations(fields),
        _ => {}
    }
}

fn is_scaler(kind: &Kind) -> bool {
    (&*kind.gvk.group, &*kind.gvk.kind) == ("autoscaling", "HorizontalPodAutoscaler")
}

/// Returns true for kinds that are checked in the form in which they are stored: kube-apiserver has one internal form
/// of autoscalers, kcp stores exports and bindings in one version.
fn is_checked_as_stored(kind: &Kind) -> bool {
    (is_scaler(kind) || &*kind.gvk.group == "apis.kcp.io") && is_other_version(kind)
}

/// Returns the form in which an object is validated.
pub fn checked_as<'o>(kind: &Kind, object: &'o Value) -> Cow<'o, Value> {
    if is_checked_as_stored(kind) { Cow::Owned(to_storage(kind, object.clone())) } else { Cow::Borrowed(object) }
}

/// Works on an object in the form in which it is checked.
pub fn in_that_form(kind: &Kind, object: &mut Value, work: impl FnOnce(&mut Value)) {
    let is_other = is_checked_as_stored(kind);
    if is_other {
        *object = to_storage(kind, object.take());
    }
    work(object);
    if is_other {
        *object = from_storage(kind, object.take());
    }
}

/// Completes an object that is stored in the version of `kind` as that version does, before it is converted to others.
pub fn complete_stored(kind: &Kind, object: &mut Value) {
    if let Some(content) = &kind.content {
        structural::serve(content, object);
    }
}

/// Returns the form that `kind` serves of an object that was converted to its version. Missing values are not
/// defaulted: a version's defaults apply only to objects written in it.
pub fn from_other_version(kind: &Kind, mut object: Value) -> Value {
    if let Some(content) = &kind.content {
        structural::prune(content, &mut object);
    }
    object
}

fn storage_version(kind: &Kind) -> String {
    match &*kind.storage.group {
        "" => kind.storage.version.to_string(),
        group => format!("{group}/{}", kind.storage.version),
    }
}

/// Conversion of the kinds that have two versions, by group and kind.
type Conversions = [(&'static str, &'static str, fn(&mut Fields)); 4];

static TO_STORAGE: Conversions = [
    ("events.k8s.io", "Event", events::to_core),
    ("autoscaling", "HorizontalPodAutoscaler", scaling::to_v2),
    ("apis.kcp.io", "APIExport", apis::export_to_v2),
    ("apis.kcp.io", "APIBinding", apis::binding_to_v2),
];
static FROM_STORAGE: Conversions = [
    ("events.k8s.io", "Event", events::from_core),
    ("autoscaling", "HorizontalPodAutoscaler", scaling::from_v2),
    ("apis.kcp.io", "APIExport", apis::export_from_v2),
    ("apis.kcp.io", "APIBinding", apis::binding_from_v2),
];

fn convert(kind: &Kind, object: Value, conversions: &Conversions, version: String) -> Value {
    if !is_other_version(kind) {
        return object;
    }
    let Value::Object(mut fields) = object else { return object };
    let own = conversions.iter().find(|(group, name, _)| *group == &*kind.gvk.group && *name == &*kind.gvk.kind);
    if let Some((_, _, convert)) = own {
        convert(&mut fields);
    }
    fields.insert("apiVersion".into(), version.into());
    Value::Object(fields)
}

/// Moves a field to another name.
fn rename(fields: &mut Fields, from: &str, to: &str) {
    if let Some(value) = fields.remove(from) {
        fields.insert(to.to_owned(), value);
    }
}
