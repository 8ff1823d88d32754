//! `place` for 10, 1 000 and 100 000 objects on ten physical clusters, with a policy that divides and one that constrains.

use std::{collections::BTreeMap, hint::black_box, sync::Arc};

use divan::{Bencher, counter::ItemsCount};
use portolan_placement::{ClusterFacts, ClusterInfo, LeveledPolicy, Policy, Question, Readiness, Workload, place};
use portolan_types::{
    GroupKind, GroupResource,
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
        labels: BTreeMap::from([("region".to_owned(), format!("r{}", n % 3))]),
        taints: Vec::new(),
        unschedulable: n == 9,
        deleting: false,
        readiness: Readiness::Ready,
        bounds: [("cpu".to_owned(), "1000000".parse().expect("a number is a quantity"))].into(),
        allocatable: [("cpu".to_owned(), "1000000".parse().expect("a number is a quantity"))].into(),
        synced: Vec::new(),
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
    LeveledPolicy { level, reference, created: String::new(), policy: Arc::new(Policy::compile(spec)) }
}

fn workload(n: usize) -> Workload {
    let object = json!({
        "metadata": {"name": format!("web-{n}"), "namespace": "shop", "labels": {"tier": "web"}},
        "spec": {"replicas": 6, "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}},
    });
    let kind = GroupKind { group: "apps".into(), kind: "Deployment".into() };
    Workload::of(kind, GroupResource::new("apps", "deployments"), &object)
}

#[divan::bench(args = [10, 1_000, 100_000], sample_count = 10)]
fn place_objects(bencher: Bencher, objects: usize) {
    let clusters: Vec<_> = (0..10).map(cluster).collect();
    let about = json!([{"apiGroup": "apps", "kinds": ["Deployment"], "selector": {"matchLabels": {"tier": "web"}}}]);
    let divided =
        json!({"resources": about, "count": 3, "spread": [{"topologyKey": "region"}], "replicas": {"mode": "Divide"}});
    let constraint = json!({"resources": about, "enforcement": "Constraint", "clusters": {"exclude": ["c03"]}});
    let policies = [policy(1, divided), policy(2, constraint)];
    let workloads: Vec<_> = (0..objects).map(workload).collect();
    let (previous, ready) = (PlacementRecord::default(), BTreeMap::new());
    bencher.counter(ItemsCount::new(objects)).bench(|| {
        for workload in &workloads {
            let question = Question {
                workload,
                policies: &policies,
                clusters: &clusters,
                previous: &previous,
                home: &[],
                ready: &ready,
                now: 0,
            };
            black_box(place(black_box(&question)));
        }
    });
}
