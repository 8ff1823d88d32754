//! Numbers of apps kinds that apps/v1 keeps in an annotation.

use std::num::{IntErrorKind, ParseIntError};

use portolan_kinds::Kind;
use portolan_types::{object, quoted::go_quoted};
use serde_json::Value;

/// Annotation for a DaemonSet's `templateGeneration` in apps/v1 (`Convert_apps_DaemonSet_To_v1_DaemonSet`).
pub(crate) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Annotation for a Deployment's `rollbackTo` in apps/v1 (`Convert_apps_Deployment_To_v1_Deployment`).
const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";

/// Returns the annotation in which apps/v1 keeps a number of older versions.
pub(crate) fn kept_number(kind: &Kind) -> Option<&'static str> {
    match &*kind.gvk.kind {
        _ if &*kind.gvk.group != "apps" => None,
        "DaemonSet" => Some(TEMPLATE_GENERATION),
        "Deployment" => Some(ROLLBACK_TO),
        _ => None,
    }
}

/// Rewrites an annotation with a number as the conversion to kube-apiserver's internal form and back does: in Go's
/// form, and without an empty one of a Deployment.
///
/// # Errors
/// Go's message for text that is not a number.
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
