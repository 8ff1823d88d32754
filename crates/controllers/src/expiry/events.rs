//! Expiry of Events: an hour after their last write, as with kube-apiserver's `--event-ttl`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::ExpiryRule;

const LIFE: SignedDuration = SignedDuration::from_hours(1);

/// Rule of Events. A repeated Event begins another hour.
pub const EVENTS: ExpiryRule = ExpiryRule {
    name: "event-expiry",
    of: ("", "v1", "Event"),
    ends,
    propagation: None,
    only_lengthens: true,
    round: Duration::from_secs(10),
};

/// Returns the latest time in an Event, which is about its last write. Times in the future do not count: clients write
/// them.
fn last_seen(event: &Value, now: Timestamp) -> Option<Timestamp> {
    const MOMENTS: [&str; 5] =
        ["/metadata/creationTimestamp", "/firstTimestamp", "/lastTimestamp", "/eventTime", "/series/lastObservedTime"];
    let at = |pointer: &&str| event.pointer(pointer)?.as_str()?.parse::<Timestamp>().ok();
    MOMENTS.iter().filter_map(at).filter(|at| *at <= now).max()
}

/// Returns when an Event expires: now, if it has no time.
fn ends(event: &Value, now: Timestamp) -> Option<Timestamp> {
    last_seen(event, now).map_or(Some(now), |at| at.saturating_add(LIFE).ok())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_kinds::KindTable;
    use portolan_types::{LogicalClusterId, Seams};
    use serde_json::json;

    use super::*;
    use crate::{Controller as _, Plane, PlaneError, WorkOutcome, expiry::ExpiryController};

    #[tokio::test]
    async fn an_event_that_comes_again_while_it_is_ended_stays() {
        let store = portolan_store::memory();
        let at = |now: &str| Seams::seeded(1, now.parse().unwrap());
        let before = Plane::new(store.clone(), KindTable::builtin(), at("2026-01-01T10:00:00Z"));
        let now = Arc::new(Plane::new(store.clone(), KindTable::builtin(), at("2026-01-01T12:00:00Z")));
        let expiry = ExpiryController::new(now.clone(), EVENTS);
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
        assert!(matches!(expiry.reconcile(&found.key).await, Ok(WorkOutcome::Done)));
        assert!(now.get(&found.key).await.unwrap().is_none(), "it has not changed since it was read");
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
            let left = ends(&event, now).unwrap().duration_since(now).max(SignedDuration::ZERO);
            assert_eq!((left.as_secs_f64() / 60.0).round() as u64, minutes, "{case}");
        }
    }
}
