//! Answers without the values that always differ between servers: times, revisions, uids, ports, generated names.
//!
//! Uids and revisions stay: the comparison pairs them, so that a value that changes on one side only is visible.

mod gnostic;
mod openapi;
mod protobuf;
mod text;
mod tree;

use http::HeaderMap;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::exchange::RawAnswer;
use super::websocket;
pub(super) use protobuf::MAGIC;
pub(super) use text::{is_uid, without_drawn};

/// Headers that clients act on. Of `etag` and `audit-id` only the kind is compared, of `expires` the distance from now.
const HEADERS: [&str; 12] = [
    "content-type",
    "warning",
    "retry-after",
    "cache-control",
    "location",
    "allow",
    "vary",
    "content-encoding",
    "x-content-type-options",
    "sec-websocket-protocol",
    websocket::MESSAGES,
    websocket::CLOSE,
];

/// Warnings about placement, which kube-apiserver does not send.
const PLACEMENT: [&str; 2] = ["no place to run", "are written by the server only; the values sent are ignored"];

/// Returns an answer as a tree: `{status, headers, body}`.
pub(super) fn answer(raw: &RawAnswer) -> Value {
    match raw {
        RawAnswer::Nothing(error) => json!({"status": 0, "error": error}),
        RawAnswer::Answer { status, headers, body, cut } => {
            let media = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
            let mut answer = json!({"status": status, "headers": headers_of(headers), "body": read(media, body)});
            if let Some(layout) = layout(body) {
                answer["layout"] = layout.into();
            }
            if *cut {
                answer["cut"] = true.into();
            }
            answer
        }
    }
}

/// Returns the layout of one JSON value: pretty-printed or on one line, with or without a final newline. Events always
/// are lines, of which there may be one.
fn layout(body: &[u8]) -> Option<String> {
    let is_one = |text: &&str| text.starts_with('{') && !text.starts_with(r#"{"type":"#);
    let text = std::str::from_utf8(body).ok().filter(is_one)?;
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let lines = if text.trim_end().contains("\n ") { "in lines" } else { "in one line" };
    Some(if text.ends_with('\n') { format!("{lines}, ended") } else { lines.to_owned() })
}

fn headers_of(headers: &HeaderMap) -> Value {
    let mut kept = Map::new();
    for name in HEADERS {
        let values = headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let values = values.filter(|value| !PLACEMENT.iter().any(|words| value.contains(words)));
        let values = values.map(|value| if name == "location" { tree::without_hash(&value) } else { value });
        let values: Vec<Value> = values.map(|value| text::without_varying(&value).into()).collect();
        match values.len() {
            0 => {}
            1 => drop(kept.insert(name.to_owned(), values.into_iter().next().unwrap_or_default())),
            _ => drop(kept.insert(name.to_owned(), Value::Array(values))),
        }
    }
    if let Some(etag) = headers.get("etag") {
        let weak = etag.as_bytes().starts_with(b"W/");
        kept.insert("etag".to_owned(), if weak { "weak" } else { "strong" }.into());
    }
    if let Some(id) = headers.get("audit-id") {
        let known = id.to_str().is_ok_and(is_uid);
        kept.insert("audit-id".to_owned(), if known { "<uid>" } else { "<other>" }.into());
    }
    if let Some(expires) = headers.get("expires").and_then(|value| value.to_str().ok()) {
        kept.insert("expires".to_owned(), text::days_ahead(expires).into());
    }
    Value::Object(kept)
}

/// Parses the body by its media type; events of a stream become a list.
fn read(media: &str, body: &[u8]) -> Value {
    let is = |word: &str| media.contains(word);
    let mut value = if is("protobuf") && is("stream=watch") {
        Value::Array(protobuf::frames(body))
    } else if is("proto-openapi.spec.v2") {
        gnostic::read(&gnostic::V2, body)
    } else if is("proto-openapi.spec.v3") {
        gnostic::read(&gnostic::V3, body)
    } else if is("vnd.kubernetes.protobuf") {
        protobuf::object(body)
    } else if is("json") || is("yaml") || is("text/plain") && body.starts_with(b"{\"paths\":") {
        // The index of OpenAPI is declared as plain text.
        documents(body, is("yaml"))
    } else {
        Value::String(String::from_utf8_lossy(body).into_owned())
    };
    tree::settle(&mut value);
    value
}

fn documents(body: &[u8], yaml: bool) -> Value {
    let text = String::from_utf8_lossy(body);
    if let Ok(value) = serde_json::from_str::<Value>(&text) {
        // A stream of one event is a list as well.
        let event = value.get("type").is_some() && value.get("object").is_some();
        return if event { Value::Array(vec![value]) } else { value };
    }
    if yaml {
        return serde_saphyr::from_str(&text).unwrap_or_else(|_| Value::String(text.into_owned()));
    }
    let events = serde_json::Deserializer::from_str(&text).into_iter::<Value>().collect::<Result<Vec<_>, _>>();
    events.map_or_else(|_| Value::String(text.into_owned()), Value::Array)
}
