//! Store under test, and helpers to describe its content.

use std::time::Duration;

use futures::FutureExt as _;
use portolan_store::{
    Committed, DynStore, Engine, EtcdConfig, Event, EventStream, Expect, OpenError, RangeRequest, RangeScope,
    StoreConfig, StoreError, StoredObject, Transaction, WatchScope, open, open_etcd,
};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Scope, Seams};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Engine under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineSubject {
    Embedded(Engine),
    /// etcd at the URLs in `PORTOLAN_ETCD`; `cargo xtask e2e --suite etcd` starts one and sets it.
    Etcd,
}

impl EngineSubject {
    pub(crate) const MEMORY: Self = Self::Embedded(Engine::Memory);
    pub(crate) const REDB: Self = Self::Embedded(Engine::Redb);
    pub(crate) const SLED: Self = Self::Embedded(Engine::Sled);
}

impl From<Engine> for EngineSubject {
    fn from(engine: Engine) -> Self {
        Self::Embedded(engine)
    }
}

/// Store of an engine, and the means to open it again.
pub(crate) struct ContractScene {
    pub(crate) store: DynStore,
    pub(crate) config: StoreConfig,
    etcd: Option<EtcdConfig>,
    dir: TempDir,
}

impl ContractScene {
    pub(crate) fn new(subject: impl Into<EngineSubject>) -> Self {
        Self::with(subject, |_| {})
    }

    pub(crate) fn with(subject: impl Into<EngineSubject>, change: impl FnOnce(&mut StoreConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (engine, etcd) = match subject.into() {
            EngineSubject::Embedded(engine) => (engine, None),
            EngineSubject::Etcd => (Engine::Memory, Some(an_etcd())),
        };
        let mut config = StoreConfig::new(engine, Some(dir.path().join("data")));
        change(&mut config);
        let store = open_either(&config, etcd.as_ref()).unwrap();
        Self { store, config, etcd, dir }
    }

    pub(crate) fn subject(&self) -> EngineSubject {
        if self.etcd.is_some() { EngineSubject::Etcd } else { EngineSubject::Embedded(self.config.engine) }
    }

    /// Returns true if writes survive a reopening of the store.
    pub(crate) fn is_durable(&self) -> bool {
        self.subject() != EngineSubject::MEMORY
    }

    /// Checks that a transaction of some writes was the next one after `before`: exactly if one process assigns all
    /// revisions, or any later one if etcd counts other writes too.
    pub(crate) fn check_next(&self, before: ResourceVersion, committed: Committed, writes: u64, case: &str) {
        assert_eq!(committed.last, committed.first.plus(writes - 1), "{case}");
        match self.subject() {
            EngineSubject::Embedded(_) => assert_eq!(committed.first, before.plus(1), "{case}"),
            EngineSubject::Etcd => assert!(committed.first > before, "{case}"),
        }
    }

    /// Returns the same engine with a ring that holds next to nothing.
    pub(crate) fn with_tiny_ring(&self) -> Self {
        Self::with(self.subject(), |config| config.ring_bytes = 4096)
    }

    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn try_open_again(&self) -> Result<DynStore, OpenError> {
        open_either(&self.config, self.etcd.as_ref())
    }

    /// Drops the store without closing it, and opens it again.
    pub(crate) fn reopen(&mut self) {
        self.store = portolan_store::memory();
        self.store = self.try_open_again().unwrap();
    }

    pub(crate) async fn put(&self, key: &ObjectKey, text: &str) -> ResourceVersion {
        self.commit(Transaction::one(key.clone(), Expect::Anything, Some(record(key, text)))).await.unwrap().last
    }

    pub(crate) async fn delete(&self, key: &ObjectKey) -> ResourceVersion {
        self.commit(Transaction::one(key.clone(), Expect::Anything, None)).await.unwrap().last
    }

    pub(crate) async fn commit(&self, txn: Transaction) -> Result<Committed, StoreError> {
        self.store.commit(txn).await.map(portolan_store::Durable::into_inner)
    }

    pub(crate) async fn list(&self, scope: RangeScope) -> Vec<StoredObject> {
        self.store.range(RangeRequest::all(scope)).await.unwrap().objects
    }

    pub(crate) async fn watch(&self, scope: WatchScope, after: Option<ResourceVersion>) -> Box<dyn EventStream> {
        self.store.watch(scope, after).await.unwrap()
    }
}

/// Returns an unused prefix.
pub(crate) fn an_etcd() -> EtcdConfig {
    let urls = std::env::var("PORTOLAN_ETCD").expect("PORTOLAN_ETCD names a running etcd");
    let mut config = EtcdConfig::new(urls.split(',').map(str::to_owned).collect());
    config.prefix = format!("/contract/{}/", Seams::system().uid());
    config
}

fn open_either(config: &StoreConfig, etcd: Option<&EtcdConfig>) -> Result<DynStore, OpenError> {
    let Some(etcd) = etcd else { return open(config.clone(), Seams::system()) };
    now(async { open_etcd(etcd, config, &Seams::system()).await.map(|(store, _)| store) })
}

/// Blocks on a future outside of a runtime.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

/// Reads a watch until it has delivered everything up to `upto`.
pub(crate) async fn events_until(stream: &mut dyn EventStream, upto: ResourceVersion) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        // Ready batches are taken first; a watch that then waits has delivered everything.
        while let Some(batch) = stream.next().now_or_never() {
            events.extend(batch.unwrap().events.iter().map(|event| Event::clone(event)));
        }
        if stream.progress() >= upto {
            return events;
        }
        let next = tokio::time::timeout(Duration::from_secs(20), stream.next()).await;
        events.extend(next.expect("a watch continues").unwrap().events.iter().map(|event| Event::clone(event)));
    }
}

pub(crate) fn cluster(number: u64) -> LogicalClusterId {
    LogicalClusterId::new(number)
}

pub(crate) fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

pub(crate) fn roles() -> GroupResource {
    GroupResource::new("rbac.authorization.k8s.io", "clusterroles")
}

/// Returns the key of a pod in namespace `default`, unless `name` has its own in front of a slash.
pub(crate) fn pod(cluster_number: u64, name: &str) -> ObjectKey {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    ObjectKey::namespaced(cluster(cluster_number), pods(), namespace.parse().unwrap(), name.parse().unwrap())
}

pub(crate) fn role(cluster_number: u64, name: &str) -> ObjectKey {
    ObjectKey {
        cluster: cluster(cluster_number),
        resource: roles(),
        scope: Scope::Cluster,
        name: name.parse().unwrap(),
    }
}

pub(crate) fn object(key: &ObjectKey, text: &str) -> Value {
    json!({"kind": "X", "metadata": {"name": &*key.name, "labels": {"text": text}}, "data": text})
}

pub(crate) fn record(key: &ObjectKey, text: &str) -> Record {
    Record::of(&object(key, text))
}

pub(crate) fn text(record: &Record) -> String {
    let value: Value = serde_json::from_slice(record.body()).unwrap();
    value["data"].as_str().unwrap().to_owned()
}

/// Builds an object with the given owner and placement.
pub(crate) fn related(key: &ObjectKey, owners: &[&str], placed: &[&str]) -> Record {
    let owners: Vec<Value> = owners.iter().map(|uid| json!({"uid": uid})).collect();
    let clusters: Vec<Value> =
        placed.iter().map(|uid| json!({"name": uid, "uid": uid, "phase": "Active", "epoch": 1})).collect();
    let placement = json!({"clusters": clusters}).to_string();
    Record::of(&json!({
        "metadata": {"name": &*key.name, "ownerReferences": owners, "annotations": {"portolan.dev/placement": placement}},
        "data": "",
    }))
}
