//! Workload of the recorded process: 500 operations through the store's own API.

use std::{
    fs::File,
    hash::{Hash as _, Hasher as _},
    io::Write as _,
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use portolan_store::{
    DynStore, Engine, Event, EventStream, Expect, OpenError, RangeRequest, RangeScope, StoreConfig, StoreError,
    Transaction, WatchScope, open,
};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::json;

use crate::{digest::ContentDigest, numbers::NumberStream, shim::SAID};

/// Operations of the workload.
const OPERATIONS: u64 = 500;
/// Deletions that are compacted.
const DELETIONS: usize = 4;
/// Objects of a transaction that takes several segments of sled's log, and the bytes of each.
const LARGE: (usize, usize) = (4, 375_000);
/// Repetitions of these writes.
const LARGE_ROUNDS: usize = 8;
/// Resources that it writes.
const RESOURCES: [&str; 2] = ["pods", "secrets"];
/// Time limit of a watch for events that have happened.
const BROUGHT: Duration = Duration::from_secs(30);
/// Time limit for the high-water mark, which is written after a pause in writes.
const MARKED: Duration = Duration::from_secs(30);

/// Opens the store in a recorded folder.
pub(crate) fn config(engine: &str, root: &Path) -> StoreConfig {
    let engine = if engine == "Sled" { Engine::Sled } else { Engine::Redb };
    StoreConfig { cache_bytes: 1 << 20, disk_reserve: 0, ..StoreConfig::new(engine, Some(root.join("data"))) }
}

/// Returns a digest of all objects at one revision.
pub(crate) async fn digest(store: &DynStore, at: Option<ResourceVersion>) -> u64 {
    let page = store.range(RangeRequest { at, ..RangeRequest::all(RangeScope::All) }).await.unwrap();
    let mut hasher = ContentDigest::default();
    for object in &page.objects {
        (object.key.to_string(), object.revision.get(), object.record.body()).hash(&mut hasher);
    }
    hasher.finish()
}

/// Log of acknowledged revisions, and of the state at each.
pub(crate) struct AcknowledgementLog(File);

impl AcknowledgementLog {
    pub(crate) fn new(file: File) -> Self {
        Self(file)
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn acknowledged(&mut self, revision: u64) {
        self.say(&format!("acknowledged {revision}"));
    }

    pub(crate) async fn state(&mut self, store: &DynStore, revision: ResourceVersion) {
        let digest = digest(store, Some(revision)).await;
        self.say(&format!("state {revision} {digest}"));
    }

    fn event(&mut self, event: &Event) {
        self.say(&format!("event {} {}", event.revision, digest_of_event(event)));
    }
}

/// Watches of everything that the workload writes, from one revision on.
pub(crate) struct Watches(Vec<Box<dyn EventStream>>);

impl Watches {
    pub(crate) async fn after(store: &DynStore, revision: ResourceVersion) -> Result<Self, StoreError> {
        let mut watches = Vec::new();
        for resource in RESOURCES {
            watches
                .push(store.watch(WatchScope::Resource(GroupResource::new("", resource), None), Some(revision)).await?);
        }
        Ok(Self(watches))
    }

    /// Returns the events up to a revision that has happened, merged by revision. Each watch must be in order.
    ///
    /// # Errors
    /// Fails if a watch ends, stalls, or is out of order.
    pub(crate) async fn upto(&mut self, revision: ResourceVersion) -> Result<Vec<Arc<Event>>, String> {
        let mut events: Vec<Arc<Event>> = Vec::new();
        for watch in &mut self.0 {
            let first = events.len();
            let mut patience = Duration::from_millis(2);
            while watch.progress() < revision {
                // A watch without events waits; its progress then shows that it has reached the revision.
                match tokio::time::timeout(patience, watch.next()).await {
                    Ok(next) => events.extend(next.map_err(|error| error.to_string())?.events),
                    Err(_) if patience > BROUGHT => return Err("a watch stands still".into()),
                    Err(_) => patience *= 2,
                }
            }
            if !events[first..].is_sorted_by(|one, next| one.revision < next.revision) {
                return Err("a watch is out of order".into());
            }
        }
        events.sort_by_key(|event| event.revision);
        Ok(events)
    }
}

/// Returns a digest of an event without its revision.
pub(crate) fn digest_of_event(event: &Event) -> u64 {
    let previous = event.previous.as_ref().map(|record| record.body());
    ContentDigest::of((event.change as u8, event.key.to_string(), event.record.body(), previous))
}

/// Creates the store, works, and closes it.
pub(crate) async fn run(engine: &str, root: &Path) {
    let mut said = AcknowledgementLog(File::create(root.join(SAID)).unwrap());
    let store = open(config(engine, root), Seams::system()).unwrap();
    said.state(&store, store.current()).await;
    said.acknowledged(store.current().get());
    let mut watches = Watches::after(&store, store.current()).await.unwrap();
    let mut numbers = NumberStream::from(1);
    for number in 0..OPERATIONS {
        let boundaries = operate(&store, number, &mut numbers, &root.join("data/store.mark")).await;
        if let Some(last) = boundaries.iter().max() {
            said.acknowledged(last.get());
        }
        for boundary in boundaries {
            said.state(&store, boundary).await;
        }
        watches.upto(store.current()).await.unwrap().iter().for_each(|event| said.event(event));
    }
    store.close().await;
}

/// Deletes, and compacts at that very revision: then only the bookkeeping has the revision.
pub(crate) async fn compact_at_deletions(engine: &str, root: &Path) {
    let mut said = AcknowledgementLog::new(File::create(root.join(SAID)).unwrap());
    let store = open(config(engine, root), Seams::system()).unwrap();
    said.state(&store, store.current()).await;
    said.acknowledged(store.current().get());
    let mut watches = Watches::after(&store, store.current()).await.unwrap();
    for round in 0..DELETIONS {
        let resource = GroupResource::new("", RESOURCES[0]);
        let name = format!("goes-{round}");
        let key = ObjectKey::cluster_scoped(LogicalClusterId::new(2), resource, name.parse().unwrap());
        let record = Record::of(&json!({"metadata": {"name": name}, "data": "x".repeat(3000)}));
        for record in [Some(record), None] {
            let committed = store.commit(Transaction::one(key.clone(), Expect::Anything, record)).await.unwrap();
            let last = committed.into_inner().last;
            said.acknowledged(last.get());
            said.state(&store, last).await;
        }
        watches.upto(store.current()).await.unwrap().iter().for_each(|event| said.event(event));
        store.compact(store.current()).await.unwrap();
    }
    store.close().await;
}

/// Writes the same large objects repeatedly and compacts their history: sled reuses freed space while it writes.
pub(crate) async fn write_much(engine: &str, root: &Path) {
    let mut said = AcknowledgementLog::new(File::create(root.join(SAID)).unwrap());
    let store = open(config(engine, root), Seams::system()).unwrap();
    said.state(&store, store.current()).await;
    said.acknowledged(store.current().get());
    let mut watches = Watches::after(&store, store.current()).await.unwrap();
    for round in 0..LARGE_ROUNDS {
        let mut txn = Transaction::default();
        for number in 0..LARGE.0 {
            let resource = GroupResource::new("", RESOURCES[0]);
            let name = format!("large-{number}");
            let key = ObjectKey::cluster_scoped(LogicalClusterId::new(2), resource, name.parse().unwrap());
            let data = format!("{round}{}", "x".repeat(LARGE.1));
            txn = txn.and(key, Expect::Anything, Some(Record::of(&json!({"metadata": {"name": name}, "data": data}))));
        }
        let last = store.commit(txn).await.unwrap().into_inner().last;
        said.acknowledged(last.get());
        said.state(&store, last).await;
        watches.upto(store.current()).await.unwrap().iter().for_each(|event| said.event(event));
        store.compact(store.current()).await.unwrap();
    }
    store.close().await;
}

/// Returns a digest of all objects without their revisions, which a restore changes.
pub(crate) async fn digest_of(store: &DynStore) -> u64 {
    let page = store.range(RangeRequest::all(RangeScope::All)).await.unwrap();
    let mut hasher = ContentDigest::default();
    page.objects.iter().for_each(|object| (object.key.to_string(), object.record.body()).hash(&mut hasher));
    hasher.finish()
}

/// Restores a snapshot.
pub(crate) async fn restore(engine: &str, root: &Path) {
    let (memory, mut numbers, mut snapshot) = (portolan_store::memory(), NumberStream::from(3), Vec::new());
    for _ in 0..40 {
        // Deletions of absent objects fail.
        let _ = memory.commit(transaction(&mut numbers)).await;
    }
    portolan_store::save(&*memory, &Seams::system(), portolan_store::OnDamage::Fail, &mut snapshot).await.unwrap();
    let mut said = AcknowledgementLog(File::create(root.join(SAID)).unwrap());
    said.say(&format!("state 1 {}", digest_of(&memory).await));
    portolan_store::restore(&config(engine, root), &Seams::system(), snapshot.as_slice(), None).unwrap();
    said.acknowledged(1);
}

/// Opens the store after a crash, reports its revision, and closes it.
pub(crate) async fn recover(engine: &str, root: &Path) -> Result<(), OpenError> {
    let mut said = AcknowledgementLog(File::create(root.join(SAID)).unwrap());
    let store = open(config(engine, root), Seams::system())?;
    said.acknowledged(store.current().get());
    store.close().await;
    Ok(())
}

/// Runs an operation; returns the revisions that are new states of the store.
async fn operate(store: &DynStore, number: u64, numbers: &mut NumberStream, mark: &Path) -> Vec<ResourceVersion> {
    match number % 50 {
        17 => {
            until_marked(mark, store.current()).await;
            Vec::new()
        }
        33 => {
            let (current, oldest) = (store.current().get(), store.oldest().get());
            let upto = current.saturating_sub(numbers.below(20)).max(oldest);
            store.compact(ResourceVersion::new(upto).unwrap()).await.unwrap();
            Vec::new()
        }
        49 if number % 150 == 149 => {
            let gone = LogicalClusterId::new(2 + number / 150 % 3);
            vec![store.delete_cluster(gone).await.unwrap().into_inner().last]
        }
        _ => {
            let count = if numbers.below(5) == 0 { 1 + numbers.below(8) } else { 1 };
            let commits: Vec<_> = (0..count).map(|_| store.commit(transaction(numbers))).collect();
            // Deletions of absent objects and writes to deleted clusters fail, which is part of the test.
            let done = join_all(commits).await.into_iter().flatten();
            done.map(|committed| committed.into_inner().last).collect()
        }
    }
}

/// Waits until the high-water mark has reached `last`, while nothing is written.
async fn until_marked(mark: &Path, last: ResourceVersion) {
    let marked = async {
        let told = || std::fs::read_to_string(mark).unwrap_or_default();
        while told().lines().nth(2) != Some(last.to_string().as_str()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(MARKED, marked).await.expect("the store marks how far it has come");
}

/// Returns a key in the only logical cluster that is never deleted.
pub(crate) fn lasting_key() -> ObjectKey {
    let resource = GroupResource::new("", RESOURCES[0]);
    ObjectKey::cluster_scoped(LogicalClusterId::new(1), resource, "n0".parse().unwrap())
}

fn key(numbers: &mut NumberStream) -> ObjectKey {
    let resource = GroupResource::new("", RESOURCES[numbers.below(2) as usize]);
    let name = format!("n{}", numbers.below(24)).parse().unwrap();
    ObjectKey::cluster_scoped(LogicalClusterId::new(1 + numbers.below(4)), resource, name)
}

/// Builds one write, or four.
pub(crate) fn transaction(numbers: &mut NumberStream) -> Transaction {
    let mut txn = Transaction::default();
    for _ in 0..if numbers.below(6) == 0 { 4 } else { 1 } {
        let key = key(numbers);
        if txn.writes.iter().any(|write| write.key == key) {
            continue;
        }
        let text = "x".repeat([20, 300, 3000, 30_000][numbers.below(4) as usize]);
        let record = Record::of(&json!({
            "metadata": {"name": &*key.name, "ownerReferences": [{"uid": format!("o{}", numbers.below(3))}]},
            "data": format!("{}{text}", numbers.below(1000)),
        }));
        txn = txn.and(key, Expect::Anything, (numbers.below(5) > 0).then_some(record));
    }
    txn
}
