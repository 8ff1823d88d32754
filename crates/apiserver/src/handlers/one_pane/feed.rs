//! Feed of one physical cluster for a merged watch: its objects, then its events. It connects again by itself.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use http_body_util::BodyExt as _;
use portolan_types::Status;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::Body;

use super::{
    budget::HeldBytes,
    client::{MemberQuery, PaneClient, garbled, unreachable},
    items::{GarbledAnswer, MemberItem},
    list::{MemberPage, read_page},
    members::PaneMember,
    tables::{MemberTable, object_of},
};

/// Longest event, in bytes: twice the largest object that Kubernetes stores.
const MAX_LINE: usize = 3 * 1024 * 1024;
/// Objects per page of the initial state.
const PAGE: usize = 500;
/// Pauses between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Shortest watch that is requested, in seconds.
const MIN_SECONDS: u64 = 5;
/// Silence after the end of a requested watch that ends the connection.
const SILENCE: Duration = Duration::from_secs(30);

/// Piece of a feed.
pub(super) enum FeedItem {
    /// Objects that are there. After the last page, events follow its version.
    Page(MemberPage),
    /// Event, as a line of JSON, and the version of its object.
    Event(Bytes, String),
    /// Events were missed: the client has to list again.
    Expired,
}

/// Event of a physical cluster.
#[derive(Deserialize)]
pub(super) struct MemberEvent<'a> {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

/// Feed of one physical cluster.
pub(super) struct MemberFeed {
    client: Arc<PaneClient>,
    member: Arc<PaneMember>,
    phase: FeedPhase,
    /// Version after which events are requested.
    version: String,
    /// End of the whole watch.
    end: Instant,
    pause: Duration,
}

enum FeedPhase {
    /// Objects are listed, from a continue token on.
    Listing(String),
    /// Events; the connection, if there is one.
    Watching(Option<LineReader>),
    Over,
}

/// Reader of the lines of a body.
struct LineReader {
    body: Body,
    buffer: BytesMut,
    /// Bytes of `buffer` without a line end.
    searched: usize,
    held: HeldBytes,
    /// Time at which silence ends the connection.
    silent_at: Instant,
}

impl LineReader {
    /// Returns the next line; `None` at the end.
    ///
    /// # Errors
    /// A line that is too long, and failures of the connection.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + end + 1).freeze();
                self.searched = 0;
                self.held.shrink(line.len());
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE {
                return Err(unreachable("an event is too large"));
            }
            let frame = tokio::time::timeout_at(self.silent_at, self.body.frame()).await;
            match frame.map_err(|_| unreachable("a watch sent nothing for too long"))? {
                None => return Ok(None),
                Some(frame) => {
                    let frame = frame.map_err(|error| unreachable(&error.to_string()))?;
                    let Ok(piece) = frame.into_data() else { continue };
                    self.held.grow(piece.len())?;
                    self.buffer.extend_from_slice(&piece);
                }
            }
        }
    }
}

impl MemberFeed {
    /// Creates a feed: of the events after `version`, or of all objects and then their events.
    pub(super) fn new(client: Arc<PaneClient>, member: Arc<PaneMember>, version: Option<&str>, end: Instant) -> Self {
        let phase = if version.is_some() { FeedPhase::Watching(None) } else { FeedPhase::Listing(String::new()) };
        Self { client, member, phase, version: version.unwrap_or_default().to_owned(), end, pause: PAUSES.0 }
    }

    /// Makes the first request, so that its failure can be a warning. Returns the first piece of a listing.
    ///
    /// # Errors
    /// The failure, after which the feed tries again.
    pub(super) async fn start(&mut self) -> Result<Option<FeedItem>, Status> {
        match &self.phase {
            FeedPhase::Listing(_) => self.list().await.map(Some),
            FeedPhase::Watching(_) => self.connect().await.map(|()| None),
            FeedPhase::Over => Ok(None),
        }
    }

    /// Returns the pieces of the feed, with the index of its physical cluster.
    pub(super) fn into_stream(
        self,
        at: usize,
        first: Option<FeedItem>,
    ) -> impl Stream<Item = (usize, FeedItem)> + Send + 'static {
        stream::unfold((Box::new(self), first), move |(mut feed, first)| async move {
            let item = match first {
                Some(first) => first,
                None => feed.next().await?,
            };
            Some(((at, item), (feed, None)))
        })
    }

    /// Returns the next piece; `None` after [`FeedItem::Expired`].
    async fn next(&mut self) -> Option<FeedItem> {
        loop {
            let failure = match self.advance().await {
                Ok(Some(item)) => return Some(item),
                Ok(None) if matches!(self.phase, FeedPhase::Over) => return None,
                Ok(None) => continue,
                Err(failure) => failure,
            };
            if failure.code() == 410 {
                self.phase = FeedPhase::Over;
                return Some(FeedItem::Expired);
            }
            tracing::debug!(cluster = self.member.name, %failure, "a watch of a physical cluster is started again");
            tokio::time::sleep(self.pause).await;
            self.pause = (self.pause * 2).min(PAUSES.1);
        }
    }

    async fn advance(&mut self) -> Result<Option<FeedItem>, Status> {
        let reader = match &mut self.phase {
            FeedPhase::Over => return Ok(None),
            FeedPhase::Listing(_) => return self.list().await.map(Some),
            FeedPhase::Watching(None) => return self.connect().await.map(|()| None),
            FeedPhase::Watching(Some(reader)) => reader,
        };
        let taken = match reader.next().await {
            Ok(Some(line)) => take(&line, self.client.is_table).map(|version| (line, version)),
            Ok(None) => Err(unreachable("the watch has ended")),
            Err(failure) => Err(failure),
        };
        let (line, version) = taken.inspect_err(|_| self.phase = FeedPhase::Watching(None))?;
        (self.version, self.pause) = (version.clone(), PAUSES.0);
        Ok(Some(FeedItem::Event(line, version)))
    }

    async fn list(&mut self) -> Result<FeedItem, Status> {
        let FeedPhase::Listing(token) = &self.phase else { return Err(Status::internal("a feed that does not list")) };
        let (token, call) = (token.clone(), self.client.call.clone());
        let query = || {
            let query = MemberQuery::selecting(&call);
            if token.is_empty() { query } else { query.with("continue", &token) }
        };
        let page = read_page(&self.client, &self.member, query, PAGE).await;
        // The objects that were sent may have changed since.
        let page = page.map_err(|why| if token.is_empty() { why } else { Status::expired(why.message()) })?;
        self.version.clone_from(&page.version);
        self.phase =
            if page.next.is_empty() { FeedPhase::Watching(None) } else { FeedPhase::Listing(page.next.clone()) };
        Ok(FeedItem::Page(page))
    }

    async fn connect(&mut self) -> Result<(), Status> {
        let seconds = self.end.saturating_duration_since(Instant::now()).as_secs().max(MIN_SECONDS);
        let query = MemberQuery::selecting(&self.client.call).with("watch", "true").with("allowWatchBookmarks", "true");
        let query = query.with("resourceVersion", &self.version).with("timeoutSeconds", &seconds.to_string());
        let body = self.client.open(&self.member, &query).await?;
        let silent_at = Instant::now() + Duration::from_secs(seconds) + SILENCE;
        let (buffer, held) = (BytesMut::new(), self.client.budget.hold());
        self.phase = FeedPhase::Watching(Some(LineReader { body, buffer, searched: 0, held, silent_at }));
        Ok(())
    }
}

/// Returns the version of the object of an event.
///
/// # Errors
/// The failure that the event carries; 502 for a line that is not an event.
fn take(line: &[u8], is_table: bool) -> Result<String, Status> {
    let event: MemberEvent<'_> = serde_json::from_slice(line).map_err(|error| garbled(&error.to_string()))?;
    match event.kind.as_str() {
        "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" => {
            version_of(event.object, is_table).map_err(|error| garbled(&error.0))
        }
        "ERROR" => {
            #[derive(Deserialize)]
            struct Failure {
                #[serde(default)]
                code: u16,
                #[serde(default)]
                message: String,
            }
            let failure: Failure =
                serde_json::from_str(event.object.get()).map_err(|error| garbled(&error.to_string()))?;
            let code = if (400..600).contains(&failure.code) { failure.code } else { 500 };
            Err(Status::foreign(code, "", failure.message.chars().take(256).collect::<String>(), None))
        }
        _ => Err(garbled("an event of an unknown type")),
    }
}

fn version_of(object: &RawValue, is_table: bool) -> Result<String, GarbledAnswer> {
    if !is_table {
        return MemberItem::parse(object.get())?.version();
    }
    let table = MemberTable::parse(object.get())?;
    match table.rows.as_deref() {
        Some([row]) => MemberItem::parse(object_of(row)?.get())?.version(),
        // A bookmark may have no row.
        _ => MemberItem::parse(object.get())?.version(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_versions_or_are_failures() {
        for (line, is_table, expected) in [
            (r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"7"}}}"#, false, Ok("7")),
            (r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8"}}}"#, false, Ok("8")),
            (
                r#"{"type":"ADDED","object":{"kind":"Table","metadata":{"resourceVersion":"1"},"rows":[{"cells":[],"object":{"metadata":{"resourceVersion":"9"}}}]}}"#,
                true,
                Ok("9"),
            ),
            (
                r#"{"type":"BOOKMARK","object":{"kind":"Table","metadata":{"resourceVersion":"3"},"rows":[]}}"#,
                true,
                Ok("3"),
            ),
            (r#"{"type":"ADDED","object":{"metadata":{}}}"#, false, Err(502)),
            (r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}}"#, true, Err(502)),
            (r#"{"type":"ERROR","object":{"code":410,"message":"too old"}}"#, false, Err(410)),
            (r#"{"type":"ERROR","object":{"code":7}}"#, false, Err(500)),
            (r#"{"type":"OTHER","object":{}}"#, false, Err(502)),
            ("endless", false, Err(502)),
        ] {
            let found = take(line.as_bytes(), is_table).map_err(|failure| failure.code());
            assert_eq!(found.as_deref().map_err(|code| *code), expected, "{line}");
        }
    }
}
