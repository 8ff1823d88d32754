//! A watch as a stream of events, line by line, each line within a bound.

use std::{pin::Pin, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::{
    Answer, Api, DownstreamError, accepted, encode,
    pages::{check_names, is_version},
    parse, request,
};

/// Longest line, in bytes: the largest object that Kubernetes stores, with room for its text form.
const MAX_LINE: usize = 8 * 1024 * 1024;
/// How long the API server lets a watch run. It is resumed where it ended.
const SERVER_TIMEOUT: Duration = Duration::from_secs(290);
/// How much longer than that nothing may come before the connection counts as dead.
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

/// The events of one watch request. It ends when the server ends it.
pub(crate) struct Events {
    body: Pin<Box<dyn Stream<Item = Result<Bytes, DownstreamError>> + Send>>,
    buffer: BytesMut,
    /// Bytes of `buffer` without a line end.
    searched: usize,
}

impl Api {
    /// Watches what changes under `path` after `version`.
    pub(crate) async fn watch(&self, path: &str, selector: &str, version: &str) -> Result<Events, DownstreamError> {
        let query = format!(
            "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={}&labelSelector={}&resourceVersion={}",
            SERVER_TIMEOUT.as_secs(),
            encode(selector),
            encode(version),
        );
        let request = request(Method::GET, &query, "application/json", None)?;
        let answer = async { accepted(self.client.send(request).await).await };
        let response = self.within_deadline(answer).await?;
        let stream = response.into_body().into_data_stream();
        let body = stream.map(|part| part.map_err(|error| DownstreamError::Unreachable(error.to_string())));
        Ok(Events { body: Box::pin(body), buffer: BytesMut::new(), searched: 0 })
    }
}

impl Events {
    /// The next event; `None` at the regular end.
    pub(crate) async fn next(&mut self) -> Result<Option<WatchEvent>, DownstreamError> {
        loop {
            if let Some(end) = self.buffer.iter().skip(self.searched).position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + end + 1);
                self.searched = 0;
                return event_of(&line).map(Some);
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE {
                return Err(DownstreamError::Excessive(format!("an event of more than {MAX_LINE} bytes")));
            }
            match tokio::time::timeout(SERVER_TIMEOUT + SILENCE, self.body.next()).await {
                Err(_) => return Err(DownstreamError::Unreachable("a watch has gone silent".into())),
                Ok(None) => return Ok(None),
                Ok(Some(part)) => self.buffer.extend_from_slice(&part?),
            }
        }
    }
}

fn event_of(line: &[u8]) -> Result<WatchEvent, DownstreamError> {
    let mut event = parse(line)?;
    let object = event["object"].take();
    match event["type"].as_str() {
        Some("ADDED" | "MODIFIED") if object.is_object() => check_names(&object).map(|()| WatchEvent::Present(object)),
        Some("DELETED") if object.is_object() => check_names(&object).map(|()| WatchEvent::Deleted(object)),
        Some("BOOKMARK") => {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            match is_version(version) {
                true => Ok(WatchEvent::Bookmark(version.to_owned())),
                false => Err(DownstreamError::Garbled("a bookmark without a resourceVersion".into())),
            }
        }
        Some("ERROR") => {
            let code = object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
            let text = |field: &str| crate::status::bounds_text(object[field].as_str().unwrap_or_default());
            let (reason, message) = (text("reason"), text("message"));
            Err(DownstreamError::Refused(Answer { code, reason, message, ..Answer::default() }))
        }
        _ => Err(DownstreamError::Garbled("an event of an unknown type".into())),
    }
}
