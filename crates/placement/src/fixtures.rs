//! Facts for tests, in few words.

use std::{collections::BTreeMap, sync::Arc};

use portolan_types::{
    GroupKind, GroupResource, Uid,
    placement::{CopyPhase, Enforcement, PlacedCopy, PlacementPolicySpec, PlacementRecord, PolicyRef},
};
use serde_json::{Value, json};

use crate::{
    cluster_facts::{ClusterFacts, ClusterInfo, Readiness, TaintFact},
    decide::{PlacementDecision, PlacementInputs, place},
    expressions::ExpressionSubject,
    policy::{CompiledPolicy, LeveledPolicy},
    workload::Workload,
};

pub(crate) fn uid(name: &str) -> Uid {
    format!("uid-{name}").parse().unwrap()
}

/// `east region=eu` is a ready, empty physical cluster with a label.
pub(crate) fn cluster(text: &str) -> ClusterFacts {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap();
    let labels: BTreeMap<String, String> =
        words.filter_map(|w| w.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
    let object = json!({"metadata": {"name": name, "labels": labels}});
    let info = ClusterInfo {
        name: name.into(),
        uid: uid(name),
        labels,
        subject: ExpressionSubject::of_cluster(&object),
        taints: Vec::new(),
        unschedulable: false,
        deleting: false,
        draining: false,
        readiness: Readiness::Ready,
        bounds: BTreeMap::new(),
        allocatable: BTreeMap::new(),
        synced: Vec::new(),
        custom_kinds: serde_json::from_value(json!([{"group": "db.io", "kind": "*", "versions": [""]}])).unwrap(),
    };
    ClusterFacts { info: Arc::new(info), used: BTreeMap::new(), in_reach: true, may_use: true }
}

impl ClusterFacts {
    pub(crate) fn with(mut self, change: impl FnOnce(&mut ClusterInfo)) -> Self {
        change(Arc::make_mut(&mut self.info));
        self
    }

    pub(crate) fn cordoned(self) -> Self {
        self.with(|c| c.unschedulable = true)
    }

    pub(crate) fn down(self) -> Self {
        self.with(|c| c.readiness = Readiness::NotReady("connection refused".into()))
    }

    pub(crate) fn deleting(self) -> Self {
        self.with(|c| c.deleting = true)
    }

    pub(crate) fn draining(self) -> Self {
        self.with(|c| c.draining = true)
    }

    pub(crate) fn tainted(self, key: &str, effect: &str, since: i64) -> Self {
        let taint = portolan_types::placement::Taint { key: key.into(), value: String::new(), effect: effect.into() };
        self.with(|c| c.taints.push(TaintFact { taint, since }))
    }

    pub(crate) fn bounded(self, cpu: &str) -> Self {
        self.with(|c| c.bounds.extend([("cpu".to_owned(), cpu.parse().unwrap())]))
    }

    pub(crate) fn holding(self, cpu: &str) -> Self {
        self.with(|c| c.allocatable.extend([("cpu".to_owned(), cpu.parse().unwrap())]))
    }

    pub(crate) fn using(mut self, cpu: &str) -> Self {
        self.used.insert("cpu".into(), cpu.parse().unwrap());
        self
    }
}

pub(crate) fn clusters(names: &[&str]) -> Vec<ClusterFacts> {
    names.iter().map(|name| cluster(name)).collect()
}

/// A rolling Deployment whose pods request one cpu each.
pub(crate) fn deployment(replicas: i64) -> Workload {
    workload(
        "apps",
        "Deployment",
        json!({
            "metadata": {"name": "web", "namespace": "shop", "generation": 1, "labels": {"tier": "web"}},
            "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}},
        }),
    )
}

pub(crate) fn workload(group: &str, kind: &str, object: Value) -> Workload {
    let resource = GroupResource::new(group, format!("{}s", kind.to_lowercase()));
    Workload::of(GroupKind { group: group.into(), kind: kind.into() }, resource, &object)
}

/// A policy about all Deployments; `level` 0 is the namespace.
pub(crate) fn policy(level: u32, name: &str, spec: Value) -> LeveledPolicy {
    let mut spec: PlacementPolicySpec = serde_json::from_value(spec).unwrap();
    if spec.resources.is_empty() {
        spec.resources = serde_json::from_value(json!([{"apiGroup": "*"}, {"apiGroup": "db.io"}])).unwrap();
    }
    let kind = if level == 0 { "PlacementPolicy" } else { "ClusterPlacementPolicy" };
    LeveledPolicy {
        level,
        reference: PolicyRef {
            kind: kind.into(),
            workspace: if level > 1 { "root" } else { "root:shop" }.into(),
            namespace: None,
            name: name.into(),
        },
        created: "2026-01-01T00:00:00Z".into(),
        policy: Arc::new(CompiledPolicy::compile(spec)),
    }
}

pub(crate) fn constraint(level: u32, name: &str, spec: Value) -> LeveledPolicy {
    let mut policy = policy(level, name, spec);
    let mut spec = policy.policy.spec.clone();
    spec.enforcement = Enforcement::Constraint;
    policy.policy = Arc::new(CompiledPolicy::compile(spec));
    policy
}

/// `east*2 west-` is an active copy with 2 replicas on east, and one that leaves west.
pub(crate) fn record(text: &str) -> PlacementRecord {
    let copy = |word: &str| {
        let leaving = word.ends_with('-');
        let word = word.trim_end_matches('-');
        let (name, replicas) = word.split_once('*').map_or((word, None), |(n, r)| (n, Some(r.parse().unwrap())));
        let phase = if leaving { CopyPhase::Leaving } else { CopyPhase::Active };
        PlacedCopy { name: name.into(), uid: uid(name), phase, replicas, epoch: 1 }
    };
    let clusters = text.split_whitespace().map(copy).collect();
    PlacementRecord { clusters, generation: 1, ..PlacementRecord::default() }
}

/// Returns the words of a record.
pub(crate) fn words(record: &PlacementRecord) -> String {
    let word = |c: &PlacedCopy| {
        let replicas = c.replicas.map(|n| format!("*{n}")).unwrap_or_default();
        format!("{}{replicas}{}", c.name, if c.phase == CopyPhase::Leaving { "-" } else { "" })
    };
    record.clusters.iter().map(word).collect::<Vec<_>>().join(" ")
}

pub(crate) fn chosen(decision: &PlacementDecision) -> String {
    let word = |c: &crate::decide::ChosenCluster| {
        format!("{}{}", c.name, c.replicas.map(|n| format!("*{n}")).unwrap_or_default())
    };
    decision.chosen.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Builder of the inputs of a decision.
#[derive(Clone, Debug)]
pub(crate) struct PlacementCase {
    pub(crate) workload: Workload,
    pub(crate) policies: Vec<LeveledPolicy>,
    pub(crate) clusters: Vec<ClusterFacts>,
    pub(crate) previous: PlacementRecord,
    pub(crate) home: Vec<Uid>,
    pub(crate) existing: BTreeMap<Uid, i64>,
    pub(crate) now: i64,
}

impl PlacementCase {
    pub(crate) fn new(workload: Workload, clusters: Vec<ClusterFacts>) -> Self {
        Self {
            workload,
            clusters,
            policies: Vec::new(),
            previous: PlacementRecord::default(),
            home: Vec::new(),
            existing: BTreeMap::new(),
            now: 1_000,
        }
    }

    pub(crate) fn by(mut self, policy: LeveledPolicy) -> Self {
        self.policies.push(policy);
        self
    }

    pub(crate) fn on(mut self, text: &str) -> Self {
        self.previous = record(text);
        self
    }

    pub(crate) fn home(mut self, name: &str) -> Self {
        self.home = vec![uid(name)];
        self
    }

    pub(crate) fn pinned(mut self, names: &str) -> Self {
        let object = json!({"metadata": {"annotations": {"portolan.dev/pin": names}}});
        self.workload.pin = crate::workload::ClusterPin::of(&object, crate::workload::PinScope::Object);
        self
    }

    pub(crate) fn question(&self) -> PlacementInputs<'_> {
        PlacementInputs {
            workload: &self.workload,
            policies: &self.policies,
            clusters: &self.clusters,
            previous: &self.previous,
            home: &self.home,
            existing: &self.existing,
            now: self.now,
        }
    }

    pub(crate) fn decide(&self) -> PlacementDecision {
        place(&self.question())
    }
}
