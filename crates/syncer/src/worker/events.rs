//! Brings up the Events about what is shown above or was made from above: those that come while this worker looks, each object's
//! a few, each logical cluster's at a bounded rate. Nothing depends on them, so what is too much is dropped.

use std::{collections::HashMap, sync::Arc, time::Duration};

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, object, upstream::Projection, work::Outcome};
use serde_json::Value;
use tokio::time::Instant;

use super::{SyncError, Work, Worker, mirror::Place, queue::jitter, session::Session};
use crate::{
    client::{DownstreamError, Served, WatchEvent, weight},
    project,
};

const PATH: &str = "/api/v1/events";
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Events that wait for their objects to be shown.
const MAX_WAITING: usize = 1000;
/// Largest Event that is shown, in bytes of memory. Kubernetes bounds its texts by 1 KiB each.
const MAX_EVENT: usize = 64 * 1024;
/// How long one waits for that.
const PATIENCE: Duration = Duration::from_secs(30);
/// Events of a logical cluster that may come at once.
const BURST: f64 = 50.0;
/// And per second in the long run.
const PER_SECOND: f64 = 2.0;

/// An Event below that has yet to be shown.
pub(super) struct Waiting {
    event: Value,
    since: Instant,
}

/// What each logical cluster may still show.
#[derive(Default)]
pub(super) struct Allowances(HashMap<LogicalClusterId, (f64, Instant)>);

impl Allowances {
    fn spend(&mut self, cluster: LogicalClusterId, now: Instant) -> bool {
        let (left, at) = self.0.get(&cluster).copied().unwrap_or((BURST, now));
        let left = (left + now.duration_since(at).as_secs_f64() * PER_SECOND).min(BURST);
        let may = left >= 1.0;
        self.0.insert(cluster, (if may { left - 1.0 } else { left }, now));
        // One that has all again is as one that never spent any.
        if self.0.len() > MAX_WAITING {
            self.0.retain(|_, (left, at)| *left + now.duration_since(*at).as_secs_f64() * PER_SECOND < BURST);
        }
        may
    }
}

fn events() -> GroupResource {
    GroupResource::new("", "events")
}

/// Runs until its session ends. A credential that may not read Events costs nothing but them.
pub(super) async fn follow(worker: Arc<Worker>, session: Arc<Session>) {
    let (mut version, mut pause) = (None, FIRST_PAUSE);
    loop {
        session.api.trusted().await;
        match watch(&worker, &session, version.take()).await {
            Ok(reached) => {
                version = Some(reached);
                pause = FIRST_PAUSE;
            }
            Err(error) => {
                tracing::debug!(cluster = %worker.config.name, %error, "the events of a physical cluster are not followed");
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
        tokio::time::sleep(jitter(&worker.seams, pause)).await;
    }
}

/// From `version` on, or from now. Returns how far it got when the server ends the watch.
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
                worker.noticed_event(session, object);
            }
        }
    }
    Ok(reached)
}

impl Worker {
    fn noticed_event(&self, session: &Session, mut event: Value) {
        object::metadata_mut(&mut event).remove("managedFields");
        if weight::of(&event) > MAX_EVENT {
            return;
        }
        let Some((cluster, _)) = self.namespace_above(session, object::namespace(&event)) else { return };
        let place = Place::of(&events(), &event);
        let now = Instant::now();
        {
            let mut state = self.state();
            let is_known = state.events.contains_key(&place);
            if !is_known && (state.events.len() >= MAX_WAITING || !state.event_allowances.spend(cluster, now)) {
                return;
            }
            state.events.insert(place.clone(), Waiting { event, since: now });
        }
        self.queue.add(Work::Event(place));
    }

    pub(super) async fn reconcile_event(&self, place: &Place) -> Result<Outcome, SyncError> {
        let session = self.session()?;
        let waiting = self.state().events.get(place).map(|waiting| (waiting.event.clone(), waiting.since));
        let Some((event, since)) = waiting else { return Ok(Outcome::Done) };
        match self.show_event(&session, place, &event).await {
            Err(_) if since.elapsed() < PATIENCE => Err(SyncError::OwnerUnknown("what an event is about".into())),
            _ => {
                // A newer one that came meanwhile has asked for another look.
                let mut state = self.state();
                if state.events.get(place).is_some_and(|waiting| waiting.event == event) {
                    state.events.remove(place);
                }
                Ok(Outcome::Done)
            }
        }
    }

    /// Fails while what it is about is not shown, or cannot be read.
    async fn show_event(&self, session: &Session, place: &Place, event: &Value) -> Result<(), SyncError> {
        let Some((cluster, namespace)) = self.namespace_above(session, &place.namespace) else { return Ok(()) };
        let Some(subject) = self.subject(session, place, event) else {
            return Err(SyncError::OwnerUnknown("what an event is about".into()));
        };
        let Some(subject) = self.upstream.get(&subject).await? else { return Ok(()) };
        let (Some(shown), Ok(name)) =
            (project::event(event, &namespace, &subject, &self.config.name), place.name.parse())
        else {
            return Ok(());
        };
        let key = ObjectKey::namespaced(cluster, events(), namespace, name);
        let projection = Projection { events: vec![(key, subject.key, shown)], ..Projection::default() };
        Ok(self.upstream.project(&self.config.uid, projection).await?)
    }

    /// The upstream address of what an Event is about, once it is known: of a copy, or of what is shown.
    fn subject(&self, session: &Session, place: &Place, event: &Value) -> Option<ObjectKey> {
        let about = &event["involvedObject"];
        let (kind, name) = (about["kind"].as_str()?, about["name"].as_str()?);
        let group = about["apiVersion"].as_str().map(|version| version.rsplit_once('/').map_or("", |(group, _)| group));
        let is_it =
            |served: &Served| *served.kind.kind == *kind && group.is_none_or(|group| *served.kind.group == *group);
        let served = session.all_served().into_iter().find(is_it)?;
        let at = Place { resource: served.resource, namespace: place.namespace.clone(), name: name.to_owned() };
        let found =
            session.mirror.get(&at).filter(|found| about["uid"].as_str().is_none_or(|uid| uid == found.uid()))?;
        self.key_above(&at, &found.object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_logical_cluster_shows_events_at_a_bounded_rate() {
        let mut allowances = Allowances::default();
        let mut shown =
            |cluster, seconds| (0..seconds * 100).filter(|_| allowances.spend(cluster, Instant::now())).count();
        let (noisy, calm) = (LogicalClusterId::new(7), LogicalClusterId::new(8));
        assert_eq!((shown(noisy, 10), shown(calm, 0)), (50, 0), "a burst");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(shown(noisy, 1), 20, "then a few per second");
        assert_eq!(shown(calm, 10), 50, "one does not take from another");
    }
}
