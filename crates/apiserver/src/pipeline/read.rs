//! Reading a body, within bounds.

use std::pin::{Pin, pin};

use bytes::Bytes;
use http::{
    HeaderMap,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT},
};
use http_body_util::{BodyExt as _, Limited};
use portolan_types::{Reason, Status};

/// Largest body, in bytes.
pub(crate) const MAX_BODY: usize = 3 * 1024 * 1024;

/// What is read beyond that, in bytes: a client that still writes when the connection ends would not see why.
const SLACK: usize = 256 * 1024;

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
    let mut body = pin!(body);
    if announced.is_some_and(|length| length > MAX_BODY) {
        if !headers.contains_key(EXPECT) {
            pass_over(body, MAX_BODY + SLACK).await;
        }
        return Err(too_large());
    }
    match Limited::new(body.as_mut(), MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            pass_over(body, SLACK).await;
            Err(too_large())
        }
        Err(error) => Err(Status::bad_request(format!("the request body cannot be read: {error}"))),
    }
}

/// Reads what is of no use, up to so many bytes.
async fn pass_over<B>(mut body: Pin<&mut B>, most: usize)
where
    B: http_body::Body<Data = Bytes>,
{
    let mut passed = 0;
    while let Some(Ok(frame)) = body.frame().await {
        passed += frame.data_ref().map_or(0, Bytes::len);
        if passed > most {
            return;
        }
    }
}

fn too_large() -> Status {
    Status::new(Reason::RequestEntityTooLarge, format!("Request entity too large: limit is {MAX_BODY}"))
}
