//! Whole answers.

use std::collections::HashSet;

use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS},
};
use portolan_machinery::{kinds::KindTable, protobuf};
use portolan_types::Status;
use serde_json::{Value, json};

use crate::{
    call::Call,
    warnings::{MAX_WARNING, MAX_WARNINGS},
};

use super::{
    Accepted, Body, Media, OBJECT_TYPES, Offer, Shown, full, negotiate,
    object::{json_bytes, wants_pretty},
    yaml,
};

/// How a `Status` is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) media: Media,
    /// In lines, for people.
    pub(crate) pretty: bool,
}

impl Written {
    /// As nobody has asked for anything else.
    pub(crate) const PLAIN: Self = Self { media: Media::Json, pretty: false };

    /// How the client takes a failure; as JSON, in lines, when in no form.
    pub(crate) fn of_failure(headers: &HeaderMap) -> Self {
        let raw = Self { media: Media::Json, pretty: true };
        negotiate(headers, Offer::document(&[])).map_or(raw, |Accepted { media, pretty, .. }| Self { media, pretty })
    }

    /// How the client of a call takes what an endpoint without objects answers.
    ///
    /// # Errors
    /// 406 when it takes nothing that there is.
    pub(crate) fn of(call: &Call) -> Result<Self, Status> {
        let offer = Offer { shown: Shown::Metadata, ..Offer::document(OBJECT_TYPES) };
        let Accepted { media, pretty, .. } = negotiate(&call.headers, offer)?;
        Ok(Self { media, pretty: pretty || wants_pretty(&call.headers, &call.query) })
    }
}

/// A `Status` object as an answer.
pub(crate) fn status_object(written: Written, code: u16, status: &Value) -> Response<Body> {
    own_kind(written.media, written.pretty, status)
        .map_or_else(|_| json(code, status), |(media, bytes)| finish(code, media, full(bytes)))
}

/// A value of one of the machinery's own kinds: a `Status`, a document of discovery. With its content type.
pub(crate) fn own_kind(media: Media, pretty: bool, value: &Value) -> Result<(&'static str, Vec<u8>), Status> {
    let table = KindTable::builtin();
    Ok(match media {
        Media::Json => ("application/json", json_bytes(value, pretty)),
        Media::Yaml => ("application/yaml", yaml(value)?.into_bytes()),
        Media::Protobuf => {
            let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
            // Some say nothing of their version.
            let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", "v1"));
            let schema = table.object_type(group, version, text("kind"));
            let schema = schema.ok_or_else(|| Status::internal("the document has no protobuf form"))?;
            (protobuf::CONTENT_TYPE, protobuf::encode(value, schema, table).map_err(Status::internal)?)
        }
    })
}

/// A document of the server, in the form that the client takes. `routed` are the media types of its route.
///
/// # Errors
/// 406 when the client takes none.
pub(crate) fn document(call: &Call, routed: &'static [&'static str], value: &Value) -> Result<Response<Body>, Status> {
    let accepted = negotiate(&call.headers, Offer::document(routed))?;
    let (media, bytes) = own_kind(accepted.media, accepted.pretty || wants_pretty(&call.headers, &call.query), value)?;
    Ok(finish(200, media, full(bytes)))
}

/// A failure as an answer.
pub(crate) fn status(failure: &Status, written: Written) -> Response<Body> {
    if failure.is_plain() {
        return line(failure);
    }
    let mut object = failure.to_value();
    // What upstream's router says itself has details without anything in them.
    if matches!(failure.code(), 404 | 405) && object.get("details").is_none() {
        object["details"] = json!({});
    }
    let mut response = status_object(written, failure.code(), &object);
    if let Some(seconds) = failure.details().retry_after_seconds {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A failure as Go's `http.Error` writes it.
fn line(failure: &Status) -> Response<Body> {
    let mut response = text(failure.code(), format!("{}\n", failure.message()));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A JSON value as an answer.
pub(crate) fn json(code: u16, value: &Value) -> Response<Body> {
    let bytes = serde_json::to_vec(value).expect("a JSON tree serializes into memory");
    finish(code, "application/json", full(bytes))
}

/// A JSON value as an answer that is in lines for whomever it is, as upstream writes what is no object.
pub(crate) fn indented(value: &Value) -> Response<Body> {
    finish(200, "application/json", full(json_bytes(value, true)))
}

/// Text as an answer.
pub(crate) fn text(code: u16, text: impl Into<String>) -> Response<Body> {
    finish(code, "text/plain; charset=utf-8", full(text.into()))
}

/// An answer with a body of some type, not to be kept by caches.
pub(crate) fn finish(code: u16, media: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// Adds `Warning` headers (RFC 7234, section 5.5: code 299, agent `-`). Only where all together are too long are they cut, each alike,
/// and those beyond the bound left out.
pub(crate) fn warn(response: &mut Response<Body>, texts: Vec<String>) {
    let mut seen = HashSet::new();
    let texts: Vec<&String> = texts.iter().filter(|text| !text.is_empty() && seen.insert(*text)).collect();
    let cut = texts.iter().map(|text| text.chars().count()).sum::<usize>() > MAX_WARNINGS;
    let mut written = 0;
    for text in texts {
        if written >= MAX_WARNINGS {
            break;
        }
        let length = if cut { MAX_WARNING } else { MAX_WARNINGS };
        let short: String = text.chars().take(length).map(|c| if c.is_control() { ' ' } else { c }).collect();
        written += short.chars().count();
        let line = format!("299 - \"{}\"", short.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_bytes(line.as_bytes()) {
            response.headers_mut().append(http::header::WARNING, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_quoted_bounded_and_not_repeated() {
        let mut response = text(200, "ok");
        warn(&mut response, vec!["unknown field \"spec.x\"".into(), "a\nb".into(), "a\nb".into(), "x".repeat(5000)]);
        let all: Vec<&str> =
            response.headers().get_all(http::header::WARNING).iter().map(|v| v.to_str().unwrap()).collect();
        assert_eq!(all[..2], [r#"299 - "unknown field \"spec.x\"""#, r#"299 - "a b""#]);
        assert_eq!((all.len(), all[2].len()), (3, 256 + 8));
        let mut response = text(200, "ok");
        warn(&mut response, vec!["x".repeat(3000), "y".repeat(1000)]);
        let lengths = response.headers().get_all(http::header::WARNING).iter().map(HeaderValue::len);
        assert_eq!(lengths.collect::<Vec<_>>(), [3000 + 8, 1000 + 8]);
        warn(&mut response, (0..100).map(|n| format!("{n}{}", "z".repeat(300))).collect());
        assert_eq!(response.headers().get_all(http::header::WARNING).iter().count(), 2 + 16);
    }
}
