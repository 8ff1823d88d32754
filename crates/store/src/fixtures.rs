//! Golden fixtures of every format of stores and snapshots, as text under `tests/fixtures`. This version must open
//! each, and write the newest format exactly so. A deliberate change of a format gets a new number, and
//! `PORTOLAN_WRITE_FIXTURES=1` writes its fixtures beside the old ones. Whole data directories are included, to test a
//! new version of an engine with the files of older ones.

use std::{
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::json;

use crate::{
    api::{DynStore, Expect, RangeRequest, RangeScope, Transaction, WatchScope, open_progress::OpenProgress},
    engine::{Batch, KvResult, KvView, MemoryKv, OrderedKv, RecoveryCallback, RedbKv, SledKv, read},
    layout::keys::meta,
    object_client::{ModifyOutcome, ObjectClient, Step},
    open::{Engine, StoreConfig, StoreParts, engine_in, open, start, verify},
    read::bookkeeping::initialize,
    snapshot::{inspect, restore, save},
};

/// Every layout that this version opens, the newest last.
const LAYOUTS: [u32; 6] = [1, 2, 3, 4, 5, 6];
/// Version of the layout of redb's file.
const FILE_LAYOUT: u32 = 4;
/// Every data directory that this version opens: engine, layout and the engine's version.
const DIRECTORIES: [&str; 10] = [
    "redb-2-4.4",
    "sled-2-0.34.7",
    "redb-3-4.4",
    "sled-3-0.34.7",
    "redb-4-4.4",
    "sled-4-0.34.7",
    "redb-5-4.4",
    "sled-5-0.34.7",
    "redb-6-4.4",
    "sled-6-0.34.7",
];
/// Every snapshot format that this version restores, the newest last.
const SNAPSHOTS: [u32; 2] = [1, 2];

fn seams() -> Seams {
    Seams::seeded(1, "2026-01-01T00:00:00Z".parse().unwrap())
}

fn key(cluster: u64, resource: &str, name: &str) -> ObjectKey {
    let resource = GroupResource::new("example.org", resource);
    ObjectKey::cluster_scoped(LogicalClusterId::new(cluster), resource, name.parse().unwrap())
}

/// Writes everything a layout has: labels, owners, placements, finalizers, updates, deletions, a compaction, a deleted
/// cluster.
pub(crate) async fn fill(store: &DynStore) {
    let objects = ObjectClient::new(store.clone());
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
        Ok::<_, crate::api::StoreError>(Step::Write)
    };
    assert!(matches!(objects.modify(&key(1, "boats", "b1"), change).await, Ok(Some(ModifyOutcome::Written(..)))));
    store.commit(Transaction::one(key(2, "boats", "b2"), Expect::Present, None)).await.unwrap();
    store.delete_cluster(LogicalClusterId::new(3)).await.unwrap();
}

/// Map that the store and the test share.
#[derive(Clone)]
pub(crate) struct SharedKv(pub(crate) Arc<dyn OrderedKv>);

impl Default for SharedKv {
    fn default() -> Self {
        Self(Arc::new(MemoryKv::default()))
    }
}

impl OrderedKv for SharedKv {
    fn view(&self, read: &mut dyn FnMut(&dyn KvView)) -> KvResult<()> {
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
    fn recover(&self, _: &mut RecoveryCallback<'_>) -> KvResult<()> {
        Ok(())
    }
    fn close(&self) {}
    fn is_in_memory(&self) -> bool {
        self.0.is_in_memory()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Dumps all pairs, one per line.
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

pub(crate) fn fixture(name: &str, written: Option<&str>) -> String {
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
    assert!(matches!(gone, Err(crate::api::StoreError::ClusterGone { .. })), "{case}");
}

#[tokio::test]
async fn the_newest_layout_is_written_exactly_as_documented() {
    let kv = SharedKv::default();
    initialize(&kv, &seams()).unwrap();
    let base = StoreParts::in_memory(Box::new(kv.clone()));
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
            ("redb", Box::new(RedbKv::open(&dir.path().join("redb"), 1 << 20, &OpenProgress::default()).unwrap())),
            ("sled", Box::new(SledKv::open(&dir.path().join("sled"), 1 << 20).unwrap())),
        ];
        for (engine, kv) in engines {
            load(&*kv, &text);
            let case = format!("layout {layout} on {engine}");
            let started = start(StoreParts::in_memory(kv), &StoreConfig::new(Engine::Memory, None));
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
    let store = crate::open::memory();
    fill(&store).await;
    let mut taken = Vec::new();
    save(&*store, &seams(), crate::api::OnDamage::Fail, &mut taken).await.unwrap();
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

/// Bytes per line of a dumped file.
const LINE: usize = 64;

/// Dumps all files of a directory as text: name and length, and the lines that are not all zeros with their offsets.
fn dump_files(root: &Path, dir: &Path, text: &mut String) {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = path.strip_prefix(root).unwrap().display();
        if path.is_dir() {
            writeln!(text, "folder {name}").unwrap();
            dump_files(root, &path, text);
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        writeln!(text, "file {name} {}", bytes.len()).unwrap();
        for (number, line) in bytes.chunks(LINE).enumerate().filter(|(_, line)| line.iter().any(|byte| *byte != 0)) {
            writeln!(text, "{} {}", number * LINE, hex(line)).unwrap();
        }
    }
}

fn load_files(root: &Path, text: &str) {
    let mut file: Option<(PathBuf, Vec<u8>)> = None;
    for line in text.lines().chain(["end"]) {
        let words: Vec<&str> = line.split(' ').collect();
        if let [at, bytes] = words[..]
            && let (Ok(at), Some((_, content))) = (at.parse::<usize>(), &mut file)
        {
            let bytes = unhex(bytes);
            content[at..at + bytes.len()].copy_from_slice(&bytes);
            continue;
        }
        if let Some((path, content)) = file.take() {
            fs::write(path, content).unwrap();
        }
        match words[..] {
            ["folder", name] => fs::create_dir(root.join(name)).unwrap(),
            ["file", name, len] => file = Some((root.join(name), vec![0; len.parse().unwrap()])),
            _ => assert_eq!(line, "end"),
        }
    }
}

/// Reads a compressed [`fixture`]: most of it is pages that the engine left behind.
fn packed_fixture(name: &str, written: Option<&str>) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    if let Some(text) = written {
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(text.as_bytes()).unwrap();
        fs::write(&path, packed.finish().unwrap()).unwrap();
    }
    let mut text = String::new();
    GzDecoder::new(fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text
}

fn engine_of(name: &str) -> Engine {
    if name.starts_with("redb") { Engine::Redb } else { Engine::Sled }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_data_directory_that_ever_was_opens() {
    for name in DIRECTORIES {
        let dir = tempfile::tempdir().unwrap();
        let config = |of: &str| StoreConfig {
            cache_bytes: 1 << 20,
            disk_reserve: 0,
            ..StoreConfig::new(engine_of(name), Some(dir.path().join(of)))
        };
        let is_newest = name.contains(&format!("-{}-", LAYOUTS[LAYOUTS.len() - 1]));
        let written = match std::env::var("PORTOLAN_WRITE_FIXTURES") {
            Ok(_) if is_newest => {
                let made = open(config("made"), seams()).unwrap();
                fill(&made).await;
                made.close().await;
                drop(made);
                let (made, mut text) = (dir.path().join("made"), String::new());
                fs::remove_file(made.join("store.lock")).unwrap();
                dump_files(&made, &made, &mut text);
                Some(text)
            }
            Ok(_) | Err(_) => None,
        };
        let text = packed_fixture(&format!("directory-{name}.txt.gz"), written.as_deref());
        fs::create_dir(dir.path().join("data")).unwrap();
        load_files(&dir.path().join("data"), &text);
        assert_eq!(engine_in(&dir.path().join("data")), Some(engine_of(name)), "{name}");
        let sound = verify(config("data"), seams()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((sound.objects, sound.last), (4, 11), "{name}");
        let store = open(config("data"), seams()).unwrap();
        check(name, &store, 11).await;
        store.close().await;
    }
}

/// Opens the engine of a directory, bypassing the store.
fn raw(engine: Engine, dir: &Path) -> Box<dyn OrderedKv> {
    match engine {
        Engine::Redb => Box::new(RedbKv::open(&dir.join("store.redb"), 1 << 20, &OpenProgress::default()).unwrap()),
        _ => Box::new(SledKv::open(&dir.join("store.sled"), 1 << 20).unwrap()),
    }
}

#[tokio::test]
async fn a_data_directory_of_a_newer_format_is_refused_and_nothing_in_it_changed() {
    let newest = LAYOUTS[LAYOUTS.len() - 1];
    for engine in [Engine::Redb, Engine::Sled] {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { disk_reserve: 0, ..StoreConfig::new(engine, Some(dir.path().to_owned())) };
        open(config.clone(), seams()).unwrap().close().await;
        let (kv, newer) = (raw(engine, dir.path()), (newest + 1).to_le_bytes());
        kv.commit(Batch::from([(meta::FORMAT.to_vec(), Some(newer.to_vec().into()))])).unwrap();
        kv.publish();
        let before = dump(&*kv);
        kv.close();
        drop(kv);
        for refused in [open(config.clone(), seams()).err(), verify(config.clone(), seams()).err()] {
            let expected = format!(
                "the store has format {}, this version knows formats up to {newest}; use the version that wrote it",
                newest + 1
            );
            assert_eq!(refused.expect("it is newer").to_string(), expected, "{engine:?}");
        }
        assert_eq!(dump(&*raw(engine, dir.path())), before, "{engine:?}");
    }
}

/// The version of redb's file layout is stored in the file itself.
#[tokio::test]
async fn a_file_of_a_newer_format_is_refused_and_not_changed() {
    let newest = FILE_LAYOUT;
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { disk_reserve: 0, ..StoreConfig::new(Engine::Redb, Some(dir.path().to_owned())) };
    open(config.clone(), seams()).unwrap().close().await;
    let path = dir.path().join("store.redb");
    let mut bytes = fs::read(&path).unwrap();
    let version = bytes.windows(4).position(|part| part == newest.to_le_bytes()).unwrap();
    assert_eq!(&bytes[..version], b"portolan pages\n");
    bytes[version] += 1;
    let mut sum = crc32fast::Hasher::new_with_initial(u32::MAX);
    sum.update(&bytes[..508]);
    bytes[508..512].copy_from_slice(&sum.finalize().to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let expected = format!(
        "the store has format {}, this version knows formats up to {newest}; use the version that wrote it",
        newest + 1
    );
    for refused in [open(config.clone(), seams()).err(), verify(config.clone(), seams()).err()] {
        assert_eq!(refused.expect("it is newer").to_string(), expected);
    }
    assert!(fs::read(&path).unwrap() == bytes);
}
