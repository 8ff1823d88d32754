//! Cases of kube-apiserver's shared storage tests that no other part of this suite covers.
//! `docs/reliability/storage-tests.md` lists all of them, each with its test here.

use std::{sync::Arc, time::Duration};

use futures::FutureExt as _;
use portolan_store::{
    ChangeKind, Expect, ModifyOutcome, ObjectClient, RangeRequest, RangeScope, Step, StoreError, Transaction,
    WatchScope,
};
use portolan_types::{GroupResource, NamespaceName, ObjectKey};

use crate::scene::{ContractScene, cluster, events_until, now, pod, pods, record, text};

fn all_pods() -> WatchScope {
    WatchScope::Resource(pods(), None)
}

fn shop(name: &str) -> NamespaceName {
    name.parse().unwrap()
}

pub(crate) async fn a_name_with_a_common_prefix_is_not_matched(scene: ContractScene) {
    let mut watch = scene.watch(WatchScope::Resource(pods(), Some(cluster(1))), None).await;
    let near = |group: &str, resource: &str| {
        let resource = GroupResource::new(group, resource);
        ObjectKey::namespaced(cluster(1), resource, shop("shop"), "foo".parse().unwrap())
    };
    let here = ["shop/foo", "shop/foobar", "shop-2/foo", "shop2/baz"].map(|name| pod(1, name));
    for key in here.iter().chain([&pod(11, "shop/foo"), &near("", "pod"), &near("s", "pods"), &near("", "podss")]) {
        scene.put(key, &key.to_string()).await;
    }
    let last = scene.store.current();
    let brought = events_until(&mut *watch, last).await;
    assert_eq!(brought.into_iter().map(|event| event.key).collect::<Vec<_>>(), here);
    let namespace = |name| RangeScope::Namespace(cluster(1), pods(), shop(name));
    for (case, scope, expected) in [
        (
            "a resource",
            RangeScope::Cluster(cluster(1), pods()),
            vec!["shop/foo", "shop/foobar", "shop-2/foo", "shop2/baz"],
        ),
        ("a namespace", namespace("shop"), vec!["shop/foo", "shop/foobar"]),
        ("one that begins like it", namespace("shop2"), vec!["shop2/baz"]),
        ("what both begin with", namespace("sho"), vec![]),
    ] {
        for at in [None, Some(last)] {
            let page = scene.store.range(RangeRequest { at, ..RangeRequest::all(scope.clone()) }).await.unwrap();
            let (mut found, mut expected): (Vec<_>, Vec<_>) = (
                page.objects.into_iter().map(|object| object.key).collect(),
                expected.iter().map(|n| pod(1, n)).collect(),
            );
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{case}, at {at:?}");
        }
    }
    let one = scene.store.get(&pod(1, "shop/foo")).await.unwrap().unwrap();
    assert_eq!(text(&one.record), pod(1, "shop/foo").to_string());
    assert_eq!(scene.store.get(&pod(1, "shop/fo")).await.unwrap(), None);
    scene.delete(&pod(1, "shop/foo")).await;
    assert_eq!(scene.list(namespace("shop")).await.len(), 1);
    assert_eq!(scene.list(RangeScope::Cluster(cluster(11), pods())).await.len(), 1);
}

pub(crate) async fn counts_follow_writes_and_deletes(scene: ContractScene) {
    let count = || async {
        let first = RangeRequest { limit: Some(1), ..RangeRequest::all(RangeScope::Cluster(cluster(1), pods())) };
        let page = scene.store.range(first).await.unwrap();
        page.objects.len() as u64 + page.remaining.unwrap_or_default() as u64
    };
    assert_eq!(count().await, 0);
    for (case, name, expect, is_written, done, expected) in [
        ("created", "a", Expect::Absent, true, true, 1),
        ("another", "b", Expect::Absent, true, true, 2),
        ("changed", "b", Expect::Present, true, true, 2),
        ("created again, which fails", "a", Expect::Absent, true, false, 2),
        ("deleted", "a", Expect::Present, false, true, 1),
        ("deleted again, which fails", "a", Expect::Present, false, false, 1),
        ("the last one deleted", "b", Expect::Present, false, true, 0),
    ] {
        let record = is_written.then(|| record(&pod(1, name), case));
        let committed = scene.commit(Transaction::one(pod(1, name), expect, record)).await;
        assert_eq!((committed.is_ok(), count().await), (done, expected), "{case}");
    }
}

/// The caller's read and the check may see two states: the state of the deletion counts.
pub(crate) async fn preconditions_of_a_deletion_hold_for_the_deleted_state(scene: ContractScene) {
    let objects = ObjectClient::new(scene.store.clone());
    for (case, first, then, looks, is_deleted) in [
        ("it held, and holds of what somebody wrote meanwhile", "fits", Some("fits"), 2, true),
        ("it held, and does not any more", "fits", Some("other"), 2, false),
        ("it never held", "other", Some("fits"), 1, false),
        ("it held, and somebody was faster", "fits", None, 1, false),
    ] {
        let key = pod(1, "a");
        let stale = scene.put(&key, first).await;
        let mut looked = 0;
        let answer = objects.modify(&key, |value| {
            looked += 1;
            if looked == 1 {
                let record = then.map(|text| record(&key, text));
                now(scene.commit(Transaction::one(key.clone(), Expect::Anything, record))).unwrap();
            }
            if value["data"] == "fits" { Ok(Step::Delete) } else { Err(StoreError::Overloaded) }
        });
        let answer = answer.await;
        assert_eq!(looked, looks, "{case}");
        let there = scene.store.get(&key).await.unwrap().map(|object| text(&object.record));
        match (is_deleted, then) {
            (true, _) => {
                assert!(matches!(answer, Ok(Some(ModifyOutcome::Deleted(_, at))) if at > stale), "{case}");
                assert_eq!(there, None, "{case}");
            }
            (false, None) => assert_eq!((answer.unwrap(), there), (None, None), "{case}"),
            (false, Some(then)) => {
                assert!(matches!(answer, Err(StoreError::Overloaded)), "{case}");
                assert_eq!(there.as_deref(), Some(then), "{case}");
                let late = scene.commit(Transaction::one(key.clone(), Expect::At(stale), None)).await;
                assert!(matches!(late, Err(StoreError::Conflict { .. })), "{case}: {late:?}");
            }
        }
    }
}

pub(crate) async fn stalled_watchers_delay_no_other(scene: ContractScene) {
    for scene in [ContractScene::new(scene.subject()), scene.with_tiny_ring()] {
        let mut idle = Vec::new();
        for n in 0..50 {
            let mut stream = scene.watch(all_pods(), None).await;
            // Some are waiting by now.
            assert!(n % 2 == 0 || stream.next().now_or_never().is_none());
            idle.push(stream);
        }
        let mut reading = scene.watch(all_pods(), None).await;
        for n in 0..22 {
            let at = scene.put(&pod(1, &format!("p{n}")), &"x".repeat(700)).await;
            let batch = tokio::time::timeout(Duration::from_secs(20), reading.next()).await.unwrap().unwrap();
            assert_eq!((batch.events.len(), batch.revision), (1, at));
        }
        let last = scene.store.current();
        for stream in &mut idle {
            assert_eq!(events_until(&mut **stream, last).await.len(), 22, "those who read late have missed nothing");
        }
    }
}

pub(crate) async fn the_progress_of_a_watch_is_never_ahead_of_its_events(scene: ContractScene) {
    let scene = Arc::new(scene);
    let mut stream = scene.watch(WatchScope::Resource(pods(), Some(cluster(1))), None).await;
    let writer = tokio::spawn({
        let scene = scene.clone();
        async move {
            for n in 0..100 {
                scene.put(&pod(1 + n % 2, &format!("p{n}")), "x").await;
            }
        }
    });
    let (mut brought, mut told) = (0, stream.progress());
    let all = async {
        while brought < 50 {
            if let Some(batch) = stream.next().now_or_never() {
                let batch = batch.unwrap();
                assert!(batch.events.iter().all(|event| event.revision > told && event.revision <= batch.revision));
                brought += batch.events.len();
            }
            let next = stream.progress();
            assert!(next >= told, "{next} after {told}");
            told = next;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    writer.await.unwrap();
    assert_eq!(brought, 50);
}

/// etcd lost the effect of a deletion when it was compacted at its very revision: the event, and after a crash the
/// revision.
pub(crate) async fn a_compaction_at_a_deletion_loses_neither_it_nor_its_revision(mut scene: ContractScene) {
    scene.put(&pod(1, "stays"), "x").await;
    for round in 0..3 {
        let key = pod(1, &format!("goes-{round}"));
        let before = scene.put(&key, "x").await;
        let mut behind = scene.watch(all_pods(), Some(before)).await;
        let deleted = scene.delete(&key).await;
        scene.store.compact(deleted).await.unwrap();
        match tokio::time::timeout(Duration::from_secs(20), behind.next()).await.unwrap() {
            Ok(batch) => assert_eq!((batch.events[0].change, batch.revision), (ChangeKind::Deleted, deleted)),
            Err(error) => assert!(matches!(error, StoreError::Compacted { .. }), "it is told, or brings it: {error}"),
        }
        let mut after = scene.watch(all_pods(), Some(deleted)).await;
        let at = RangeRequest { at: Some(deleted), ..RangeRequest::all(RangeScope::AllClusters(pods())) };
        assert_eq!(scene.store.range(at).await.unwrap().objects.len(), 1);
        if scene.is_durable() {
            drop((behind, after));
            scene.reopen();
            after = scene.watch(all_pods(), Some(deleted)).await;
        }
        let current = scene.store.current();
        assert!(current >= deleted, "{current} is before {deleted}");
        assert_eq!(scene.store.get(&key).await.unwrap(), None);
        let next = scene.put(&pod(1, "stays"), "y").await;
        assert!(next > deleted, "{next} is given again, after {deleted}");
        let events = events_until(&mut *after, next).await;
        assert_eq!(events.iter().map(|event| event.revision).collect::<Vec<_>>(), [next]);
    }
}
