//! Metadata of the objects in an answer, in any media type. Later requests repeat it.

use serde_json::{Map, Value, json};

use super::normal::MAGIC;
use super::wire;

/// Fields of `ObjectMeta` that clients send back.
const OF_OBJECT: [(u64, &str); 4] = [(1, "name"), (2, "generateName"), (5, "uid"), (6, "resourceVersion")];
/// Fields of `ListMeta` that clients send back.
const OF_LIST: [(u64, &str); 2] = [(2, "resourceVersion"), (3, "continue")];

/// Parses an answer: JSON unchanged, protobuf as `{kind, metadata, items: [{metadata}]}`.
pub(super) fn tree(body: &[u8]) -> Option<Value> {
    match body.strip_prefix(MAGIC) {
        Some(envelope) => Some(of_envelope(envelope)),
        None => serde_json::from_slice(body).ok(),
    }
}

fn of_envelope(envelope: &[u8]) -> Value {
    let kind = first(envelope, 1).and_then(|types| first(types, 2)).unwrap_or_default();
    let kind = String::from_utf8_lossy(kind).into_owned();
    let raw = first(envelope, 2).unwrap_or_default();
    if !kind.ends_with("List") {
        return json!({"kind": kind, "metadata": metadata(raw, &OF_OBJECT)});
    }
    let items: Vec<Value> =
        wire::long(raw, 2).into_iter().map(|item| json!({"metadata": metadata(item, &OF_OBJECT)})).collect();
    json!({"kind": kind, "metadata": metadata(raw, &OF_LIST), "items": items})
}

/// Returns the metadata of a message, its first field.
fn metadata(message: &[u8], wanted: &[(u64, &str)]) -> Value {
    let metadata = first(message, 1).unwrap_or_default();
    let known = wanted.iter().filter_map(|(number, name)| {
        let text = first(metadata, *number).and_then(|value| std::str::from_utf8(value).ok())?;
        (!text.is_empty()).then(|| ((*name).to_owned(), Value::from(text)))
    });
    Value::Object(known.collect::<Map<_, _>>())
}

fn first(message: &[u8], number: u64) -> Option<&[u8]> {
    wire::long(message, number).into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::super::wire::nested as text;
    use super::*;

    fn envelope(kind: &[u8], raw: &[u8]) -> Vec<u8> {
        [MAGIC, &text(1, &text(2, kind)), &text(2, raw)].concat()
    }

    #[test]
    fn a_protobuf_object_carries_its_type() {
        let meta = [text(1, b"web"), text(5, b"u-1"), text(6, b"7"), vec![7 << 3, 3]].concat();
        let expected = json!({"kind": "Pod", "metadata": {"name": "web", "uid": "u-1", "resourceVersion": "7"}});
        assert_eq!(tree(&envelope(b"Pod", &text(1, &meta))), Some(expected));
    }

    #[test]
    fn a_list_in_protobuf_names_its_revision_and_the_next_page() {
        let meta = [text(2, b"9"), text(3, b"token"), vec![4 << 3, 1]].concat();
        let list = [text(1, &meta), text(2, &text(1, &text(6, b"7"))), text(2, &text(1, &text(6, b"8")))].concat();
        let expected = json!({
            "kind": "PodList",
            "metadata": {"resourceVersion": "9", "continue": "token"},
            "items": [{"metadata": {"resourceVersion": "7"}}, {"metadata": {"resourceVersion": "8"}}],
        });
        assert_eq!(tree(&envelope(b"PodList", &list)), Some(expected));
    }

    #[test]
    fn json_is_taken_as_it_is() {
        assert_eq!(tree(br#"{"kind": "Pod"}"#), Some(json!({"kind": "Pod"})));
        assert_eq!(tree(b"ok"), None);
    }
}
