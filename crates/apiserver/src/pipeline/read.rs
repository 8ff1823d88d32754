//! Reading a body, within bounds.

use std::pin::{Pin, pin};

use bytes::Bytes;
use http::{
    HeaderMap,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT},
};
use http_body_util::{BodyExt as _, Limited};
use portolan_types::{Reason, Status};

use crate::limits::Charge;

/// Largest body, in bytes.
pub(crate) const MAX_BODY: usize = 3 * 1024 * 1024;

/// What is read beyond that, in bytes: a client that still writes when the connection ends would not see why.
const SLACK: usize = 256 * 1024;

/// The whole body. It is counted before it is read, as large as it may be where its length is not announced.
///
/// # Errors
/// 413 when it is too large, 415 when it is compressed, 400 when it ends early, 429 when there is no room for it.
pub(super) async fn body<B>(headers: &HeaderMap, body: B, charge: &Charge) -> Result<Bytes, Status>
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
    if !body.is_end_stream() {
        let exact = || body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
        charge.grow_to(announced.or_else(exact).unwrap_or(MAX_BODY))?;
    }
    match Limited::new(body.as_mut(), MAX_BODY).collect().await {
        Ok(collected) => {
            let body = collected.to_bytes();
            charge.shrink_to(body.len());
            Ok(body)
        }
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
