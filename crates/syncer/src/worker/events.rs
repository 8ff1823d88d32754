//! Projection of Events about projected objects and copies: those that occur while this worker watches, a few per
//! object, and at a bounded rate per logical cluster. Nothing depends on them, so the excess is dropped.

use std::{collections::HashMap, sync::Arc, time::Duration};

use portolan_types::{GroupResource, ObjectKey, object, upstream::Projection, work::WorkOutcome};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    SyncError, Work, Worker,
    queue::jitter,
    reflector_cache::ObjectRef,
    session::Session,
    token_buckets::{EVENT_RATE, WRITE_RATE},
};
use crate::{
    client::{DownstreamError, ServedResource, WatchEvent, weight},
    memory::SyncMemoryCharge,
    project,
};

const PATH: &str = "/api/v1/events";
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Events that wait for their objects to be shown.
const MAX_WAITING: usize = 1000;
/// Largest Event that is shown, in bytes of memory. Kubernetes bounds its texts by 1 KiB each.
const MAX_EVENT: usize = 64 * 1024;
/// Bytes of memory of all Events that wait.
const MAX_WAITING_BYTES: u64 = 4 * 1024 * 1024;
/// Longest wait of an Event for its object.
const PATIENCE: Duration = Duration::from_secs(30);

/// Event downstream that has yet to be shown.
struct WaitingEvent {
    event: Value,
    since: Instant,
    bytes: u64,
}

/// Events that wait to be shown, bounded in number and bytes.
#[derive(Default)]
pub(super) struct WaitingEvents {
    by_place: HashMap<ObjectRef, WaitingEvent>,
    bytes: u64,
    charge: SyncMemoryCharge,
}

impl WaitingEvents {
    pub(super) fn charging(charge: SyncMemoryCharge) -> Self {
        Self { charge, ..Self::default() }
    }

    /// Adds an Event, or replaces an older state of it. Returns false when there is no room; then nothing changes.
    fn insert(&mut self, place: ObjectRef, event: Value, now: Instant) -> bool {
        let bytes = u64::try_from(weight::of(&event)).unwrap_or(u64::MAX);
        let known = self.by_place.get(&place);
        let after = (self.bytes - known.map_or(0, |known| known.bytes)).saturating_add(bytes);
        let is_full = known.is_none() && self.by_place.len() >= MAX_WAITING;
        if is_full || after > MAX_WAITING_BYTES || self.charge.resize(after).is_err() {
            return false;
        }
        self.bytes = after;
        self.by_place.insert(place, WaitingEvent { event, since: now, bytes });
        true
    }

    fn remove(&mut self, place: &ObjectRef) {
        if let Some(removed) = self.by_place.remove(place) {
            self.bytes -= removed.bytes;
            self.charge.shrink(removed.bytes);
        }
    }
}

fn events() -> GroupResource {
    GroupResource::new("", "events")
}

/// Runs until its session ends. Without the right to read Events, only Events are missing.
pub(super) async fn follow(worker: Arc<Worker>, session: Arc<Session>) {
    let (mut version, mut pause) = (None, FIRST_PAUSE);
    loop {
        session.api.wait_until_trusted().await;
        match watch(&worker, &session, version.take()).await {
            Ok(reached) => {
                version = Some(reached);
                pause = FIRST_PAUSE;
            }
            Err(error) => {
                tracing::debug!(cluster = %worker.config.name, %error, "the watch of Events failed");
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
        tokio::time::sleep(jitter(&worker.seams, pause)).await;
    }
}

/// Watches from `version` on, or from now. Returns the last version when the server ends the watch.
async fn watch(worker: &Worker, session: &Session, version: Option<String>) -> Result<String, DownstreamError> {
    let mut reached = match version {
        Some(version) => version,
        None => session.api.version(PATH).await?,
    };
    let mut stream = session.api.watch(PATH, "", &reached).await?;
    while let Some(event) = stream.next().await? {
        match event {
            WatchEvent::Bookmark(version) => reached = version,
            WatchEvent::Deleted(object) => reached = object::meta_text(&object, "resourceVersion").to_owned(),
            WatchEvent::Present(object) => {
                reached = object::meta_text(&object, "resourceVersion").to_owned();
                worker.observe_event(session, object);
            }
        }
    }
    Ok(reached)
}

impl Worker {
    fn observe_event(&self, session: &Session, mut event: Value) {
        object::metadata_mut(&mut event).remove("managedFields");
        if weight::of(&event) > MAX_EVENT {
            return;
        }
        let Some((cluster, _)) = self.upstream_namespace(session, object::namespace(&event)) else { return };
        let place = ObjectRef::of(&events(), &event);
        let now = Instant::now();
        {
            // Each state that is taken in is written upstream once, so each counts.
            let mut state = self.state();
            if state.event_rates.take(cluster, EVENT_RATE, now).is_err()
                || !state.events.insert(place.clone(), event, now)
            {
                return;
            }
        }
        self.queue.add(Work::Event(place));
    }

    pub(super) async fn reconcile_event(&self, place: &ObjectRef) -> Result<WorkOutcome, SyncError> {
        let session = self.session()?;
        let waiting = self.state().events.by_place.get(place).map(|waiting| (waiting.event.clone(), waiting.since));
        let Some((event, since)) = waiting else { return Ok(WorkOutcome::Done) };
        match self.project_event(&session, place, &event).await {
            Err(_) if since.elapsed() < PATIENCE => Err(SyncError::OwnerUnknown("what an event is about".into())),
            _ => {
                // A newer Event that arrived meanwhile has queued another reconcile.
                let mut state = self.state();
                if state.events.by_place.get(place).is_some_and(|waiting| waiting.event == event) {
                    state.events.remove(place);
                }
                Ok(WorkOutcome::Done)
            }
        }
    }

    /// Fails while the Event's object is not projected, or cannot be read.
    async fn project_event(&self, session: &Session, place: &ObjectRef, event: &Value) -> Result<(), SyncError> {
        let Some((cluster, namespace)) = self.upstream_namespace(session, &place.namespace) else { return Ok(()) };
        let Some((at, key)) = self.subject(session, place, event) else {
            return Err(SyncError::OwnerUnknown("what an event is about".into()));
        };
        let Some(subject) = self.read_placed(&key).await? else { return Ok(()) };
        let (Some(shown), Ok(name)) =
            (project::event(event, &namespace, &subject, &self.config.name), place.name.parse())
        else {
            return Ok(());
        };
        // Events have a bucket of their own, so that they do not delay the object's writes. The excess is dropped.
        if self.state().write_rates.take(Work::Event(at), WRITE_RATE, Instant::now()).is_err() {
            return Ok(());
        }
        let key = ObjectKey::namespaced(cluster, events(), namespace, name);
        let projection = Projection { events: vec![(key, subject.key, shown)], ..Projection::default() };
        Ok(self.upstream.project(&self.config.uid, projection).await?)
    }

    /// Returns the addresses downstream and upstream of the object that an Event is about, once it is known: a copy, or
    /// an object that is shown.
    fn subject(&self, session: &Session, place: &ObjectRef, event: &Value) -> Option<(ObjectRef, ObjectKey)> {
        let about = &event["involvedObject"];
        let (kind, name) = (about["kind"].as_str()?, about["name"].as_str()?);
        let group = about["apiVersion"].as_str().map(|version| version.rsplit_once('/').map_or("", |(group, _)| group));
        let is_it = |served: &ServedResource| {
            *served.kind.kind == *kind && group.is_none_or(|group| *served.kind.group == *group)
        };
        let served = session.all_served().into_iter().find(is_it)?;
        let at = ObjectRef { resource: served.resource, namespace: place.namespace.clone(), name: name.to_owned() };
        let found =
            session.cache.get(&at).filter(|found| about["uid"].as_str().is_none_or(|uid| uid == found.uid()))?;
        let key = self.upstream_address(&at, &found.object)?;
        Some((at, key))
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::placement::CopyPhase;

    use super::*;
    use crate::testing::{
        FakeCluster,
        suite::{SyncStage, deployment},
    };

    #[tokio::test(start_paused = true)]
    async fn events_that_wait_are_bounded_in_number_and_bytes() {
        let place = |n: usize| ObjectRef { resource: events(), namespace: "shop".into(), name: format!("e{n}") };
        let event = |bytes: usize| serde_json::json!({"message": "x".repeat(bytes)});
        let mut waiting = WaitingEvents::default();
        let taken = (0..2000).filter(|n| waiting.insert(place(*n), event(10), Instant::now())).count();
        assert_eq!(taken, MAX_WAITING);
        assert!(waiting.insert(place(0), event(20), Instant::now()), "a later state takes the place of an earlier one");
        let mut waiting = WaitingEvents::default();
        let taken = (0..2000).filter(|n| waiting.insert(place(*n), event(60_000), Instant::now())).count();
        assert!((60..70).contains(&taken) && waiting.bytes <= MAX_WAITING_BYTES, "{taken}");
        assert!(!waiting.insert(place(0), event(200_000), Instant::now()), "replacing counts too");
        (0..2000).for_each(|n| waiting.remove(&place(n)));
        assert_eq!((waiting.bytes, waiting.by_place.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_changes_without_end_is_written_upstream_at_a_bounded_rate() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let copy = cluster.all("deployments").remove(0);
        let about = serde_json::json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": object::namespace(&copy),
            "name": "web", "uid": object::meta_text(&copy, "uid")});
        let before = stage.upstream.event_count();
        for count in 0..1200 {
            let metadata = serde_json::json!({"name": "web.1", "namespace": object::namespace(&copy)});
            let event = serde_json::json!({"metadata": metadata, "involvedObject": about, "type": "Warning", "reason": "A", "message": "a", "count": count});
            cluster.put("events", event);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let written = stage.upstream.event_count() - before;
        assert!((20..=81).contains(&written), "{written} writes in 60 s");
        stage.handle.stop().await;
    }
}
