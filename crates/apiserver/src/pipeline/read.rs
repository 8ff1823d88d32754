//! Reading a body, within bounds.

use bytes::Bytes;
use http::{
    HeaderMap,
    header::{CONTENT_ENCODING, CONTENT_LENGTH},
};
use http_body_util::{BodyExt as _, Limited};
use portolan_types::{Reason, Status};

/// Largest body, in bytes.
pub(crate) const MAX_BODY: usize = 3 * 1024 * 1024;

/// The whole body.
///
/// # Errors
/// 413 when it is too large, 415 when it is compressed, 400 when it ends early.
pub(super) async fn body<B>(headers: &HeaderMap, body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return Err(Status::new(Reason::UnsupportedMediaType, "request bodies are not taken in a content encoding"));
    }
    let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<usize>().ok());
    if announced.is_some_and(|length| length > MAX_BODY) {
        return Err(too_large());
    }
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Err(error) => Err(Status::bad_request(format!("the request body cannot be read: {error}"))),
    }
}

fn too_large() -> Status {
    Status::new(Reason::RequestEntityTooLarge, format!("Request entity too large: limit is {MAX_BODY}"))
}
