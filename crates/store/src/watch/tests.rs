//! Tests of the rings' limits.

use std::sync::Arc;

use futures::task::noop_waker;
use portolan_types::{ObjectKey, Record, ResourceVersion};
use serde_json::json;

use super::*;
use crate::api::ChangeKind;

fn resource(n: usize) -> GroupResource {
    GroupResource::new("example.org", format!("kind{n}"))
}

fn published(of: usize, revision: u64, size: usize) -> PublishedEvent {
    let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource(of), "o".parse().unwrap());
    let record = Arc::new(Record::of(&json!({"data": "x".repeat(size)})));
    let revision = ResourceVersion::new(revision).unwrap();
    let event = Event { revision, change: ChangeKind::Created, key, record, previous: None };
    PublishedEvent { event: Arc::new(event), boundary: revision.get(), lost: None }
}

#[test]
fn all_rings_together_stay_within_their_bound_however_many_there_are() {
    const ALL: usize = 1 << 20;
    for topics in [1, 7, 3000] {
        let metrics = StoreMetrics::new(None).unwrap();
        let hub = Hub::new(StoreMarks { floor: 1, last: 1 }, RingBudget { each: ALL, all: ALL }, &metrics);
        let scopes: Vec<_> = (0..topics).map(|n| WatchScope::Resource(resource(n), None)).collect();
        let slots: Vec<_> = scopes.iter().map(|scope| hub.enter(scope, None).unwrap().0).collect();
        let mut most = 0;
        for n in 0..6000 {
            let last = n as u64 + 2;
            hub.publish(vec![published(n % topics, last, 1000)], StoreMarks { floor: 1, last }, || {});
            let state = hub.state.lock();
            let kept: usize = state.topics.values().map(|watched| watched.ring.bytes()).sum();
            assert_eq!((state.bytes, metrics.rings.get()), (kept, kept as i64));
            assert!(kept <= ALL, "{topics} rings keep {kept} bytes");
            most = most.max(kept);
        }
        assert!(most > ALL - 2000, "{topics} rings never keep more than {most} bytes");
        // A watcher at the latest event is served from the ring or the history.
        let (at, waker) = (6001 - topics.min(2) as u64, noop_waker());
        let last = &scopes[(6000 - 1) % topics];
        let next = hub.next(last, slots[(6000 - 1) % topics], &mut at.clone(), &mut Context::from_waker(&waker));
        assert!(matches!(next, Poll::Ready(CursorPoll::Batch(_) | CursorPoll::CatchUp)), "{topics}");
        for (scope, slot) in scopes.iter().zip(slots) {
            hub.leave(scope, slot);
        }
        assert_eq!((hub.state.lock().bytes, metrics.rings.get()), (0, 0));
    }
}

#[test]
fn a_busy_topic_keeps_its_events_beside_idle_ones() {
    const ALL: usize = 1 << 20;
    let metrics = StoreMetrics::new(None).unwrap();
    let hub = Hub::new(StoreMarks { floor: 1, last: 1 }, RingBudget { each: ALL, all: ALL }, &metrics);
    for n in 0..3000 {
        hub.enter(&WatchScope::Resource(resource(n), None), None).unwrap();
    }
    for n in 0..6000 {
        let last = n as u64 + 2;
        hub.publish(vec![published(n % 2, last, 1000)], StoreMarks { floor: 1, last }, || {});
        let state = hub.state.lock();
        for hot in 0..2 {
            let kept = state.topics[&RingTopic::Resource(resource(hot))].ring.bytes();
            assert!(kept > ALL / 5 || n < 1000, "of ring {hot} {kept} bytes are left after {n}");
        }
    }
}
