//! The life of a watch: the state it starts from, then what comes, bookmarks in between, and an end.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
    vec::IntoIter,
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use portolan_machinery::kinds::Served;
use portolan_store::{Change, Event, EventBatch, EventStream, StoreError, StoredObject};
use portolan_types::{ResourceVersion, Status};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::{
    ApiServer,
    authz::{Authorizer as _, Verdict},
    bootstrap,
    call::{Call, Target},
    errors::deleted_unread,
    limits::Place,
    metrics::WatchMetrics,
    objects::{Slices, read_failed},
    pipeline::Counted,
};

use super::{
    filter::{Filter, Seen},
    frames::Encoder,
};

/// Time between bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// Time between looks at whether the watcher may still watch.
const RECHECKS: Duration = Duration::from_secs(10);
/// The last bookmark comes this long before the end.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Bytes of initial state that go out at once.
const PIECE: usize = 64 * 1024;

/// When what happens.
pub(super) struct Pace {
    alarm: Pin<Box<Sleep>>,
    end: Instant,
    bookmarks: bool,
    next_bookmark: Instant,
    next_check: Instant,
}

impl Pace {
    pub(super) fn new(end: Instant, bookmarks: bool) -> Self {
        let now = Instant::now();
        let alarm = Box::pin(tokio::time::sleep_until(now));
        let mut pace = Self { alarm, end, bookmarks, next_bookmark: now, next_check: now + RECHECKS };
        pace.plan_bookmark(now);
        pace.set_alarm();
        pace
    }

    fn plan_bookmark(&mut self, now: Instant) {
        let last = self.end.checked_sub(LAST_BOOKMARK).filter(|last| *last > now);
        self.next_bookmark = match last {
            Some(last) => (now + BOOKMARKS).min(last),
            None => now + BOOKMARKS,
        };
    }

    /// When a watch must be looked at that waits for something else than time and events.
    fn next_look(&self) -> Instant {
        self.end.min(self.next_check)
    }

    fn set_alarm(&mut self) {
        let soonest = self.next_look();
        let soonest = if self.bookmarks { soonest.min(self.next_bookmark) } else { soonest };
        self.alarm.as_mut().reset(soonest);
    }
}

/// What ends a watch. A damaged object that was deleted is named only to those who watch where it was; all have to list again.
fn watch_failed(target: &Target, error: &StoreError) -> Status {
    match error {
        StoreError::Damaged { key, why }
            if target.namespace.is_none() || target.namespace.as_ref() == key.namespace() =>
        {
            deleted_unread(key, *why)
        }
        StoreError::Damaged { .. } => Status::expired("what was changed elsewhere cannot be read: list again"),
        other => read_failed(target, other),
    }
}

/// A running watch.
pub(super) struct Watch {
    pub(super) api: Arc<ApiServer>,
    pub(super) call: Arc<Call>,
    pub(super) events: Box<dyn EventStream>,
    pub(super) filter: Filter,
    pub(super) encoder: Encoder,
    pub(super) metrics: WatchMetrics,
    pub(super) started: Instant,
    pub(super) pace: Pace,
    pub(super) stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Everything up to here has been sent.
    pub(super) delivered: ResourceVersion,
    /// Where it starts: nothing before is shown.
    pub(super) after: ResourceVersion,
    pub(super) marks_end: bool,
    /// It shows writes as only its logical cluster sees them.
    pub(super) is_own_view: bool,
    pub(super) _place: Place,
    pub(super) _counted: Counted,
}

enum Phase {
    Initial(Box<Initial>),
    Live,
    Over,
}

/// The state that a watch starts from: of it no more than a slice is in memory.
struct Initial {
    slice: IntoIter<StoredObject>,
    rest: Slices,
}

enum Turn {
    Batch(Result<EventBatch, StoreError>),
    Time,
    Stop,
}

impl Watch {
    /// The frames, in pieces.
    pub(super) fn into_stream(
        self,
        initial: Option<Slices>,
    ) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
        let begin = |rest| Phase::Initial(Box::new(Initial { slice: Vec::new().into_iter(), rest }));
        let phase = initial.map_or(Phase::Live, begin);
        stream::unfold((Box::new(self), phase), |(mut watch, phase)| async move {
            let (piece, next) = watch.advance(phase).await;
            piece.map(|piece| (Ok(piece), (watch, next)))
        })
    }

    async fn advance(&mut self, phase: Phase) -> (Option<Bytes>, Phase) {
        let moved = match phase {
            Phase::Initial(initial) => self.initial(initial).await,
            Phase::Live => self.live().await,
            Phase::Over => return (None, Phase::Over),
        };
        let (piece, next) = match moved {
            // As upstream, where no object can be written as the metadata of a list.
            Ok((Some(_), _)) if self.encoder.is_of_lists() => (None, Phase::Over),
            moved => moved.unwrap_or_else(|failure| (Some(self.encoder.error(&failure)), Phase::Over)),
        };
        self.metrics.sent += piece.as_ref().map_or(0, Bytes::len);
        (piece, next)
    }

    async fn initial(&mut self, mut initial: Box<Initial>) -> Result<(Option<Bytes>, Phase), Status> {
        if self.api.stopping.is_cancelled() || Instant::now() >= self.pace.end {
            return Ok((None, Phase::Over));
        }
        let mut out = BytesMut::new();
        while out.len() < PIECE {
            if let Some(object) = initial.slice.next() {
                let frame = self.encoder.initial(Seen::Added, (&object.key, &object.record), object.revision)?;
                self.metrics.events.inc();
                self.metrics.sizes.observe(frame.len() as f64);
                out.extend_from_slice(&frame);
                continue;
            }
            let next = initial.rest.next();
            let whose = (&*self.api, &*self.call, &self.filter.target);
            let Some(slice) = meanwhile(whose, &mut self.pace, &mut self.stopping, next).await? else {
                return Ok((None, Phase::Over));
            };
            let Some(slice) = slice else {
                if self.marks_end {
                    out.extend_from_slice(&self.encoder.bookmark(self.delivered, true)?);
                    self.metrics.first_state.observe(self.started.elapsed().as_secs_f64());
                }
                return Ok((Some(out.freeze()), Phase::Live));
            };
            initial.slice = slice.into_iter();
        }
        Ok((Some(out.freeze()), Phase::Initial(initial)))
    }

    /// Waits until there is something to send, or the end.
    async fn live(&mut self) -> Result<(Option<Bytes>, Phase), Status> {
        loop {
            let turn = tokio::select! {
                biased;
                () = self.stopping.as_mut() => Turn::Stop,
                // Before events: a stream of them without pause must not put off the end or a look at permissions.
                () = self.pace.alarm.as_mut() => Turn::Time,
                batch = self.events.next() => Turn::Batch(batch),
            };
            match turn {
                Turn::Stop => return Ok((None, Phase::Over)),
                Turn::Batch(batch) => {
                    // A cursor that fell behind what is kept ends as one that started too early: list again.
                    let batch = batch.map_err(|e| watch_failed(&self.filter.target, &e))?;
                    let Some(frames) = self.frames(&batch).await? else {
                        return Ok((None, Phase::Over));
                    };
                    if !frames.is_empty() {
                        return Ok((Some(frames), Phase::Live));
                    }
                }
                Turn::Time => {
                    let due = self.on_time().await?;
                    self.pace.set_alarm();
                    if let Some(done) = due {
                        return Ok(done);
                    }
                }
            }
        }
    }

    /// The frames of a batch; `None` when the watch has come to its end meanwhile.
    async fn frames(&mut self, batch: &EventBatch) -> Result<Option<Bytes>, Status> {
        let mut frames: Vec<Bytes> = Vec::new();
        let is_due = |event: &&Arc<Event>| event.revision > self.after && self.filter.is_in_scope(event);
        // What was written under another definition is for those who watch by that.
        if batch.events.iter().any(|event| is_due(&event))
            && is_redefined(&self.api, &self.call, &self.filter.target).await?
        {
            return Ok(None);
        }
        for event in batch.events.iter().filter(is_due) {
            let shown = self.api.event_in_version(&self.filter.target, event, self.filter.selects());
            let whose = (&*self.api, &*self.call, &self.filter.target);
            let shown = meanwhile(whose, &mut self.pace, &mut self.stopping, shown).await?;
            let Some(event) = shown else { return Ok(None) };
            let event = from_shared(&self.api, &self.call, event).await?;
            if let Some((seen, record)) = self.filter.sees(&event)? {
                let of = (&event.key, &**record);
                // Others may see the same write in another way.
                let frame = if self.is_own_view {
                    self.encoder.initial(seen, of, event.revision)?
                } else {
                    self.encoder.frame(&self.api.frames, seen, of, event.revision)?
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

    /// Something is due: the end, a look at permissions, a bookmark.
    async fn on_time(&mut self) -> Result<Option<(Option<Bytes>, Phase)>, Status> {
        let now = Instant::now();
        if now >= self.pace.end {
            return Ok(Some((None, Phase::Over)));
        }
        if now >= self.pace.next_check {
            self.pace.next_check = now + RECHECKS;
            if !goes_on(&self.api, &self.call, &self.filter.target).await? {
                return Ok(Some((None, Phase::Over)));
            }
        }
        if self.pace.bookmarks && now >= self.pace.next_bookmark {
            self.pace.plan_bookmark(now);
            let progress = self.events.progress();
            if progress < self.after {
                return Ok(None);
            }
            self.delivered = self.delivered.max(progress);
            return Ok(Some((Some(self.encoder.bookmark(self.delivered, false)?), Phase::Live)));
        }
        Ok(None)
    }
}

/// A shared object that becomes an own one was there before.
async fn from_shared(api: &ApiServer, call: &Call, event: Arc<Event>) -> Result<Arc<Event>, Status> {
    if event.change == Change::Updated || !bootstrap::is_shared(&event.key) {
        return Ok(event);
    }
    let roles = api.rbac.roles(call.cluster.id).await?;
    let shared = bootstrap::one(api, &call.cluster, &event.key, &roles).map(|shared| shared.record);
    let changed = if event.change == Change::Created {
        Event { change: Change::Updated, previous: shared, ..Event::clone(&event) }
    } else {
        // The shared object is shown again.
        let Some(shared) = shared else { return Ok(event) };
        Event { change: Change::Updated, previous: Some(event.record.clone()), record: shared, ..Event::clone(&event) }
    };
    Ok(Arc::new(changed))
}

/// What a watch waits for, such as a webhook that converts objects, for as long as it may go on; `None` at its end.
///
/// # Errors
/// Those of what it waits for; and whoever has lost the right to watch waits no more.
async fn meanwhile<T>(
    (api, call, target): (&ApiServer, &Call, &Target),
    pace: &mut Pace,
    stopping: &mut Pin<Box<WaitForCancellationFutureOwned>>,
    awaited: impl Future<Output = Result<T, Status>>,
) -> Result<Option<T>, Status> {
    let mut awaited = pin!(awaited);
    loop {
        tokio::select! {
            biased;
            () = stopping.as_mut() => return Ok(None),
            done = awaited.as_mut() => return done.map(Some),
            () = tokio::time::sleep_until(pace.next_look()) => {}
        }
        if Instant::now() >= pace.end {
            return Ok(None);
        }
        pace.next_check = Instant::now() + RECHECKS;
        if !goes_on(api, call, target).await? {
            return Ok(None);
        }
    }
}

/// Whether a watch may go on: that of custom resources ends, as upstream, when their definition is another one. It is begun again by
/// what holds now.
///
/// # Errors
/// Whoever has lost the right to watch, whose token has ended, or whose logical cluster is gone, watches no more.
async fn goes_on(api: &ApiServer, call: &Call, target: &Target) -> Result<bool, Status> {
    if api.directory.by_id(call.cluster.id).is_none() {
        return Err(Status::no_such_path());
    }
    let (identity, cluster) = (&call.identity, call.cluster.id);
    identity.check_again(&api.authenticator, &*api.rbac, cluster, &call.attributes).await?;
    match api.rbac.authorize(cluster, &identity.user, &call.attributes).await? {
        Verdict::Allowed(_) => is_as_defined(api, call, target).await,
        Verdict::Denied(why) => Err(call.attributes.denial(&identity.user, &why)),
    }
}

/// Whether a resource is still defined as it was. While its definition goes, watchers are told of the end of its objects.
async fn is_as_defined(api: &ApiServer, call: &Call, target: &Target) -> Result<bool, Status> {
    Ok(matches!(definition(api, call, target).await?, Definition::Same))
}

/// Whether a resource is defined otherwise than it was. Where it is not defined any more, its last events tell of its end.
async fn is_redefined(api: &ApiServer, call: &Call, target: &Target) -> Result<bool, Status> {
    Ok(matches!(definition(api, call, target).await?, Definition::Other))
}

/// What a definition is to a watch that began under it.
enum Definition {
    Same,
    Other,
    Gone,
}

async fn definition(api: &ApiServer, call: &Call, target: &Target) -> Result<Definition, Status> {
    let Some(began) = &target.definition else { return Ok(Definition::Same) };
    match api.kinds.definition(began.key.cluster, &began.key.name).await? {
        None => return Ok(Definition::Gone),
        Some(now) if now.created != began.created => return Ok(Definition::Other),
        Some(now) if now.is_deleting => return Ok(Definition::Same),
        Some(_) => {}
    }
    let now = api.kinds.served(call.cluster.id).await?.surface.kind(&target.kind.gvk);
    // Of definitions that say the same there is one table.
    let is_same = |now: Served| now.kind.served && Arc::ptr_eq(&now.table, &target.table);
    Ok(if now.is_some_and(is_same) { Definition::Same } else { Definition::Other })
}
