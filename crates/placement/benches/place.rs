//! `place` for 10, 1 000 and 100 000 objects on ten physical clusters, with a policy that divides and one that
//! constrains; for one object among 10 to 1 000 physical clusters; and of one that is placed already, as most looks
//! find it.

use std::{
    collections::{BTreeMap, BTreeSet},
    hint::black_box,
    sync::Arc,
};

use divan::{Bencher, counter::ItemsCount};
use portolan_placement::{
    ClusterFacts, ClusterInfo, CompiledPolicy, CopyHealth, ExpressionSubject, LeveledPolicy, MoveGates,
    PlacementDecision, PlacementInputs, Readiness, Workload, place, transition, with_overrides,
};
use portolan_types::{
    GroupKind, GroupResource, Uid,
    placement::{PlacementRecord, PolicyRef},
};
use serde_json::{Value, json};

fn main() {
    divan::main();
}

fn cluster(n: usize) -> ClusterFacts {
    let name = format!("c{n:02}");
    let info = ClusterInfo {
        uid: format!("uid-{n}").parse().expect("digits are a uid"),
        custom_kinds: Default::default(),
        labels: BTreeMap::from([("region".to_owned(), format!("r{}", n % 3))]),
        taints: Vec::new(),
        unschedulable: n == 9,
        deleting: false,
        draining: false,
        readiness: Readiness::Ready,
        bounds: [("cpu".to_owned(), "1000000".parse().expect("a number is a quantity"))].into(),
        allocatable: [("cpu".to_owned(), "1000000".parse().expect("a number is a quantity"))].into(),
        synced: Vec::new(),
        subject: ExpressionSubject::default(),
        name,
    };
    ClusterFacts { info: Arc::new(info), used: BTreeMap::new(), in_reach: true, may_use: true }
}

fn policy(level: u32, spec: Value) -> LeveledPolicy {
    let spec = serde_json::from_value(spec).expect("the policy is well formed");
    let reference = PolicyRef {
        kind: "ClusterPlacementPolicy".into(),
        workspace: "root".into(),
        namespace: None,
        name: "p".into(),
    };
    LeveledPolicy { level, reference, created: String::new(), policy: Arc::new(CompiledPolicy::compile(spec)) }
}

fn workload(n: usize) -> Workload {
    let object = json!({
        "metadata": {"name": format!("web-{n}"), "namespace": "shop", "labels": {"tier": "web"}},
        "spec": {"replicas": 6, "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}},
    });
    let kind = GroupKind { group: "apps".into(), kind: "Deployment".into() };
    Workload::of(kind, GroupResource::new("apps", "deployments"), &object)
}

/// A policy that divides and one that constrains.
fn policies() -> [LeveledPolicy; 2] {
    let about = json!([{"apiGroup": "apps", "kinds": ["Deployment"], "selector": {"matchLabels": {"tier": "web"}}}]);
    let divided =
        json!({"resources": about, "count": 3, "spread": [{"topologyKey": "region"}], "replicas": {"mode": "Divide"}});
    let constraint = json!({"resources": about, "enforcement": "Constraint", "clusters": {"exclude": ["c03"]}});
    [policy(1, divided), policy(2, constraint)]
}

/// Inputs that all decisions share.
struct BenchWorld {
    policies: [LeveledPolicy; 2],
    clusters: Vec<ClusterFacts>,
    ready: BTreeMap<Uid, i64>,
}

impl BenchWorld {
    fn of(clusters: usize) -> Self {
        Self { policies: policies(), clusters: (0..clusters).map(cluster).collect(), ready: BTreeMap::new() }
    }

    fn place(&self, workload: &Workload, previous: &PlacementRecord) -> PlacementDecision {
        place(black_box(&PlacementInputs {
            workload,
            policies: &self.policies,
            clusters: &self.clusters,
            previous,
            home: &[],
            existing: &self.ready,
            now: 0,
        }))
    }
}

#[divan::bench(args = [10, 1_000, 100_000], sample_count = 10)]
fn place_objects(bencher: Bencher, objects: usize) {
    let (world, nowhere) = (BenchWorld::of(10), PlacementRecord::default());
    let workloads: Vec<_> = (0..objects).map(workload).collect();
    bencher.counter(ItemsCount::new(objects)).bench(|| {
        for workload in &workloads {
            black_box(world.place(workload, &nowhere));
        }
    });
}

#[divan::bench(args = [10, 100, 1_000], sample_count = 50)]
fn place_among_clusters(bencher: Bencher, clusters: usize) {
    let (world, workload, nowhere) = (BenchWorld::of(clusters), workload(0), PlacementRecord::default());
    bencher.bench(|| black_box(world.place(&workload, &nowhere)));
}

/// Full evaluation of an object that needs no change: the decision, the next step and the overrides.
#[divan::bench(args = [10, 100, 1_000], sample_count = 50)]
fn look_again(bencher: Bencher, clusters: usize) {
    let (world, workload) = (BenchWorld::of(clusters), workload(0));
    let up = world.clusters.iter().map(|c| c.info.uid.clone()).collect();
    let health = CopyHealth {
        ready: &world.ready,
        up: &up,
        drained: &BTreeSet::new(),
        gone: &BTreeSet::new(),
        epoch: 1,
        gates: MoveGates::open(),
    };
    let nowhere = PlacementRecord::default();
    let placed = transition(&workload, &nowhere, &world.place(&workload, &nowhere), &health).record;
    bencher.bench(|| {
        let step = transition(&workload, &placed, &world.place(&workload, &placed), &health);
        black_box(with_overrides(step, &workload, &world.policies, &world.clusters))
    });
}
