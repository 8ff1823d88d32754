//! Tests of the committer: the time that writes wait, and engine failures.

mod sweeps;

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt as _;
use parking_lot::Mutex;
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::{Value, json};

use super::{BATCH_BYTES, BATCH_TRANSACTIONS, MAX_BATCHES_WAITED, QUEUE_BYTES, QUEUE_TRANSACTIONS};
use crate::{
    api::{BackendError, DynStore, Expect, StoreError, Transaction, WatchScope},
    engine::{Batch, KvCursor, KvResult, KvView, MemoryKv, OrderedKv, RecoveryCallback},
    layout::keys::meta,
    open::{Engine, StoreConfig, StoreParts, start},
    read::bookkeeping::initialize,
    write::{
        core::CommitResult,
        disk_space::{DiskSpace, StorageDisk},
    },
};

/// Behavior of the engine at the next batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScriptedAction {
    #[default]
    Work,
    /// Does nothing until it is set otherwise.
    Wait,
    /// Waits in that way, with a batch.
    Held,
    Panic,
    Fail,
    /// Commits once more, and then waits.
    Step,
    /// Commits once more, and then fails.
    WorkOnce,
    /// Runs out of disk space, with the batch on disk nevertheless or not.
    RunFull {
        kept: bool,
    },
}

/// Engine whose failures are scripted.
#[derive(Default)]
struct ScriptedKv {
    kv: Arc<MemoryKv>,
    next: Arc<Mutex<ScriptedAction>>,
    /// Keys of each committed batch. Each batch is one sync.
    batches: Arc<Mutex<Vec<BTreeSet<Vec<u8>>>>>,
    /// Number of times that it was idle.
    tidied: Arc<AtomicUsize>,
    /// Keys, or prefixes of scans, whose reads fail.
    unreadable: Arc<Mutex<Vec<UnreadableKeys>>>,
    /// Number of failed reads.
    refused: Arc<AtomicUsize>,
}

/// Keys that cannot be read, and the way their reads end.
struct UnreadableKeys {
    from: Vec<u8>,
    panics: bool,
}

/// View of a state with unreadable parts.
struct PartialView<'a> {
    view: &'a dyn KvView,
    unreadable: &'a [UnreadableKeys],
    refused: &'a AtomicUsize,
}

impl KvView for PartialView<'_> {
    fn get(&self, key: &[u8]) -> KvResult<Option<Bytes>> {
        self.check(key)?;
        self.view.get(key)
    }

    fn scan<'v>(&'v self, from: &[u8], to: &[u8]) -> KvResult<Box<dyn KvCursor + 'v>> {
        self.check(from)?;
        self.view.scan(from, to)
    }
}

impl PartialView<'_> {
    fn check(&self, from: &[u8]) -> KvResult<()> {
        let Some(found) = self.unreadable.iter().find(|unreadable| unreadable.from == from) else { return Ok(()) };
        self.refused.fetch_add(1, Ordering::AcqRel);
        if found.panics { panic!("scripted") } else { Err(BackendError { context: "EIO".into(), source: None }) }
    }
}

impl OrderedKv for ScriptedKv {
    fn view(&self, read: &mut dyn FnMut(&dyn KvView)) -> KvResult<()> {
        let unreadable = self.unreadable.lock();
        self.kv.view(&mut |view| read(&PartialView { view, unreadable: &unreadable, refused: &self.refused }))
    }

    fn commit(&self, batch: Batch) -> KvResult<()> {
        let failed = |source| Err(BackendError { context: "scripted".into(), source: Some(Box::new(source)) });
        self.batches.lock().push(batch.keys().cloned().collect());
        let next = loop {
            let mut next = self.next.lock();
            match *next {
                ScriptedAction::Wait | ScriptedAction::Held => *next = ScriptedAction::Held,
                other => break other,
            }
            drop(next);
            std::thread::yield_now();
        };
        match next {
            ScriptedAction::Work | ScriptedAction::Wait | ScriptedAction::Held => self.kv.commit(batch),
            ScriptedAction::WorkOnce => {
                *self.next.lock() = ScriptedAction::Fail;
                self.kv.commit(batch)
            }
            ScriptedAction::Step => {
                *self.next.lock() = ScriptedAction::Wait;
                self.kv.commit(batch)
            }
            ScriptedAction::Panic => panic!("scripted"),
            ScriptedAction::Fail => failed(io::Error::other("EIO")),
            ScriptedAction::RunFull { kept } => {
                if kept {
                    self.kv.commit(batch)?;
                }
                failed(io::ErrorKind::StorageFull.into())
            }
        }
    }

    fn publish(&self) {
        self.kv.publish();
    }

    fn tidy(&self) -> KvResult<()> {
        self.tidied.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn recover(&self, _: &mut RecoveryCallback<'_>) -> KvResult<()> {
        *self.next.lock() = ScriptedAction::Work;
        self.kv.publish();
        Ok(())
    }

    fn close(&self) {}
}

/// Disk with a free space of some [`UNIT`]s, and nothing else on it.
struct ScriptedDisk(Arc<AtomicU64>);

const UNIT: u64 = 16 << 20;

impl StorageDisk for ScriptedDisk {
    fn free(&self) -> io::Result<u64> {
        Ok(self.0.load(Ordering::Relaxed) * UNIT)
    }

    fn taken(&self) -> io::Result<u64> {
        Ok(0)
    }
}

/// Store on this engine and this disk.
struct CommitterScene {
    store: DynStore,
    next: Arc<Mutex<ScriptedAction>>,
    batches: Arc<Mutex<Vec<BTreeSet<Vec<u8>>>>>,
    room: Arc<AtomicU64>,
    registry: prometheus::Registry,
}

fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

fn pod(name: &str) -> ObjectKey {
    ObjectKey::cluster_scoped(LogicalClusterId::ROOT, pods(), name.parse().unwrap())
}

impl CommitterScene {
    async fn new() -> Self {
        Self::with_reserve(5).await
    }

    /// Sets the disk reserve in [`UNIT`]s.
    async fn with_reserve(units: u64) -> Self {
        let kv = ScriptedKv::default();
        initialize(&kv, &Seams::system()).unwrap();
        Self::start(kv, units, Duration::from_secs(30)).await
    }

    async fn on(kv: ScriptedKv, commit_timeout: Duration) -> Self {
        Self::start(kv, 5, commit_timeout).await
    }

    async fn start(kv: ScriptedKv, reserve: u64, commit_timeout: Duration) -> Self {
        let (next, batches, room) = (kv.next.clone(), kv.batches.clone(), Arc::new(AtomicU64::new(10)));
        let base = StoreParts {
            kv: Box::new(kv),
            home: None,
            room: DiskSpace::on(ScriptedDisk(room.clone()), reserve * UNIT),
        };
        let registry = prometheus::Registry::new();
        let config =
            StoreConfig { commit_timeout, registry: Some(registry.clone()), ..StoreConfig::new(Engine::Memory, None) };
        let store = start(base, &config).unwrap_or_else(|_| panic!("it starts"));
        let scene = Self { store, next, batches, room, registry };
        scene.put("before").await.unwrap();
        scene
    }

    async fn put(&self, name: &str) -> Result<ResourceVersion, StoreError> {
        self.write(name, Some(json!({"metadata": {"name": name}}))).await
    }

    async fn write(&self, name: &str, object: Option<Value>) -> Result<ResourceVersion, StoreError> {
        let txn = Transaction::one(pod(name), Expect::Anything, object.as_ref().map(Record::of));
        soon(self.store.commit(txn)).await.map(|committed| committed.into_inner().last)
    }

    fn commit(&self, name: &str, size: usize) -> BoxFuture<'static, CommitResult> {
        let record = Record::of(&json!({"metadata": {"name": name}, "data": "x".repeat(size)}));
        self.store.commit(Transaction::one(pod(name), Expect::Anything, Some(record)))
    }

    /// Makes the engine stop with its next batch, which is this write if there is no maintenance.
    async fn stand_still_with(&self, name: &str) -> BoxFuture<'static, CommitResult> {
        *self.next.lock() = ScriptedAction::Wait;
        let answer = self.commit(name, 10);
        self.until_it_stands_still().await;
        answer
    }

    /// Waits until the engine blocks in a batch, as scripted.
    async fn until_it_stands_still(&self) {
        while *self.next.lock() != ScriptedAction::Held {
            tokio::task::yield_now().await;
        }
    }

    /// Returns the number of the first batch that writes an object.
    fn batch_of(&self, name: &str) -> Option<usize> {
        let is_its =
            |key: &Vec<u8>| key.first() == Some(&b'o') && key.windows(name.len()).any(|part| part == name.as_bytes());
        self.batches.lock().iter().position(|batch| batch.iter().any(is_its))
    }

    async fn is_there(&self, name: &str) -> bool {
        self.store.get(&pod(name)).await.unwrap().is_some()
    }

    async fn until_it_takes_writes(&self) {
        while self.store.health().is_err() {
            tokio::task::yield_now().await;
        }
    }
}

/// Checks that no caller waits forever.
async fn soon<T>(answer: BoxFuture<'_, T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), answer).await.expect("an answer comes")
}

#[tokio::test]
async fn after_a_failure_everybody_is_answered_and_reads_go_on() {
    for (next, words) in [(ScriptedAction::Panic, "the engine panicked"), (ScriptedAction::Fail, "scripted")] {
        let scene = CommitterScene::new().await;
        scene.put("again").await.unwrap();
        *scene.next.lock() = next;
        let compacted = soon(scene.store.compact(scene.store.current())).await;
        assert!(
            matches!(&compacted, Err(StoreError::Backend(why)) if why.to_string().contains(words)),
            "{compacted:?}"
        );
        *scene.next.lock() = ScriptedAction::Work;
        for refused in [scene.put("after").await.map(|_| ()), soon(scene.store.compact(scene.store.current())).await] {
            assert!(matches!(refused, Err(StoreError::Backend(_))), "{next:?}: {refused:?}");
        }
        assert!(scene.store.health().is_err());
        assert!(scene.is_there("before").await && !scene.is_there("after").await, "{next:?}");
        soon(scene.store.close()).await;
    }
}

/// Checks that nothing is written then, and that no caller waits for a write that cannot begin.
#[tokio::test]
async fn writers_of_a_batch_that_cannot_be_planned_get_an_error() {
    for panics in [false, true] {
        let kv = ScriptedKv::default();
        let unreadable = kv.unreadable.clone();
        initialize(&kv, &Seams::system()).unwrap();
        let scene = CommitterScene::on(kv, Duration::from_secs(30)).await;
        let before = scene.store.current();
        let first = scene.stand_still_with("first").await;
        let waiting = ["a", "b"].map(|name| scene.commit(name, 10));
        unreadable.lock().push(UnreadableKeys { from: meta::LAST.to_vec(), panics });
        *scene.next.lock() = ScriptedAction::Work;
        soon(first).await.unwrap();
        for answer in waiting {
            let answer = soon(answer).await.map(drop);
            assert!(matches!(answer, Err(StoreError::Backend(_) | StoreError::Unknown)), "panics {panics}: {answer:?}");
        }
        unreadable.lock().clear();
        assert_eq!(scene.store.current(), before.plus(1));
        if !panics {
            scene.put("after").await.unwrap();
        }
        soon(scene.store.close()).await;
    }
}

#[tokio::test]
async fn a_write_under_way_when_the_engine_panics_is_unknown() {
    let scene = CommitterScene::new().await;
    *scene.next.lock() = ScriptedAction::Panic;
    assert!(matches!(scene.put("lost").await, Err(StoreError::Unknown)));
}

/// Checks that a reader that learns of an object can find it.
#[tokio::test]
async fn a_failed_batch_causes_no_conflict() {
    let scene = CommitterScene::new().await;
    *scene.next.lock() = ScriptedAction::Wait;
    let create = |name: &str| {
        let record = Record::of(&json!({"metadata": {"name": name}}));
        tokio::spawn({
            let (store, txn) = (scene.store.clone(), Transaction::one(pod(name), Expect::Absent, Some(record)));
            async move { store.commit(txn).await.map(drop) }
        })
    };
    let first = create("first");
    scene.until_it_stands_still().await;
    let both = [create("contended"), create("contended")];
    tokio::task::yield_now().await;
    *scene.next.lock() = ScriptedAction::WorkOnce;
    assert!(first.await.unwrap().is_ok());
    for answer in both {
        let answer = answer.await.unwrap();
        assert!(matches!(answer, Err(StoreError::Unknown)), "{answer:?}");
    }
    assert!(!scene.is_there("contended").await);
}

#[tokio::test]
async fn without_room_nothing_is_written_until_there_is_some_again() {
    let scene = CommitterScene::new().await;
    scene.room.store(0, Ordering::Relaxed);
    let before = scene.store.current();
    for _ in 0..3 {
        assert!(matches!(scene.put("refused").await, Err(StoreError::Full(_))));
        assert!(matches!(scene.write("before", None).await, Err(StoreError::Full(_))));
        let compacted = soon(scene.store.compact(before)).await;
        assert!(matches!(compacted, Err(StoreError::Full(_))), "{compacted:?}");
    }
    assert!(matches!(scene.store.health(), Err(StoreError::Full(_))));
    assert!(scene.is_there("before").await && !scene.is_there("refused").await);
    scene.room.store(5, Ordering::Relaxed);
    scene.until_it_takes_writes().await;
    assert_eq!(scene.put("after").await.unwrap(), before.plus(1), "no revision was used up");
}

#[tokio::test]
async fn on_a_nearly_full_disk_deletions_and_compactions_go_on_and_make_room() {
    let scene = CommitterScene::new().await;
    scene.put("finalized").await.unwrap();
    scene.room.store(4, Ordering::Relaxed);
    assert!(matches!(scene.put("refused").await, Err(StoreError::Full(_))));
    let deleting = json!({"metadata": {"name": "finalized", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    scene.write("finalized", Some(deleting)).await.unwrap();
    let last = scene.write("finalized", None).await.unwrap();
    assert!(matches!(scene.store.health(), Err(StoreError::Full(_))), "deleting makes no room by itself");
    soon(scene.store.compact(last)).await.unwrap();
    assert_eq!(scene.store.oldest(), last);
    let gone = soon(scene.store.delete_cluster(LogicalClusterId::new(7))).await.unwrap().into_inner();
    scene.room.store(0, Ordering::Relaxed);
    assert!(matches!(scene.write("before", None).await, Err(StoreError::Full(_))));
    // From no space to some, and then to enough.
    scene.room.store(4, Ordering::Relaxed);
    let deleted = loop {
        match scene.write("before", None).await {
            Err(StoreError::Full(_)) => tokio::task::yield_now().await,
            other => break other.unwrap(),
        }
    };
    assert_eq!(deleted, gone.last.plus(1), "no revision was used up");
    scene.room.store(5, Ordering::Relaxed);
    scene.until_it_takes_writes().await;
    assert!(scene.put("after").await.is_ok() && !scene.is_there("before").await);
}

#[tokio::test]
async fn a_deletion_that_finds_room_again_opens_the_store_for_all() {
    let scene = CommitterScene::new().await;
    for name in ["a", "b"] {
        scene.put(name).await.unwrap();
    }
    scene.room.store(4, Ordering::Relaxed);
    assert!(matches!(scene.put("refused").await, Err(StoreError::Full(_))));
    scene.write("a", None).await.unwrap();
    scene.room.store(5, Ordering::Relaxed);
    scene.write("b", None).await.unwrap();
    scene.put("after").await.unwrap();
}

#[tokio::test]
async fn an_engine_that_ran_full_goes_on_without_a_hole_once_there_is_room() {
    for kept in [false, true] {
        let scene = CommitterScene::new().await;
        let mut watch = scene.store.watch(WatchScope::Resource(pods(), None), None).await.unwrap();
        scene.room.store(5, Ordering::Relaxed);
        *scene.next.lock() = ScriptedAction::RunFull { kept };
        assert!(matches!(scene.put("in-flight").await, Err(StoreError::Unknown)));
        scene.until_it_takes_writes().await;
        assert_eq!(scene.is_there("in-flight").await, kept, "whole or not at all");
        let last = scene.put("after").await.unwrap();
        let mut seen = Vec::new();
        while watch.progress() < last {
            let batch = soon(watch.next()).await.unwrap();
            seen.extend(batch.events.iter().map(|event| (event.key.name.to_string(), event.revision)));
        }
        let mut names = vec!["in-flight", "after"];
        names.drain(..usize::from(!kept));
        assert_eq!(seen.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), names);
        assert!(seen.is_sorted_by(|a, b| a.1 < b.1), "{seen:?}");
    }
}

#[tokio::test]
async fn a_full_queue_refuses_writes_at_once() {
    for (case, size, at_least, at_most) in [
        ("bytes", 1 << 20, (QUEUE_BYTES >> 20) - 1, (QUEUE_BYTES + BATCH_BYTES) >> 20),
        ("transactions", 10, QUEUE_TRANSACTIONS, QUEUE_TRANSACTIONS + BATCH_TRANSACTIONS),
    ] {
        let scene = CommitterScene::new().await;
        let before = scene.store.current();
        *scene.next.lock() = ScriptedAction::Wait;
        let commit = |name: &str| scene.commit(name, size);
        let mut accepted = Vec::new();
        let refusal = loop {
            let mut answer = commit(&format!("n{}", accepted.len()));
            match (&mut answer).now_or_never() {
                None => accepted.push(answer),
                Some(refusal) => break refusal,
            }
            assert!(accepted.len() <= at_most + 1, "{case}: {} wait", accepted.len());
        };
        assert!(matches!(refusal, Err(StoreError::Overloaded)), "{case}: {refusal:?}");
        assert!(accepted.len() >= at_least, "{case}: only {} wait", accepted.len());
        let again = commit("again").now_or_never();
        assert!(matches!(again, Some(Err(StoreError::Overloaded))), "{case}: {again:?}");
        *scene.next.lock() = ScriptedAction::Work;
        let count = accepted.len();
        for answer in accepted {
            soon(answer).await.unwrap();
        }
        assert_eq!(scene.store.current(), before.plus(count as u64), "{case}: each accepted one has a revision");
        for n in 0..count {
            assert!(scene.is_there(&format!("n{n}")).await, "{case}: n{n}");
        }
        assert!(!scene.is_there(&format!("n{count}")).await && !scene.is_there("again").await, "{case}");
        scene.put("after").await.unwrap();
    }
}

#[tokio::test]
async fn all_that_waits_for_a_sync_shares_the_next_one() {
    let scene = CommitterScene::new().await;
    let first = scene.stand_still_with("alone").await;
    let together: Vec<_> = (0..64).map(|n| scene.commit(&format!("together-{n:02}"), 10)).collect();
    *scene.next.lock() = ScriptedAction::Work;
    let mut revisions = vec![soon(first).await.unwrap().into_inner().last];
    for answer in together {
        revisions.push(soon(answer).await.unwrap().into_inner().last);
    }
    let alone = scene.batch_of("alone").unwrap();
    let batches: BTreeSet<_> = (0..64).map(|n| scene.batch_of(&format!("together-{n:02}"))).collect();
    assert_eq!(batches, BTreeSet::from([Some(alone + 1)]), "one sync for all of them");
    assert!(
        revisions.windows(2).all(|pair| pair[1] == pair[0].plus(1)),
        "each has a revision of its own: {revisions:?}"
    );
}

#[tokio::test]
async fn a_batch_holds_a_bounded_number_of_deleted_objects_in_memory() {
    const MIB: usize = 1 << 20;
    for (case, room, size, count, most) in [
        ("what is read into memory", 20, MIB, 96, 32),
        ("a quarter of the 44 MiB that are left beyond those of the last quarter", 4, MIB, 96, 11),
        // Three pages each: the object, its history, and its old state.
        ("a quarter of 32 MiB that are left, in pages", 2, 10, 1500, (8 << 20) / (3 << 12) + 1),
        ("one goes in, whatever there is room for", 0, MIB, 3, 1),
    ] {
        let scene = CommitterScene::with_reserve(if room == 0 { 0 } else { 5 }).await;
        let names: Vec<String> = (0..count).map(|n| format!("deleted-{n:04}")).collect();
        for name in &names {
            soon(scene.commit(name, size)).await.unwrap();
        }
        let first = scene.stand_still_with("alone").await;
        let before = scene.batches.lock().len();
        scene.room.store(room, Ordering::Relaxed);
        let delete = |name: &String| scene.store.commit(Transaction::one(pod(name), Expect::Present, None));
        let answers: Vec<_> = names.iter().map(delete).collect();
        *scene.next.lock() = ScriptedAction::Work;
        let mut revision = soon(first).await.unwrap().into_inner().last;
        for answer in answers {
            let next = soon(answer).await.unwrap().into_inner().last;
            assert_eq!(next, revision.plus(1), "{case}: in the order in which they came");
            revision = next;
        }
        let batches = scene.batches.lock();
        // With so little room, a later batch evicts the entries of an earlier one.
        let mut seen = BTreeSet::new();
        let mut kept = |batch: &BTreeSet<Vec<u8>>| {
            batch.iter().filter(|key| key.first() == Some(&b'v') && seen.insert((*key).clone())).count()
        };
        let kept: Vec<usize> = batches[before..].iter().map(&mut kept).filter(|kept| *kept > 0).collect();
        assert_eq!(kept.iter().sum::<usize>(), count, "{case}");
        assert!(kept.iter().all(|kept| *kept <= most), "{case}: {kept:?}, and at most {most}");
        assert!(kept.len() <= count.div_ceil(most) + 1, "{case}: no batch is smaller than it must be: {kept:?}");
    }
}

/// Checks that deferred transactions stay counted, and that nothing is left over.
#[tokio::test]
async fn the_queue_gauge_counts_waiting_writes() {
    let scene = CommitterScene::new().await;
    let gauges = || {
        let gathered = scene.registry.gather();
        ["portolan_store_queued_transactions", "portolan_store_queued_bytes"].map(|name| {
            gathered.iter().find(|family| family.name() == name).unwrap().get_metric()[0].get_gauge().get_value()
        })
    };
    let names: Vec<String> = (0..10).map(|n| format!("large-{n}")).collect();
    for name in &names {
        soon(scene.commit(name, 1 << 20)).await.unwrap();
    }
    let first = scene.stand_still_with("first").await;
    let delete = |name: &String| scene.store.commit(Transaction::one(pod(name), Expect::Present, None));
    let waiting: Vec<_> = names.iter().map(delete).collect();
    let [count, bytes] = gauges();
    assert!(count == 10.0 && bytes >= 10.0, "{count} of {bytes} bytes");
    scene.room.store(2, Ordering::Relaxed);
    *scene.next.lock() = ScriptedAction::Step;
    soon(first).await.unwrap();
    scene.until_it_stands_still().await;
    assert_eq!(gauges(), [2.0, bytes / 5.0], "a quarter of 32 MiB is under way");
    *scene.next.lock() = ScriptedAction::Work;
    for answer in waiting {
        soon(answer).await.unwrap();
    }
    assert_eq!(gauges(), [0.0, 0.0]);
    // Rejected and lost writes are not counted, either.
    assert!(matches!(scene.put("refused").await, Err(StoreError::Full(_))));
    scene.room.store(10, Ordering::Relaxed);
    scene.until_it_takes_writes().await;
    *scene.next.lock() = ScriptedAction::Panic;
    assert!(matches!(scene.put("lost").await, Err(StoreError::Unknown)));
    assert_eq!(gauges(), [0.0, 0.0]);
}

#[tokio::test]
async fn a_write_that_outlives_its_time_is_unknown_and_may_happen_later() {
    let kv = ScriptedKv::default();
    initialize(&kv, &Seams::system()).unwrap();
    let scene = CommitterScene::on(kv, Duration::from_secs(5)).await;
    *scene.next.lock() = ScriptedAction::Wait;
    tokio::time::pause();
    assert!(matches!(scene.put("late").await, Err(StoreError::Unknown)));
    assert!(!scene.is_there("late").await);
    tokio::time::resume();
    *scene.next.lock() = ScriptedAction::Work;
    while !scene.is_there("late").await {
        tokio::task::yield_now().await;
    }
}
