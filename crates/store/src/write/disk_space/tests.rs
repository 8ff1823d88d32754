//! Tests with small disks. The free space of a disk is its size minus the size of a real file of redb.

use std::{fs, io};

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record};
use prometheus::core::Collector as _;
use redb::{ReadableTableMetadata as _, TableDefinition};
use serde_json::json;

use super::*;
use crate::{
    api::{DynStore, Expect, StoreError, Transaction},
    engine::RedbKv,
    open::{Engine, StoreConfig, StoreParts, start},
    read::bookkeeping::initialize,
};

/// A disk whose free room comes from a function.
struct FakeDisk<F>(F);

impl<F: Fn() -> io::Result<u64> + Send + Sync> StorageDisk for FakeDisk<F> {
    fn free(&self) -> io::Result<u64> {
        (self.0)()
    }

    fn taken(&self) -> io::Result<u64> {
        Ok(0)
    }
}

fn disk_space_of(reserve: u64, free: impl Fn() -> io::Result<u64> + Send + Sync + 'static) -> DiskSpace {
    DiskSpace::on(FakeDisk(free), reserve)
}

#[test]
fn free_space_is_the_file_systems_minus_the_reserve() {
    let dir = std::env::temp_dir();
    assert!(DiskSpace::on(EngineFiles(dir.clone()), 1).batch_budget(WritePurpose::Any).is_ok());
    let refused = DiskSpace::on(EngineFiles(dir), u64::MAX).batch_budget(WritePurpose::MakeRoom).unwrap_err();
    assert!(refused.is_full() && refused.to_string().contains("left on the disk"), "{refused}");
    assert!(disk_space_of(u64::MAX, || Err(ErrorKind::Unsupported.into())).batch_budget(WritePurpose::Any).is_ok());
    assert!(DiskSpace::unlimited().batch_budget(WritePurpose::Any).is_ok());
}

#[test]
fn deletes_use_most_of_the_reserve_and_compactions_half() {
    for (free, taken, taken_with_room_within) in [
        (80, [true, true, true], [true, true, true]),
        (79, [false, true, true], [true, true, true]),
        (40, [false, true, true], [true, true, true]),
        (39, [false, false, true], [true, true, true]),
        (30, [false, false, true], [true, true, true]),
        (29, [false, false, true], [false, false, true]),
        (20, [false, false, true], [false, false, true]),
        (19, [false, false, false], [false, false, true]),
        (10, [false, false, false], [false, false, true]),
        (9, [false, false, false], [false, false, false]),
    ] {
        let room = disk_space_of(80, move || Ok(free));
        assert_eq!(WritePurpose::EACH.map(|purpose| room.batch_budget(purpose).is_ok()), taken, "{free}");
        room.reusable.store(1, Ordering::Relaxed);
        assert_eq!(
            WritePurpose::EACH.map(|purpose| room.batch_budget(purpose).is_ok()),
            taken_with_room_within,
            "{free}"
        );
    }
}

#[test]
fn the_error_names_used_and_required_space() {
    const MIB: u64 = 1 << 20;
    for (free, purpose, words) in [
        (
            63,
            WritePurpose::Any,
            "nearly full, 63 MiB are free and this needs 64 MiB: only deletions, and changes of what is being deleted,",
        ),
        (31, WritePurpose::Any, "nearly full, 31 MiB are free and this needs 64 MiB: only deletions are taken"),
        (31, WritePurpose::Leave, "nearly full, 31 MiB are free and this needs 32 MiB: only deletions are taken"),
        (15, WritePurpose::MakeRoom, "is full, 15 MiB are free and this needs 16 MiB: no write is taken"),
    ] {
        let shortage = disk_space_of(64 * MIB, move || Ok(free * MIB)).shortage(purpose);
        assert!(shortage.to_string().contains(words) && !shortage.is_over(), "{shortage}");
    }
    let over = disk_space_of(64 * MIB, || Ok(64 * MIB)).shortage(WritePurpose::Any);
    assert!(over.is_over() && over.to_string().contains("has 64 MiB free again"), "{over}");
    let unknown = disk_space_of(64, || Err(ErrorKind::Unsupported.into())).shortage(WritePurpose::Any);
    assert!(!unknown.is_over() && !SpaceShortage::Etcd.is_over(), "{unknown}");
}

#[test]
fn the_size_of_files_counts_their_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let files = EngineFiles(dir.path().to_owned());
    let before = files.taken().unwrap();
    fs::create_dir(dir.path().join("folder")).unwrap();
    fs::write(dir.path().join("folder/file"), [7; 100_000]).unwrap();
    let hole = fs::File::create(dir.path().join("hole")).unwrap();
    hole.set_len(1 << 30).unwrap();
    hole.sync_all().unwrap();
    let taken = files.taken().unwrap() - before;
    assert!((100_000..1_000_000).contains(&taken), "{taken}");
    assert_eq!(EngineFiles(dir.path().join("gone")).taken().unwrap(), 0);

    let gauges = DiskSpace::on(files, 0).gauges().unwrap();
    let told: Vec<_> = gauges.collect().iter().map(|family| family.name().to_owned()).collect();
    assert_eq!(told, ["portolan_store_free_bytes", "apiserver_storage_size_bytes"]);
    assert!(gauges.collect().iter().all(|family| family.get_metric()[0].get_gauge().get_value() > 100_000.0));
}

#[test]
fn a_batch_uses_part_of_the_free_space_and_leaves_the_rest_to_deletes() {
    for (purpose, free, within, written) in [
        (WritePurpose::Any, 1000, 0, 245),
        (WritePurpose::Any, 80, 0, 15),
        (WritePurpose::Leave, 40, 0, 5),
        (WritePurpose::MakeRoom, 40, 0, 10),
        (WritePurpose::MakeRoom, 20, 0, 5),
        (WritePurpose::Any, 30, 1, 5),
        (WritePurpose::Leave, 30, 1, 5),
        (WritePurpose::MakeRoom, 10, 1, 2),
    ] {
        let room = disk_space_of(80, move || Ok(free));
        room.reusable.store(within, Ordering::Relaxed);
        assert_eq!(room.batch_budget(purpose).unwrap(), written, "{purpose:?} with {free} free, and {within} within");
    }
    assert_eq!(
        disk_space_of(80, || Err(ErrorKind::Unsupported.into())).batch_budget(WritePurpose::Any).unwrap(),
        u64::MAX
    );
}

/// Random keys, as those of objects come in no order. Inner pages, which are not estimated, are less than a hundredth.
#[test]
fn the_estimate_for_redb_covers_its_pages() {
    const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("table");
    const PAIRS: u64 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let mixes: [&[usize]; 18] = [
        &[300],
        &[1000],
        &[1500],
        &[2100],
        &[3000],
        &[4000],
        &[4200],
        &[8100],
        &[12_000],
        &[16_300],
        &[20_000],
        &[3000, 300],
        &[3600, 300, 300, 300, 300],
        &[4000, 300],
        &[7900, 300],
        &[7900, 300, 300, 300, 300],
        &[16_300, 300],
        &[130_900, 300, 300, 300, 300],
    ];
    for (n, sizes) in mixes.into_iter().enumerate() {
        let db = redb::Database::create(dir.path().join(n.to_string())).unwrap();
        let txn = db.begin_write().unwrap();
        let mut table = txn.open_table(TABLE).unwrap();
        let mut estimated = 0;
        for pair in 0..PAIRS {
            let mixed = (pair + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let key = format!("{:016x}-namespace-and-name", mixed ^ mixed >> 29);
            let value = vec![7; sizes[usize::try_from(mixed >> 40).unwrap() % sizes.len()] - key.len()];
            table.insert(key.as_bytes(), value.as_slice()).unwrap();
            estimated += estimated_pages(key.as_bytes(), &value);
        }
        let stats = table.stats().unwrap();
        let taken = stats.stored_bytes() + stats.metadata_bytes() + stats.fragmented_bytes();
        let ratio = estimated as f64 / taken as f64;
        assert!((0.99..=2.01).contains(&ratio), "{sizes:?}: {estimated} estimated, {taken} taken, {ratio:.2}");
    }
}

/// Disk of a given size that redb's file fills.
struct SmallDisk {
    files: EngineFiles,
    size: u64,
    /// Number of calls of `taken`, of which each slice of a scan makes one.
    slices: Arc<AtomicU64>,
}

impl StorageDisk for SmallDisk {
    fn free(&self) -> io::Result<u64> {
        Ok(self.size.saturating_sub(self.files.taken()?))
    }

    fn taken(&self) -> io::Result<u64> {
        self.slices.fetch_add(1, Ordering::Relaxed);
        self.files.taken()
    }
}

const RESERVE: u64 = 32 << 20;
const SIZE: u64 = 64 << 20;
/// Concurrent writes.
const TOGETHER: usize = 16;
/// Slices after which a scan has surely ended, and another one after it.
const TWO_LOOKS: u64 = 20;

/// Store on a small disk.
struct SmallDiskStore {
    store: DynStore,
    path: PathBuf,
    slices: Arc<AtomicU64>,
    _dir: tempfile::TempDir,
}

impl SmallDiskStore {
    fn new() -> Self {
        let (dir, slices) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(0)));
        let path = dir.path().join("store");
        let kv = RedbKv::open(&path, 1 << 20, &crate::api::open_progress::OpenProgress::default()).unwrap();
        initialize(&kv, &portolan_types::Seams::system()).unwrap();
        let disk = SmallDisk { files: EngineFiles(path.clone()), size: SIZE, slices: slices.clone() };
        let base = StoreParts { kv: Box::new(kv), home: None, room: DiskSpace::on(disk, RESERVE) };
        let store = start(base, &StoreConfig::new(Engine::Redb, None)).unwrap_or_else(|_| panic!("it starts"));
        Self { store, path, slices, _dir: dir }
    }

    fn free(&self) -> u64 {
        SIZE.saturating_sub(disk_usage(&self.path).unwrap())
    }

    async fn write(&self, n: usize, size: Option<usize>) -> Result<(), StoreError> {
        let name = format!("n{n}");
        let key =
            ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "things"), name.parse().unwrap());
        let record = size.map(|size| Record::of(&json!({"metadata": {"name": name}, "data": "x".repeat(size)})));
        self.store.commit(Transaction::one(key, Expect::Anything, record)).await.map(drop)
    }

    /// Writes, or deletes, objects from the `from`th on together, and returns why any was refused.
    async fn write_each(&self, from: usize, size: Option<usize>) -> Vec<StoreError> {
        let writes = (from..from + TOGETHER).map(|n| self.write(n, size));
        futures::future::join_all(writes).await.into_iter().filter_map(Result::err).collect()
    }

    /// Writes objects from the `written`th on until the disk is nearly full, and returns which would come next.
    async fn fill(&self, mut written: usize) -> usize {
        loop {
            let refused = self.write_each(written, Some(20_000)).await;
            assert!(refused.iter().all(|why| matches!(why, StoreError::Full(_))), "{refused:?}");
            written += TOGETHER;
            if !refused.is_empty() && !self.takes_writes().await {
                return written;
            }
        }
    }

    /// Returns true if writes are accepted, at once or after a scan for free pages.
    async fn takes_writes(&self) -> bool {
        let before = self.slices.load(Ordering::Relaxed);
        while self.store.health().is_err() {
            if self.slices.load(Ordering::Relaxed) > before + TWO_LOOKS {
                return false;
            }
            tokio::task::yield_now().await;
        }
        true
    }
}

#[tokio::test]
async fn deletes_free_space_for_writes_on_a_nearly_full_disk() {
    const DELETED: usize = 40 * TOGETHER;
    let scene = SmallDiskStore::new();
    let first = scene.fill(0).await;
    let mut written = first;
    for deleted in (0..6).map(|turn| turn * DELETED) {
        for from in (deleted..deleted + DELETED).step_by(TOGETHER) {
            let refused = scene.write_each(from, None).await;
            let are_gone = refused.iter().all(|why| matches!(why, StoreError::NotFound { .. }));
            assert!(are_gone, "{deleted}: {refused:?}");
        }
        scene.store.compact(scene.store.current()).await.unwrap();
        assert!(scene.takes_writes().await, "{deleted}: {} free", scene.free());
        let before = written;
        written = scene.fill(before).await;
        let (again, free) = (written - before, scene.free());
        assert!(again > DELETED / 4, "{deleted}: {again} again, {free} free");
        assert!(free >= RESERVE / 8 * 3, "{deleted}: {free} free, deletions are left more");
    }
    assert!(written > first + 2 * DELETED, "{first}, {written}");
    scene.store.close().await;
}

#[tokio::test]
async fn a_disk_full_of_live_objects_has_no_space_to_reclaim() {
    let scene = SmallDiskStore::new();
    let objects = scene.fill(0).await;
    assert!(!scene.takes_writes().await);
    assert!(matches!(scene.write(objects, Some(10)).await, Err(StoreError::Full(_))));
    scene.store.close().await;
}

impl SmallDiskStore {
    async fn put(&self, cluster: u64, name: &str, size: usize) -> Result<(), StoreError> {
        let cluster = LogicalClusterId::new(cluster);
        let key = ObjectKey::cluster_scoped(cluster, GroupResource::new("", "things"), name.parse().unwrap());
        let record = Record::of(&json!({"metadata": {"name": name}, "data": "x".repeat(size)}));
        self.store.commit(Transaction::one(key, Expect::Anything, Some(record))).await.map(drop)
    }

    /// Rewrites large objects in one logical cluster, many times the size of the disk, while another one creates small
    /// ones.
    async fn rewrite(&self) {
        let mut mib = 0;
        for n in 0..60 {
            let large: Vec<String> = (0..4).map(|of| format!("large{of}")).collect();
            let (small, more) = (format!("small{n}"), format!("more{n}"));
            let (large, small) = futures::join!(
                futures::future::join_all(large.iter().map(|name| self.put(7, name, 1_000_000))),
                futures::future::join_all([self.put(8, &small, 500), self.put(8, &more, 500)]),
            );
            for outcome in large.into_iter().chain(small) {
                outcome.unwrap_or_else(|why| panic!("after {mib} MiB, {} free: {why}", self.free()));
            }
            mib += 4;
            let history = self.store.history_bytes().unwrap();
            assert!(history <= 24 << 20, "{history} bytes of history on a disk of 64 MiB");
        }
    }
}

#[tokio::test]
async fn a_logical_cluster_that_rewrites_large_objects_leaves_room_for_others() {
    let scene = SmallDiskStore::new();
    let first = scene.store.current();
    scene.rewrite().await;
    let things = crate::api::WatchScope::Resource(GroupResource::new("", "things"), None);
    let behind = scene.store.watch(things.clone(), Some(first)).await.map(drop);
    assert!(matches!(behind, Err(StoreError::Compacted { .. })), "{behind:?}");
    scene.store.watch(things, Some(scene.store.current())).await.unwrap();
    scene.store.close().await;
}

#[tokio::test]
async fn a_hold_does_not_keep_a_disk_full() {
    let scene = SmallDiskStore::new();
    scene.put(8, "held", 500).await.unwrap();
    let (_hold, at) = (scene.store.hold(None).await, scene.store.current());
    let all = crate::api::RangeRequest { at: Some(at), ..crate::api::RangeRequest::all(crate::api::RangeScope::All) };
    for n in 0..4 {
        scene.put(7, "large", 1_000_000 + n).await.unwrap();
    }
    scene.store.shrink_history(0).await.unwrap();
    assert_eq!(scene.store.range(all.clone()).await.unwrap().objects.len(), 1, "with room it is kept");
    scene.rewrite().await;
    let ended = scene.store.range(all).await.map(drop);
    assert!(matches!(ended, Err(StoreError::Compacted { .. })), "{ended:?}");
    scene.store.close().await;
}
