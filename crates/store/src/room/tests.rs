//! Small disks: their room is what a real file of redb leaves of so many bytes.

use std::{io, path::Path};

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record};
use prometheus::core::Collector as _;
use serde_json::json;

use super::*;
use crate::{
    DynStore, Engine, Expect, StoreConfig, StoreError, Transaction,
    kv::RedbKv,
    open::{Base, initialize, start},
};

/// A disk whose free room is told by a function.
struct Told<F>(F);

impl<F: Fn() -> io::Result<u64> + Send + Sync> Disk for Told<F> {
    fn free(&self) -> io::Result<u64> {
        (self.0)()
    }

    fn taken(&self) -> io::Result<u64> {
        Ok(0)
    }
}

fn told(reserve: u64, free: impl Fn() -> io::Result<u64> + Send + Sync + 'static) -> Room {
    Room::on(Told(free), reserve)
}

#[test]
fn room_is_what_the_file_system_has_beyond_the_reserve() {
    let dir = std::env::temp_dir();
    assert!(Room::on(Files(dir.clone()), 1).check(Purpose::Any).is_ok());
    let refused = Room::on(Files(dir), u64::MAX).check(Purpose::MakeRoom).unwrap_err();
    assert!(refused.is_full() && refused.to_string().contains("left on the disk"), "{refused}");
    assert!(told(u64::MAX, || Err(ErrorKind::Unsupported.into())).check(Purpose::Any).is_ok());
    assert!(Room::unlimited().check(Purpose::Any).is_ok());
}

#[test]
fn what_makes_room_may_use_most_of_the_reserve_and_what_leaves_half_of_it() {
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
        let room = told(80, move || Ok(free));
        assert_eq!(Purpose::EACH.map(|purpose| room.check(purpose).is_ok()), taken, "{free}");
        room.within.store(1, Ordering::Relaxed);
        assert_eq!(Purpose::EACH.map(|purpose| room.check(purpose).is_ok()), taken_with_room_within, "{free}");
    }
}

#[test]
fn the_room_of_files_is_what_they_take_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files(dir.path().to_owned());
    let before = files.taken().unwrap();
    fs::create_dir(dir.path().join("folder")).unwrap();
    fs::write(dir.path().join("folder/file"), [7; 100_000]).unwrap();
    let hole = fs::File::create(dir.path().join("hole")).unwrap();
    hole.set_len(1 << 30).unwrap();
    hole.sync_all().unwrap();
    let taken = files.taken().unwrap() - before;
    assert!((100_000..1_000_000).contains(&taken), "{taken}");
    assert_eq!(Files(dir.path().join("gone")).taken().unwrap(), 0);

    let gauges = Room::on(files, 0).gauges().unwrap();
    let told: Vec<_> = gauges.collect().iter().map(|family| family.name().to_owned()).collect();
    assert_eq!(told, ["portolan_store_free_bytes", "apiserver_storage_size_bytes"]);
    assert!(gauges.collect().iter().all(|family| family.get_metric()[0].get_gauge().get_value() > 100_000.0));
}

/// A disk of so many bytes, which redb's file fills.
struct Small {
    files: Files,
    size: u64,
}

impl Disk for Small {
    fn free(&self) -> io::Result<u64> {
        Ok(self.size.saturating_sub(self.files.taken()?))
    }

    fn taken(&self) -> io::Result<u64> {
        self.files.taken()
    }
}

const RESERVE: u64 = 32 << 20;
const SIZE: u64 = 64 << 20;
/// Writes that come at once.
const TOGETHER: usize = 16;

fn on_small_disk(dir: &Path) -> DynStore {
    let path = dir.join("store");
    let kv = RedbKv::open(&path, 1 << 20, &crate::Opening::default()).unwrap();
    initialize(&kv, &portolan_types::Seams::system()).unwrap();
    let room = Room::on(Small { files: Files(path), size: SIZE }, RESERVE);
    let base = Base { kv: Box::new(kv), home: None, room };
    start(base, &StoreConfig::new(Engine::Redb, None)).unwrap_or_else(|_| panic!("it starts"))
}

fn key(n: usize) -> ObjectKey {
    let name = format!("n{n}").parse().unwrap();
    ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "things"), name)
}

async fn write(store: &DynStore, n: usize, size: Option<usize>) -> Result<(), StoreError> {
    let record = size.map(|size| Record::of(&json!({"metadata": {"name": format!("n{n}")}, "data": "x".repeat(size)})));
    store.commit(Transaction::one(key(n), Expect::Anything, record)).await.map(drop)
}

fn free(dir: &Path) -> u64 {
    Small { files: Files(dir.join("store")), size: SIZE }.free().unwrap()
}

/// Writes, or deletes, objects from the `from`th on together, and returns why any was refused.
async fn write_each(store: &DynStore, from: usize, size: Option<usize>) -> Vec<StoreError> {
    let writes = (from..from + TOGETHER).map(|n| write(store, n, size));
    futures::future::join_all(writes).await.into_iter().filter_map(Result::err).collect()
}

/// Writes objects from the `written`th on until the disk is nearly full, and returns which would come next.
async fn fill(store: &DynStore, mut written: usize) -> usize {
    loop {
        let refused = write_each(store, written, Some(20_000)).await;
        assert!(refused.iter().all(|why| matches!(why, StoreError::Full)), "{refused:?}");
        written += TOGETHER;
        if !refused.is_empty() && !takes_writes_within(store, Duration::from_millis(500)).await {
            return written;
        }
    }
}

async fn takes_writes_within(store: &DynStore, limit: Duration) -> bool {
    let healthy = async {
        while store.health().is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(limit, healthy).await.is_ok()
}

#[tokio::test]
async fn what_was_deleted_makes_room_for_writes_on_a_disk_that_stays_nearly_full() {
    const DELETED: usize = 40 * TOGETHER;
    let dir = tempfile::tempdir().unwrap();
    let store = on_small_disk(dir.path());
    let first = fill(&store, 0).await;
    let mut written = first;
    for deleted in (0..6).map(|turn| turn * DELETED) {
        for from in (deleted..deleted + DELETED).step_by(TOGETHER) {
            let refused = write_each(&store, from, None).await;
            let are_gone = refused.iter().all(|why| matches!(why, StoreError::NotFound { .. }));
            assert!(are_gone, "{deleted}: {refused:?}");
        }
        store.compact(store.current()).await.unwrap();
        let takes_writes = takes_writes_within(&store, Duration::from_secs(20)).await;
        assert!(takes_writes, "{deleted}: {} free", free(dir.path()));
        let before = written;
        written = fill(&store, before).await;
        let (again, free) = (written - before, free(dir.path()));
        assert!(again > DELETED / 4, "{deleted}: {again} again, {free} free");
        assert!(free >= RESERVE / 8 * 3, "{deleted}: {free} free, deletions are left more");
    }
    assert!(written > first + 2 * DELETED, "{first}, {written}");
    store.close().await;
}

#[tokio::test]
async fn a_disk_that_is_full_of_what_is_stored_has_no_room_within() {
    let dir = tempfile::tempdir().unwrap();
    let store = on_small_disk(dir.path());
    let objects = fill(&store, 0).await;
    assert!(matches!(write(&store, objects, Some(10)).await, Err(StoreError::Full)));
    store.close().await;
}
