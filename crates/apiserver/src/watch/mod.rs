//! Watches: a cursor into the order of writes, encoded as frames. Nothing is queued per watcher.

mod access;
mod filter;
mod frames;
mod stream;
mod timers;
mod websocket;

use std::{sync::Arc, time::Duration};

use http::Response;
use portolan_store::{EventBatch, EventStream, StoreError, WatchScope};
use portolan_types::{BoxFuture, ResourceVersion, Seams, Status};
use tokio::time::Instant;

use crate::{
    Body,
    authn::AccessContext,
    encode::{self, ResponseFormat, ResponseShape, finish},
    errors::status_for,
    kinds::DefinitionCatalog,
    limits::{FlowKey, Permit},
    metrics::{GaugeGuard, Metrics},
    objects::{
        AllClusterEvents, LifecycleItems, ObjectSlices, ReadContext, all_cluster_slices, snapshot, view_slices,
        wait_for_revision, waiting_slices,
    },
    options::{WatchFrom, WatchOptions},
    reach::{ClusterReach, ReachEvents, ReachRights, physical_clusters},
    request::{RequestContext, ResourceTarget},
    sync::StreamContext,
    views::{ViewEvents, WatchedResource},
};

pub(crate) use frames::FrameCache;

use filter::WatchFilter;
use frames::FrameEncoder;
use stream::RunningWatch;
use timers::WatchTimers;
use websocket::WebSocketHandshake;

/// Shortest and longest default timeout of a watch, in seconds.
const DEFAULT_TIMEOUT_SECONDS: (u64, u64) = (1800, 3600);

/// Context of watches.
pub(crate) struct WatchContext {
    pub(crate) reads: Arc<ReadContext>,
    pub(crate) kinds: DefinitionCatalog,
    pub(crate) access: Arc<AccessContext>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) frames: FrameCache,
    pub(crate) streams: StreamContext,
}

/// Answers a watch. The headers are sent before any event.
pub(crate) async fn answer(
    context: &Arc<WatchContext>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
    permit: Permit,
) -> Result<Response<Body>, Status> {
    let (reads, metrics) = (&context.reads, &context.metrics);
    let seams = &reads.storage.seams;
    let shape = ResponseShape::of(call, target, seams.clock.now())?;
    let options = WatchOptions::of(target, &call.query)?;
    if call.captures.watched.as_deref().is_some_and(|name| options.selection.fields.exact_name() != Some(name)) {
        return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
    }
    shape.fits()?;
    let shape_media = shape.accepted.media;
    let content_type = match shape_media {
        ResponseFormat::Json => "application/json",
        ResponseFormat::Yaml => return Err(encode::no_stream()),
        ResponseFormat::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
    };
    let socket = WebSocketHandshake::of(call)?;
    // Read before the initial state, so that a later change of the rights is noticed.
    let reach_rights = match &call.view {
        None => ClusterReach::of(&reads.reach, &call.cluster, target).await?.map(|reach| reach.rights()),
        Some(_) => None,
    };
    let known_rights = match (&reach_rights, options.from) {
        // Boxed, because few watches are resumed on a computed resource.
        (Some(_), WatchFrom::After(at)) => Box::pin(rights_of_client(reads, call, at)).await?,
        _ => None,
    };
    let WatchStart { initial, after, events } = start(reads, call, target, &options).await?;
    let mut timers = timers(seams, options.bookmarks, options.timeout_seconds);
    if known_rights.is_some() && known_rights != reach_rights {
        timers.check_first();
    }
    let watch = RunningWatch {
        context: context.clone(),
        call: call.clone(),
        events,
        filter: WatchFilter::new(target.clone(), options.selection),
        encoder: FrameEncoder::new(shape, &context.frames, seams.clock.clone()),
        metrics: metrics.watch(&call.labels),
        started: Instant::now(),
        timers,
        stopping: Box::pin(context.streams.stopping.clone().cancelled_owned()),
        delivered: after,
        after,
        marks_end: options.marks_end,
        reach_rights: known_rights.or(reach_rights),
        _permit: permit,
        _counted: GaugeGuard::new(metrics.longrunning(&call.labels)),
    };
    let is_text = shape_media == ResponseFormat::Json;
    let frames = watch.into_stream(initial);
    match socket {
        None => Ok(finish(200, content_type, encode::stream(frames))),
        Some(socket) => {
            let opened = socket.answer();
            context.streams.tasks.spawn(socket.serve(frames, is_text));
            Ok(opened)
        }
    }
}

/// Returns the rights of the client at the revision `at`, from which it resumes the watch; `None` if they are unknown.
async fn rights_of_client(
    context: &ReadContext,
    call: &RequestContext,
    at: ResourceVersion,
) -> Result<Option<ReachRights>, Status> {
    if at >= context.storage.store.current() {
        return Ok(None);
    }
    let tenant = context.storage.directory.tenant(&call.cluster);
    let flow_key = FlowKey { tenant, cluster: call.cluster.id, user: &call.identity.user };
    ClusterReach::rights_at(&context.reach, &call.cluster, at, &flow_key).await
}

/// Start of a watch.
struct WatchStart {
    initial: Option<ObjectSlices>,
    /// Revision after which events are sent.
    after: ResourceVersion,
    events: Box<dyn EventStream>,
}

async fn start(
    context: &Arc<ReadContext>,
    call: &RequestContext,
    target: &ResourceTarget,
    options: &WatchOptions,
) -> Result<WatchStart, Status> {
    let store = &context.storage.store;
    let (initial, after) = match options.from {
        WatchFrom::After(after) => (None, after),
        WatchFrom::Live => (None, store.current()),
        WatchFrom::Now(at) => {
            if let Some(at) = at
                && let Err(error) = wait_for_revision(&**store, at).await
            {
                return Ok(WatchStart { initial: None, after: at, events: Box::new(FailedWatch { after: at, error }) });
            }
            let slices = match &call.view {
                None if call.spans_all => {
                    Box::pin(all_cluster_slices(context, call, target, &options.selection)).await?
                }
                None if call.waiting().is_some() => {
                    Box::pin(waiting_slices(context, call, target, &options.selection)).await?
                }
                None => snapshot(context, call, target, &options.selection).await?,
                Some(view) => Box::pin(view_slices(context, call, (target, view), &options.selection)).await?,
            };
            let revision = slices.revision();
            (Some(slices), revision)
        }
    };
    Ok(WatchStart { initial, after, events: open(context, call, target, after).await? })
}

/// Opens the events from a revision. As in kube-apiserver, a watch from a future revision is silent until then.
async fn open(
    context: &ReadContext,
    call: &RequestContext,
    target: &ResourceTarget,
    after: ResourceVersion,
) -> Result<Box<dyn EventStream>, Status> {
    if let Err(error) = call.cluster.check_existed(after) {
        return Ok(Box::new(FailedWatch { after, error }));
    }
    let store = &context.storage.store;
    if call.spans_all {
        let opened = AllClusterEvents::open(store, target.stored_as(), after.min(store.current())).await;
        return match opened {
            Ok(events) => Ok(Box::new(events)),
            Err(error @ StoreError::Compacted { .. }) => Ok(Box::new(FailedWatch { after, error })),
            Err(error) => Err(status_for(&error)),
        };
    }
    if let Some(view) = call.waiting() {
        let items = LifecycleItems { store: store.clone(), view: view.clone(), url: context.url.clone() };
        return match items.watch(after.min(store.current())).await {
            Ok(events) => Ok(Box::new(events)),
            Err(error @ StoreError::Compacted { .. }) => Ok(Box::new(FailedWatch { after, error })),
            Err(error) => Err(status_for(&error)),
        };
    }
    if let Some(view) = &call.view {
        let resource = WatchedResource { asked: target.resource(), stored: target.stored_as() };
        let opened = Box::pin(ViewEvents::open(store, view.clone(), resource, after.min(store.current()))).await;
        return match opened {
            Ok(events) => Ok(Box::new(events)),
            Err(error @ StoreError::Compacted { .. }) => Ok(Box::new(FailedWatch { after, error })),
            Err(error) => Err(status_for(&error)),
        };
    }
    let reach = ClusterReach::of(&context.reach, &call.cluster, target).await?;
    let scope = match &reach {
        Some(_) => WatchScope::Resource(physical_clusters(), None),
        None => WatchScope::Resource(target.stored_as(), Some(call.cluster.id)),
    };
    match (store.watch(scope, Some(after.min(store.current()))).await, reach) {
        (Err(error @ StoreError::Compacted { .. }), _) => Ok(Box::new(FailedWatch { after, error })),
        (Ok(events), Some(reach)) => {
            let events = ReachEvents::open(events, reach, store.clone()).await;
            Ok(Box::new(events.map_err(|error| status_for(&error))?))
        }
        (opened, _) => opened.map_err(|error| status_for(&error)),
    }
}

/// Watch from a compacted revision, or from a future one that was not reached in time. As in kube-apiserver, the
/// response succeeds and the stream contains the error. All clients accept an error in the stream as the end of the
/// watch, but not a refused request: client-go's RetryWatcher retries it forever.
struct FailedWatch {
    after: ResourceVersion,
    error: StoreError,
}

impl EventStream for FailedWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(std::future::ready(Err(self.error.clone())))
    }

    fn progress(&self) -> ResourceVersion {
        self.after
    }
}

fn timers(seams: &Seams, bookmarks: bool, asked: Option<u64>) -> WatchTimers {
    let seconds = asked.unwrap_or_else(|| {
        let mut byte = [0; 8];
        seams.entropy.fill(&mut byte);
        DEFAULT_TIMEOUT_SECONDS.0 + u64::from_le_bytes(byte) % (DEFAULT_TIMEOUT_SECONDS.1 - DEFAULT_TIMEOUT_SECONDS.0)
    });
    // Bounded to 30 days: the clock cannot represent arbitrarily large times.
    let end = Instant::now() + Duration::from_secs(seconds.min(30 * 24 * 3600));
    WatchTimers::new(end, bookmarks)
}
