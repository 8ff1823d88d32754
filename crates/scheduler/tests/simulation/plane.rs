//! Control plane of a run: a store in memory, and a scheduler that may crash at any await.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use portolan_scheduler::{BuiltinKinds, ClusterTree, FailoverTiming, Scheduler, SchedulerParts, UseRights, heartbeats};
use portolan_store::{DynStore, Expect, ModifyOutcome, ObjectClient, Step, StoreError, Transaction, Write, memory};
use portolan_types::{
    Clock, GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Record, Scope, Seams, Uid, object,
    placement::{CopyPhase, PlacementRecord, placement_name},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

const SHOP: LogicalClusterId = LogicalClusterId::new(7);

/// `root`, and below it `root:shop`.
struct Tree;

impl ClusterTree for Tree {
    fn lineage(&self, cluster: LogicalClusterId) -> Vec<(LogicalClusterId, LogicalClusterPath)> {
        let root = (LogicalClusterId::ROOT, LogicalClusterPath::root());
        match cluster {
            LogicalClusterId::ROOT => vec![root],
            SHOP => vec![(SHOP, "root:shop".parse().expect("a path")), root],
            _ => Vec::new(),
        }
    }

    fn subtree(&self, cluster: LogicalClusterId) -> Vec<LogicalClusterId> {
        if cluster == LogicalClusterId::ROOT { vec![LogicalClusterId::ROOT, SHOP] } else { vec![cluster] }
    }
}

struct UseByAll;

impl UseRights for UseByAll {
    fn may_use(&self, _: LogicalClusterId, _: LogicalClusterId, _: &str) -> bool {
        true
    }
}

/// Wall clock that follows the runtime's time.
struct RuntimeClock {
    start: jiff::Timestamp,
    at: Instant,
}

impl Clock for RuntimeClock {
    fn now(&self) -> jiff::Timestamp {
        self.start + self.at.elapsed()
    }
}

/// Store with its scheduler.
pub(crate) struct ControlPlane {
    pub(crate) store: DynStore,
    pub(crate) objects: ObjectClient,
    seams: Seams,
    scheduler: Mutex<Option<JoinHandle<()>>>,
}

fn resource(text: &str) -> GroupResource {
    let (resource, group) = text.split_once('.').unwrap_or((text, ""));
    GroupResource::new(group, resource)
}

/// Returns the key of an object in `root:shop`: `deployments.apps/shop/web`, or `namespaces/shop` at cluster scope.
pub(crate) fn shop(text: &str) -> ObjectKey {
    key(SHOP, text)
}

/// Returns the key of an object in `root`.
pub(crate) fn root(text: &str) -> ObjectKey {
    key(LogicalClusterId::ROOT, text)
}

fn key(cluster: LogicalClusterId, text: &str) -> ObjectKey {
    let parts: Vec<&str> = text.split('/').collect();
    let scope = match parts[..] {
        [_, namespace, _] => Scope::Namespace(namespace.parse().expect("a name")),
        _ => Scope::Cluster,
    };
    let name = parts.last().expect("a split has parts").parse().expect("a name");
    ObjectKey { cluster, resource: resource(parts[0]), scope, name }
}

fn placement_of(key: &ObjectKey) -> ObjectKey {
    let name = placement_name(&key.resource, &key.name).parse().expect("a name");
    ObjectKey { resource: resource("placements.portolan.dev"), name, ..key.clone() }
}

impl ControlPlane {
    pub(crate) fn new(seed: u64) -> Self {
        let start = jiff::Timestamp::from_second(1_800_000_000).expect("a time");
        let clock = Arc::new(RuntimeClock { start, at: Instant::now() });
        let seams = Seams { clock, ..Seams::seeded(seed, start) };
        let store = memory();
        Self { objects: ObjectClient::new(store.clone()), store, seams, scheduler: Mutex::default() }
    }

    /// Starts a scheduler. One that runs is killed, wherever it is.
    pub(crate) fn restart_scheduler(&self) {
        let scheduler = Scheduler::new(SchedulerParts {
            store: self.store.clone(),
            seams: self.seams.clone(),
            tree: Arc::new(Tree),
            rights: Arc::new(UseByAll),
            kinds: Arc::new(BuiltinKinds),
            gate: None,
            failover: FailoverTiming::default(),
        });
        let next = tokio::spawn(async move { scheduler.run(CancellationToken::new()).await });
        let mut known = self.scheduler.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = known.replace(next) {
            before.abort();
        }
    }

    pub(crate) async fn create(&self, key: ObjectKey, api_version: &str, kind: &str, mut object: Value) {
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        let metadata = object::metadata_mut(&mut object);
        metadata.insert("name".into(), (&*key.name).into());
        metadata.insert("uid".into(), format!("{}-{}", key.resource.resource, key.name).into());
        metadata.insert("generation".into(), 1.into());
        metadata.insert("creationTimestamp".into(), "2026-01-01T00:00:00Z".into());
        if let Some(namespace) = key.namespace() {
            metadata.insert("namespace".into(), (&**namespace).into());
        }
        self.objects.create(&key, &object).await.expect("it is new");
    }

    pub(crate) async fn get(&self, key: &ObjectKey) -> Option<Value> {
        self.objects.get_value(key).await.expect("the store is in memory").map(|(object, _)| object)
    }

    /// Changes an object, if it exists and `change` wants to.
    pub(crate) async fn change(&self, key: &ObjectKey, mut change: impl FnMut(&mut Value) -> Step + Send) -> bool {
        let outcome = self.objects.modify(key, |object| Ok::<_, StoreError>(change(object))).await;
        matches!(outcome, Ok(Some(ModifyOutcome::Written(..) | ModifyOutcome::Deleted(..))))
    }

    /// Changes the spec of an object, as a client does.
    pub(crate) async fn edit(&self, key: &ObjectKey, change: impl Fn(&mut Value) + Send + Sync) -> bool {
        self.change(key, |object| {
            change(&mut object["spec"]);
            let next = object::generation(object) + 1;
            object::metadata_mut(object).insert("generation".into(), next.into());
            Step::Write
        })
        .await
    }

    pub(crate) async fn delete(&self, key: &ObjectKey) {
        self.change(key, |_| Step::Delete).await;
    }

    /// Writes the heartbeat of a physical cluster.
    pub(crate) async fn heartbeat(&self, physical: &Uid, unbroken: u64) {
        let name = physical.as_str().parse().expect("a uid is a name");
        let at = ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, heartbeats(), name);
        let object = json!({"metadata": {"name": physical.as_str()}, "unbroken": unbroken});
        let txn = Transaction::one(at, Expect::Anything, Some(Record::of(&object)));
        self.store.commit(txn).await.expect("the store is in memory");
    }

    /// Reports the ready pods of a copy, unless its stay is over.
    pub(crate) async fn report(&self, key: &ObjectKey, physical: &Uid, epoch: u64, ready: i64) {
        let record = self.get(key).await.as_ref().and_then(PlacementRecord::of).unwrap_or_default();
        if record.on(physical).is_none_or(|copy| copy.epoch != epoch) {
            return;
        }
        self.change(&placement_of(key), |placement| {
            let copies = placement["status"]["clusters"].as_array_mut().into_iter().flatten();
            let mut step = Step::Keep;
            for copy in copies.filter(|copy| copy["uid"] == physical.as_str() && copy["ready"] != ready) {
                copy["ready"] = ready.into();
                step = Step::Write;
            }
            step
        })
        .await;
    }

    /// Removes a copy from the record once it is proven gone or written off, with its report in the same transaction.
    pub(crate) async fn release(&self, key: &ObjectKey, physical: &Uid, epoch: u64) {
        for _ in 0..16 {
            let Ok(Some((mut object, revision))) = self.objects.get_value(key).await else { return };
            let mut record = PlacementRecord::of(&object).unwrap_or_default();
            let is_it = |copy: &portolan_types::placement::PlacedCopy| {
                copy.uid == *physical && copy.epoch == epoch && copy.phase == CopyPhase::Leaving
            };
            if !record.clusters.iter().any(is_it) {
                return;
            }
            record.clusters.retain(|copy| !is_it(copy));
            record.write_to(&mut object);
            let write = |key: &ObjectKey, revision, object: &Value| Write {
                key: key.clone(),
                expect: Expect::At(revision),
                record: Some(Record::of(object)),
            };
            let mut writes = vec![write(key, revision, &object)];
            if let Ok(Some((mut placement, revision))) = self.objects.get_value(&placement_of(key)).await {
                if let Some(copies) = placement["status"]["clusters"].as_array_mut() {
                    copies.retain(|copy| copy["uid"] != physical.as_str());
                }
                writes.push(write(&placement_of(key), revision, &placement));
            }
            if self.store.commit(Transaction { writes, ..Transaction::default() }).await.is_ok() {
                return;
            }
        }
    }

    /// Waits until `holds`, for at most `limit`. Returns false if it never does.
    pub(crate) async fn until<F: Future<Output = bool>>(&self, limit: Duration, holds: impl Fn() -> F) -> bool {
        let begun = Instant::now();
        while !holds().await {
            if begun.elapsed() > limit {
                return false;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        true
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let scheduler = self.scheduler.get_mut().unwrap_or_else(PoisonError::into_inner);
        scheduler.take().iter().for_each(JoinHandle::abort);
    }
}
