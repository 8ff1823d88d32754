//! Memory that JSON takes as a tree. A tree is up to a hundred times as large as its text, so bounds of texts alone
//! bound nothing.

use serde_json::{Map, Value};

/// Bytes of one value in a list or a map.
const VALUE: usize = 32;
/// Bytes of a map of up to eleven entries: one leaf of its B-tree.
const LEAF: usize = 640;
/// Entries in a full leaf.
const LEAF_ENTRIES: usize = 11;
/// Bytes per entry of a larger map, whose leaves are at least half full.
const ENTRY: usize = 152;
/// Bytes that the allocation of a text takes in addition to its content.
const ALLOCATION: usize = 16;

/// Returns an estimate of the bytes of heap that a tree takes.
pub(crate) fn of(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len() + ALLOCATION,
        Value::Array(items) => items.capacity() * VALUE + items.iter().map(of).sum::<usize>(),
        Value::Object(map) => of_map(map),
    }
}

fn of_map(map: &Map<String, Value>) -> usize {
    let nodes = if map.is_empty() { 0 } else { LEAF + map.len().saturating_sub(LEAF_ENTRIES) * ENTRY };
    nodes + map.iter().map(|(key, value)| key.len() + ALLOCATION + of(value)).sum::<usize>()
}

/// Returns an upper bound of the bytes of heap that the tree of a JSON text takes, before it is parsed.
pub(crate) fn of_text(text: &[u8]) -> usize {
    let (mut weight, mut is_quoted, mut is_escaped) = (VALUE, false, false);
    for (at, byte) in text.iter().enumerate() {
        weight += match (is_quoted, byte) {
            (true, _) if is_escaped => {
                is_escaped = false;
                1
            }
            (true, b'\\') => {
                is_escaped = true;
                1
            }
            (true, b'"') => {
                is_quoted = false;
                ALLOCATION
            }
            (true, _) => 1,
            (false, b'"') => {
                is_quoted = true;
                0
            }
            // An empty map allocates nothing.
            (false, b'{') if text.get(at + 1) == Some(&b'}') => 0,
            (false, b'{') => LEAF,
            (false, b':') => ENTRY,
            // A list doubles its room when it is full, and has room for four at first.
            (false, b'[') => 4 * VALUE,
            (false, b',') => 2 * VALUE,
            (false, _) => 0,
        };
    }
    weight
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_estimate_of_a_text_is_never_below_that_of_its_tree() {
        let wide: Map<String, Value> = (0..1000).map(|n| (format!("k{n}"), json!(n))).collect();
        for value in [
            json!(null),
            json!({}),
            json!([{}, {}, {"a": 1}]),
            json!({"text": "a\"b\\", "list": [1, 2, 3, 4, 5, 6, 7, 8, 9], "deep": {"a": {"b": [[]]}}}),
            Value::Object(wide),
        ] {
            let text = value.to_string();
            assert!(of_text(text.as_bytes()) >= of(&serde_json::from_str(&text).unwrap()), "{text:.80}");
        }
    }

    #[test]
    fn empty_maps_weigh_little_more_than_their_text() {
        let text = format!("[{}]", vec!["{}"; 1000].join(","));
        assert!(of_text(text.as_bytes()) < 30 * text.len());
    }

    #[test]
    fn small_maps_weigh_far_more_than_their_text() {
        let text = format!("[{}]", vec![r#"{"a":1}"#; 1000].join(","));
        assert!(of_text(text.as_bytes()) > 80 * text.len());
    }
}
