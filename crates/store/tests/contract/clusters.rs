//! Deletion of logical clusters.

use std::time::Duration;

use portolan_store::{ChangeKind, Expect, RangeScope, StoreError, Transaction, WatchScope};

use crate::scene::{ContractScene, cluster, events_until, pod, pods, record, related, role, roles};

pub(crate) async fn a_deleted_cluster_is_gone_for_good(mut scene: ContractScene) {
    for n in 1..4 {
        scene.put(&pod(n, "a"), "x").await;
        scene.put(&role(n, "r"), "x").await;
    }
    let owned = related(&pod(2, "owned"), &["o"], &["east"]);
    scene.commit(Transaction::one(pod(2, "owned"), Expect::Absent, Some(owned))).await.unwrap();
    let before = scene.store.current();
    let mut stream = scene.watch(WatchScope::Resource(pods(), Some(cluster(2))), None).await;
    let mut placed = scene.watch(WatchScope::PlacedOn("east".into()), None).await;
    let gone = scene.store.delete_cluster(cluster(2)).await.unwrap().into_inner();
    // Revisions of the tombstone and of three objects.
    scene.check_next(before, gone, 4, "the deletion");
    let events = events_until(&mut *stream, gone.last).await;
    assert_eq!(
        events.iter().map(|e| (e.change, e.key.clone())).collect::<Vec<_>>(),
        [(ChangeKind::Deleted, pod(2, "a")), (ChangeKind::Deleted, pod(2, "owned")),]
    );
    assert_eq!(events_until(&mut *placed, gone.last).await.len(), 1);
    for again in 0..2 {
        let late = scene.commit(Transaction::one(pod(2, "b"), Expect::Absent, Some(record(&pod(2, "b"), "x")))).await;
        assert!(matches!(late, Err(StoreError::ClusterGone { cluster: c }) if c == cluster(2)), "{late:?}");
        assert_eq!(scene.list(RangeScope::Everything(cluster(2))).await, []);
        assert_eq!(scene.list(RangeScope::PlacedOn("east".into())).await, []);
        assert_eq!(scene.list(RangeScope::OwnedBy(cluster(2), "o".into())).await, []);
        assert_eq!(scene.store.get(&pod(2, "a")).await.unwrap(), None);
        assert_eq!(scene.list(RangeScope::AllClusters(pods())).await.len(), 2);
        assert_eq!(scene.list(RangeScope::AllClusters(roles())).await.len(), 2);
        let twice = scene.store.delete_cluster(cluster(2)).await.unwrap().into_inner();
        assert_eq!(twice, gone, "asking again changes nothing");
        if again == 0 && scene.is_durable() {
            drop((std::mem::replace(&mut stream, scene.watch(WatchScope::Resource(pods(), None), None).await), ()));
            scene.reopen();
        }
    }
}

pub(crate) async fn deleting_a_large_cluster_is_seen_by_watchers(scene: ContractScene) {
    let count = 1300;
    for batch in 0..count / 100 {
        let txn = (0..100).fold(Transaction::default(), |txn, n| {
            let key = pod(7, &format!("p{:05}", batch * 100 + n));
            let record = record(&key, "x");
            txn.and(key, Expect::Absent, Some(record))
        });
        scene.commit(txn).await.unwrap();
    }
    scene.put(&pod(8, "neighbour"), "x").await;
    let before = scene.store.current();
    let mut stream = scene.watch(WatchScope::Resource(pods(), Some(cluster(7))), None).await;
    scene.store.delete_cluster(cluster(7)).await.unwrap();
    let mut deleted = Vec::new();
    while deleted.len() < count {
        let batch = tokio::time::timeout(Duration::from_secs(20), stream.next()).await.unwrap().unwrap();
        assert!(batch.events.iter().all(|event| event.change == ChangeKind::Deleted));
        deleted.extend(batch.events.iter().map(|event| event.key.name.to_string()));
    }
    assert_eq!(deleted, (0..count).map(|n| format!("p{n:05}")).collect::<Vec<_>>());
    assert_eq!(scene.list(RangeScope::Everything(cluster(7))).await, []);
    assert_eq!(scene.list(RangeScope::AllClusters(pods())).await.len(), 1);
    let mut late = scene.watch(WatchScope::Resource(pods(), None), Some(before)).await;
    let last = scene.store.current();
    assert_eq!(events_until(&mut *late, last).await.len(), count, "the history tells the same");
    let old = portolan_store::RangeRequest {
        at: Some(before),
        ..portolan_store::RangeRequest::all(RangeScope::AllClusters(pods()))
    };
    assert_eq!(scene.store.range(old).await.unwrap().objects.len(), count + 1);
}
