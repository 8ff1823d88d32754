//! What the recorded process does: 500 operations through the store's own API.

use std::{
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::Write as _,
    path::Path,
    time::Duration,
};

use futures::future::join_all;
use portolan_store::{DynStore, Engine, Expect, OpenError, RangeRequest, RangeScope, StoreConfig, Transaction, open};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::json;

use crate::{numbers::Numbers, shim::SAID};

/// Operations of the workload.
const OPERATIONS: u64 = 500;
/// How long is waited for the store to mark how far it has come, which it does when nothing is written.
const MARKED: Duration = Duration::from_secs(30);

/// The store in a recorded folder.
pub(crate) fn config(engine: &str, root: &Path) -> StoreConfig {
    let engine = if engine == "Sled" { Engine::Sled } else { Engine::Redb };
    StoreConfig { cache_bytes: 1 << 20, disk_reserve: 0, ..StoreConfig::new(engine, Some(root.join("data"))) }
}

/// All objects at one revision in one number.
pub(crate) async fn digest(store: &DynStore, at: Option<ResourceVersion>) -> u64 {
    let page = store.range(RangeRequest { at, ..RangeRequest::all(RangeScope::All) }).await.unwrap();
    let mut hasher = DefaultHasher::new();
    for object in &page.objects {
        (object.key.to_string(), object.revision.get(), object.record.body()).hash(&mut hasher);
    }
    hasher.finish()
}

/// Where the process says what was acknowledged, and which state each revision has.
pub(crate) struct Said(File);

impl Said {
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
}

/// Makes the store, works, and closes it.
pub(crate) async fn run(engine: &str, root: &Path) {
    let mut said = Said(File::create(root.join(SAID)).unwrap());
    let store = open(config(engine, root), Seams::system()).unwrap();
    said.state(&store, store.current()).await;
    said.acknowledged(store.current().get());
    let mut numbers = Numbers::from(1);
    for number in 0..OPERATIONS {
        let boundaries = operate(&store, number, &mut numbers, &root.join("data/store.mark")).await;
        if let Some(last) = boundaries.iter().max() {
            said.acknowledged(last.get());
        }
        for boundary in boundaries {
            said.state(&store, boundary).await;
        }
    }
    store.close().await;
}

/// All objects in one number, whatever their revisions: a restore gives them others.
pub(crate) async fn digest_of(store: &DynStore) -> u64 {
    let page = store.range(RangeRequest::all(RangeScope::All)).await.unwrap();
    let mut hasher = DefaultHasher::new();
    page.objects.iter().for_each(|object| (object.key.to_string(), object.record.body()).hash(&mut hasher));
    hasher.finish()
}

/// Makes a store of a snapshot.
pub(crate) async fn restore(engine: &str, root: &Path) {
    let (memory, mut numbers, mut snapshot) = (portolan_store::memory(), Numbers::from(3), Vec::new());
    for _ in 0..40 {
        // Deleting what is absent fails.
        let _ = memory.commit(transaction(&mut numbers)).await;
    }
    portolan_store::save(&*memory, &Seams::system(), &mut snapshot).await.unwrap();
    let mut said = Said(File::create(root.join(SAID)).unwrap());
    said.say(&format!("state 1 {}", digest_of(&memory).await));
    portolan_store::restore(&config(engine, root), &Seams::system(), snapshot.as_slice(), None).unwrap();
    said.acknowledged(1);
}

/// Opens what a crash left, and closes it.
pub(crate) async fn recover(engine: &str, root: &Path) -> Result<(), OpenError> {
    open(config(engine, root), Seams::system())?.close().await;
    Ok(())
}

/// Does an operation and returns the revisions that are states of the store since then.
async fn operate(store: &DynStore, number: u64, numbers: &mut Numbers, mark: &Path) -> Vec<ResourceVersion> {
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
            // Deleting what is absent and writing to what is gone fail, which is part of it.
            let done = join_all(commits).await.into_iter().flatten();
            done.map(|committed| committed.into_inner().last).collect()
        }
    }
}

/// Waits until the store has marked that it has come to `last`: nothing is written meanwhile.
async fn until_marked(mark: &Path, last: ResourceVersion) {
    let marked = async {
        let told = || std::fs::read_to_string(mark).unwrap_or_default();
        while told().lines().nth(2) != Some(last.to_string().as_str()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(MARKED, marked).await.expect("the store marks how far it has come");
}

pub(crate) fn key(numbers: &mut Numbers) -> ObjectKey {
    let resource = GroupResource::new("", if numbers.below(2) == 0 { "pods" } else { "secrets" });
    let name = format!("n{}", numbers.below(24)).parse().unwrap();
    ObjectKey::cluster_scoped(LogicalClusterId::new(1 + numbers.below(4)), resource, name)
}

/// One write, or four.
pub(crate) fn transaction(numbers: &mut Numbers) -> Transaction {
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
