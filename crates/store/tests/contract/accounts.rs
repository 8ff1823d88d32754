//! Accounts of what logical clusters store, and their limits.

use portolan_store::{AccountLimit, Committed, Expect, LimitExcess, StoreError, StoredUsage, Transaction};
use portolan_types::{LogicalClusterId, ObjectKey, Record};

use crate::scene::{ContractScene, cluster, pod, record, text};

const UNLIMITED: StoredUsage = StoredUsage { objects: u64::MAX, bytes: u64::MAX };

fn objects(most: u64) -> StoredUsage {
    StoredUsage { objects: most, ..UNLIMITED }
}

fn account(number: u64, parent: u64, most: StoredUsage) -> AccountLimit {
    AccountLimit { cluster: cluster(number), parent: Some(cluster(parent)), most }
}

async fn write(
    scene: &ContractScene,
    key: ObjectKey,
    body: Option<&str>,
    accounts: &[AccountLimit],
) -> Result<Committed, StoreError> {
    let record = body.map(|body| record(&key, body));
    let txn = Transaction::one(key, Expect::Anything, record);
    scene.commit(Transaction { accounts: accounts.to_vec(), ..txn }).await
}

fn excess(outcome: Result<Committed, StoreError>) -> (LogicalClusterId, LimitExcess) {
    match outcome {
        Err(StoreError::OverLimit { cluster, excess }) => (cluster, excess),
        other => panic!("{other:?}"),
    }
}

/// Waits, if necessary, for the first count.
async fn usage(scene: &ContractScene, number: u64) -> StoredUsage {
    scene.store.usage(cluster(number)).await.unwrap().unwrap_or_default()
}

pub(crate) async fn a_logical_cluster_grows_up_to_its_limits(mut scene: ContractScene) {
    assert_eq!(usage(&scene, 2).await, StoredUsage::default());
    let limit = [account(2, 1, objects(3))];
    for name in ["a", "b", "c"] {
        write(&scene, pod(2, name), Some("x"), &limit).await.unwrap();
    }
    let full = (cluster(2), LimitExcess::Objects { held: 3, most: 3 });
    for opened_again in [false, true] {
        if opened_again && scene.is_durable() {
            scene.reopen();
            assert_eq!(usage(&scene, 2).await.objects, 3);
        }
        assert_eq!(excess(write(&scene, pod(2, "d"), Some("x"), &limit).await), full);
        assert_eq!(scene.store.get(&pod(2, "d")).await.unwrap(), None, "nothing of it was written");
        write(&scene, pod(2, "a"), Some("a change"), &limit).await.unwrap();
    }
    write(&scene, pod(3, "d"), Some("x"), &[account(3, 1, objects(3))]).await.unwrap();
    write(&scene, pod(2, "a"), None, &limit).await.unwrap();
    write(&scene, pod(2, "d"), Some("x"), &limit).await.unwrap();
    write(&scene, pod(2, "e"), Some("x"), &[]).await.unwrap();
    assert_eq!(usage(&scene, 2).await.objects, 4, "what is not limited is counted");
    write(&scene, pod(2, "e"), None, &limit).await.unwrap();
    assert_eq!(excess(write(&scene, pod(2, "f"), Some("x"), &limit).await), full);
}

pub(crate) async fn bytes_are_counted_as_they_are_stored(scene: ContractScene) {
    write(&scene, pod(2, "a"), Some(&"x".repeat(5000)), &[]).await.unwrap();
    let held = usage(&scene, 2).await.bytes;
    assert!(held > 5000, "{held}");
    let limit = [account(2, 1, StoredUsage { objects: 9, bytes: held })];
    let longer = write(&scene, pod(2, "a"), Some(&"x".repeat(5001)), &limit).await;
    match excess(longer) {
        (of, LimitExcess::Bytes { held: was, wanted, most }) => {
            assert!(of == cluster(2) && was == held && most == held && wanted > held, "{was} {wanted} {most}");
        }
        other => panic!("{other:?}"),
    }
    write(&scene, pod(2, "a"), Some("short"), &limit).await.unwrap();
    write(&scene, pod(2, "b"), Some("short"), &limit).await.unwrap();
    for name in ["a", "b"] {
        write(&scene, pod(2, name), None, &limit).await.unwrap();
    }
    assert_eq!(usage(&scene, 2).await, StoredUsage::default());
}

async fn counts(scene: &ContractScene) -> [u64; 3] {
    [usage(scene, 4).await, usage(scene, 3).await, usage(scene, 2).await].map(|usage| usage.objects)
}

pub(crate) async fn usage_counts_for_all_ancestors(mut scene: ContractScene) {
    // A workspace that was written to before its parent was known.
    write(&scene, pod(4, "old"), Some("x"), &[]).await.unwrap();
    let line = |most| [account(4, 3, UNLIMITED), account(3, 2, UNLIMITED), account(2, 1, objects(most))];
    write(&scene, pod(4, "a"), Some("x"), &line(4)).await.unwrap();
    write(&scene, pod(3, "a"), Some("x"), &line(4)[1..]).await.unwrap();
    write(&scene, pod(2, "a"), Some("x"), &line(4)[2..]).await.unwrap();
    assert_eq!(counts(&scene).await, [2, 3, 4]);
    let full = (cluster(2), LimitExcess::Objects { held: 4, most: 4 });
    for (number, from) in [(4, 0), (3, 1), (2, 2)] {
        assert_eq!(excess(write(&scene, pod(number, "b"), Some("x"), &line(4)[from..]).await), full);
    }
    write(&scene, pod(4, "b"), Some("x"), &[]).await.unwrap();
    if scene.is_durable() {
        scene.reopen();
        // The owner of the tree of logical clusters does so at each start.
        [(4, 3), (3, 2), (2, 1)]
            .iter()
            .for_each(|(of, parent)| scene.store.record_parent(cluster(*of), cluster(*parent)));
    }
    assert_eq!(counts(&scene).await, [3, 4, 5], "also what no account was given for");
    scene.store.delete_cluster(cluster(4)).await.unwrap();
    // The objects may go a little later.
    while usage(&scene, 3).await.objects > 1 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(usage(&scene, 2).await.objects, 2);
    write(&scene, pod(3, "b"), Some("x"), &line(4)[1..]).await.unwrap();
}

pub(crate) async fn of_many_at_once_as_many_are_written_as_fit(scene: ContractScene) {
    assert_eq!(usage(&scene, 2).await, StoredUsage::default());
    let limit = [account(2, 1, objects(20))];
    let names: Vec<String> = (0..60).map(|n| format!("p{n}")).collect();
    let writes = names.iter().map(|name| write(&scene, pod(2, name), Some("x"), &limit));
    let outcomes = futures::future::join_all(writes).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 20);
    assert_eq!(usage(&scene, 2).await.objects, 20);
    let stored = scene.list(portolan_store::RangeScope::Everything(cluster(2))).await;
    assert_eq!(stored.len(), 20, "{:?}", stored.iter().map(|one| text(&one.record)).collect::<Vec<_>>());
}

pub(crate) async fn a_full_logical_cluster_can_be_deleted_and_does_not_grow(scene: ContractScene) {
    assert_eq!(usage(&scene, 2).await, StoredUsage::default());
    let put = |state: serde_json::Value, limit: Vec<AccountLimit>| {
        let txn = Transaction::one(pod(2, "a"), Expect::Anything, Some(Record::of(&state)));
        scene.commit(Transaction { accounts: limit, ..txn })
    };
    let state = |more: serde_json::Value, finalizers: &[&str]| {
        let mut state = serde_json::json!({"metadata": {"name": "a", "finalizers": finalizers}});
        state["metadata"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        state
    };
    let deleting = || serde_json::json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    put(state(serde_json::json!({}), &["a/b", "c/d"]), vec![]).await.unwrap();
    let full = || async { vec![account(2, 1, usage(&scene, 2).await)] };
    let limit = full().await;
    put(state(deleting(), &["a/b", "c/d"]), limit.clone()).await.expect("the mark is more than there was");
    let mut larger = deleting();
    larger["annotations"] = serde_json::json!({"more": "x".repeat(1000)});
    let refused = put(state(larger, &["a/b", "c/d"]), limit.clone()).await;
    assert!(matches!(refused, Err(StoreError::OverLimit { .. })), "{refused:?}");
    put(state(deleting(), &["a/b"]), limit.clone()).await.expect("a finalizer goes");
    write(&scene, pod(2, "a"), None, &limit).await.unwrap();
}
