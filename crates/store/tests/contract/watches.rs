//! Watches.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, future::join_all};
use portolan_store::{ChangeKind, Expect, RangeScope, StoreError, Transaction, WatchScope};
use portolan_types::ResourceVersion;

use crate::scene::{ContractScene, cluster, events_until, pod, pods, record, role, text};

fn all_pods() -> WatchScope {
    WatchScope::Resource(pods(), None)
}

pub(crate) async fn a_list_and_its_watch_have_no_hole(scene: ContractScene) {
    let scene = Arc::new(scene.with_tiny_ring());
    let stop = Arc::new(AtomicBool::new(false));
    let writer = |n: u64| {
        let (scene, stop) = (scene.clone(), stop.clone());
        async move {
            let mut round = 0u64;
            while !stop.load(Ordering::Acquire) {
                round += 1;
                let key = pod(1, &format!("p{}", (round * 7 + n) % 13));
                let put = !round.is_multiple_of(3);
                let record = put.then(|| record(&key, &format!("{n}.{round}")));
                let _ = scene.commit(Transaction::one(key, Expect::Anything, record)).await;
            }
        }
    };
    let writers: Vec<_> = (0..4).map(|n| tokio::spawn(writer(n))).collect();
    let watchers = (0..4).map(|_| tokio::spawn(list_and_watch(scene.clone())));
    join_all(watchers).await.into_iter().for_each(|watcher| watcher.unwrap());
    stop.store(true, Ordering::Release);
    join_all(writers).await.into_iter().for_each(|writer| writer.unwrap());
}

/// Lists, follows the watch for a while, and compares with a list of the state then reached.
async fn list_and_watch(scene: Arc<ContractScene>) {
    for _ in 0..6 {
        let page = scene.store.range(portolan_store::RangeRequest::all(RangeScope::Cluster(cluster(1), pods()))).await;
        let page = page.unwrap();
        let mut state: BTreeMap<_, _> = page.objects.iter().map(|o| (o.key.clone(), o.revision)).collect();
        let mut stream = scene.watch(all_pods(), Some(page.revision)).await;
        let mut at = page.revision;
        let mut batches = 0;
        while batches < 60 && at < page.revision.plus(60 * 128) {
            batches += 1;
            let batch = stream.next().await.unwrap();
            assert!(batch.revision > at);
            for event in &batch.events {
                assert!(event.revision > at && event.revision <= batch.revision);
                match event.change {
                    ChangeKind::Created => assert_eq!(state.insert(event.key.clone(), event.revision), None),
                    ChangeKind::Updated => assert!(state.insert(event.key.clone(), event.revision).is_some()),
                    ChangeKind::Deleted => assert!(state.remove(&event.key).is_some()),
                }
            }
            at = batch.revision;
        }
        let request = portolan_store::RangeRequest {
            at: Some(at),
            ..portolan_store::RangeRequest::all(RangeScope::Cluster(cluster(1), pods()))
        };
        let page = scene.store.range(request).await.unwrap();
        let listed: BTreeMap<_, _> = page.objects.iter().map(|o| (o.key.clone(), o.revision)).collect();
        assert_eq!(state, listed);
    }
}

pub(crate) async fn a_watcher_that_fell_off_the_ring_misses_nothing(scene: ContractScene) {
    let scene = scene.with_tiny_ring();
    let mut slow = scene.watch(all_pods(), None).await;
    let mut one_cluster = scene.watch(WatchScope::Resource(pods(), Some(cluster(2))), None).await;
    let mut last = ResourceVersion::FIRST;
    for n in 0..60u64 {
        last = scene.put(&pod(n % 3, &format!("p{n}")), &"x".repeat(700)).await;
    }
    let events = events_until(&mut *slow, last).await;
    let names: Vec<String> = events.iter().map(|event| event.key.name.to_string()).collect();
    assert_eq!(names, (0..60).map(|n| format!("p{n}")).collect::<Vec<_>>());
    assert_eq!(events_until(&mut *one_cluster, last).await.len(), 20);
    let next = scene.put(&pod(2, "next"), "y").await;
    for stream in [&mut slow, &mut one_cluster] {
        let batch = stream.next().await.unwrap();
        assert_eq!((batch.events.len(), batch.revision), (1, next));
    }
}

pub(crate) async fn a_watcher_behind_the_floor_gets_an_expired_error(scene: ContractScene) {
    let scene = scene.with_tiny_ring();
    let mut slow = scene.watch(all_pods(), None).await;
    let mut last = ResourceVersion::FIRST;
    for n in 0..60u64 {
        last = scene.put(&pod(1, &format!("p{n}")), &"x".repeat(700)).await;
    }
    scene.store.compact(last).await.unwrap();
    let told = slow.next().await.err();
    assert!(matches!(told, Some(StoreError::Compacted { oldest, .. }) if oldest == last), "{told:?}");
    let mut fresh = scene.watch(all_pods(), Some(last)).await;
    let next = scene.delete(&pod(1, "p0")).await;
    let batch = fresh.next().await.unwrap();
    assert_eq!(
        (batch.revision, batch.events[0].change, &*text(&batch.events[0].record)),
        (next, ChangeKind::Deleted, &*"x".repeat(700))
    );
}

pub(crate) async fn progress_goes_on_while_nothing_matches(scene: ContractScene) {
    let mut stream = scene.watch(WatchScope::Resource(pods(), Some(cluster(1))), None).await;
    assert_eq!(stream.progress(), scene.store.current());
    assert!(stream.next().now_or_never().is_none());
    scene.put(&pod(2, "a"), "x").await;
    let elsewhere = scene.put(&role(1, "a"), "x").await;
    assert_eq!(stream.progress(), elsewhere);
    let here = scene.put(&pod(1, "a"), "x").await;
    assert_eq!(stream.progress(), elsewhere, "what waits to be delivered holds progress back");
    scene.put(&pod(2, "b"), "x").await;
    let batch = stream.next().await.unwrap();
    assert_eq!(batch.events.iter().map(|event| event.revision).collect::<Vec<_>>(), [here]);
    assert_eq!((batch.revision, stream.progress()), (scene.store.current(), scene.store.current()));
}

pub(crate) async fn a_transaction_is_delivered_in_one_piece(scene: ContractScene) {
    for scene in [ContractScene::new(scene.subject()), scene.with_tiny_ring()] {
        let mut stream = scene.watch(all_pods(), None).await;
        let mut boundaries = Vec::new();
        for round in 0..30 {
            let txn = (0..90).fold(Transaction::default(), |txn, n| {
                let key = pod(1, &format!("p{round}.{n}"));
                let record = record(&key, "x");
                txn.and(key, Expect::Absent, Some(record))
            });
            boundaries.push(scene.commit(txn).await.unwrap().last);
        }
        let mut count = 0;
        while count < 30 * 90 {
            let batch = stream.next().await.unwrap();
            assert!(boundaries.contains(&batch.revision), "{} is no boundary", batch.revision);
            assert_eq!(batch.events.last().unwrap().revision, batch.revision);
            count += batch.events.len();
        }
        assert_eq!(count, 30 * 90);
    }
}

pub(crate) async fn a_dropped_wait_loses_nothing(scene: ContractScene) {
    let mut stream = scene.watch(all_pods(), None).await;
    for n in 0..20 {
        let name = format!("p{n}");
        assert!(stream.next().now_or_never().is_none());
        scene.put(&pod(1, &name), "x").await;
        let batch = stream.next().await.unwrap();
        assert_eq!(batch.events.iter().map(|event| event.key.clone()).collect::<Vec<_>>(), [pod(1, &name)]);
    }
}

pub(crate) async fn closing_ends_every_watch(scene: ContractScene) {
    let mut stream = scene.watch(all_pods(), None).await;
    let store = scene.store.clone();
    let waiting = tokio::spawn(async move { stream.next().await.err() });
    tokio::task::yield_now().await;
    store.close().await;
    let ended = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    assert!(matches!(ended, Some(StoreError::Backend(_))), "{ended:?}");
}

pub(crate) async fn a_name_that_is_used_again_is_another_object(scene: ContractScene) {
    let key = pod(1, "a");
    let before = scene.store.current();
    let (first, changed) = (scene.put(&key, "first").await, scene.put(&key, "changed").await);
    let deleted = scene.delete(&key).await;
    let second = scene.put(&key, "second").await;
    let mut stream = scene.watch(all_pods(), Some(before)).await;
    let events = events_until(&mut *stream, second).await;
    let seen: Vec<_> = events.iter().map(|e| (e.revision, e.change, text(&e.record), e.previous.is_some())).collect();
    let expected = [
        (first, ChangeKind::Created, "first".to_owned(), false),
        (changed, ChangeKind::Updated, "changed".to_owned(), true),
        (deleted, ChangeKind::Deleted, "changed".to_owned(), false),
        (second, ChangeKind::Created, "second".to_owned(), false),
    ];
    assert_eq!(seen, expected, "a deletion shows the last state at a revision of its own");
    let stored = scene.store.get(&key).await.unwrap().unwrap();
    assert_eq!((stored.created, stored.revision), (second, second));
    let stale = scene.commit(Transaction::one(key.clone(), Expect::At(changed), None)).await;
    assert!(matches!(stale, Err(StoreError::Conflict { actual, .. }) if actual == second), "{stale:?}");
}
