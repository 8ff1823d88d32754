//! Merged watches. The resourceVersion of each event stands for all physical clusters, so that a client can resume all
//! of them from any event.

use std::{convert::Infallible, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{
    Stream, StreamExt as _,
    future::join_all,
    stream::{self, SelectAll},
};
use http::Response;
use portolan_types::{Reason, Status, StatusCause};
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::{Body, authz::AuthorizationDecision, encode};

use super::{
    client::PaneClient,
    feed::{FeedItem, MemberEvent, MemberFeed},
    items::{GarbledAnswer, MemberItem},
    list::MemberPage,
    members::{self, PaneMember, PaneMembers},
    raw::{RawFields, quoted},
    tables::{MemberTable, TableColumns},
    tokens::MemberVersions,
    warn,
};

/// Interval of checks of rights and of the physical clusters.
const CHECK: Duration = Duration::from_secs(10);
/// Longest watch, in seconds, and the default.
const SECONDS: u64 = 3600;

type Feeds = SelectAll<Pin<Box<dyn Stream<Item = (usize, FeedItem)> + Send>>>;

/// Running watch of several physical clusters.
struct PaneWatch {
    client: Arc<PaneClient>,
    members: Vec<Arc<PaneMember>>,
    feeds: Feeds,
    /// Versions up to which the client has all events. A physical cluster whose objects are still being sent has none.
    versions: MemberVersions,
    columns: TableColumns,
    wants_bookmarks: bool,
    end: Instant,
    next_check: Instant,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    is_over: bool,
}

/// Answers a watch.
pub(super) async fn answer(client: Arc<PaneClient>, members: PaneMembers) -> Result<Response<Body>, Status> {
    let call = client.call.clone();
    if call.query.get("sendInitialEvents").is_some() {
        // Clients fall back to a list and a watch.
        return Err(Status::new(Reason::Invalid, "sendInitialEvents is not supported with clusters").with_cause(
            StatusCause {
                reason: "FieldValueForbidden".into(),
                message: "Forbidden: sendInitialEvents is not supported with clusters".into(),
                field: "sendInitialEvents".into(),
            },
        ));
    }
    let versions = MemberVersions::decode(call.query.text("resourceVersion"))?.unwrap_or_default();
    if !versions.all(|key| members.members.iter().any(|member| member.key == *key)) {
        return Err(Status::expired("a physical cluster is not part of the list any more: list again"));
    }
    let seconds = call.query.number("timeoutSeconds")?.and_then(|seconds| u64::try_from(seconds).ok());
    let end =
        Instant::now() + Duration::from_secs(seconds.filter(|seconds| *seconds > 0).unwrap_or(SECONDS).min(SECONDS));
    let feed =
        |member: &Arc<PaneMember>| MemberFeed::new(client.clone(), member.clone(), versions.get(&member.key), end);
    let mut started: Vec<MemberFeed> = members.members.iter().map(feed).collect();
    let firsts = join_all(started.iter_mut().map(MemberFeed::start)).await;
    let (mut feeds, mut gaps) = (Feeds::new(), Vec::new());
    for (at, (feed, first)) in started.into_iter().zip(firsts).enumerate() {
        let first = first.unwrap_or_else(|why| {
            let is_expired = why.code() == 410;
            gaps.push((members.members[at].name.clone(), why));
            is_expired.then_some(FeedItem::Expired)
        });
        feeds.push(Box::pin(feed.into_stream(at, first)));
    }
    warn(&call, &members, &gaps);
    let watch = PaneWatch {
        stopping: Box::pin(client.api.streams.stopping.clone().cancelled_owned()),
        client,
        members: members.members,
        feeds,
        versions,
        columns: TableColumns::default(),
        wants_bookmarks: call.query.flag("allowWatchBookmarks"),
        end,
        next_check: Instant::now() + CHECK,
        is_over: false,
    };
    Ok(encode::finish(200, "application/json", encode::stream(watch.into_frames())))
}

impl PaneWatch {
    fn into_frames(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
        stream::unfold(Box::new(self), |mut watch| async move {
            if watch.is_over {
                return None;
            }
            let frame = match watch.next().await {
                Ok(frame) => frame?,
                Err(failure) => {
                    watch.is_over = true;
                    format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", failure.to_value())
                }
            };
            Some((Ok(Bytes::from(frame)), watch))
        })
    }

    /// Returns the next frames; `None` at the end.
    ///
    /// # Errors
    /// The error that ends the watch.
    async fn next(&mut self) -> Result<Option<String>, Status> {
        loop {
            let until = self.end.min(self.next_check);
            let item = tokio::select! {
                biased;
                () = self.stopping.as_mut() => return Ok(None),
                () = tokio::time::sleep_until(until) => None,
                item = self.feeds.next(), if !self.feeds.is_empty() => item,
            };
            let Some((at, item)) = item else {
                if Instant::now() >= self.end || !is_allowed(&self.client, &self.members).await? {
                    return Ok(None);
                }
                self.next_check = Instant::now() + CHECK;
                continue;
            };
            let expired = || Status::expired("events of a physical cluster were missed: list again");
            let frames = match item {
                FeedItem::Expired => return Err(expired()),
                FeedItem::Page(page) => self.page(at, &page)?,
                // The feed has checked the event.
                FeedItem::Event(line, version) => self.event(at, &line, version).map_err(|_| expired())?,
            };
            if !frames.is_empty() {
                return Ok(Some(frames));
            }
        }
    }

    fn member(&self, at: usize) -> &PaneMember {
        &self.members[at]
    }

    /// Returns the events for objects that are there.
    fn page(&mut self, at: usize, page: &MemberPage) -> Result<String, Status> {
        let garbled = |error: GarbledAnswer| super::client::garbled(&error.0);
        let (name, key) = (self.member(at).name.clone(), self.member(at).key.clone());
        let version = self.versions.encode();
        let mut frames = String::new();
        if self.client.is_table {
            self.columns.learn(at, &page.table()?).map_err(garbled)?;
        }
        for item in page.items()? {
            let object = if self.client.is_table {
                let row = self.columns.row((at, &name), item.get(), Some(&version)).map_err(garbled)?;
                self.table_of(&row, &version)
            } else {
                let mut item = MemberItem::parse(item.get()).map_err(garbled)?;
                item.set_version(&version);
                item.shown(&name)
            };
            push_frame(&mut frames, "ADDED", &object);
        }
        if page.next.is_empty() {
            self.versions.set(key, page.version.clone());
        }
        Ok(frames)
    }

    /// Returns the frame of an event.
    fn event(&mut self, at: usize, line: &[u8], version: String) -> Result<String, GarbledAnswer> {
        let event: MemberEvent<'_> = serde_json::from_slice(line)?;
        let (name, key) = (self.member(at).name.clone(), self.member(at).key.clone());
        self.versions.set(key, version);
        let (version, mut frames) = (self.versions.encode(), String::new());
        if event.kind == "BOOKMARK" {
            if self.wants_bookmarks {
                push_frame(&mut frames, "BOOKMARK", &bookmark(event.object.get(), &version)?);
            }
            return Ok(frames);
        }
        let object = if self.client.is_table {
            let table = MemberTable::parse(event.object.get())?;
            self.columns.learn(at, &table)?;
            let [row] = table.rows.as_deref().unwrap_or_default() else {
                return Err(GarbledAnswer("an event of several rows".into()));
            };
            let row = self.columns.row((at, &name), row.get(), Some(&version))?;
            self.table_of(&row, &version)
        } else {
            let mut item = MemberItem::parse(event.object.get())?;
            item.set_version(&version);
            item.shown(&name)
        };
        push_frame(&mut frames, &event.kind, &object);
        Ok(frames)
    }

    /// Returns a table of one row. The first has the columns.
    fn table_of(&mut self, row: &str, version: &str) -> String {
        let columns = if self.columns.fix() { self.columns.definitions() } else { "null".to_owned() };
        let head = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"#;
        format!(r#"{head}{}}},"columnDefinitions":{columns},"rows":[{row}]}}"#, quoted(version))
    }
}

/// Returns true while the client has its rights and no other physical clusters are in reach. If new ones are in reach,
/// the watch ends, and the client resumes with all of them.
///
/// # Errors
/// 401, 403 or 404 when the client has lost access, 410 when a physical cluster is gone.
async fn is_allowed(client: &PaneClient, members: &[Arc<PaneMember>]) -> Result<bool, Status> {
    let PaneClient { api, call, .. } = client;
    let (access, cluster) = (&api.access, call.cluster.id);
    if access.directory.by_id(cluster).is_none() {
        return Err(Status::no_such_path());
    }
    call.identity.check_again(&access.authenticator, &*access.rbac, cluster, &call.attributes).await?;
    let decision = access.rbac.authorize_identity(cluster, &call.identity, &call.attributes).await?;
    if let AuthorizationDecision::Denied(why) = decision {
        return Err(call.attributes.denial(&call.identity.user, &why));
    }
    let now = members::members_of(api, call).await?.members;
    if members.iter().any(|member| !now.iter().any(|known| known.key == member.key)) {
        return Err(Status::expired("a physical cluster is not in reach any more: list again"));
    }
    Ok(now.len() == members.len())
}

fn push_frame(frames: &mut String, kind: &str, object: &str) {
    frames.push_str(&format!("{{\"type\":{},\"object\":{object}}}\n", quoted(kind)));
}

/// Returns a bookmark of the kind of `object`: it has a version and nothing else.
fn bookmark(object: &str, version: &str) -> Result<String, GarbledAnswer> {
    let fields = RawFields::parse(object)?;
    let mut mark = RawFields::empty();
    for name in ["kind", "apiVersion"] {
        if let Some(text) = fields.string(name) {
            mark.set(name, quoted(&text));
        }
    }
    mark.set("metadata", format!(r#"{{"resourceVersion":{},"creationTimestamp":null}}"#, quoted(version)));
    Ok(mark.text())
}
