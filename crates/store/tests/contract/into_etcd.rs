//! Restore of a snapshot into etcd.

use std::io::Cursor;

use portolan_store::{
    DynStore, Engine, Expect, RangeRequest, RangeScope, SnapshotError, StoreConfig, StoreError, Transaction, open_etcd,
    restore_etcd,
};
use portolan_types::{ResourceVersion, Seams};

use crate::scene::{ContractScene, an_etcd, cluster, pod, pods, record, related, role, text};

/// Least increase of revisions by any restore.
const JUMP: u64 = 1 << 40;

async fn saved() -> (ContractScene, Vec<u8>) {
    let scene = ContractScene::new(Engine::Memory);
    for n in 0..250 {
        scene.put(&pod(n % 3 + 1, &format!("p{n}")), &"x".repeat(5000)).await;
    }
    let (owned, gone) = (role(1, "owned"), role(9, "gone"));
    let record = related(&owned, &["o1", "o1", "o2"], &["c1"]);
    scene.commit(Transaction::one(owned, Expect::Absent, Some(record))).await.unwrap();
    scene.put(&gone, "x").await;
    scene.store.delete_cluster(cluster(9)).await.unwrap();
    let mut snapshot = Vec::new();
    portolan_store::save(&*scene.store, &Seams::system(), portolan_store::OnDamage::Fail, &mut snapshot).await.unwrap();
    (scene, snapshot)
}

async fn contents(store: &DynStore, scope: RangeScope) -> Vec<(String, String)> {
    let page = store.range(RangeRequest::all(scope)).await.unwrap();
    let mut all: Vec<_> = page.objects.iter().map(|object| (object.key.to_string(), text(&object.record))).collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn a_snapshot_becomes_a_store_in_etcd_or_leaves_nothing() {
    let ((scene, snapshot), etcd, seams) = (saved().await, an_etcd(), Seams::system());
    let restore = |bytes: Vec<u8>| restore_etcd(&etcd, &seams, Cursor::new(bytes), None);
    for cut in [40, snapshot.len() / 2, snapshot.len() - 1] {
        let refused = restore(snapshot[..cut].to_vec()).await.unwrap_err();
        assert!(matches!(refused, SnapshotError::Damaged(_)), "{cut} bytes: {refused}");
    }
    let mut newer = snapshot.clone();
    newer[18] += 1;
    let refused = restore(newer).await.unwrap_err().to_string();
    let expected = "the snapshot has format 3, this version knows formats up to 2; use the version that took it";
    assert_eq!(refused, expected);
    let summary = restore(snapshot.clone()).await.unwrap();
    let occupied = restore(snapshot).await.unwrap_err();
    assert!(matches!(occupied, SnapshotError::OccupiedEtcd(_)), "{occupied}");

    let config = StoreConfig::new(Engine::Memory, None);
    let (store, _) = open_etcd(&etcd, &config, &seams).await.unwrap();
    assert!(store.current().get() > summary.revision + JUMP, "{}", store.current());
    for scope in [
        RangeScope::AllClusters(pods()),
        RangeScope::Everything(cluster(1)),
        RangeScope::OwnedBy(cluster(1), "o1".into()),
        RangeScope::PlacedOn("c1".into()),
    ] {
        assert_eq!(contents(&store, scope.clone()).await, contents(&scene.store, scope.clone()).await, "{scope:?}");
    }
    let page = store.range(RangeRequest::all(RangeScope::AllClusters(pods()))).await.unwrap();
    let revisions: std::collections::BTreeSet<_> = page.objects.iter().map(|object| object.revision).collect();
    assert_eq!(revisions.len(), 250, "each object has a revision of its own");
    assert!(revisions.iter().all(|revision| *revision < store.current()));
    let key = pod(9, "late");
    let late = Transaction::one(key.clone(), Expect::Absent, Some(record(&key, "x")));
    assert!(matches!(store.commit(late).await, Err(StoreError::ClusterGone { .. })));
    let (key, found) = (pod(1, "p0"), store.get(&pod(1, "p0")).await.unwrap().unwrap());
    let update = Transaction::one(key.clone(), Expect::At(found.revision), Some(record(&key, "y")));
    let updated = store.commit(update).await.unwrap().into_inner();
    assert!(updated.first > found.revision);
    let then = RangeRequest {
        at: ResourceVersion::new(found.revision.get()),
        ..RangeRequest::all(RangeScope::AllClusters(pods()))
    };
    assert!(matches!(store.range(then).await, Err(StoreError::Compacted { .. })), "there is no history of before");
}
