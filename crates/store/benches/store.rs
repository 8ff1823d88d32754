//! Benchmarks of the store by itself: commits, gets, ranges and watch fan-out. Run with `cargo bench -p
//! portolan-store`.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use divan::{Bencher, counter::ItemsCount};
use futures::future::join_all;
use portolan_store::{DynStore, Engine, Expect, RangeRequest, RangeScope, StoreConfig, Transaction, WatchScope, open};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams};
use serde_json::json;
use tokio::runtime::Runtime;

/// Commits of one measured round.
const COMMITS: u64 = 256;
const ENGINES: [Engine; 3] = [Engine::Memory, Engine::Redb, Engine::Sled];

fn main() {
    divan::main();
}

/// A store in a directory of its own, and names that are never used twice.
struct Bench {
    runtime: Runtime,
    store: DynStore,
    next: Arc<AtomicU64>,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new(engine: Engine) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let config = StoreConfig { cache_bytes: 64 << 20, ..StoreConfig::new(engine, Some(dir.path().join("data"))) };
        let store = open(config, Seams::system()).expect("a new store opens");
        let runtime = Runtime::new().expect("a runtime starts");
        Self { runtime, store, next: Arc::default(), _dir: dir }
    }

    fn filled(engine: Engine, objects: u64) -> Self {
        let bench = Self::new(engine);
        bench.create(objects, 64);
        bench
    }

    /// Creates objects from as many writers.
    fn create(&self, objects: u64, writers: u64) {
        let writer = || async {
            for _ in 0..objects / writers {
                let key = key(self.next.fetch_add(1, Ordering::Relaxed));
                let record = record(&key);
                let txn = Transaction::one(key, Expect::Absent, Some(record));
                self.store.commit(txn).await.expect("the commit succeeds");
            }
        };
        self.runtime.block_on(join_all((0..writers).map(|_| writer())));
    }
}

fn config_maps() -> GroupResource {
    GroupResource::new("", "configmaps")
}

fn key(n: u64) -> ObjectKey {
    let name = format!("object-{n:08}").parse().expect("a valid name");
    let namespace = "default".parse().expect("a valid name");
    ObjectKey::namespaced(LogicalClusterId::new(2), config_maps(), namespace, name)
}

/// About 1 KiB.
fn record(key: &ObjectKey) -> Record {
    Record::of(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": &*key.name, "namespace": "default", "uid": "4f1c0c6e-6a9f-4f43-b2f5-8a3f0c6e6a9f",
            "labels": {"app": "bench"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "data": {"payload": "x".repeat(800)},
    }))
}

#[divan::bench(args = ENGINES, sample_count = 20)]
fn commit_1_kib_with_1_writer(bencher: Bencher<'_, '_>, engine: Engine) {
    let bench = Bench::new(engine);
    bencher.counter(ItemsCount::new(COMMITS)).bench_local(|| bench.create(COMMITS, 1));
}

#[divan::bench(args = ENGINES, sample_count = 20)]
fn commit_1_kib_with_64_writers(bencher: Bencher<'_, '_>, engine: Engine) {
    let bench = Bench::new(engine);
    bencher.counter(ItemsCount::new(COMMITS * 8)).bench_local(|| bench.create(COMMITS * 8, 64));
}

#[divan::bench(args = ENGINES)]
fn get(bencher: Bencher<'_, '_>, engine: Engine) {
    let bench = Bench::filled(engine, 6016);
    let mut n = 0;
    bencher.bench_local(|| {
        n = (n + 7919) % 6000;
        bench.runtime.block_on(bench.store.get(&key(n))).expect("the read succeeds").expect("it is there")
    });
}

#[divan::bench(args = ENGINES, sample_count = 20)]
fn range_of_6000(bencher: Bencher<'_, '_>, engine: Engine) {
    let bench = Bench::filled(engine, 6016);
    let request = RangeRequest::all(RangeScope::Cluster(LogicalClusterId::new(2), config_maps()));
    bencher.counter(ItemsCount::new(6016u64)).bench_local(|| {
        let page = bench.runtime.block_on(bench.store.range(request.clone())).expect("the read succeeds");
        assert_eq!(page.objects.len(), 6016);
        page
    });
}

#[divan::bench(args = ENGINES, sample_count = 10)]
fn fan_out_to_100_watchers(bencher: Bencher<'_, '_>, engine: Engine) {
    let bench = Bench::new(engine);
    let watch = || bench.store.watch(WatchScope::Resource(config_maps(), None), None);
    let mut streams = bench.runtime.block_on(join_all((0..100).map(|_| watch())));
    bencher.counter(ItemsCount::new(COMMITS * 100)).bench_local(|| {
        bench.create(COMMITS, 64);
        let upto = bench.store.current();
        let drain = streams.iter_mut().map(|stream| async move {
            let stream = stream.as_mut().expect("the watch is open");
            while stream.progress() < upto {
                stream.next().await.expect("the watch goes on");
            }
        });
        bench.runtime.block_on(join_all(drain));
    });
}
