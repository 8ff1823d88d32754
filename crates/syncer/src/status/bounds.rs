//! Bounds of the status that a physical cluster reports.

use serde_json::{Map, Value};

use crate::transform::is_our_key;

/// Maximum size of a `.status` that stays unchanged, in bytes of JSON.
const MAX_BYTES: usize = 256 * 1024;
/// Deepest nesting that is taken.
const MAX_DEPTH: usize = 32;
/// Most conditions that are kept of a status that is too large.
const MAX_CONDITIONS: usize = 32;
/// Longest text that is kept of a status that is too large, in bytes.
const MAX_TEXT: usize = 1024;

/// Returns `status` without Portolan's own conditions, if it is an object within the limits (256 KiB, 32 levels). A
/// larger one keeps only its numbers, short texts and conditions. Anything but an object becomes null.
pub fn bounded(status: &Value) -> Value {
    let Some(map) = status.as_object() else { return Value::Null };
    let mut room = MAX_BYTES;
    let bounded = if fits(status, MAX_DEPTH, &mut room) { status.clone() } else { Value::Object(essence(map)) };
    without_own_conditions(bounded)
}

/// Takes out the conditions that only Portolan writes: a physical cluster cannot say them of a copy.
fn without_own_conditions(mut status: Value) -> Value {
    let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) else { return status };
    conditions.retain(|condition| !condition["type"].as_str().is_some_and(is_our_key));
    if conditions.is_empty()
        && let Some(status) = status.as_object_mut()
    {
        status.remove("conditions");
    }
    status
}

/// Counts bytes down from `room`; stops at the first that has no place.
fn fits(value: &Value, depth: usize, room: &mut usize) -> bool {
    let Some(deeper) = depth.checked_sub(1) else { return false };
    let mut take = |bytes: usize| {
        let left = room.checked_sub(bytes);
        *room = left.unwrap_or(0);
        left.is_some()
    };
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => take(8),
        Value::String(text) => take(text.len() + 2),
        Value::Array(items) => take(2) && items.iter().all(|item| fits(item, deeper, room)),
        Value::Object(map) => {
            let keys = map.keys().map(|key| key.len() + 4).sum::<usize>();
            take(keys + 2) && map.values().all(|child| fits(child, deeper, room))
        }
    }
}

fn essence(map: &Map<String, Value>) -> Map<String, Value> {
    let mut kept: Map<String, Value> = map
        .iter()
        .take(256)
        .filter(|(key, _)| key.len() <= 256)
        .filter_map(|(key, value)| Some((key.clone(), scalar(value)?)))
        .collect();
    let conditions = map.get("conditions").and_then(Value::as_array).into_iter().flatten().take(MAX_CONDITIONS);
    let conditions: Vec<Value> = conditions
        .filter_map(Value::as_object)
        .map(|condition| {
            let fields = condition.iter().take(16).filter(|(key, _)| key.len() <= 64);
            Value::Object(fields.filter_map(|(key, value)| Some((key.clone(), scalar(value)?))).collect())
        })
        .collect();
    if !conditions.is_empty() {
        kept.insert("conditions".into(), Value::Array(conditions));
    }
    kept
}

fn scalar(value: &Value) -> Option<Value> {
    match value {
        Value::Bool(_) | Value::Number(_) => Some(value.clone()),
        Value::String(content) => Some(Value::String(text(content, MAX_TEXT))),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The first `max` bytes of `content`, cut between characters.
pub(crate) fn text(content: &str, max: usize) -> String {
    let end = (0..=max.min(content.len())).rev().find(|at| content.is_char_boundary(*at)).unwrap_or(0);
    content[..end].to_owned()
}
