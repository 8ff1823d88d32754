//! kubectl's own record of what it applied, so that a move from client-side to server-side apply causes no conflict
//! with the same client.

use portolan_types::{annotations::LAST_APPLIED, object};
use serde_json::Value;

use super::{collect::collect, compare::Difference, frame::Frame, set::FieldSet, validate};

/// The manager that kubectl applies as; only for it the annotation counts.
pub(super) const KUBECTL: &str = "kubectl";
/// Most bytes of all annotations together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Returns the fields that client-side apply set and that still have its values.
pub(super) fn still_applied(frame: &Frame<'_>, live: &Value) -> Option<FieldSet> {
    let text = object::annotation(live, LAST_APPLIED).filter(|text| !text.is_empty())?;
    let last: Value = serde_json::from_str(text).ok()?;
    if last.get("apiVersion").and_then(Value::as_str) != Some(&frame.api_version) {
        return None;
    }
    if validate::complaints(frame.shape, &last).is_some() {
        return None;
    }
    let difference = Difference::between(frame.shape, &last, live);
    let fields = collect(frame.shape, &last);
    Some(fields.difference(&difference.written()).difference(&difference.removed))
}

/// Updates the annotation, if the object has it, so that client-side apply can continue from here.
pub(super) fn refresh(object: &mut Value, applied: &Value) {
    if object::annotation(object, LAST_APPLIED).is_none_or(str::is_empty) {
        return;
    }
    let mut config = applied.clone();
    let annotations = config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    annotations.map(|annotations| annotations.remove(LAST_APPLIED));
    object::set_annotation(object, LAST_APPLIED, Some(format!("{config}\n")));
    let all = object::metadata(object).get("annotations").and_then(Value::as_object);
    let size: usize =
        all.into_iter().flatten().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > MAX_ANNOTATIONS {
        object::set_annotation(object, LAST_APPLIED, None);
    }
}
