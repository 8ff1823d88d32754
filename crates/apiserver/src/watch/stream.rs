//! Lifecycle of a watch: initial state, events with bookmarks between them, end.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    vec::IntoIter,
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use portolan_store::{ChangeKind, Event, EventBatch, EventStream, StoreError, StoredObject};
use portolan_types::{ResourceVersion, Status};
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::{
    authz::shared_objects,
    errors::deleted_unreadable,
    limits::Permit,
    metrics::{GaugeGuard, WatchMetrics},
    objects::{ObjectSlices, ReadContext, ViewMarks, marked_event, read_failed},
    reach::ReachRights,
    request::{RequestContext, ResourceTarget},
};

use super::{
    WatchContext,
    access::{WatchAccess, is_redefined},
    filter::{WatchFilter, WatchedEvent},
    frames::{EncodedObject, FrameEncoder},
    timers::{RECHECK_INTERVAL, WatchTimers},
};

/// Bytes of initial state per piece.
const PIECE: usize = 64 * 1024;

/// Returns the error that ends a watch. A damaged object that was deleted is named only to watchers in its scope; all
/// must list again.
fn watch_failed(target: &ResourceTarget, error: &StoreError) -> Status {
    match error {
        StoreError::Damaged { key, why }
            if target.namespace.is_none() || target.namespace.as_ref() == key.namespace() =>
        {
            deleted_unreadable(key, *why)
        }
        StoreError::Damaged { .. } => Status::expired("what was changed elsewhere cannot be read: list again"),
        other => read_failed(target, other),
    }
}

/// Running watch.
pub(super) struct RunningWatch {
    pub(super) context: Arc<WatchContext>,
    pub(super) call: Arc<RequestContext>,
    pub(super) events: Box<dyn EventStream>,
    pub(super) filter: WatchFilter,
    pub(super) encoder: FrameEncoder,
    pub(super) metrics: WatchMetrics,
    pub(super) started: Instant,
    pub(super) timers: WatchTimers,
    pub(super) stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    /// All events up to this revision have been sent.
    pub(super) delivered: ResourceVersion,
    /// Events up to this revision are not sent.
    pub(super) after: ResourceVersion,
    pub(super) marks_end: bool,
    /// Rights that the state of the client depends on, for a watch whose events are rewritten for its logical cluster.
    pub(super) reach_rights: Option<ReachRights>,
    pub(super) _permit: Permit,
    pub(super) _counted: GaugeGuard,
}

enum WatchPhase {
    InitialState(Box<InitialState>),
    Live,
    Over,
}

/// Initial state, read in slices.
struct InitialState {
    slice: IntoIter<StoredObject>,
    rest: ObjectSlices,
}

enum WatchWakeup {
    Batch(Result<EventBatch, StoreError>),
    Time,
    Stop,
}

impl RunningWatch {
    /// Returns the frames as a stream of pieces.
    pub(super) fn into_stream(
        self,
        initial: Option<ObjectSlices>,
    ) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
        let begin = |rest| WatchPhase::InitialState(Box::new(InitialState { slice: Vec::new().into_iter(), rest }));
        let phase = initial.map_or(WatchPhase::Live, begin);
        stream::unfold((Box::new(self), phase), |(mut watch, phase)| async move {
            let (piece, next) = watch.advance(phase).await;
            piece.map(|piece| (Ok(piece), (watch, next)))
        })
    }

    async fn advance(&mut self, phase: WatchPhase) -> (Option<Bytes>, WatchPhase) {
        let moved = match phase {
            WatchPhase::InitialState(initial) => self.initial(initial).await,
            WatchPhase::Live => self.live().await,
            WatchPhase::Over => return (None, WatchPhase::Over),
        };
        let (piece, next) = match moved {
            // As in kube-apiserver, no object can be encoded as the metadata of a list.
            Ok((Some(_), _)) if self.encoder.is_of_lists() => (None, WatchPhase::Over),
            moved => moved.unwrap_or_else(|failure| (Some(self.encoder.error(&failure)), WatchPhase::Over)),
        };
        self.metrics.sent += piece.as_ref().map_or(0, Bytes::len);
        (piece, next)
    }

    async fn initial(&mut self, mut initial: Box<InitialState>) -> Result<(Option<Bytes>, WatchPhase), Status> {
        if self.context.streams.stopping.is_cancelled() || Instant::now() >= self.timers.end {
            return Ok((None, WatchPhase::Over));
        }
        let mut out = BytesMut::new();
        while out.len() < PIECE {
            if let Some(object) = initial.slice.next() {
                let StoredObject { key, record, revision, .. } = &object;
                let shown = EncodedObject { key, record, revision: *revision };
                let frame = self.encoder.initial(WatchedEvent::Added, shown)?;
                self.metrics.events.inc();
                self.metrics.sizes.observe(frame.len() as f64);
                out.extend_from_slice(&frame);
                continue;
            }
            let next = initial.rest.next();
            let access = WatchAccess::new(&self.context, &self.call, &self.filter.target, self.reach_rights.as_ref());
            let Some(slice) = meanwhile(access, &mut self.timers, &mut self.stopping, next).await? else {
                return Ok((None, WatchPhase::Over));
            };
            let Some(slice) = slice else {
                if self.marks_end {
                    out.extend_from_slice(&self.encoder.bookmark(self.delivered, true)?);
                    self.metrics.first_state.observe(self.started.elapsed().as_secs_f64());
                }
                return Ok((Some(out.freeze()), WatchPhase::Live));
            };
            initial.slice = slice.into_iter();
        }
        Ok((Some(out.freeze()), WatchPhase::InitialState(initial)))
    }

    /// Waits for the next events or timer.
    async fn live(&mut self) -> Result<(Option<Bytes>, WatchPhase), Status> {
        loop {
            let turn = tokio::select! {
                biased;
                () = self.stopping.as_mut() => WatchWakeup::Stop,
                () = std::future::ready(()), if std::mem::take(&mut self.timers.checks_first) => WatchWakeup::Time,
                // Before events, so that a stream of events without a pause cannot delay the end or a permission check.
                () = self.timers.alarm.as_mut() => WatchWakeup::Time,
                batch = self.events.next() => WatchWakeup::Batch(batch),
            };
            match turn {
                WatchWakeup::Stop => return Ok((None, WatchPhase::Over)),
                WatchWakeup::Batch(batch) => {
                    // A cursor that fell behind ends like a watch from a compacted revision.
                    let batch = batch.map_err(|e| watch_failed(&self.filter.target, &e))?;
                    let Some(frames) = self.frames(&batch).await? else {
                        return Ok((None, WatchPhase::Over));
                    };
                    if !frames.is_empty() {
                        return Ok((Some(frames), WatchPhase::Live));
                    }
                }
                WatchWakeup::Time => {
                    let due = self.on_time().await?;
                    self.timers.set_alarm();
                    if let Some(done) = due {
                        return Ok(done);
                    }
                }
            }
        }
    }

    /// Encodes a batch; `None` when the watch has ended meanwhile.
    async fn frames(&mut self, batch: &EventBatch) -> Result<Option<Bytes>, Status> {
        let mut frames: Vec<Bytes> = Vec::new();
        // Objects of a logical cluster that has joined a view are older than the watch.
        let is_view = self.call.view.is_some();
        let is_due = |event: &&Arc<Event>| (is_view || event.revision > self.after) && self.filter.is_in_scope(event);
        // Objects written under another definition are for watches of that definition.
        if batch.events.iter().any(|event| is_due(&event))
            && is_redefined(&self.context.kinds, &self.call, &self.filter.target).await?
        {
            return Ok(None);
        }
        for event in batch.events.iter().filter(is_due) {
            let shown =
                self.context.reads.conversion.event_in_version(&self.filter.target, event, self.filter.selects());
            let access = WatchAccess::new(&self.context, &self.call, &self.filter.target, self.reach_rights.as_ref());
            let shown = meanwhile(access, &mut self.timers, &mut self.stopping, shown).await?;
            let Some(event) = shown else { return Ok(None) };
            let mut event = from_shared(&self.context.reads, &self.call, event).await?;
            if self.call.spans_all {
                event = Arc::new(marked_event(&self.context.reads.storage.directory, &event)?);
            }
            if let Some(view) = &self.call.view {
                let (directory, target) = (&self.context.reads.storage.directory, &self.filter.target);
                let Some(marked) = (ViewMarks { directory, view, target }).event(&event)? else { continue };
                event = Arc::new(marked);
            }
            if let Some((seen, record)) = self.filter.sees(&event)? {
                let shown = EncodedObject { key: &event.key, record, revision: event.revision };
                // Events that are rewritten for one logical cluster are not shared.
                let is_rewritten = is_view || self.call.spans_all || self.call.waiting().is_some();
                let frame = if is_rewritten || self.reach_rights.is_some() {
                    self.encoder.initial(seen, shown)?
                } else {
                    self.encoder.frame(&self.context.frames, seen, shown)?
                };
                self.metrics.sizes.observe(frame.len() as f64);
                frames.push(frame);
            }
        }
        self.metrics.events.inc_by(frames.len() as u64);
        self.delivered = self.delivered.max(batch.revision);
        Ok(Some(match frames.len() {
            1 => frames.swap_remove(0),
            _ => frames.concat().into(),
        }))
    }

    /// Handles a timer: the end, a permission check, a bookmark.
    async fn on_time(&mut self) -> Result<Option<(Option<Bytes>, WatchPhase)>, Status> {
        let now = Instant::now();
        if now >= self.timers.end {
            return Ok(Some((None, WatchPhase::Over)));
        }
        if now >= self.timers.next_check {
            self.timers.next_check = now + RECHECK_INTERVAL;
            let access = WatchAccess::new(&self.context, &self.call, &self.filter.target, self.reach_rights.as_ref());
            if !access.is_allowed().await? {
                return Ok(Some((None, WatchPhase::Over)));
            }
        }
        if self.timers.bookmarks && now >= self.timers.next_bookmark {
            self.timers.plan_bookmark(now);
            let progress = self.events.progress();
            if progress < self.after {
                return Ok(None);
            }
            self.delivered = self.delivered.max(progress);
            return Ok(Some((Some(self.encoder.bookmark(self.delivered, false)?), WatchPhase::Live)));
        }
        Ok(None)
    }
}

/// Rewrites the creation of an own object that replaces a shared one: watchers saw the shared one before.
async fn from_shared(reads: &ReadContext, call: &RequestContext, event: Arc<Event>) -> Result<Arc<Event>, Status> {
    if event.change == ChangeKind::Updated || call.spans_all || !shared_objects::is_shared(&event.key) {
        return Ok(event);
    }
    let cluster = match &call.view {
        None => Some(call.cluster.clone()),
        Some(_) => reads.storage.directory.by_id(event.key.cluster),
    };
    let Some(cluster) = cluster else { return Ok(event) };
    let shared = reads.shared.one(&cluster, &event.key).await?.map(|shared| shared.record);
    let changed = if event.change == ChangeKind::Created {
        Event { change: ChangeKind::Updated, previous: shared, ..Event::clone(&event) }
    } else {
        // The deletion of the own object shows the shared one again.
        let Some(shared) = shared else { return Ok(event) };
        Event {
            change: ChangeKind::Updated,
            previous: Some(event.record.clone()),
            record: shared,
            ..Event::clone(&event)
        }
    };
    Ok(Arc::new(changed))
}

/// Waits for a future, such as a conversion by a webhook, while the watch may continue; `None` at its end.
///
/// # Errors
/// The errors of the future; 401, 403 or 404 when the watcher loses access.
async fn meanwhile<T>(
    access: WatchAccess<'_>,
    timers: &mut WatchTimers,
    stopping: &mut Pin<Box<WaitForCancellationFutureOwned>>,
    awaited: impl Future<Output = Result<T, Status>>,
) -> Result<Option<T>, Status> {
    let mut awaited = pin!(awaited);
    loop {
        tokio::select! {
            biased;
            () = stopping.as_mut() => return Ok(None),
            done = awaited.as_mut() => return done.map(Some),
            () = tokio::time::sleep_until(timers.next_look()) => {}
        }
        if Instant::now() >= timers.end {
            return Ok(None);
        }
        timers.next_check = Instant::now() + RECHECK_INTERVAL;
        if !access.is_allowed().await? {
            return Ok(None);
        }
    }
}
