//! Protobuf as a tree of field numbers, decoded without a schema: the oracle must not depend on the code under test.
//!
//! A repeated field is a list. Bytes are decoded as a string if possible, else as a message.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Value, json};

use super::super::wire::{self, WireContent};
use super::text;

/// Prefix of every object in protobuf.
pub(crate) const MAGIC: &[u8] = b"k8s\0";
/// Deeper nesting counts as bytes.
const DEPTH: usize = 40;

/// Decodes an object in its envelope.
pub(super) fn object(body: &[u8]) -> Value {
    match body.strip_prefix(MAGIC).and_then(|inner| message(inner, 0)) {
        Some(mut envelope) => {
            settle_list(&mut envelope);
            json!({"k8s": envelope})
        }
        None => json!({"no protobuf": BASE64.encode(body)}),
    }
}

/// Decodes the events of a watch, each with a length prefix.
pub(super) fn frames(mut body: &[u8]) -> Vec<Value> {
    let mut events = Vec::new();
    while let Some((length, rest)) = body.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let Some((frame, rest)) = rest.split_at_checked(length) else { break };
        events.push(event(frame));
        body = rest;
    }
    events.retain(|event| event["1"] != "BOOKMARK");
    events
}

fn event(frame: &[u8]) -> Value {
    message(frame, 0).unwrap_or_else(|| json!({"no protobuf": BASE64.encode(frame)}))
}

/// `raw` of a list begins with its metadata, whose second field is the revision and whose third is the continue token.
/// One old list begins with its items.
fn settle_list(envelope: &mut Value) {
    let kind = envelope["1"]["2"].as_str().unwrap_or_default();
    if !kind.ends_with("List") && kind != "Table" {
        return;
    }
    let is_old = envelope["1"]["1"] == "meta.k8s.io/v1beta1";
    if let Some(metadata) = envelope.pointer_mut(if is_old { "/2/2" } else { "/2/1" }).and_then(Value::as_object_mut) {
        for field in ["2", "3"] {
            if metadata.get(field).is_some_and(|value| value.as_str().is_some_and(|text| !text.is_empty())) {
                metadata.insert(field.to_owned(), "<varies>".into());
            }
        }
    }
}

fn message(bytes: &[u8], depth: usize) -> Option<Value> {
    let mut fields: Map<String, Value> = Map::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (number, value, after) = field(rest, depth)?;
        rest = after;
        match fields.get_mut(&number) {
            None => drop(fields.insert(number, value)),
            Some(Value::Array(items)) => items.push(value),
            Some(single) => *single = Value::Array(vec![single.take(), value]),
        }
    }
    Some(settle_known_messages(fields))
}

fn field(bytes: &[u8], depth: usize) -> Option<(String, Value, &[u8])> {
    let (field, rest) = wire::field(bytes)?;
    if field.number == 0 || field.number > 10_000 {
        return None;
    }
    let value = match field.content {
        WireContent::Number(value) => json!(value),
        WireContent::Fixed(value) => json!(BASE64.encode(value)),
        WireContent::Long(value) => content(value, depth + 1),
    };
    Some((field.number.to_string(), value, rest))
}

fn content(bytes: &[u8], depth: usize) -> Value {
    if bytes.starts_with(MAGIC) {
        return object(bytes);
    }
    let printable = std::str::from_utf8(bytes).ok().filter(|text| is_text(text));
    if let Some(text) = printable {
        let structured = text.starts_with("{\"f:").then(|| serde_json::from_str(text).ok()).flatten();
        return structured.unwrap_or_else(|| Value::String(text.to_owned()));
    }
    let nested = if depth < DEPTH { message(bytes, depth) } else { None };
    nested.unwrap_or_else(|| json!({"bytes": BASE64.encode(bytes)}))
}

/// Messages nearly always begin with a control character: the key of a field below 4.
fn is_text(text: &str) -> bool {
    let control = |character: char| character.is_control() && character != '\n' && character != '\t';
    !text.starts_with(char::is_control) && !text.contains(control)
}

/// Times and metadata are recognized by their shape.
fn settle_known_messages(mut fields: Map<String, Value>) -> Value {
    let seconds = fields.get("1").and_then(Value::as_i64);
    let is_time = fields.keys().all(|key| key == "1" || key == "2") && seconds.is_some_and(text::is_now);
    if is_time {
        let fraction = fields.get("2").and_then(Value::as_u64).unwrap_or_default() != 0;
        return json!(if fraction { "<microtime>" } else { "<time>" });
    }
    let is_metadata = fields.get("5").and_then(Value::as_str).is_some_and(text::is_uid) && fields.contains_key("2");
    if is_metadata {
        if let Some(revision) = fields.remove("6").filter(|value| value != "") {
            fields.insert("resourceVersion".to_owned(), revision);
        }
        if let Some(Value::Array(managers)) = fields.get_mut("17") {
            managers.sort_by_cached_key(|entry| format!("{} {} {}", entry["1"], entry["2"], entry["8"]));
        }
        settle_generated_name(&mut fields);
    }
    Value::Object(fields)
}

fn settle_generated_name(metadata: &mut Map<String, Value>) {
    let prefix = metadata.get("2").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(Value::String(name)) = metadata.get_mut("1")
        && !prefix.is_empty()
        && name.starts_with(&prefix)
    {
        *name = format!("{prefix}<5>");
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::wire::nested;
    use super::*;

    #[test]
    fn fields_become_a_tree() {
        let inner = [nested(1, b"web"), vec![0x10, 3]].concat();
        let body = [nested(1, &inner), nested(3, b"a"), nested(3, b"b"), nested(4, &[0xff, 0xfe])].concat();
        let expected = json!({"1": {"1": "web", "2": 3}, "3": ["a", "b"], "4": {"bytes": "//4="}});
        assert_eq!(message(&body, 0), Some(expected));
    }

    #[test]
    fn an_envelope_and_frames_are_read() {
        let envelope = [MAGIC, &nested(2, &nested(1, b"x"))].concat();
        assert_eq!(object(&envelope), json!({"k8s": {"2": {"1": "x"}}}));
        let event = [nested(1, b"ADDED"), nested(2, &nested(1, &envelope))].concat();
        let length = u32::try_from(event.len()).unwrap().to_be_bytes();
        let frame = [&length[..], &event].concat();
        assert_eq!(frames(&frame), [json!({"1": "ADDED", "2": {"1": {"k8s": {"2": {"1": "x"}}}}})]);
    }

    #[test]
    fn an_invalid_protobuf_body_is_shown() {
        assert_eq!(object(b"{}"), json!({"no protobuf": "e30="}));
        assert_eq!(message(&[0x0a, 0x7f], 0), None);
    }
}
