//! Watches: a cursor into the order of writes, turned into frames. Nothing is queued per watcher.

mod filter;
mod frames;
mod stream;
mod websocket;

use std::{sync::Arc, time::Duration};

use http::Response;
use portolan_store::{EventBatch, EventStream, StoreError, WatchScope};
use portolan_types::{BoxFuture, ResourceVersion, Status};
use tokio::time::Instant;

use crate::{
    ApiServer, Body,
    call::{Call, Target},
    encode::{self, Media, Shape, finish},
    errors::status_for,
    limits::Place,
    objects::{Slices, reached, snapshot},
    options::{WatchFrom, WatchOptions},
    pipeline::Counted,
    reach::{Reach, ReachEvents, physical_clusters},
};

pub(crate) use frames::FrameCache;

use filter::Filter;
use frames::Encoder;
use stream::{Pace, Watch};
use websocket::Handshake;

/// Shortest and longest life of a watch that asks for none.
const LIFE: (u64, u64) = (1800, 3600);

/// Answers a watch. The headers go out before any event.
pub(crate) async fn answer(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    target: &Target,
    place: Place,
) -> Result<Response<Body>, Status> {
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let options = WatchOptions::of(target, &call.query)?;
    if call.captures.watched.as_deref().is_some_and(|name| options.selection.fields.exact_name() != Some(name)) {
        return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
    }
    shape.fits()?;
    let shape_media = shape.accepted.media;
    let content_type = match shape_media {
        Media::Json => "application/json",
        Media::Yaml => return Err(encode::no_stream()),
        Media::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
    };
    let socket = Handshake::of(call)?;
    let Start { initial, after, events } = start(api, call, target, &options).await?;
    let watch = Watch {
        api: api.clone(),
        call: call.clone(),
        events,
        filter: Filter::new(target.clone(), options.selection),
        encoder: Encoder::new(shape, &api.frames, api.seams.clock.clone()),
        metrics: api.metrics.watch(&call.labels),
        started: Instant::now(),
        pace: pace(api, options.bookmarks, options.timeout_seconds),
        stopping: Box::pin(api.stopping.clone().cancelled_owned()),
        delivered: after,
        after,
        marks_end: options.marks_end,
        is_own_view: Reach::of(api, &call.cluster, target).await?.is_some(),
        _place: place,
        _counted: Counted::new(api.metrics.longrunning(&call.labels)),
    };
    let is_text = shape_media == Media::Json;
    let frames = watch.into_stream(initial);
    match socket {
        None => Ok(finish(200, content_type, encode::stream(frames))),
        Some(socket) => {
            let opened = socket.answer();
            api.streams.spawn(socket.serve(frames, is_text));
            Ok(opened)
        }
    }
}

/// What a watch begins with.
struct Start {
    initial: Option<Slices>,
    /// Only what comes after this is shown.
    after: ResourceVersion,
    events: Box<dyn EventStream>,
}

async fn start(api: &Arc<ApiServer>, call: &Call, target: &Target, options: &WatchOptions) -> Result<Start, Status> {
    let (initial, after) = match options.from {
        WatchFrom::After(after) => (None, after),
        WatchFrom::Live => (None, api.store.current()),
        WatchFrom::Now(at) => {
            if let Some(at) = at
                && let Err(error) = reached(api, at).await
            {
                return Ok(Start { initial: None, after: at, events: Box::new(Refused { after: at, error }) });
            }
            let slices = snapshot(api, call, target, &options.selection).await?;
            let revision = slices.revision();
            (Some(slices), revision)
        }
    };
    Ok(Start { initial, after, events: open(api, call, target, after).await? })
}

/// The events from a revision on. As upstream, a watch from one that is still to come shows nothing until then.
async fn open(
    api: &ApiServer,
    call: &Call,
    target: &Target,
    after: ResourceVersion,
) -> Result<Box<dyn EventStream>, Status> {
    if let Err(error) = call.cluster.was_there(after) {
        return Ok(Box::new(Refused { after, error }));
    }
    let reach = Reach::of(api, &call.cluster, target).await?;
    let scope = match &reach {
        Some(_) => WatchScope::Resource(physical_clusters(), None),
        None => WatchScope::Resource(target.stored_as(), Some(call.cluster.id)),
    };
    match (api.store.watch(scope, Some(after.min(api.store.current()))).await, reach) {
        (Err(error @ StoreError::Compacted { .. }), _) => Ok(Box::new(Refused { after, error })),
        (Ok(events), Some(reach)) => {
            let events = ReachEvents::open(events, reach, api.store.clone()).await;
            Ok(Box::new(events.map_err(|error| status_for(&error))?))
        }
        (opened, _) => opened.map_err(|error| status_for(&error)),
    }
}

/// A watch from a place that is not kept any more, or that was not reached in time. As upstream, the answer begins well and the stream says what is wrong:
/// only there do all clients take it as the end (client-go's RetryWatcher asks for ever when the request is refused).
struct Refused {
    after: ResourceVersion,
    error: StoreError,
}

impl EventStream for Refused {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(std::future::ready(Err(self.error.clone())))
    }

    fn progress(&self) -> ResourceVersion {
        self.after
    }
}

fn pace(api: &ApiServer, bookmarks: bool, asked: Option<u64>) -> Pace {
    let seconds = asked.unwrap_or_else(|| {
        let mut byte = [0; 8];
        api.seams.entropy.fill(&mut byte);
        LIFE.0 + u64::from_le_bytes(byte) % (LIFE.1 - LIFE.0)
    });
    // Far enough off for whoever asks for ever, near enough for any clock.
    let end = Instant::now() + Duration::from_secs(seconds.min(30 * 24 * 3600));
    Pace::new(end, bookmarks)
}
