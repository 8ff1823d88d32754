use std::{
    cell::Cell,
    fs,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::json;

use super::*;
use crate::{
    api::{
        DynStore, Expect, Transaction,
        damage::{Damage, DamagedObject},
    },
    engine::{Batch, KvCursor, KvResult, KvView, OrderedKv as _, SledKv, read},
    fixtures::SharedKv,
    integrity::audit::audit,
    layout::keys::{self, KeySuffix},
    open::{Engine, StoreConfig, StoreParts, open, start},
    read::bookkeeping::{initialize, load},
};

fn key(name: &str) -> ObjectKey {
    ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "things"), name.parse().unwrap())
}

async fn put(store: &DynStore, name: &str, text: &str) -> ResourceVersion {
    let record = Record::of(&json!({"metadata": {"ownerReferences": [{"uid": "o-1"}]}, "data": text}));
    let txn = Transaction::one(key(name), Expect::Anything, Some(record));
    store.commit(txn).await.unwrap().into_inner().last
}

/// Builds a store in memory with a few objects, each written twice, and returns its engine too.
async fn filled() -> (DynStore, SharedKv) {
    let kv = SharedKv::default();
    initialize(&kv, &Seams::system()).unwrap();
    let based = StoreParts::in_memory(Box::new(kv.clone()));
    let store = start(based, &StoreConfig::new(Engine::Memory, None)).unwrap_or_else(|_| panic!("it starts"));
    for text in ["one", "two"] {
        for name in ["a", "b", "c", "d"] {
            put(&store, name, text).await;
        }
    }
    (store, kv)
}

fn suffix(kv: &SharedKv, name: &str) -> KeySuffix {
    let key = key(name);
    let id = read(kv, |view| load(view).unwrap().resources.id(&key.resource).unwrap()).unwrap();
    KeySuffix::new(key.cluster, id, &key.scope, &key.name)
}

/// Flips a bit of a key's value, bypassing the store.
fn flip(kv: &SharedKv, key: Vec<u8>) {
    let mut value = read(kv, |view| view.get(&key).unwrap().unwrap()).unwrap().to_vec();
    *value.last_mut().unwrap() ^= 4;
    write(kv, key, Some(value.into()));
}

fn write(kv: &SharedKv, key: Vec<u8>, value: Option<Bytes>) {
    kv.commit(Batch::from([(key, value)])).unwrap();
    kv.publish();
}

/// Damages an object, an earlier state of one, and an entry of the history, and takes away an object and an entry.
fn damage(kv: &SharedKv) {
    flip(kv, suffix(kv, "a").object());
    write(kv, suffix(kv, "b").object(), None);
    flip(kv, suffix(kv, "c").version(8));
    flip(kv, keys::history(5));
    write(kv, keys::history(7), None);
}

#[tokio::test]
async fn a_scrub_in_slices_finds_the_damage_that_an_audit_finds() {
    let (_store, kv) = filled().await;
    for is_damaged in [false, true] {
        if is_damaged {
            damage(&kv);
        }
        let mut whole = DamageReport::default();
        let audited = read(&kv, |view| audit(view, &mut whole, &mut |_, _| {})).unwrap().unwrap();
        assert_eq!(whole.is_empty(), !is_damaged, "{whole}");
        for bytes in [1, 200, 1000, usize::MAX] {
            let (core, mut rounds, mut met) = (StoreCore::on(kv.clone()), IncrementalAudit::default(), Vec::new());
            while read(&kv, |view| rounds.slice(view, &core.resources, bytes)).unwrap().unwrap().is_some() {
                met.extend(rounds.take_damaged().into_iter().map(|(found, _)| found));
            }
            assert_eq!(rounds.findings, whole, "slices of {bytes}");
            assert_eq!(rounds.entries(), audited.objects + audited.superseded + audited.writes, "slices of {bytes}");
            assert_eq!(met.len() as u64, whole.objects.count, "slices of {bytes}");
        }
    }
}

#[tokio::test]
async fn damage_is_known_until_a_scrub_no_longer_finds_it() {
    let (_store, kv) = filled().await;
    let core = StoreCore::on(kv.clone());
    let looked = || {
        let rounds = scrub(&core, &StopSignal::default()).unwrap();
        core.faults.replace(other_damage(rounds.findings));
        (core.damage.all(), core.faults.all())
    };
    assert_eq!(looked(), (vec![], vec![]));
    let before = read(&kv, |view| view.get(&keys::history(7)).unwrap()).unwrap();
    damage(&kv);
    let (objects, others) = looked();
    let broken = DamagedObject { key: key("a"), why: Damage::Checksum };
    assert_eq!(objects, [broken, DamagedObject { key: key("b"), why: Damage::Missing }]);
    for words in ["an earlier state of things \"c\"", "the history lacks revision 7", "revision 5 of the history is"] {
        assert!(others.iter().any(|told| told.starts_with(words)), "{words:?} in {others:?}");
    }
    write(&kv, keys::history(7), before);
    let again = looked().1;
    assert!(!again.contains(&"the history lacks revision 7".to_owned()), "{again:?}");
    assert!(again.iter().any(|told| told.starts_with("revision 5 of the history is")), "{again:?}");
}

/// Returns a value at `/metrics`.
fn metric_value(registry: &Registry, name: &str) -> f64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == name).unwrap_or_else(|| panic!("{name}"));
    family.get_metric()[0].get_gauge().get_value()
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect(what);
}

fn in_use(engine: Engine, dir: &Path) -> (DynStore, Registry) {
    let registry = Registry::new();
    let config = StoreConfig {
        look_every: Duration::from_millis(1),
        cache_bytes: 1 << 20,
        registry: Some(registry.clone()),
        ..StoreConfig::new(engine, Some(dir.to_owned()))
    };
    (open(config, Seams::system()).unwrap(), registry)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_compacted_during_a_scrub_are_no_damage() {
    for engine in [Engine::Redb, Engine::Sled] {
        let dir = tempfile::tempdir().unwrap();
        let (store, registry) = in_use(engine, dir.path());
        let is_over = Arc::new(AtomicBool::new(false));
        let writing = tokio::spawn({
            let (store, is_over) = (store.clone(), is_over.clone());
            async move {
                let mut round = 0;
                while !is_over.load(Ordering::Acquire) {
                    round += 1;
                    let cluster = LogicalClusterId::new(100 + round);
                    for n in 0..30 {
                        put(&store, &format!("a{}", (n * 7 + round) % 40), &"x".repeat(n as usize * 200)).await;
                        let (mut other, name) = (key("x"), format!("b{n}"));
                        (other.cluster, other.name) = (cluster, name.parse().unwrap());
                        let record = Some(Record::of(&json!({"metadata": {}})));
                        store.commit(Transaction::one(other, Expect::Absent, record)).await.unwrap();
                    }
                    let gone = Transaction::one(key(&format!("a{}", round % 40)), Expect::Anything, None);
                    let _ = store.commit(gone).await;
                    store.delete_cluster(cluster).await.unwrap();
                    if round % 3 == 0 {
                        store.compact(store.back(100)).await.unwrap();
                    }
                }
            }
        });
        for _ in 0..3 {
            let before = metric_value(&registry, "portolan_store_inspected_entries");
            until("another look", || metric_value(&registry, "portolan_store_inspected_entries") != before).await;
        }
        is_over.store(true, Ordering::Release);
        writing.await.unwrap();
        assert_eq!((store.known_damage(), store.known_faults()), (vec![], Vec::<String>::new()), "{engine:?}");
        assert!(metric_value(&registry, "portolan_store_inspected_timestamp_seconds") > 1e9, "{engine:?}");
        store.close().await;
    }
}

/// Returns the positions of `text` in a file of a store.
fn positions(path: &Path, text: &str) -> Vec<usize> {
    let bytes = fs::read(path).unwrap();
    (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text.as_bytes())).collect()
}

/// Flips a bit at each occurrence of `text` in a file of a store.
fn flip_on_disk(path: &Path, text: &str) {
    let (file, bytes) = (fs::OpenOptions::new().write(true).open(path).unwrap(), fs::read(path).unwrap());
    let places = positions(path, text);
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap());
}

#[tokio::test]
async fn an_open_store_finds_damage_in_unread_data() {
    for (engine, file) in [(Engine::Redb, "store.redb"), (Engine::Sled, "store.sled/db")] {
        let dir = tempfile::tempdir().unwrap();
        let (store, registry) = in_use(engine, dir.path());
        put(&store, "b", "as it was written").await;
        for n in 0..40 {
            put(&store, &format!("a{n}"), &"x".repeat(100_000)).await;
        }
        let is_looked_at = || metric_value(&registry, "portolan_store_inspected_entries") >= 41.0;
        until("all is looked at", is_looked_at).await;
        assert_eq!(metric_value(&registry, "portolan_store_damaged_objects"), 0.0, "{engine:?}");
        store.close().await;
        // sled has it in its snapshot, and does not read it on opening, once an opening has not moved it.
        let (file, mut before) = (dir.path().join(file), Vec::new());
        for _ in 0..10 {
            in_use(engine, dir.path()).0.close().await;
            let now = positions(&file, "as it was written");
            if std::mem::replace(&mut before, now.clone()) == now {
                break;
            }
        }
        flip_on_disk(&file, "as it was written");
        let (store, registry) = in_use(engine, dir.path());
        let is_found = || {
            metric_value(&registry, "portolan_store_damaged_objects") + metric_value(&registry, "portolan_store_faults")
        };
        until("it is found", || is_found() > 0.0).await;
        assert!(store.known_damage().len() + store.known_faults().len() > 0, "{engine:?}");
        store.close().await;
    }
}

/// View that counts the bytes of the values that are read.
struct CountedView<'a>(&'a dyn KvView, Cell<usize>);

impl KvView for CountedView<'_> {
    fn get(&self, key: &[u8]) -> KvResult<Option<Bytes>> {
        let value = self.0.get(key)?;
        self.1.set(self.1.get() + value.as_ref().map_or(0, Bytes::len));
        Ok(value)
    }

    fn scan<'v>(&'v self, from: &[u8], to: &[u8]) -> KvResult<Box<dyn KvCursor + 'v>> {
        let cursor = self.0.scan(from, to)?;
        self.1.set(self.1.get() + cursor.value().len());
        Ok(Box::new(CountedCursor(cursor, &self.1)))
    }
}

struct CountedCursor<'v>(Box<dyn KvCursor + 'v>, &'v Cell<usize>);

impl KvCursor for CountedCursor<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    fn value(&self) -> &[u8] {
        self.0.value()
    }

    fn advance(&mut self) -> KvResult<()> {
        self.0.advance()?;
        self.1.set(self.1.get() + self.0.value().len());
        Ok(())
    }
}

#[tokio::test]
async fn a_slice_tells_of_all_that_it_read_and_reads_one_entry_beyond_its_bytes_at_most() {
    const LARGE: usize = 900_000;
    let (store, kv) = filled().await;
    for text in ["x", "y"] {
        for name in ["a", "b", "c", "d"] {
            put(&store, name, &text.repeat(LARGE)).await;
        }
    }
    let (core, mut rounds, mut slices) = (StoreCore::on(kv.clone()), IncrementalAudit::default(), 0);
    loop {
        let looked = |view: &dyn KvView| {
            let counted = CountedView(view, Cell::new(0));
            (rounds.slice(&counted, &core.resources, SLICE_SIZE).unwrap(), counted.1.get())
        };
        let (Some(told), read) = core.view(looked).unwrap() else { break };
        // Beside the bookkeeping.
        assert!(read <= told + 64, "{read} bytes were read, and {told} were told");
        // The read of an entry: itself, the objects that it leads to, and the next entry.
        assert!(read <= SLICE_SIZE + 5 * LARGE, "{read} bytes in a slice");
        slices += 1;
    }
    // Each of four objects, four earlier states, eight writes and four entries of an index is, or leads to, a large
    // one.
    assert!(slices >= 16, "{slices}");
}

#[tokio::test]
async fn a_scrub_of_a_closed_engine_has_no_result() {
    let dir = tempfile::tempdir().unwrap();
    let core = StoreCore::on(SledKv::open(&dir.path().join("s"), 1 << 20).unwrap());
    assert!(scrub(&core, &StopSignal::default()).is_some());
    core.kv.close();
    assert!(scrub(&core, &StopSignal::default()).is_none());
    assert_eq!(core.faults.all(), Vec::<String>::new());
}
