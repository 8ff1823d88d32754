//! The form in which upstream's server works with objects. Tables and metadata are made of it, before anything is converted
//! to the version that is asked for; so what the conversion writes is not in them, and is in every other answer.

use std::num::{IntErrorKind, ParseIntError};

use portolan_types::{object, quoted::go_quoted};
use serde_json::{Value, json};

use super::{from_storage, is_other_version, storage_version, to_storage};
use crate::kinds::{Kind, KindTable};

/// What a DaemonSet's `templateGeneration` has become in apps/v1 (`Convert_apps_DaemonSet_To_v1_DaemonSet`).
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// What a Deployment's `rollbackTo` has become in apps/v1 (`Convert_apps_Deployment_To_v1_Deployment`).
const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";

/// The annotation in which apps/v1 keeps a number of versions that are gone.
fn kept_number(kind: &Kind) -> Option<&'static str> {
    match &*kind.gvk.kind {
        _ if &*kind.gvk.group != "apps" => None,
        "DaemonSet" => Some(TEMPLATE_GENERATION),
        "Deployment" => Some(ROLLBACK_TO),
        _ => None,
    }
}

/// What the conversion to upstream's own form and back makes of an annotation with a number: it is written as Go writes it, and
/// an empty one of a Deployment is none.
///
/// # Errors
/// What Go says of one that is no number.
pub(crate) fn settle_number(kind: &Kind, object: &mut Value) -> Result<(), String> {
    let Some(name) = kept_number(kind) else { return Ok(()) };
    let Some(text) = object::annotation(object, name).map(str::to_owned) else { return Ok(()) };
    let is_rollback = name == ROLLBACK_TO;
    if is_rollback && text.is_empty() {
        object::set_annotation(object, name, None);
        return Ok(());
    }
    let number: i64 = text.parse().map_err(|error: ParseIntError| {
        let why = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        let why = format!("strconv.ParseInt: parsing {}: {why}", go_quoted(&text));
        if is_rollback { format!("failed to parse annotation[{name}]={text} as int64: {why}") } else { why }
    })?;
    object::set_annotation(object, name, Some(number.to_string()));
    Ok(())
}

/// Whether upstream prints less of an object than is stored of it.
pub fn hides_number(kind: &Kind, object: &Value) -> bool {
    kept_number(kind).is_some_and(|name| object::annotation(object, name).is_some())
}

/// An object as upstream prints it, of its served form or of the one it is stored in.
pub fn internal(kind: &Kind, object: Value) -> Value {
    let is_served = is_other_version(kind) && !is_as_stored(kind, &object);
    let mut object = if is_served { to_storage(kind, object) } else { object };
    if let Some(name) = kept_number(kind).filter(|name| object::annotation(&object, name).is_some()) {
        object::set_annotation(&mut object, name, None);
    }
    object
}

/// The form that `kind` serves of what [`internal`] takes.
pub(crate) fn served(kind: &Kind, object: Value) -> Value {
    if is_other_version(kind) && is_as_stored(kind, &object) { from_storage(kind, object) } else { object }
}

fn is_as_stored(kind: &Kind, object: &Value) -> bool {
    object["apiVersion"] == storage_version(kind)
}

/// Whether upstream works with objects of a kind as they are served, but for those that [`hides_number`] tells.
pub fn is_internal(kind: &Kind) -> bool {
    !is_other_version(kind) && !is(kind, &["DaemonSet"])
}

/// An object of which nothing is set, as it leaves the server: what the conversion writes stands in it.
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
