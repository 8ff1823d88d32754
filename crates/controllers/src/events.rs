//! Events end an hour after they were written last, as with kube-apiserver's `--event-ttl`.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use portolan_machinery::kinds::Kind;
use portolan_store::{Change, Event};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, ObjectKey};
use serde_json::Value;

use crate::{
    plane::{Found, Plane, PlaneError},
    runtime::{Controller, Outcome},
};

const LIFE: Duration = Duration::from_secs(3600);
/// One pass may serve many that end at about the same time.
const ROUND: Duration = Duration::from_secs(10);

/// The loop over Events.
pub struct EventExpiry {
    plane: Arc<Plane>,
    kind: &'static Kind,
}

impl EventExpiry {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>) -> Self {
        let kind = plane.table().kind(&GroupVersionKind::new("", "v1", "Event")).expect("the table has core/v1");
        Self { plane, kind }
    }

    /// One that comes again meanwhile begins another hour.
    async fn end(&self, found: &Found) -> Result<(), PlaneError> {
        self.plane.delete(self.kind, &found.key, &found.as_it_is()).await
    }
}

/// The latest moment that an Event names, which is about when it was written last. Moments that have yet to come do not count:
/// clients write them.
fn last_seen(event: &Value, now: Timestamp) -> Option<Timestamp> {
    const MOMENTS: [&str; 5] =
        ["/metadata/creationTimestamp", "/firstTimestamp", "/lastTimestamp", "/eventTime", "/series/lastObservedTime"];
    let at = |pointer: &&str| event.pointer(pointer)?.as_str()?.parse::<Timestamp>().ok();
    MOMENTS.iter().filter_map(at).filter(|at| *at <= now).max()
}

/// How long an Event has left.
fn rest(event: &Value, now: Timestamp) -> Duration {
    let age = last_seen(event, now).and_then(|at| Duration::try_from(now.duration_since(at)).ok());
    LIFE.saturating_sub(age.unwrap_or(LIFE))
}

impl Controller for EventExpiry {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "event-expiry"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.kind.storage.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        // What is written again is looked at when its first hour ends.
        if event.change == Change::Created { vec![event.key.clone()] } else { Vec::new() }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let Some(found) = self.plane.get(key).await? else { return Ok(Outcome::Done) };
            let rest = rest(&found.object, self.plane.seams().clock.now());
            if !rest.is_zero() {
                return Ok(Outcome::CheckAgainIn(rest.max(ROUND)));
            }
            self.end(&found).await?;
            Ok(Outcome::Done)
        })
    }
}

#[cfg(test)]
mod tests {
    use portolan_machinery::kinds::KindTable;
    use portolan_types::{LogicalClusterId, Seams};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn an_event_that_comes_again_while_it_is_ended_stays() {
        let store = portolan_store::memory();
        let at = |now: &str| Seams::seeded(1, now.parse().unwrap());
        let before = Plane::new(store.clone(), KindTable::builtin(), at("2026-01-01T10:00:00Z"));
        let now = Arc::new(Plane::new(store.clone(), KindTable::builtin(), at("2026-01-01T12:00:00Z")));
        let expiry = EventExpiry::new(now.clone());
        let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": {"namespace": "default"}});
        let found = before.create(expiry.kind, LogicalClusterId::ROOT, event).await.unwrap().unwrap();
        let again = |event: &mut Value| {
            event["count"] = json!(2);
            true
        };
        now.force(&found.key, again).await.unwrap();
        let refused = expiry.end(&found).await;
        assert!(matches!(&refused, Err(PlaneError::Refused(status)) if status.code() == 409), "{refused:?}");
        assert!(now.get(&found.key).await.unwrap().is_some());
        assert!(matches!(expiry.reconcile(&found.key).await, Ok(Outcome::Done)));
        assert!(now.get(&found.key).await.unwrap().is_none(), "nobody wrote it since it was read");
    }

    #[test]
    fn an_event_has_an_hour_from_when_it_was_seen_last() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        for (case, event, minutes) in [
            ("a new one", json!({"metadata": {"creationTimestamp": "2026-01-01T12:00:00Z"}}), 60),
            ("an old one", json!({"metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"}}), 0),
            (
                "one that came again",
                json!({"metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"}, "lastTimestamp": "2026-01-01T11:50:00Z"}),
                50,
            ),
            ("a series", json!({"series": {"lastObservedTime": "2026-01-01T11:30:00.5Z"}}), 30),
            (
                "one that claims the future",
                json!({"metadata": {"creationTimestamp": "2026-01-01T11:20:00Z"}, "eventTime": "2036-01-01T00:00:00Z"}),
                20,
            ),
            ("one without any time", json!({"eventTime": "yesterday"}), 0),
        ] {
            assert_eq!((rest(&event, now).as_secs_f64() / 60.0).round() as u64, minutes, "{case}");
        }
    }
}
