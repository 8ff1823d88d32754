//! Tests of snapshots: those of every engine are restored into every engine.

use std::{io::Write, sync::Arc, time::Duration};

use futures::FutureExt as _;
use portolan_types::{GroupResource, LogicalClusterId, NamespaceName, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::json;

use super::*;
use crate::{
    api::{DynStore, Expect, RangeRequest, RangeScope, StoredObject, Transaction, WatchScope},
    embedded::{
        inline::InlineCommitter,
        store::{EmbeddedStore, StoreWriter},
    },
    engine::MemoryKv,
    maintenance::{SliceProgress, queue::delete_cluster},
    open::{Engine, StoreConfig, memory, open},
    write::core::StoreCore,
};

fn cluster(number: u64) -> LogicalClusterId {
    LogicalClusterId::new(number)
}

fn maps() -> GroupResource {
    GroupResource::new("", "configmaps")
}

fn map(in_cluster: u64, name: &str) -> ObjectKey {
    let namespace: NamespaceName = "default".parse().unwrap();
    ObjectKey::namespaced(cluster(in_cluster), maps(), namespace, name.parse().unwrap())
}

fn role(name: &str) -> ObjectKey {
    ObjectKey::cluster_scoped(cluster(1), GroupResource::new("rbac", "roles"), name.parse().unwrap())
}

async fn put(store: &DynStore, key: ObjectKey, text: &str) -> ResourceVersion {
    let placement = json!({"clusters": [{"name": "east", "uid": "east", "phase": "Active", "epoch": 1}]}).to_string();
    let record = Record::of(&json!({
        "metadata": {"name": &*key.name, "uid": text, "labels": {"text": text}, "ownerReferences": [{"uid": "owner"}],
            "annotations": {"portolan.dev/placement": placement}},
        "data": text,
    }));
    let txn = Transaction::one(key, Expect::Anything, Some(record));
    store.commit(txn).await.unwrap().into_inner().last
}

/// Writes objects of several resources and logical clusters: some updated, some deleted, and one cluster deleted.
async fn fill(store: &DynStore) {
    for n in 0..30 {
        put(store, map(1 + n % 4, &format!("m{n}")), "first").await;
    }
    put(store, role("r"), &"x".repeat(20_000)).await;
    put(store, map(1, "m0"), "second").await;
    store.commit(Transaction::one(map(2, "m1"), Expect::Present, None)).await.unwrap();
    store.delete_cluster(cluster(3)).await.unwrap();
}

async fn list(store: &DynStore, scope: RangeScope) -> Vec<StoredObject> {
    let mut objects = store.range(RangeRequest::all(scope)).await.unwrap().objects;
    objects.sort_by(|a, b| a.key.cmp(&b.key));
    objects
}

async fn snapshot_of(store: &DynStore) -> Vec<u8> {
    let mut bytes = Vec::new();
    save(&**store, &Seams::system(), crate::api::OnDamage::Fail, &mut bytes).await.unwrap();
    bytes
}

fn config(dir: &tempfile::TempDir, engine: Engine) -> StoreConfig {
    StoreConfig::new(engine, Some(dir.path().join("data")))
}

#[tokio::test]
async fn a_restore_on_another_engine_raises_every_revision() {
    for (from, to) in [(Engine::Redb, Engine::Sled), (Engine::Sled, Engine::Redb), (Engine::Redb, Engine::Redb)] {
        let (old_dir, new_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let old = open(config(&old_dir, from), Seams::system()).unwrap();
        fill(&old).await;
        let bytes = snapshot_of(&old).await;
        let lost = put(&old, map(1, "lost"), "written after the snapshot").await;

        let restored = restore(&config(&new_dir, to), &at(0), &*bytes, None).unwrap();
        assert_eq!(restored, inspect(&*bytes).unwrap());
        assert_eq!((restored.objects, restored.gone_clusters, restored.bytes), (23, 1, bytes.len() as u64));
        let new = open(config(&new_dir, to), Seams::system()).unwrap();
        assert!(new.get(&map(1, "lost")).await.unwrap().is_none());
        old.commit(Transaction::one(map(1, "lost"), Expect::Present, None)).await.unwrap();
        for scope in [
            RangeScope::All,
            RangeScope::PlacedOn("east".into()),
            RangeScope::OwnedBy(cluster(1), "owner".into()),
            RangeScope::Cluster(cluster(2), maps()),
        ] {
            assert_eq!(list(&new, scope.clone()).await, list(&old, scope.clone()).await, "{from:?} {to:?} {scope:?}");
        }
        assert_eq!((new.current().get(), new.oldest()), (restored.revision + jump(&at(0)), new.current()));
        for before in [ResourceVersion::new(restored.revision).unwrap(), lost] {
            let watch = new.watch(WatchScope::Resource(maps(), None), Some(before)).await;
            assert!(matches!(watch.err(), Some(StoreError::Compacted { .. })), "every watch begins anew");
        }
        assert_eq!(put(&new, map(1, "next"), "x").await, new.oldest().plus(1));
        let late = Transaction::one(map(3, "late"), Expect::Absent, Some(Record::of(&json!({"metadata": {}}))));
        assert!(matches!(new.commit(late).await, Err(StoreError::ClusterGone { .. })));
        new.close().await;
        crate::open::verify(config(&new_dir, to), Seams::system()).unwrap();
    }
}

/// Returns seams at a number of milliseconds after a fixed time.
fn at(milliseconds: i64) -> Seams {
    Seams::seeded(7, jiff::Timestamp::from_millisecond(1_767_225_600_000 + milliseconds).unwrap())
}

fn counter() -> SnapshotCounter {
    fn raise(found: Option<Value>, by: u64) -> Option<Record> {
        let next = found.map_or(Some(1), |found| found["next"].as_u64())?;
        Some(Record::of(&json!({"metadata": {"name": "c"}, "next": next.checked_add(by)?})))
    }
    SnapshotCounter { key: role("c"), raise }
}

async fn count(store: &DynStore) -> u64 {
    let found = store.get(&role("c")).await.unwrap().unwrap();
    found.record.to_value(found.revision).unwrap()["next"].as_u64().unwrap()
}

#[tokio::test]
async fn no_two_restores_of_one_snapshot_give_a_revision_or_count_a_number_twice() {
    for (case, counted, others) in
        [("a counter", Some(9), true), ("none yet", None, true), ("nothing of its resource", None, false)]
    {
        let store = memory();
        put(&store, map(1, "a"), "x").await;
        if others {
            put(&store, role("a"), "x").await;
        }
        if let Some(next) = counted {
            let record = Record::of(&json!({"metadata": {"name": "c"}, "next": next}));
            store.commit(Transaction::one(role("c"), Expect::Absent, Some(record))).await.unwrap();
        }
        let bytes = snapshot_of(&store).await;
        let mut free = (store.current().get() + MIN_REVISION_INCREASE, counted.unwrap_or(1) + MIN_REVISION_INCREASE);
        for passed in [0, 1, 60_000] {
            let dir = tempfile::tempdir().unwrap();
            restore(&config(&dir, Engine::Redb), &at(passed), &*bytes, Some(&counter())).unwrap();
            let restored = open(config(&dir, Engine::Redb), at(passed)).unwrap();
            let first = put(&restored, role("next"), "x").await.get();
            let next = count(&restored).await;
            assert!(first > free.0 && next >= free.1, "{case}: {first} {next} {free:?}");
            // No store assigns more within a millisecond.
            free = (first + 1000, next + 1000);
            restored.close().await;
            crate::open::verify(config(&dir, Engine::Redb), at(passed)).unwrap();
        }
    }
}

#[tokio::test]
async fn a_counter_that_cannot_be_raised_leaves_no_store() {
    let store = memory();
    for next in [json!("many"), json!(u64::MAX)] {
        let record = Record::of(&json!({"metadata": {"name": "c"}, "next": next}));
        store.commit(Transaction::one(role("c"), Expect::Anything, Some(record))).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let bytes = snapshot_of(&store).await;
        let refused = restore(&config(&dir, Engine::Redb), &at(0), &*bytes, Some(&counter())).unwrap_err();
        assert!(matches!(refused, SnapshotError::Damaged(_)), "{refused}");
        assert_eq!(crate::open::engine_in(&dir.path().join("data")), None);
    }
}

/// Builds a store in memory, and its core, with which a deletion can be stopped between two slices.
fn with_core() -> (DynStore, Arc<StoreCore>) {
    let core = Arc::new(StoreCore::on(MemoryKv::default()));
    let writer = StoreWriter::Inline(InlineCommitter::default());
    (
        Arc::new(EmbeddedStore {
            inspection: None,
            core: core.clone(),
            writer,
            commit_timeout: Duration::from_secs(30),
        }),
        core,
    )
}

#[tokio::test]
async fn a_cluster_that_is_being_swept_comes_back_as_gone_without_its_objects() {
    let (store, core) = with_core();
    for n in 0..700 {
        put(&store, map(5, &format!("m{n}")), "going").await;
    }
    put(&store, map(1, "kept"), "kept").await;
    let (answer, progress) = delete_cluster(&core, cluster(5));
    assert!(answer.is_ok() && progress == SliceProgress::More, "only a slice was removed");
    let bytes = snapshot_of(&store).await;
    let dir = tempfile::tempdir().unwrap();
    let restored = restore(&config(&dir, Engine::Redb), &Seams::system(), &*bytes, None).unwrap();
    assert!(restored.objects > 1, "the rest is in the snapshot");
    let new = open(config(&dir, Engine::Redb), Seams::system()).unwrap();
    for scope in [RangeScope::All, RangeScope::PlacedOn("east".into())] {
        let left: Vec<_> = list(&new, scope).await.into_iter().map(|object| object.key).collect();
        assert_eq!(left, [map(1, "kept")]);
    }
    assert_eq!(new.deleted_clusters().await.unwrap(), [cluster(5)]);
    new.close().await;
    crate::open::verify(config(&dir, Engine::Redb), Seams::system()).unwrap();
}

#[tokio::test]
async fn a_snapshot_excludes_later_writes() {
    /// Sink that writes to the store with each piece that it takes.
    struct MeddlingSink<'a>(&'a DynStore, Vec<u8>);
    impl Write for MeddlingSink<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let n = self.1.len();
            put(self.0, map(1, &format!("late{n}")), "late").now_or_never().unwrap();
            put(self.0, map(1, &format!("m{}", n % 1500)), "late").now_or_never().unwrap();
            self.0.compact(self.0.current()).now_or_never().unwrap().unwrap();
            self.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let store = memory();
    for n in 0..1500 {
        put(&store, map(1, &format!("m{n}")), "early").await;
    }
    let before = list(&store, RangeScope::All).await;
    let mut out = MeddlingSink(&store, Vec::new());
    let snapshot = tokio::task::unconstrained(save(&*store, &Seams::system(), crate::api::OnDamage::Fail, &mut out))
        .await
        .unwrap();
    assert_eq!((snapshot.objects, snapshot.revision), (1500, before.iter().map(|o| o.revision.get()).max().unwrap()));
    let bytes = out.1;
    let dir = tempfile::tempdir().unwrap();
    restore(&config(&dir, Engine::Redb), &Seams::system(), &*bytes, None).unwrap();
    let restored = open(config(&dir, Engine::Redb), Seams::system()).unwrap();
    assert_eq!(list(&restored, RangeScope::All).await, before);
    store.compact(store.current()).await.unwrap();
    assert_eq!(store.oldest(), store.current(), "nothing is held any more");
}

#[tokio::test]
async fn any_flipped_bit_any_cut_and_anything_added_is_found() {
    let store = memory();
    put(&store, map(1, "a"), "x").await;
    put(&store, role("b"), "y").await;
    store.delete_cluster(cluster(9)).await.unwrap();
    let whole = snapshot_of(&store).await;
    assert!(inspect(&*whole).is_ok());
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(inspect(&*bytes).is_err(), "byte {at}");
        assert!(inspect(&whole[..at]).is_err(), "cut to {at}");
    }
    assert!(inspect(&*[&whole[..], b"\n"].concat()).is_err());
}

#[tokio::test]
async fn a_snapshot_of_a_newer_format_is_refused_everywhere_in_the_same_words() {
    let expected = "the snapshot has format 3, this version knows formats up to 2; use the version that took it";
    let mut newer = snapshot_of(&memory()).await;
    newer[18..22].copy_from_slice(&(FORMAT + 1).to_le_bytes());
    assert_eq!(inspect(&*newer).unwrap_err().to_string(), expected);
    for engine in [Engine::Redb, Engine::Sled] {
        let dir = tempfile::tempdir().unwrap();
        let refused = restore(&config(&dir, engine), &Seams::system(), &*newer, None).unwrap_err();
        assert_eq!(refused.to_string(), expected, "{engine:?}");
        assert_eq!(crate::open::engine_in(&dir.path().join("data")), None, "{engine:?}");
    }
}

#[tokio::test]
async fn a_failed_restore_leaves_no_store() {
    let store = memory();
    fill(&store).await;
    let whole = snapshot_of(&store).await;
    let dir = tempfile::tempdir().unwrap();
    for engine in [Engine::Redb, Engine::Sled] {
        let directory = dir.path().join("data");
        for (case, bytes, words) in [
            ("nothing", &b""[..], "no snapshot of Portolan"),
            ("something else", b"PK\x03\x04 and so on and on", "no snapshot of Portolan"),
            ("a half", &whole[..whole.len() / 2], "cut off"),
        ] {
            let refused = restore(&config(&dir, engine), &Seams::system(), bytes, None).unwrap_err().to_string();
            assert!(refused.contains(words), "{case}: {refused}");
            let left = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name());
            let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
            left.sort();
            assert_eq!(left, ["store.lock".to_owned(), format!("store.{engine}.restoring")], "{case}");
            let started =
                open(config(&dir, engine), Seams::system()).err().expect("it was to be a full one").to_string();
            assert!(started.contains("a snapshot was being restored here"), "{case}: {started}");
        }
    }
    restore(&config(&dir, Engine::Redb), &Seams::system(), &*whole, None).unwrap();
    let refused = restore(&config(&dir, Engine::Redb), &Seams::system(), &*whole, None).unwrap_err();
    assert!(matches!(refused, SnapshotError::Occupied(_)), "{refused}");
}

/// Input of a process that is killed while it reads.
struct KilledReader;

impl std::io::Read for KilledReader {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        panic!("killed")
    }
}

#[tokio::test]
async fn beside_a_restore_that_was_broken_off_no_empty_store_is_made() {
    let store = memory();
    fill(&store).await;
    let whole = snapshot_of(&store).await;
    for (engine, again) in [(Engine::Redb, Engine::Redb), (Engine::Sled, Engine::Sled), (Engine::Redb, Engine::Sled)] {
        let dir = tempfile::tempdir().unwrap();
        let broken_off = std::panic::catch_unwind(|| {
            let half = std::io::Read::chain(&whole[..whole.len() / 2], KilledReader);
            restore(&config(&dir, engine), &Seams::system(), half, None)
        });
        assert!(broken_off.is_err());
        // The engine's threads release the file later than a killed process.
        let left = dir.path().join(format!("data/store.{engine}.restoring"));
        let locked = if left.is_dir() { left.join("db") } else { left.clone() };
        std::fs::File::open(locked).unwrap().lock().unwrap();
        for asked in [engine, again] {
            let refused = open(config(&dir, asked), Seams::system()).err().expect("it is half").to_string();
            let removed = format!("remove {}", left.display());
            for words in ["a snapshot was being restored here", "snapshot restore again", &removed] {
                assert!(refused.contains(words), "{refused}");
            }
            assert_eq!(crate::open::engine_in(&dir.path().join("data")), None);
        }
        restore(&config(&dir, again), &Seams::system(), &*whole, None).unwrap();
        let restored = open(config(&dir, again), Seams::system()).unwrap();
        assert_eq!(list(&restored, RangeScope::All).await.len(), list(&store, RangeScope::All).await.len());
        restored.close().await;
        let left = std::fs::read_dir(dir.path().join("data")).unwrap().map(|entry| entry.unwrap().file_name());
        let half: Vec<_> = left.filter(|name| name.to_string_lossy().contains("restoring")).collect();
        assert!(half.is_empty(), "{half:?}");
    }
}

#[tokio::test]
async fn an_empty_store_that_was_made_by_half_is_made_again() {
    for (engine, half) in [(Engine::Redb, "store.redb.new"), (Engine::Sled, "store.sled.new")] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        std::fs::write(dir.path().join("data").join(half), "half").unwrap();
        let made = open(config(&dir, engine), Seams::system()).unwrap();
        assert_eq!(made.current().get(), 1, "{half}");
        made.close().await;
        assert!(!dir.path().join("data").join(half).exists(), "{half}");
    }
}
