//! Bounded reading of request bodies.

use std::{
    pin::{Pin, pin},
    sync::Arc,
};

use bytes::Bytes;
use http::{
    HeaderMap,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT},
};
use http_body::Body;
use http_body_util::{BodyExt as _, Empty, Limited, combinators::UnsyncBoxBody};
use parking_lot::Mutex;
use portolan_types::{Reason, Status};

use crate::limits::MemoryCharge;

/// Largest request body, in bytes.
pub(crate) const MAX_BODY: usize = 3 * 1024 * 1024;

/// Bytes that are read beyond the limit: a client that is still writing when the connection ends would not see the
/// reason.
const SLACK: usize = 256 * 1024;

/// Failure to receive a body.
#[derive(Debug)]
pub(crate) struct BodyFailure(Box<dyn std::error::Error + Send + Sync>);

impl std::fmt::Display for BodyFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for BodyFailure {}

/// Body of a request. One type for all clients, so that the pipeline is compiled once.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, BodyFailure>;

/// Boxes a body. An empty one takes no memory.
pub(crate) fn boxed_body<B>(body: B) -> RequestBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if body.is_end_stream() {
        return Empty::new().map_err(|never| match never {}).boxed_unsync();
    }
    body.map_err(|error| BodyFailure(error.into())).boxed_unsync()
}

/// Body that the handler reads while it arrives, in the extensions of its request.
#[derive(Clone)]
pub(crate) struct StreamedBody(Arc<Mutex<Option<RequestBody>>>);

impl StreamedBody {
    pub(super) fn new(body: RequestBody) -> Self {
        Self(Arc::new(Mutex::new(Some(body))))
    }

    /// Takes the body; `None` if it was taken before.
    pub(crate) fn take(&self) -> Option<RequestBody> {
        self.0.lock().take()
    }
}

/// Reads the whole body. Its memory is charged before, at the maximum if the length is unknown.
///
/// # Errors
/// 413 when it is too large, 415 when it is compressed, 400 when it ends early, 429 when there is no memory for it.
pub(super) async fn read(headers: &HeaderMap, body: RequestBody, charge: &MemoryCharge) -> Result<Bytes, Status> {
    if headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return Err(Status::new(
            Reason::UnsupportedMediaType,
            "request bodies with a content encoding are not supported",
        ));
    }
    let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<usize>().ok());
    let mut body = pin!(body);
    if announced.is_some_and(|length| length > MAX_BODY) {
        if !headers.contains_key(EXPECT) {
            discard(body, MAX_BODY + SLACK).await;
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
            discard(body, SLACK).await;
            Err(too_large())
        }
        Err(error) => Err(Status::bad_request(format!("the request body cannot be read: {error}"))),
    }
}

/// Reads and discards up to `most` bytes.
async fn discard(mut body: Pin<&mut RequestBody>, most: usize) {
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
