//! Decisions of the planner, and of Karmada's scheduling algorithm, about the same objects: which of 100 policies
//! applies, and which three of the physical clusters, over three regions, get how many replicas. No server is
//! involved, on either side; each uses one thread.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portolan_placement::{
    ClusterFacts, ClusterInfo, CompiledPolicy, CopyHealth, LeveledPolicy, MoveGates, PlacementDecision,
    PlacementInputs, Workload, place, transition,
};
use portolan_types::placement::{PhysicalClusterStatus, PlacementRecord, PolicyRef};
use portolan_types::{GroupKind, GroupResource};
use serde_json::json;

use super::super::super::figures::{Figure, Unit};
use harness::tools::repository;
use harness::{go, process};

const POLICIES: usize = 100;
/// Physical clusters, and decisions about one object of which the median counts.
const SIZES: [(usize, usize); 2] = [(10, 2_000), (1_000, 200)];
/// Physical clusters of the decisions about many objects.
const CLUSTERS: usize = 10;
const REPLICAS: i64 = 6;
const LIMIT: Duration = Duration::from_secs(900);

/// Measures both, and returns the time of each and their ratio.
pub(super) fn measure(dir: &Path, objects: usize) -> Result<Vec<Figure>> {
    let karmada = Karmada::build(dir)?;
    let mut figures = Vec::new();
    for (clusters, rounds) in SIZES {
        let name = format!("decision over {clusters} physical clusters, {POLICIES} policies");
        let theirs = karmada.run(&[("clusters", clusters), ("policies", POLICIES), ("rounds", rounds)])?;
        figures.extend(beside(&name, one(clusters, rounds)?, theirs, Unit::Micros));
    }
    let name = format!("decisions again about {objects} placed objects, {CLUSTERS} physical clusters");
    let theirs = karmada.run(&[("clusters", CLUSTERS), ("policies", POLICIES), ("objects", objects)])?;
    figures.extend(beside(&name, many(objects)?, theirs, Unit::Millis));
    Ok(figures)
}

fn beside(name: &str, ours: Duration, theirs: Duration, unit: Unit) -> [Figure; 3] {
    let scale = if unit == Unit::Micros { 1e6 } else { 1e3 };
    let figure = |what: &str, time: Duration| Figure::new(format!("{name}{what}"), time.as_secs_f64() * scale, unit);
    let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
    [
        figure("", ours),
        figure(": Karmada 1.18.2", theirs),
        Figure::new(format!("{name}: Karmada's time over Portolan's"), ratio, Unit::Times),
    ]
}

/// Program that measures Karmada's algorithm.
struct Karmada(PathBuf);

impl Karmada {
    fn build(dir: &Path) -> Result<Self> {
        let program = dir.join("karmada");
        go::run(&repository().join("e2e/clients/karmada"), &["build", "-o", go::text(&program)?, "."])?;
        Ok(Self(program))
    }

    fn run(&self, flags: &[(&str, usize)]) -> Result<Duration> {
        let mut command = Command::new(&self.0);
        command.args(flags.iter().map(|(name, value)| format!("-{name}={value}"))).env("GOMAXPROCS", "1");
        let printed = process::output(&mut command, LIMIT)?;
        Ok(Duration::from_nanos(printed.trim().parse().context("the program prints nanoseconds")?))
    }
}

/// Facts and policies that all decisions share.
struct PlannerWorld {
    clusters: Vec<ClusterFacts>,
    policies: Vec<LeveledPolicy>,
    nothing: BTreeMap<portolan_types::Uid, i64>,
}

impl PlannerWorld {
    fn new(clusters: usize) -> Result<Self> {
        let clusters = (0..clusters).map(cluster).collect::<Result<_>>()?;
        let policies = (0..POLICIES).map(policy).collect::<Result<_>>()?;
        Ok(Self { clusters, policies, nothing: BTreeMap::new() })
    }

    fn place(&self, workload: &Workload, previous: &PlacementRecord) -> PlacementDecision {
        place(&PlacementInputs {
            workload,
            policies: &self.policies,
            clusters: &self.clusters,
            previous,
            home: &[],
            existing: &self.nothing,
            now: 0,
        })
    }
}

fn cluster(number: usize) -> Result<ClusterFacts> {
    let name = format!("c{number:04}");
    let status: PhysicalClusterStatus = serde_json::from_value(json!({
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "1000000", "memory": "4000Gi", "pods": "10000000"},
    }))?;
    let spec = serde_json::from_value(json!({}))?;
    let mut info = ClusterInfo::new(&name, format!("uid-{number}").parse()?, spec, status, |_| 0);
    info.labels = BTreeMap::from([("region".to_owned(), format!("r{}", number % 3))]);
    let used = serde_json::from_value(json!({"cpu": "10", "memory": "10Gi", "pods": "100"}))?;
    Ok(ClusterFacts { info: Arc::new(info), used, in_reach: true, may_use: true })
}

/// Policy `number` is about the objects with the label `tier=t<number>`.
fn policy(number: usize) -> Result<LeveledPolicy> {
    let spec = serde_json::from_value(json!({
        "resources": [{
            "apiGroup": "apps", "kinds": ["Deployment"],
            "selector": {"matchLabels": {"tier": format!("t{number}")}},
        }],
        "count": 3,
        "spread": [{"topologyKey": "region"}],
        "replicas": {"mode": "Divide", "by": "Capacity"},
    }))?;
    let reference = PolicyRef {
        kind: "ClusterPlacementPolicy".into(),
        workspace: "root".into(),
        namespace: None,
        name: format!("p{number:03}"),
    };
    let policy = Arc::new(CompiledPolicy::compile(spec));
    Ok(LeveledPolicy { level: 1, reference, created: String::new(), policy })
}

fn workload(number: usize) -> Workload {
    let labels = json!({"tier": format!("t{}", number % POLICIES)});
    let container = json!({"name": "c", "resources": {"requests": {"cpu": "100m"}}});
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": format!("web-{number}"), "namespace": "shop", "labels": labels, "generation": 1},
        "spec": {"replicas": REPLICAS, "template": {"spec": {"containers": [container]}}},
    });
    let kind = GroupKind { group: "apps".into(), kind: "Deployment".into() };
    Workload::of(kind, GroupResource::new("apps", "deployments"), &object)
}

/// Returns the median time of a decision about one object that is not placed yet.
fn one(clusters: usize, rounds: usize) -> Result<Duration> {
    let (world, workload, nowhere) = (PlannerWorld::new(clusters)?, workload(POLICIES - 1), PlacementRecord::default());
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun = Instant::now();
        let decision = black_box(world.place(&workload, &nowhere));
        times.push(begun.elapsed());
        ensure!(decision.chosen.len() == 3, "{} physical clusters are chosen", decision.chosen.len());
    }
    times.sort_unstable();
    Ok(times[rounds / 2])
}

/// Returns the time of decisions about objects that are placed already.
fn many(objects: usize) -> Result<Duration> {
    let world = PlannerWorld::new(CLUSTERS)?;
    let up = world.clusters.iter().map(|cluster| cluster.info.uid.clone()).collect();
    let (drained, gone) = Default::default();
    let health = CopyHealth {
        ready: &world.nothing,
        up: &up,
        drained: &drained,
        gone: &gone,
        epoch: 1,
        gates: MoveGates::open(),
    };
    let nowhere = PlacementRecord::default();
    let placed: Vec<(Workload, PlacementRecord)> = (0..objects)
        .map(|number| {
            let workload = workload(number);
            let record = transition(&workload, &nowhere, &world.place(&workload, &nowhere), &health).record;
            (workload, record)
        })
        .collect();
    let begun = Instant::now();
    for (workload, record) in &placed {
        let decision = black_box(world.place(workload, record));
        ensure!(decision.chosen.len() == 3, "{} physical clusters are chosen", decision.chosen.len());
    }
    Ok(begun.elapsed())
}
