//! Stores and snapshots of every format that ever was, as text under `tests/fixtures`: this version opens them, and writes the
//! newest format exactly so. When a format changes on purpose, its number goes up, and `PORTOLAN_WRITE_FIXTURES=1` writes the
//! files of the new one beside those of the old.

use std::{fmt::Write as _, path::PathBuf, sync::Arc};

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::json;

use crate::{
    DynStore, Engine, Expect, Modified, Objects, RangeRequest, RangeScope, Step, StoreConfig, Transaction, WatchScope,
    inspect,
    kv::{Batch, Before, KvResult, MemoryKv, OrderedKv, RedbKv, SledKv, View, read},
    open,
    open::{Base, initialize, start},
    opening::Opening,
    restore, save,
};

/// Every layout that this version opens, the newest last.
const LAYOUTS: [u32; 2] = [1, 2];
/// Every snapshot that this version restores, the newest last.
const SNAPSHOTS: [u32; 2] = [1, 2];

fn seams() -> Seams {
    Seams::seeded(1, "2026-01-01T00:00:00Z".parse().unwrap())
}

fn key(cluster: u64, resource: &str, name: &str) -> ObjectKey {
    let resource = GroupResource::new("example.org", resource);
    ObjectKey::cluster_scoped(LogicalClusterId::new(cluster), resource, name.parse().unwrap())
}

/// All that a layout has: labels, owners, placements, finalizers, updates, deletions, a compaction, a cluster that is gone.
async fn fill(store: &DynStore) {
    let objects = Objects::new(store.clone());
    let placement = json!({"clusters": [{"name": "east", "uid": "e-1", "phase": "Active", "epoch": 1}]}).to_string();
    for n in 1..=4u64 {
        let object = json!({"kind": "Boat", "metadata": {
            "name": format!("b{n}"), "uid": format!("u-{n}"), "labels": {"app": "x", "n": n.to_string()},
            "ownerReferences": [{"uid": "o-1"}], "finalizers": ["example.org/wait"],
            "annotations": {"portolan.dev/placement": placement}}, "spec": {"n": n}});
        objects.create(&key(n, "boats", &format!("b{n}")), &object).await.unwrap();
    }
    store.compact(ResourceVersion::new(3).unwrap()).await.unwrap();
    let many =
        Transaction::one(key(1, "ports", "p1"), Expect::Absent, Some(Record::of(&json!({"metadata": {}, "a": "ü"}))))
            .and(key(1, "ports", "p2"), Expect::Absent, Some(Record::of(&json!({"metadata": {}}))));
    store.commit(many).await.unwrap();
    let change = |object: &mut serde_json::Value| {
        object["spec"]["n"] = json!(7);
        Ok::<_, crate::StoreError>(Step::Write)
    };
    assert!(matches!(objects.modify(&key(1, "boats", "b1"), change).await, Ok(Some(Modified::Written(..)))));
    store.commit(Transaction::one(key(2, "boats", "b2"), Expect::Present, None)).await.unwrap();
    store.delete_cluster(LogicalClusterId::new(3)).await.unwrap();
}

/// A map that the store and the test look at.
#[derive(Clone, Default)]
struct Shared(Arc<MemoryKv>);

impl OrderedKv for Shared {
    fn view(&self, read: &mut dyn FnMut(&dyn View)) -> KvResult<()> {
        self.0.view(read)
    }
    fn commit(&self, batch: Batch) -> KvResult<()> {
        self.0.commit(batch)
    }
    fn publish(&self) {
        self.0.publish();
    }
    fn tidy(&self) -> KvResult<()> {
        Ok(())
    }
    fn recover(&self, _: &mut Before<'_>) -> KvResult<()> {
        Ok(())
    }
    fn close(&self) {}
    fn is_in_memory(&self) -> bool {
        true
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// All pairs, one a line.
fn dump(kv: &dyn OrderedKv) -> String {
    let dumped = read(kv, |view| {
        let (mut text, mut cursor) = (String::new(), view.scan(&[0], &[0xff]).unwrap());
        while let Some(key) = cursor.key() {
            writeln!(text, "{} {}", hex(key), hex(cursor.value())).unwrap();
            cursor.advance().unwrap();
        }
        text
    });
    dumped.unwrap()
}

fn load(kv: &dyn OrderedKv, text: &str) {
    let pair = |line: &str| {
        let (key, value) = line.split_once(' ').unwrap();
        (unhex(key), Some(unhex(value).into()))
    };
    kv.commit(text.lines().map(pair).collect()).unwrap();
    kv.publish();
}

fn fixture(name: &str, written: Option<&str>) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    if let (Some(text), Ok(_)) = (written, std::env::var("PORTOLAN_WRITE_FIXTURES")) {
        std::fs::write(&path, text).unwrap();
    }
    std::fs::read_to_string(path).unwrap()
}

async fn check(case: &str, store: &DynStore, last: u64) {
    let all = store.range(RangeRequest::all(RangeScope::All)).await.unwrap().objects;
    let names: Vec<&str> = all.iter().map(|object| &*object.key.name).collect();
    assert_eq!(names, ["b1", "p1", "p2", "b4"], "{case}");
    assert_eq!((all[0].created.get(), all[0].revision.get(), store.current().get()), (2, 8, last), "{case}");
    assert_eq!(all[0].record.header.label("n"), Some("1"), "{case}");
    for index in [RangeScope::PlacedOn("e-1".into()), RangeScope::OwnedBy(LogicalClusterId::new(4), "o-1".into())] {
        let found = store.range(RangeRequest::all(index)).await.unwrap().objects;
        assert!(found.contains(&all[3]), "{case}");
    }
    let gone = store.commit(Transaction::one(key(3, "boats", "late"), Expect::Anything, None)).await;
    assert!(matches!(gone, Err(crate::StoreError::ClusterGone { .. })), "{case}");
}

#[tokio::test]
async fn the_newest_layout_is_written_exactly_as_documented() {
    let kv = Shared::default();
    initialize(&kv, &seams()).unwrap();
    let base = Base::in_memory(Box::new(kv.clone()));
    let store = start(base, &StoreConfig::new(Engine::Memory, None)).unwrap_or_else(|_| panic!("it starts"));
    fill(&store).await;
    let written = dump(&kv);
    let newest = fixture(&format!("layout-{}.txt", LAYOUTS[LAYOUTS.len() - 1]), Some(&written));
    assert_eq!(written, newest, "bytes on disk changed: give the format a new number, or keep them");
}

#[tokio::test]
async fn every_layout_that_ever_was_opens_on_every_engine() {
    for layout in LAYOUTS {
        let text = fixture(&format!("layout-{layout}.txt"), None);
        let dir = tempfile::tempdir().unwrap();
        let engines: [(&str, Box<dyn OrderedKv>); 3] = [
            ("memory", Box::new(MemoryKv::default())),
            ("redb", Box::new(RedbKv::open(&dir.path().join("redb"), 1 << 20, &Opening::default()).unwrap())),
            ("sled", Box::new(SledKv::open(&dir.path().join("sled"), 1 << 20).unwrap())),
        ];
        for (engine, kv) in engines {
            load(&*kv, &text);
            let case = format!("layout {layout} on {engine}");
            let started = start(Base::in_memory(kv), &StoreConfig::new(Engine::Memory, None));
            let store = started.unwrap_or_else(|_| panic!("{case} starts"));
            check(&case, &store, 11).await;
            let boats = WatchScope::Resource(GroupResource::new("example.org", "boats"), None);
            let mut watch = store.watch(boats, Some(store.oldest())).await.unwrap();
            let batch = watch.next().await.unwrap();
            let revisions: Vec<u64> = batch.events.iter().map(|event| event.revision.get()).collect();
            assert_eq!(revisions, [4, 5, 8, 9, 11], "{case}");
            store.close().await;
        }
    }
}

#[tokio::test]
async fn every_snapshot_that_ever_was_is_restored() {
    let store = crate::memory();
    fill(&store).await;
    let mut taken = Vec::new();
    save(&*store, &seams(), &mut taken).await.unwrap();
    for format in SNAPSHOTS {
        let written = if format == SNAPSHOTS[SNAPSHOTS.len() - 1] { Some(hex(&taken)) } else { None };
        let bytes = unhex(&fixture(&format!("snapshot-{format}.txt"), written.as_deref()));
        assert_eq!(inspect(&*bytes).unwrap().objects, 4);
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig::new(Engine::Redb, Some(dir.path().join("data")));
        restore(&config, &seams(), &*bytes, None).unwrap();
        let restored = open(config, seams()).unwrap();
        check(&format!("snapshot {format}"), &restored, 11 + (1 << 40) + (1_767_225_600_000 << 10)).await;
    }
}
