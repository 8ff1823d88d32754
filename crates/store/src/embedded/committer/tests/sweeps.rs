//! Deletions of logical clusters that fail on the way.

use super::*;
use crate::{
    api::{ChangeKind, RangeRequest, RangeScope},
    layout::{
        history_entry::{HistoryChange, HistoryEntry},
        keys::{self, KeySuffix, meta},
        record::EncodedObject,
    },
};
use portolan_types::{MonotonicInstant, Scope};

const PODS: u32 = 1;

fn cluster(number: u64) -> LogicalClusterId {
    LogicalClusterId::new(number)
}

fn objects(of: LogicalClusterId) -> Vec<u8> {
    keys::joined(b'o', &[&keys::cluster_prefix(of)])
}

/// Encodes an object as on disk.
fn object(of: LogicalClusterId, name: &str) -> (Vec<u8>, Option<Bytes>) {
    let suffix = KeySuffix::new(of, PODS, &Scope::Cluster, &name.parse().unwrap());
    let record = EncodedObject::new(Record::of(&json!({"metadata": {"name": name}})));
    let (value, _) = record.seal(&suffix, ResourceVersion::FIRST, ResourceVersion::FIRST);
    (suffix.object(), Some(value))
}

/// State that a server leaves if it ends while it deletes logical clusters.
fn unfinished(clusters: &[LogicalClusterId]) -> ScriptedKv {
    let kv = ScriptedKv::default();
    initialize(&kv, &Seams::system()).unwrap();
    let mut batch = Batch::from([(meta::resource(PODS), Some(crate::read::resources::encode(&pods()).into()))]);
    for of in clusters {
        batch.extend([(meta::sweep(*of), Some(Bytes::new())), object(*of, "a"), object(*of, "b")]);
    }
    kv.kv.commit(batch).unwrap();
    kv.kv.publish();
    kv
}

impl CommitterScene {
    async fn left(&self, of: LogicalClusterId) -> usize {
        let all = RangeRequest::all(RangeScope::Cluster(of, pods()));
        self.store.range(all).await.unwrap().objects.len()
    }

    async fn until_swept(&self, of: LogicalClusterId) {
        let swept = async {
            while self.left(of).await > 0 {
                tokio::task::yield_now().await;
            }
        };
        soon(Box::pin(swept)).await;
    }
}

#[tokio::test]
async fn a_deletion_that_fails_for_a_while_is_tried_again_and_holds_up_nothing_else() {
    for panics in [false, true] {
        let kv = unfinished(&[cluster(7), cluster(8)]);
        let unreadable = kv.unreadable.clone();
        unreadable.lock().push(UnreadableKeys { from: objects(cluster(7)), panics });
        let scene = CommitterScene::on(kv, Duration::from_secs(30)).await;
        scene.until_swept(cluster(8)).await;
        let last = scene.put("after").await.unwrap();
        soon(scene.store.compact(last)).await.unwrap();
        assert_eq!(scene.store.oldest(), last);
        assert_eq!(scene.left(cluster(7)).await, 2, "{panics}");
        unreadable.lock().clear();
        scene.until_swept(cluster(7)).await;
        scene.put("again").await.unwrap();
    }
}

/// Checks a deletion that cannot be planned while there are no requests.
#[tokio::test]
async fn a_deletion_beside_marks_that_cannot_be_read_is_tried_with_a_pause_that_grows() {
    let kv = unfinished(&[cluster(7)]);
    let (unreadable, refused) = (kv.unreadable.clone(), kv.refused.clone());
    unreadable.lock().push(UnreadableKeys { from: objects(cluster(7)), panics: false });
    let scene = CommitterScene::on(kv, Duration::from_secs(30)).await;
    *unreadable.lock() = vec![UnreadableKeys { from: meta::LAST.to_vec(), panics: false }];
    refused.store(0, Ordering::Release);
    let begun = MonotonicInstant::now();
    let tried = async {
        while refused.load(Ordering::Acquire) < 4 {
            tokio::task::yield_now().await;
        }
    };
    soon(Box::pin(tried)).await;
    // One, two and four milliseconds at least; without a pause it takes a few microseconds.
    assert!(begun.elapsed() >= Duration::from_millis(7), "four times within {:?}", begun.elapsed());
    let refusal = scene.put("refused").await;
    assert!(matches!(refusal, Err(StoreError::Backend(_))), "{refusal:?}");
    unreadable.lock().clear();
    scene.until_swept(cluster(7)).await;
    scene.put("after").await.unwrap();
}

/// Damaged objects and a malformed key, as on disk.
fn damaged(of: LogicalClusterId, count: usize) -> Batch {
    let named = |n: usize| object(of, &format!("damaged{n}")).0;
    let malformed = keys::joined(b'o', &[&keys::cluster_prefix(of), b"damaged"]);
    (0..count).map(named).chain([malformed]).map(|key| (key, Some("?".into()))).collect()
}

#[tokio::test]
async fn damaged_objects_are_removed_slice_by_slice_with_their_logical_cluster() {
    let kv = unfinished(&[cluster(7)]);
    kv.kv.commit(damaged(cluster(7), 1300)).unwrap();
    kv.kv.publish();
    let disk = kv.kv.clone();
    let left = || {
        let found = crate::engine::read(&*disk, |view| {
            let from = objects(cluster(7));
            let is_marked = view.get(&meta::sweep(cluster(7))).unwrap().is_some();
            is_marked || view.scan(&from, &keys::end_of(&from)).unwrap().key().is_some()
        });
        found.unwrap()
    };
    let scene = CommitterScene::on(kv, Duration::from_secs(30)).await;
    let swept = async {
        while left() {
            tokio::task::yield_now().await;
        }
    };
    soon(Box::pin(swept)).await;
    let longest = crate::engine::read(&*disk, |view| {
        let (mut longest, mut writes) = (0, 0);
        let mut cursor = view.scan(b"h", b"i").unwrap();
        while let Some(key) = cursor.key() {
            let entry = HistoryEntry::decode(keys::history_revision(key).unwrap(), cursor.value()).unwrap();
            longest = longest.max(entry.remaining + 1);
            writes += u64::from(matches!(entry.what, HistoryChange::Object(ChangeKind::Deleted, _)));
            cursor.advance().unwrap();
        }
        (longest, writes)
    });
    assert_eq!(longest.unwrap(), (512, 1302), "each is a write of its own, and no slice has more than it may");
    let last = scene.put("after").await.unwrap();
    soon(scene.store.compact(last)).await.unwrap();
    assert_eq!(scene.store.known_damage(), []);
}

/// Checks that everything, also the index entries of damaged objects, is read before anything is planned.
#[tokio::test]
async fn a_deletion_that_fails_on_the_way_removes_nothing_and_uses_no_revision() {
    for panics in [false, true] {
        let kv = unfinished(&[cluster(7)]);
        for of in [cluster(7), cluster(9)] {
            kv.kv.commit(damaged(of, 1300).into_iter().chain([object(of, "a")]).collect()).unwrap();
            kv.kv.publish();
        }
        let unreadable = kv.unreadable.clone();
        let index = |of| keys::joined(b'x', &[&keys::cluster_prefix(of)]);
        unreadable.lock().push(UnreadableKeys { from: index(cluster(7)), panics });
        let scene = CommitterScene::on(kv, Duration::from_secs(30)).await;
        let is_there = async |of| {
            let key = ObjectKey::cluster_scoped(of, pods(), "a".parse().unwrap());
            scene.store.get(&key).await.unwrap().is_some()
        };
        let before = scene.store.current();
        let mut watch = scene.store.watch(WatchScope::Resource(pods(), None), Some(before)).await.unwrap();
        assert_eq!(scene.put("first").await.unwrap(), before.plus(1), "{panics}");
        if !panics {
            // A requested deletion is not guarded: its failure stops all writes.
            unreadable.lock().push(UnreadableKeys { from: index(cluster(9)), panics });
            let refused = soon(scene.store.delete_cluster(cluster(9))).await;
            assert!(matches!(refused, Err(StoreError::Backend(_))), "{refused:?}");
            assert_eq!(scene.store.deleted_clusters().await.unwrap(), []);
        }
        assert_eq!(scene.put("second").await.unwrap(), before.plus(2), "{panics}");
        assert!(is_there(cluster(7)).await && is_there(cluster(9)).await, "{panics}");
        let mut seen = Vec::new();
        while watch.progress() < before.plus(2) {
            seen.extend(soon(watch.next()).await.unwrap().events.iter().map(|event| event.key.clone()));
        }
        assert_eq!(seen, [pod("first"), pod("second")], "{panics}");
        unreadable.lock().clear();
        soon(scene.store.delete_cluster(cluster(9))).await.unwrap();
        while is_there(cluster(7)).await {
            tokio::task::yield_now().await;
        }
        assert!(!is_there(cluster(9)).await, "{panics}");
    }
}

#[tokio::test]
async fn a_logical_cluster_with_a_damaged_object_can_be_deleted() {
    let kv = unfinished(&[]);
    kv.kv.commit(damaged(cluster(9), 3)).unwrap();
    kv.kv.commit(Batch::from([object(cluster(9), "a")])).unwrap();
    kv.kv.publish();
    let scene = CommitterScene::on(kv, Duration::from_secs(30)).await;
    soon(scene.store.delete_cluster(cluster(9))).await.unwrap();
    assert_eq!(scene.left(cluster(9)).await, 0);
    assert_eq!(scene.store.deleted_clusters().await.unwrap(), [cluster(9)]);
}

#[tokio::test]
async fn a_repeated_deletion_keeps_known_damage() {
    let kv = unfinished(&[]);
    kv.kv.commit(damaged(cluster(7), 1300)).unwrap();
    kv.kv.publish();
    let unreadable = kv.unreadable.clone();
    let scene = CommitterScene::on(kv, Duration::from_secs(30)).await;
    let all = RangeRequest::all(RangeScope::Cluster(cluster(7), pods())).skip_damaged();
    scene.store.range(all).await.unwrap();
    let known = || scene.store.known_damage().len();
    *scene.next.lock() = ScriptedAction::Wait;
    let first = scene.store.delete_cluster(cluster(7));
    scene.until_it_stands_still().await;
    // No slice follows the stopped one.
    unreadable.lock().push(UnreadableKeys { from: objects(cluster(7)), panics: false });
    let again = scene.store.delete_cluster(cluster(7));
    *scene.next.lock() = ScriptedAction::Work;
    assert_eq!(soon(first).await.unwrap().into_inner(), soon(again).await.unwrap().into_inner());
    assert!(known() > 0, "damaged objects are left");
    unreadable.lock().clear();
    let swept = async {
        while known() > 0 {
            tokio::task::yield_now().await;
        }
    };
    soon(Box::pin(swept)).await;
}

#[tokio::test]
async fn a_write_behind_a_full_queue_and_a_deletion_and_a_compaction_is_answered_within_a_number_of_batches() {
    let kv = unfinished(&[]);
    let many = (0..40_000)
        .map(|n| object(cluster(7), &format!("swept{n}")))
        .chain([(meta::sweep(cluster(7)), Some(Bytes::new()))]);
    kv.kv.commit(many.collect()).unwrap();
    kv.kv.publish();
    let scene = CommitterScene::on(kv, Duration::from_secs(60)).await;
    *scene.next.lock() = ScriptedAction::Wait;
    let compaction = scene.store.compact(scene.store.current());
    let first = scene.stand_still_with("first").await;
    let begun = scene.batches.lock().len() - 1;
    // The most full batches: of large writes, and of many.
    let mut accepted: Vec<_> =
        (0..QUEUE_BYTES / BATCH_BYTES * 7).map(|n| scene.commit(&format!("large-{n}"), 1 << 20)).collect();
    let last = loop {
        let name = format!("small-{:05}-end", accepted.len());
        let mut answer = scene.commit(&name, 10);
        match (&mut answer).now_or_never() {
            None => accepted.push(answer),
            Some(refusal) => {
                assert!(matches!(refusal, Err(StoreError::Overloaded)), "{refusal:?}");
                break format!("small-{:05}-end", accepted.len() - 1);
            }
        }
    };
    *scene.next.lock() = ScriptedAction::Work;
    soon(first).await.unwrap();
    soon(compaction).await.unwrap();
    for answer in accepted {
        soon(answer).await.unwrap();
    }
    let waited = scene.batch_of(&last).unwrap() - begun + 1;
    // For as many writes as possible: if each takes an eighth of the bytes, the last one does not fit.
    assert_eq!(waited, MAX_BATCHES_WAITED - 1);
    assert!(scene.left(cluster(7)).await > 0, "the deletion went on all the time");
}
