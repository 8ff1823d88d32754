//! Tests of the cache of admission configuration.

use portolan_store::{Engine, Expect, StoreConfig, Transaction};
use portolan_types::{ObjectKey, Record, Seams};
use serde_json::json;

use super::{reader::reduce, *};

#[tokio::test]
async fn repaired_objects_are_noticed_at_once() {
    const MARK: &str = "no reader decodes this";
    let folder = tempfile::tempdir().unwrap();
    let config = || StoreConfig::new(Engine::Redb, Some(folder.path().to_owned()));
    let (cluster, namespace) = (LogicalClusterId::ROOT, "default".parse().unwrap());
    let key = ObjectKey::namespaced(cluster, GroupResource::new("", LIMITS.1), namespace, "l".parse().unwrap());
    let range = Record::of(&json!({"metadata": {"name": "l", "namespace": "default", "annotations": {"a": MARK}}}));
    let store = portolan_store::open(config(), Seams::system()).unwrap();
    store.commit(Transaction::one(key.clone(), Expect::Absent, Some(range))).await.unwrap();
    store.close().await;
    drop(store);
    assert!(portolan_store::testing::damage(folder.path(), MARK).unwrap() > 0);

    let store = portolan_store::open(config(), Seams::system()).unwrap();
    let configured = AdmissionConfigCache::new(store.clone());
    FOLLOWED.iter().for_each(|_| configured.following());
    let damaged = async || configured.of(cluster).await.unwrap().map_or(0, |read| read.damaged(LIMITS).count());
    assert_eq!(damaged().await, 1);
    // No event reports this repair.
    store.commit(Transaction::one(key, Expect::Damaged, None)).await.unwrap();
    assert_eq!(damaged().await, 0);
    store.close().await;
}

#[test]
fn classes_and_limits_are_reduced_to_the_fields_of_admission() {
    let metadata = json!({"name": "a", "annotations": {"why": "x".repeat(10_000)}});
    let class = json!({"metadata": metadata, "value": 7, "description": "y".repeat(10_000)});
    let range = json!({"metadata": metadata, "spec": {"limits": []}, "kind": "LimitRange"});
    let hook = json!({"metadata": metadata, "webhooks": [], "status": {"a": 1}});
    for (resource, mut tree, expected, least) in [
        (PRIORITIES, class, json!({"metadata": {"name": "a"}, "value": 7}), 20_000),
        (LIMITS, range, json!({"metadata": {"name": "a"}, "spec": {"limits": []}}), 10_000),
        (MUTATING, hook, json!({"metadata": metadata, "webhooks": []}), 7),
    ] {
        let gone = reduce(resource, &mut tree);
        assert_eq!(tree, expected);
        assert!((least..least + 100).contains(&gone), "{resource:?}: {gone}");
    }
}

#[test]
fn the_cache_is_bounded_in_bytes() {
    let configuration = |bytes| {
        Arc::new(AdmissionConfiguration {
            bytes,
            with_quotas: HashSet::from(["a".to_owned()]),
            ..AdmissionConfiguration::default()
        })
    };
    let mut kept = CachedConfigurations::default();
    for n in 1..100 {
        kept.insert(LogicalClusterId::new(n), &configuration(MAX_OWN_BYTES));
        kept.insert(LogicalClusterId::new(n), &configuration(MAX_OWN_BYTES));
        assert!(kept.bytes <= MAX_BYTES);
        assert_eq!(kept.bytes, kept.others.len() * MAX_OWN_BYTES);
    }
    kept.insert(LogicalClusterId::new(200), &configuration(MAX_OWN_BYTES + 1));
    assert!(!kept.others.contains_key(&LogicalClusterId::new(200)), "one does not drive all others out");
    let all: Vec<LogicalClusterId> = kept.others.keys().copied().collect();
    all.into_iter().for_each(|cluster| kept.forget(cluster));
    assert_eq!(kept.bytes, 0);
}
