//! A watch as a stream of events, line by line, each line within a bound.

use std::{pin::Pin, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::{
    DownstreamClient, DownstreamError, ErrorAnswer, check_status, encode,
    pages::{check_names, is_version},
    parse, request,
};
use crate::memory::{MemoryExcess, SyncMemoryCharge, byte_count};

/// Longest line, in bytes: the largest object that Kubernetes stores, with room for its text form.
const MAX_LINE: usize = 8 * 1024 * 1024;
/// Timeout of a watch request. The watch is resumed where it ended.
const SERVER_TIMEOUT: Duration = Duration::from_secs(290);
/// Silence after that timeout that ends the connection.
const SILENCE: Duration = Duration::from_secs(30);

/// One event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WatchEvent {
    /// The object is as follows.
    Present(Value),
    /// The object is gone, or does not match the selector any more.
    Deleted(Value),
    /// Nothing up to this resourceVersion was left out.
    Bookmark(String),
}

/// Stream of the events of one watch request. It ends when the server ends it.
pub(crate) struct WatchStream {
    body: Pin<Box<dyn Stream<Item = Result<Bytes, DownstreamError>> + Send>>,
    buffer: BytesMut,
    /// Bytes of `buffer` without a line end.
    searched: usize,
    /// Charge for `buffer`.
    charge: SyncMemoryCharge,
}

impl DownstreamClient {
    /// Watches what changes under `path` after `version`.
    pub(crate) async fn watch(
        &self,
        path: &str,
        selector: &str,
        version: &str,
    ) -> Result<WatchStream, DownstreamError> {
        let query = format!(
            "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={}&labelSelector={}&resourceVersion={}",
            SERVER_TIMEOUT.as_secs(),
            encode(selector),
            encode(version),
        );
        let request = request(Method::GET, &query, "application/json", None)?;
        let answer = async { check_status(self.client.send(request).await).await };
        let response = self.within_deadline(answer).await?;
        let stream = response.into_body().into_data_stream();
        let body = stream.map(|part| part.map_err(|error| DownstreamError::Unreachable(error.to_string())));
        Ok(WatchStream { body: Box::pin(body), buffer: BytesMut::new(), searched: 0, charge: self.charge() })
    }
}

impl WatchStream {
    /// Returns the next event; `None` at the regular end.
    pub(crate) async fn next(&mut self) -> Result<Option<WatchEvent>, DownstreamError> {
        loop {
            if let Some(end) = self.buffer.iter().skip(self.searched).position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + end + 1);
                self.searched = 0;
                let event = event_of(&line, &mut self.charge).map(Some);
                // Shrinking the charge cannot fail: the rest of the buffer was charged before.
                self.charge.resize(byte_count(self.buffer.len())).map_err(MemoryExcess::error)?;
                return event;
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE {
                return Err(DownstreamError::Excessive(format!("an event of more than {MAX_LINE} bytes")));
            }
            match tokio::time::timeout(SERVER_TIMEOUT + SILENCE, self.body.next()).await {
                Err(_) => return Err(DownstreamError::Unreachable("a watch has gone silent".into())),
                Ok(None) => return Ok(None),
                Ok(Some(part)) => {
                    let part = part?;
                    self.charge.grow(part.len()).map_err(MemoryExcess::error)?;
                    self.buffer.extend_from_slice(&part);
                }
            }
        }
    }
}

fn event_of(line: &[u8], charge: &mut SyncMemoryCharge) -> Result<WatchEvent, DownstreamError> {
    let mut event = parse(line, charge)?;
    let object = event["object"].take();
    match event["type"].as_str() {
        Some("ADDED" | "MODIFIED") if object.is_object() => check_names(&object).map(|()| WatchEvent::Present(object)),
        Some("DELETED") if object.is_object() => check_names(&object).map(|()| WatchEvent::Deleted(object)),
        Some("BOOKMARK") => {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            if is_version(version) {
                Ok(WatchEvent::Bookmark(version.to_owned()))
            } else {
                Err(DownstreamError::Garbled("a bookmark without a resourceVersion".into()))
            }
        }
        Some("ERROR") => {
            let code = object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
            let text = |field: &str| crate::status::bounds_text(object[field].as_str().unwrap_or_default());
            let (reason, message) = (text("reason"), text("message"));
            Err(DownstreamError::Refused(ErrorAnswer { code, reason, message, ..ErrorAnswer::default() }))
        }
        _ => Err(DownstreamError::Garbled("an event of an unknown type".into())),
    }
}
