//! Short ways to read fields of JSON objects, and the references between them.

use portolan_types::object;
use serde_json::{Value, json};

/// The number at a JSON pointer.
pub(crate) fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

/// The text at a JSON pointer; empty where there is none.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The list at a JSON pointer; empty where there is none.
pub(crate) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The `ownerReferences` entry that makes `owner` the controller.
pub(crate) fn controller_ref(owner: &Value) -> Value {
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": object::name(owner), "uid": object::meta_text(owner, "uid"),
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Returns true when a condition of this type is `True`.
pub(crate) fn is_true(object: &Value, condition: &str) -> bool {
    list(object, "/status/conditions")
        .iter()
        .any(|c| c.get("type").and_then(Value::as_str) == Some(condition) && text(c, "/status") == "True")
}

/// Sets a condition in a list, and its transition time when its status changes.
pub(crate) fn set_condition(
    conditions: &mut Vec<Value>,
    kind: &str,
    status: bool,
    reason: &str,
    message: &str,
    now: &str,
) {
    let status = if status { "True" } else { "False" };
    let current = conditions.iter_mut().find(|c| c.get("type").and_then(Value::as_str) == Some(kind));
    let since = match &current {
        Some(c) if text(c, "/status") == status => text(c, "/lastTransitionTime").to_owned(),
        _ => now.to_owned(),
    };
    let mut wanted = json!({"type": kind, "status": status, "lastTransitionTime": since});
    for (key, value) in [("reason", reason), ("message", message)] {
        if !value.is_empty() {
            wanted[key] = value.into();
        }
    }
    match current {
        Some(c) => *c = wanted,
        None => conditions.push(wanted),
    }
}

/// A number or a percentage of `total`, as `maxSurge` and `maxUnavailable` have it.
pub(crate) fn int_or_percent(value: Option<&Value>, total: i64, default: i64, round_up: bool) -> i64 {
    match value {
        Some(Value::Number(n)) => n.as_i64().unwrap_or(default),
        Some(Value::String(text)) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let scaled = percent.saturating_mul(total);
            if round_up { (scaled + 99) / 100 } else { scaled / 100 }
        }
        _ => default,
    }
}

/// A short hash of a tree in the alphabet of generated names, equal for equal trees.
pub(crate) fn short_hash(tree: &Value) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    // FNV-1a, as Kubernetes uses for the same purpose.
    let text = tree.to_string();
    let mut hash =
        text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let digit = |_| {
        let c = ALPHABET[(hash % 27) as usize];
        hash /= 27;
        char::from(c)
    };
    (0..10).map(digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_in_kubernetes() {
        for (value, round_up, expected) in
            [(json!("25%"), true, 1), (json!("25%"), false, 0), (json!(2), true, 2), (json!("100%"), false, 3)]
        {
            assert_eq!(int_or_percent(Some(&value), 3, 9, round_up), expected, "{value}");
        }
        assert_eq!(int_or_percent(None, 3, 9, true), 9);
    }
}
