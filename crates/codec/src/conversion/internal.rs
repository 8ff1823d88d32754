//! The internal form of objects in kube-apiserver. It makes tables and metadata from this form, before it converts to
//! the requested version. So the fields that the conversion adds are missing there, and are in every other answer.

use portolan_types::object;
use serde_json::{Value, json};

use crate::decode::kept_number::{TEMPLATE_GENERATION, kept_number};

use super::{from_storage, is_other_version, storage_version, to_storage};
use portolan_kinds::{Kind, KindTable};

/// Returns true if kube-apiserver prints less of an object than it stores.
pub fn hides_number(kind: &Kind, object: &Value) -> bool {
    kept_number(kind).is_some_and(|name| object::annotation(object, name).is_some())
}

/// Returns an object as kube-apiserver prints it, from its served or its stored form.
pub fn internal(kind: &Kind, object: Value) -> Value {
    let is_served = is_other_version(kind) && !is_as_stored(kind, &object);
    let mut object = if is_served { to_storage(kind, object) } else { object };
    if let Some(name) = kept_number(kind).filter(|name| object::annotation(&object, name).is_some()) {
        object::set_annotation(&mut object, name, None);
    }
    object
}

/// Returns the form that `kind` serves of an object that [`internal`] takes.
pub fn served(kind: &Kind, object: Value) -> Value {
    if is_other_version(kind) && is_as_stored(kind, &object) { from_storage(kind, object) } else { object }
}

fn is_as_stored(kind: &Kind, object: &Value) -> bool {
    object["apiVersion"] == storage_version(kind)
}

/// Returns true if kube-apiserver's internal form of a kind equals the served one, except for [`hides_number`].
pub fn is_internal(kind: &Kind) -> bool {
    !is_other_version(kind) && !is(kind, &["DaemonSet"])
}

/// Returns an object without any field set, with the fields that the conversion adds.
pub fn blank(table: &KindTable, kind: &Kind) -> Value {
    let mut object = table.empty(kind.schema);
    if is(kind, &["Deployment", "ReplicaSet", "StatefulSet"]) {
        object["spec"]["replicas"] = 0.into();
    }
    if is(kind, &["DaemonSet"]) {
        object["metadata"]["annotations"] = json!({TEMPLATE_GENERATION: "0"});
    }
    object
}

fn is(kind: &Kind, names: &[&str]) -> bool {
    &*kind.gvk.group == "apps" && names.contains(&&*kind.gvk.kind)
}
