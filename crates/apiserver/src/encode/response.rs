//! Complete responses.

use std::collections::HashSet;

use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS},
};
use portolan_codec::protobuf;
use portolan_kinds::KindTable;
use portolan_types::Status;
use serde_json::{Value, json};

use crate::{
    hooks::warnings::{MAX_WARNING, MAX_WARNINGS},
    request::RequestContext,
};

use super::{
    Body, FormOffer, NegotiatedForm, OBJECT_TYPES, OfferedForms, ResponseFormat, full, negotiate,
    object::{json_bytes, wants_pretty},
    yaml,
};

/// Form of a `Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatusForm {
    pub(crate) media: ResponseFormat,
    /// True for indented output.
    pub(crate) pretty: bool,
}

impl StatusForm {
    /// Default form.
    pub(crate) const PLAIN: Self = Self { media: ResponseFormat::Json, pretty: false };

    /// Returns the form of a failure for a client: indented JSON if it accepts none.
    pub(crate) fn of_failure(headers: &HeaderMap) -> Self {
        let raw = Self { media: ResponseFormat::Json, pretty: true };
        negotiate(headers, FormOffer::document(&[]))
            .map_or(raw, |NegotiatedForm { media, pretty, .. }| Self { media, pretty })
    }

    /// Returns the form of the answer of an endpoint without objects.
    ///
    /// # Errors
    /// 406 when the client accepts none.
    pub(crate) fn of(call: &RequestContext) -> Result<Self, Status> {
        let offer = FormOffer { shown: OfferedForms::Metadata, ..FormOffer::document(OBJECT_TYPES) };
        let NegotiatedForm { media, pretty, .. } = negotiate(&call.headers, offer)?;
        Ok(Self { media, pretty: pretty || wants_pretty(&call.headers, &call.query) })
    }
}

/// Encodes a `Status` as a response.
pub(crate) fn status_object(written: StatusForm, code: u16, status: &Value) -> Response<Body> {
    own_kind(written.media, written.pretty, status)
        .map_or_else(|_| json(code, status), |(media, bytes)| finish(code, media, full(bytes)))
}

/// Encodes an object of an API machinery kind, such as a `Status` or a discovery document, with its content type.
pub(crate) fn own_kind(media: ResponseFormat, pretty: bool, value: &Value) -> Result<(&'static str, Vec<u8>), Status> {
    let table = KindTable::builtin();
    Ok(match media {
        ResponseFormat::Json => ("application/json", json_bytes(value, pretty)),
        ResponseFormat::Yaml => ("application/yaml", yaml(value)?.into_bytes()),
        ResponseFormat::Protobuf => {
            let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
            // Some have no version.
            let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", "v1"));
            let schema = table.object_type(group, version, text("kind"));
            let schema = schema.ok_or_else(|| Status::internal("the document has no protobuf form"))?;
            (protobuf::CONTENT_TYPE, protobuf::encode(value, schema, table).map_err(Status::internal)?)
        }
    })
}

/// Encodes a document in the form that the client accepts. `routed` lists the media types of its route.
///
/// # Errors
/// 406 when the client accepts none.
pub(crate) fn document(
    call: &RequestContext,
    routed: &'static [&'static str],
    value: &Value,
) -> Result<Response<Body>, Status> {
    let accepted = negotiate(&call.headers, FormOffer::document(routed))?;
    let (media, bytes) = own_kind(accepted.media, accepted.pretty || wants_pretty(&call.headers, &call.query), value)?;
    Ok(finish(200, media, full(bytes)))
}

/// Encodes a failure as a response.
pub(crate) fn status(failure: &Status, written: StatusForm) -> Response<Body> {
    if failure.is_plain() {
        return line(failure);
    }
    let mut object = failure.to_value();
    // The 404 and 405 of kube-apiserver's router have empty details.
    if matches!(failure.code(), 404 | 405) && object.get("details").is_none() {
        object["details"] = json!({});
    }
    let mut response = status_object(written, failure.code(), &object);
    if let Some(seconds) = failure.details().retry_after_seconds {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Encodes a failure like Go's `http.Error`.
fn line(failure: &Status) -> Response<Body> {
    let mut response = text(failure.code(), format!("{}\n", failure.message()));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Encodes a JSON value as a response.
pub(crate) fn json(code: u16, value: &Value) -> Response<Body> {
    let bytes = serde_json::to_vec(value).expect("a JSON tree serializes into memory");
    finish(code, "application/json", full(bytes))
}

/// Encodes a JSON value as an indented response, like kube-apiserver's documents that are not objects.
pub(crate) fn indented(value: &Value) -> Response<Body> {
    finish(200, "application/json", full(json_bytes(value, true)))
}

/// Returns a text response.
pub(crate) fn text(code: u16, text: impl Into<String>) -> Response<Body> {
    finish(code, "text/plain; charset=utf-8", full(text.into()))
}

/// Returns a response with a content type, which must not be cached.
pub(crate) fn finish(code: u16, media: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// Adds `Warning` headers (RFC 7234, section 5.5: code 299, agent `-`). If all together are too long, each is truncated
/// to the same length, and those beyond the bound are omitted.
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
