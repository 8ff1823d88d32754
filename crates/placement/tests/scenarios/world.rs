//! Facts of a scenario, and the steps that follow from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use portolan_placement::{
    ClusterFacts, ClusterInfo, CompiledPolicy, CopyHealth, ExpressionSubject, LeveledPolicy, MoveGates,
    PlacementDecision, PlacementInputs, PlacementStep, StepJustification, Workload, WorkloadNeighbor,
    check_justification, contribution, explain, place, transition, with_overrides,
};
use portolan_types::{
    GroupKind, GroupResource, Uid, object,
    placement::{
        CopyPhase, PhysicalClusterSpec, PhysicalClusterStatus, PlacedCopy, PlacementPolicySpec, PlacementRecord,
        PolicyRef, ResourceAmounts, Taint,
    },
};
use serde_json::{Value, json};

use crate::scenario::merge;

/// Objects and the state of the placement.
#[derive(Default)]
pub(crate) struct World {
    objects: Vec<Value>,
    given: Value,
    record: PlacementRecord,
    now: i64,
    epoch: u64,
    /// Replicas of each whole copy, as they were admitted by the last step.
    admitted: i64,
    /// Times at which taints were first seen, by cluster and taint.
    tainted: BTreeMap<(String, String), i64>,
}

/// Outcome of a step.
pub(crate) struct TakenStep {
    /// `eu-1 -> eu-1 us-1: moving by policy p`; `None` if nothing changed.
    pub(crate) line: Option<String>,
    /// Condition that the next step waits for.
    pub(crate) waiting: Option<String>,
}

/// Inputs of one decision.
struct WorldFacts {
    workload: Workload,
    policies: Vec<LeveledPolicy>,
    clusters: Vec<ClusterFacts>,
    home: Vec<Uid>,
    existing: BTreeMap<Uid, i64>,
}

fn uid(name: &str) -> Uid {
    format!("uid-{name}").parse().expect("names make uids")
}

fn names(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
}

fn kind_of(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

fn is_policy(object: &Value) -> bool {
    matches!(kind_of(object), "PlacementPolicy" | "ClusterPlacementPolicy")
}

fn is_workload(object: &Value) -> bool {
    !is_policy(object) && kind_of(object) != "PhysicalCluster"
}

impl World {
    /// Adds an object, or merges it into the one of its kind and name.
    pub(crate) fn put(&mut self, object: Value) {
        let is_same =
            |known: &&mut Value| kind_of(known) == kind_of(&object) && object::name(known) == object::name(&object);
        match self.objects.iter_mut().find(is_same) {
            Some(known) => merge(known, &object),
            None => self.objects.push(object),
        }
    }

    /// Sets a value that is not an object.
    pub(crate) fn given(&mut self, given: &Value) {
        merge(&mut self.given, given);
        if let Some(now) = given["now"].as_i64() {
            self.now = now;
        }
        if let Some(text) = given["record"].as_str() {
            self.record = record(text);
            self.admitted = i64::MAX;
            self.epoch = 1;
        }
    }

    /// Lets something happen.
    pub(crate) fn apply(&mut self, event: &Value) {
        self.now += event["seconds"].as_i64().unwrap_or(0);
        for removed in names(&event["remove"]) {
            self.objects.retain(|object| format!("{}/{}", kind_of(object), object::name(object)) != removed);
        }
        event["set"].as_array().into_iter().flatten().cloned().for_each(|object| self.put(object));
        self.given(event);
    }

    /// Decides and takes one step.
    pub(crate) fn step(&mut self, scenario: &str) -> TakenStep {
        self.see_taints();
        let facts = self.facts();
        let decision = self.decide(&facts);
        self.check_order(scenario, &decision);
        let existing: BTreeSet<Uid> = facts.clusters.iter().map(|c| c.info.uid.clone()).collect();
        let gone: BTreeSet<Uid> =
            self.record.clusters.iter().map(|copy| copy.uid.clone()).filter(|uid| !existing.contains(uid)).collect();
        let of = |is: fn(&ClusterInfo) -> bool| {
            facts.clusters.iter().filter(move |c| is(&c.info)).map(|c| c.info.uid.clone())
        };
        let (up, drained): (BTreeSet<Uid>, BTreeSet<Uid>) =
            (of(ClusterInfo::is_ready).collect(), of(ClusterInfo::is_drained).collect());
        let ready = self.ready(&facts.workload);
        let gates = MoveGates { now: self.now, ..MoveGates::default() };
        let health =
            CopyHealth { ready: &ready, up: &up, drained: &drained, gone: &gone, epoch: self.epoch + 1, gates: &gates };
        let step = transition(&facts.workload, &self.record, &decision, &health);
        let step = with_overrides(step, &facts.workload, &facts.policies, &facts.clusters);
        let grounds = StepJustification { workload: &facts.workload, health: &health, stopped: decision.is_to_end() };
        check_justification(&self.record, &step.record, &grounds)
            .unwrap_or_else(|illegal| panic!("{scenario}: {illegal}"));
        self.admitted = facts.workload.replicas.unwrap_or(0);
        self.take(step)
    }

    fn take(&mut self, step: PlacementStep) -> TakenStep {
        let before = words(&self.record);
        let line = step
            .cause
            .filter(|_| step.record != self.record)
            .map(|cause| format!("{} -> {}: {cause}", before, words(&step.record)));
        self.epoch += 1;
        self.record = step.record;
        // Leaving copies are gone at the next step.
        let had = self.record.clusters.len();
        self.record.clusters.retain(|copy| copy.phase != CopyPhase::Leaving);
        let line = match (line, had == self.record.clusters.len()) {
            (None, false) => Some("what left is gone".to_owned()),
            (line, _) => line,
        };
        TakenStep { line, waiting: step.waiting }
    }

    /// Explains the present decision about the object.
    pub(crate) fn explain(&self) -> String {
        let facts = self.facts();
        explain(&self.question(&facts)).to_text()
    }

    fn decide(&self, facts: &WorldFacts) -> PlacementDecision {
        place(&self.question(facts))
    }

    /// Checks that the order of the facts does not matter.
    fn check_order(&self, scenario: &str, decision: &PlacementDecision) {
        let mut turned = self.facts();
        turned.clusters.reverse();
        turned.policies.reverse();
        turned.workload.neighbors.reverse();
        assert_eq!(self.decide(&turned), *decision, "{scenario}: the order of the facts matters");
    }

    fn question<'a>(&'a self, facts: &'a WorldFacts) -> PlacementInputs<'a> {
        PlacementInputs {
            workload: &facts.workload,
            policies: &facts.policies,
            clusters: &facts.clusters,
            previous: &self.record,
            home: &facts.home,
            existing: &facts.existing,
            now: self.now,
        }
    }

    fn see_taints(&mut self) {
        for cluster in self.objects.iter().filter(|object| kind_of(object) == "PhysicalCluster") {
            for taint in cluster["spec"]["taints"].as_array().into_iter().flatten() {
                let seen = (object::name(cluster).to_owned(), taint.to_string());
                self.tainted.entry(seen).or_insert(self.now);
            }
        }
    }

    /// Every copy is ready, but those on clusters where none gets ready.
    fn ready(&self, workload: &Workload) -> BTreeMap<Uid, i64> {
        let never = names(&self.given["notReady"]);
        let needed = |copy: &PlacedCopy| {
            let limit = self.record.limits.get(&copy.uid).copied();
            // A whole copy has as many as were admitted.
            let wanted = copy.replicas.or(workload.replicas.map(|_| self.admitted));
            if never.contains(&copy.name) { 0 } else { workload.needed(wanted, limit) }
        };
        self.record.clusters.iter().map(|copy| (copy.uid.clone(), needed(copy))).collect()
    }

    fn facts(&self) -> WorldFacts {
        let mut workloads = self.objects.iter().filter(|object| is_workload(object));
        let own = workloads.next().expect("a scenario has an object that is placed");
        let mut workload = workload(own);
        workload.neighbors = workloads.map(neighbor).collect();
        let existing = self.record.active().filter(|copy| copy.replicas.is_none());
        let admitted = self.admitted.min(workload.replicas.unwrap_or(0));
        let existing = existing.map(|copy| (copy.uid.clone(), admitted)).collect();
        let clusters = self.objects.iter().filter(|object| kind_of(object) == "PhysicalCluster");
        let clusters = clusters.map(|object| self.cluster(object, &workload)).collect();
        let policies = self.objects.iter().filter(|object| is_policy(object)).map(policy).collect();
        let home = names(&self.given["home"]).iter().map(|name| uid(name)).collect();
        WorldFacts { workload, policies, clusters, home, existing }
    }

    fn cluster(&self, cluster: &Value, workload: &Workload) -> ClusterFacts {
        let name = object::name(cluster);
        let part = |field: &str| cluster.get(field).cloned().unwrap_or_else(|| json!({}));
        let spec: PhysicalClusterSpec = serde_json::from_value(part("spec")).expect("the spec is well formed");
        let mut status: PhysicalClusterStatus =
            serde_json::from_value(part("status")).expect("the status is well formed");
        if status.conditions.is_empty() {
            let ready = json!({"type": "Ready", "status": "True"});
            status.conditions.push(serde_json::from_value(ready).expect("a condition"));
        }
        let since = |taint: &Taint| {
            let seen = (name.to_owned(), serde_json::to_value(taint).expect("a taint is JSON").to_string());
            self.tainted.get(&seen).copied().unwrap_or(self.now)
        };
        let mut info = ClusterInfo::new(name, uid(name), spec, status, since);
        info.labels = texts(&cluster["metadata"]["labels"]);
        info.deleting = object::is_deleting(cluster);
        info.subject = ExpressionSubject::of_cluster(cluster);
        let others = self.given["used"][name].clone();
        let mut used: ResourceAmounts = serde_json::from_value(others).unwrap_or_default();
        for (_, own) in contribution(workload, &self.record).iter().filter(|(on, _)| *on == info.uid) {
            for (resource, amount) in own {
                let sum = used.get(resource).map_or(*amount, |known| *known + *amount);
                used.insert(resource.clone(), sum);
            }
        }
        let is_in = |field: &str| names(&self.given[field]).iter().any(|other| other == name);
        ClusterFacts { info: Arc::new(info), used, in_reach: !is_in("outOfReach"), may_use: !is_in("notAllowed") }
    }
}

fn texts(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn workload(object: &Value) -> Workload {
    let version = object["apiVersion"].as_str().expect("an object has an apiVersion");
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let kind = GroupKind { group: group.into(), kind: kind_of(object).into() };
    let resource = GroupResource::new(group, format!("{}s", kind.kind.to_lowercase()));
    Workload::of(kind, resource, object).with_object(object)
}

fn neighbor(object: &Value) -> WorkloadNeighbor {
    let clusters = names(&object["on"]);
    let copies = clusters.iter().map(|name| copy(name, CopyPhase::Active, None)).collect();
    WorkloadNeighbor::new(workload(object), &PlacementRecord { clusters: copies, ..PlacementRecord::default() })
}

fn policy(object: &Value) -> LeveledPolicy {
    let spec = object["spec"].clone();
    let compiled = match serde_json::from_value::<PlacementPolicySpec>(spec.clone()) {
        Ok(spec) => CompiledPolicy::compile(spec),
        Err(error) => CompiledPolicy::unreadable(&spec, &error),
    };
    let workspace = object["workspace"].as_str().unwrap_or("root:shop");
    let level = match (kind_of(object), workspace) {
        ("PlacementPolicy", _) => 0,
        (_, "root") => 2,
        _ => 1,
    };
    LeveledPolicy {
        level,
        reference: PolicyRef {
            kind: kind_of(object).to_owned(),
            workspace: workspace.to_owned(),
            namespace: (level == 0).then(|| "default".to_owned()),
            name: object::name(object).to_owned(),
        },
        created: object::meta_text(object, "creationTimestamp").to_owned(),
        policy: Arc::new(compiled),
    }
}

fn copy(name: &str, phase: CopyPhase, replicas: Option<i64>) -> PlacedCopy {
    PlacedCopy { name: name.to_owned(), uid: uid(name), phase, replicas, epoch: 1 }
}

/// `east*2 west-` is an active copy with 2 replicas on east, and one that leaves west.
fn record(text: &str) -> PlacementRecord {
    let of = |word: &str| {
        let phase = if word.ends_with('-') { CopyPhase::Leaving } else { CopyPhase::Active };
        let word = word.trim_end_matches('-');
        let (name, replicas) = match word.split_once('*') {
            Some((name, replicas)) => (name, Some(replicas.parse().expect("a number of replicas"))),
            None => (word, None),
        };
        copy(name, phase, replicas)
    };
    PlacementRecord { clusters: text.split_whitespace().map(of).collect(), generation: 1, ..PlacementRecord::default() }
}

/// Returns the words of a record; `none` without copies.
fn words(record: &PlacementRecord) -> String {
    let word = |copy: &PlacedCopy| {
        let replicas = copy.replicas.map(|n| format!("*{n}")).unwrap_or_default();
        let limit = record.limits.get(&copy.uid).map(|n| format!("<={n}")).unwrap_or_default();
        let leaves = if copy.phase == CopyPhase::Leaving { "-" } else { "" };
        let rests = if record.suspended.contains(&copy.uid) { "(suspended)" } else { "" };
        let had = record.ordinals.get(&copy.uid).map(|had| format!("[{}..{}]", had.first, had.end - 1));
        format!("{}{replicas}{}{limit}{leaves}{rests}", copy.name, had.unwrap_or_default())
    };
    let all: Vec<String> = record.clusters.iter().map(word).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(" ") }
}
