//! A plan over 10,000 and 100,000 Deployments in 100 namespaces: a drain that moves all of them, and a cordon that
//! moves none. The store is in memory, so that the figures are those of the planner.

use std::{sync::Arc, time::Duration};

use divan::{Bencher, counter::ItemsCount};
use portolan_scheduler::{
    BuiltinKinds, ClusterTree, FailoverTiming, PlannedChange, Scheduler, SchedulerParts, UseRights,
};
use portolan_store::{DynStore, Expect, Transaction, Write, memory};
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Record, Seams,
    placement::{CopyPhase, PlacedCopy, PlacementRecord},
};
use serde_json::{Value, json};

fn main() {
    divan::main();
}

/// One logical cluster.
struct RootOnly;

impl ClusterTree for RootOnly {
    fn lineage(&self, cluster: LogicalClusterId) -> Vec<(LogicalClusterId, LogicalClusterPath)> {
        vec![(cluster, LogicalClusterPath::root())]
    }

    fn subtree(&self, cluster: LogicalClusterId) -> Vec<LogicalClusterId> {
        vec![cluster]
    }
}

struct UseByAll;

impl UseRights for UseByAll {
    fn may_use(&self, _: LogicalClusterId, _: LogicalClusterId, _: &str) -> bool {
        true
    }
}

fn physical(name: &str) -> ObjectKey {
    let resource = GroupResource::new("portolan.dev", "physicalclusters");
    let name = name.parse().expect("the name is a constant");
    ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name)
}

fn physical_cluster(name: &str) -> Value {
    json!({
        "apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "metadata": {"name": name, "uid": name},
        "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn deployment(n: usize) -> (ObjectKey, Value) {
    let (name, namespace) = (format!("web-{n:06}"), format!("team-{:02}", n % 100));
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "uid": name, "generation": 1, "labels": {"app": name}},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [{
                "name": "web", "image": "registry.example/web:1.2.3", "ports": [{"containerPort": 8080}],
                "env": [{"name": "LOG_LEVEL", "value": "info"}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}]}}},
    });
    let copy = PlacedCopy {
        name: "east".into(),
        uid: "east".parse().expect("a constant"),
        phase: CopyPhase::Active,
        replicas: None,
        epoch: 1,
    };
    PlacementRecord { clusters: vec![copy], generation: 1, ..PlacementRecord::default() }.write_to(&mut object);
    let resource = GroupResource::new("apps", "deployments");
    let namespace = namespace.parse().expect("letters and digits are a name");
    (ObjectKey::namespaced(LogicalClusterId::ROOT, resource, namespace, name.parse().expect("so are these")), object)
}

async fn fill(store: &DynStore, objects: usize) {
    let clusters = ["east", "west"].map(|name| (physical(name), physical_cluster(name)));
    let all: Vec<_> = clusters.into_iter().chain((0..objects).map(deployment)).collect();
    for some in all.chunks(50) {
        let write = |(key, object): &(ObjectKey, Value)| Write {
            key: key.clone(),
            expect: Expect::Absent,
            record: Some(Record::of(object)),
        };
        let txn = Transaction { writes: some.iter().map(write).collect(), ..Transaction::default() };
        store.commit(txn).await.expect("the store is in memory");
    }
}

fn plan(bencher: Bencher, objects: usize, change: &PlannedChange, moves: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("the machine has two threads");
    let store = memory();
    runtime.block_on(fill(&store, objects));
    let scheduler = Scheduler::new(SchedulerParts {
        store,
        seams: Seams::seeded(1, jiff::Timestamp::UNIX_EPOCH),
        tree: Arc::new(RootOnly),
        rights: Arc::new(UseByAll),
        kinds: Arc::new(BuiltinKinds),
        gate: None,
        failover: FailoverTiming::default(),
    });
    bencher.counter(ItemsCount::new(objects)).bench(|| {
        let plan = scheduler.plan(LogicalClusterId::ROOT, std::slice::from_ref(change));
        let plan = runtime.block_on(plan).expect("the store is in memory");
        assert_eq!(plan.moves.len(), moves);
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

#[divan::bench(args = [10_000, 100_000], sample_count = 3, sample_size = 1)]
fn all_move(bencher: Bencher, objects: usize) {
    plan(bencher, objects, &PlannedChange::Drain { key: physical("east"), force: false }, objects);
}

#[divan::bench(args = [10_000, 100_000], sample_count = 3, sample_size = 1)]
fn none_moves(bencher: Bencher, objects: usize) {
    plan(bencher, objects, &PlannedChange::Cordon { key: physical("east"), unschedulable: true }, 0);
}
