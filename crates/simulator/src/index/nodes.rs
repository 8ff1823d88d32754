//! The nodes, and how full they are.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use portolan_types::{LabelSelector, ObjectKey, object};
use serde_json::Value;

use super::facts::{PodAmounts, PodFacts, pod_requests, quantity};
use crate::fields::{list, text};

/// Node as the scheduler sees it.
pub(crate) struct NodeFacts {
    labels: BTreeMap<String, String>,
    is_unschedulable: bool,
    /// Taints that keep pods away: key, value, effect.
    taints: Vec<[String; 3]>,
    amounts: PodAmounts,
    pods: i64,
}

/// Demands of a pod on its node.
pub(crate) struct PodNeeds {
    labels: LabelSelector,
    /// One of these must match; empty for any node.
    affinity: Vec<LabelSelector>,
    tolerations: Vec<[String; 4]>,
    requests: PodAmounts,
}

/// Nodes by name and by load.
#[derive(Default)]
pub(super) struct NodeTable {
    all: BTreeMap<String, NodeLoad>,
    /// Nodes that exist by the number of their pods, the emptiest first.
    by_load: BTreeSet<(i64, String)>,
    /// Pods that found no node, in the order in which they are tried again.
    waiting: VecDeque<ObjectKey>,
    is_waiting: HashSet<ObjectKey>,
}

/// Node, and what runs there.
#[derive(Default)]
struct NodeLoad {
    /// `None` for a node that only pods name.
    facts: Option<NodeFacts>,
    pods: i64,
    requested: PodAmounts,
}

/// Reason why a node does not take a pod, in the words of kube-scheduler.
struct NodeMisfit {
    reasons: Vec<&'static str>,
    /// Other pods could make room.
    is_resolvable: bool,
}

/// Label under which the terms of an affinity see the name of a node (`matchFields`).
const NAME_FIELD: &str = "metadata.name";

/// Taints of `node.kubernetes.io` that the pods of DaemonSets tolerate.
const DAEMONS_TOLERATE: [&str; 6] =
    ["not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"];

impl NodeFacts {
    pub(crate) fn of(node: &Value) -> Self {
        let labels = object::metadata(node).get("labels").and_then(Value::as_object);
        let label = |(key, value): (&String, &Value)| (key.clone(), value.as_str().unwrap_or_default().to_owned());
        let mut labels: BTreeMap<_, _> = labels.into_iter().flatten().map(label).collect();
        labels.insert(NAME_FIELD.into(), object::name(node).to_owned());
        let amount = |name: &str| node.pointer(&format!("/status/allocatable/{name}")).and_then(quantity);
        let taints = list(node, "/spec/taints").iter().filter(|taint| text(taint, "/effect") != "PreferNoSchedule");
        Self {
            labels,
            is_unschedulable: node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true),
            taints: taints.map(|taint| ["/key", "/value", "/effect"].map(|at| text(taint, at).to_owned())).collect(),
            amounts: PodAmounts {
                cpu: amount("cpu").map_or(0, |cpu| cpu.times(1000).units()),
                memory: amount("memory").map_or(0, |memory| memory.units()),
            },
            pods: amount("pods").map_or(0, |pods| pods.units()),
        }
    }
}

impl PodNeeds {
    pub(crate) fn of(pod: &Value) -> Self {
        let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let pairs = pod.pointer("/spec/nodeSelector").and_then(Value::as_object).into_iter().flatten();
        let pairs: Vec<String> =
            pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
        let toleration = |own: &Value| ["/key", "/operator", "/value", "/effect"].map(|at| text(own, at).to_owned());
        Self {
            labels: LabelSelector::parse(&pairs.join(",")).unwrap_or_default(),
            affinity: list(pod, terms).iter().filter_map(term).collect(),
            tolerations: list(pod, "/spec/tolerations").iter().map(toleration).collect(),
            requests: pod_requests(pod),
        }
    }

    /// Returns the demands of a DaemonSet's pod, which also runs on nodes that exclude other pods.
    pub(crate) fn of_daemon(pod: &Value) -> Self {
        let mut needs = Self::of(pod);
        needs.tolerations.extend(DAEMONS_TOLERATE.map(|name| {
            let key = format!("node.kubernetes.io/{name}");
            [key, "Exists".to_owned(), String::new(), String::new()]
        }));
        needs
    }

    fn tolerates(&self, [key, value, effect]: &[String; 3]) -> bool {
        self.tolerations.iter().any(|[own, operator, equal, on]| {
            (on.is_empty() || on == effect)
                && (own.is_empty() || own == key)
                && (operator == "Exists" || (!own.is_empty() && equal == value))
        })
    }

    /// Returns the first reason why labels or taints keep the pod off a node.
    fn refuses(&self, node: &NodeFacts) -> Option<&'static str> {
        let matches = |selector: &LabelSelector| selector.matches_map(&node.labels);
        let unschedulable = ["node.kubernetes.io/unschedulable", "", "NoSchedule"].map(str::to_owned);
        if node.is_unschedulable && !self.tolerates(&unschedulable) {
            return Some("node(s) were unschedulable");
        }
        if !node.taints.iter().all(|taint| self.tolerates(taint)) {
            return Some("node(s) had untolerated taint(s)");
        }
        let is_wanted = matches(&self.labels) && (self.affinity.is_empty() || self.affinity.iter().any(matches));
        (!is_wanted).then_some("node(s) didn't match Pod's node affinity/selector")
    }
}

/// Returns one term of a node affinity as a selector; `None` for one that selects nothing.
fn term(term: &Value) -> Option<LabelSelector> {
    let requirement = |expression: &Value| {
        let key = text(expression, "/key");
        let values: Vec<&str> = list(expression, "/values").iter().filter_map(Value::as_str).collect();
        Some(match (text(expression, "/operator"), values.as_slice()) {
            ("In", values) => format!("{key} in ({})", values.join(",")),
            ("NotIn", values) => format!("{key} notin ({})", values.join(",")),
            ("Exists", _) => key.to_owned(),
            ("DoesNotExist", _) => format!("!{key}"),
            ("Gt", [value]) => format!("{key}>{value}"),
            ("Lt", [value]) => format!("{key}<{value}"),
            _ => return None,
        })
    };
    let expressions = list(term, "/matchExpressions").iter().chain(list(term, "/matchFields"));
    let all: Option<Vec<String>> = expressions.map(requirement).collect();
    LabelSelector::parse(&all.filter(|all| !all.is_empty())?.join(",")).ok()
}

impl NodeLoad {
    fn refuses(&self, needs: &PodNeeds) -> Option<NodeMisfit> {
        let node = self.facts.as_ref()?;
        if let Some(reason) = needs.refuses(node) {
            return Some(NodeMisfit { reasons: vec![reason], is_resolvable: false });
        }
        let PodAmounts { cpu, memory } = needs.requests;
        let lacks = |asked: i64, used: i64, whole: i64| asked > 0 && used.saturating_add(asked) > whole;
        let faults = [
            ("Too many pods", self.pods >= node.pods, node.pods > 0),
            ("Insufficient cpu", lacks(cpu, self.requested.cpu, node.amounts.cpu), cpu <= node.amounts.cpu),
            (
                "Insufficient memory",
                lacks(memory, self.requested.memory, node.amounts.memory),
                memory <= node.amounts.memory,
            ),
        ];
        let faults: Vec<_> = faults.into_iter().filter(|(_, applies, _)| *applies).collect();
        let is_resolvable = faults.iter().all(|(.., is_resolvable)| *is_resolvable);
        let reasons: Vec<_> = faults.iter().map(|(reason, ..)| *reason).collect();
        (!reasons.is_empty()).then_some(NodeMisfit { reasons, is_resolvable })
    }
}

impl NodeTable {
    pub(super) fn put(&mut self, name: &str, facts: Option<NodeFacts>) {
        let load = self.all.entry(name.to_owned()).or_default();
        let entry = (load.pods, name.to_owned());
        if facts.is_some() {
            self.by_load.insert(entry);
        } else {
            self.by_load.remove(&entry);
        }
        load.facts = facts;
        if load.facts.is_none() && load.pods == 0 {
            self.all.remove(name);
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.all.get(name).is_some_and(|load| load.facts.is_some())
    }

    pub(super) fn count(&self) -> usize {
        self.by_load.len()
    }

    pub(super) fn load_of(&self, name: &str) -> Option<(i64, PodAmounts)> {
        self.all.get(name).map(|load| (load.pods, load.requested))
    }

    /// Counts a pod on its node.
    pub(super) fn add(&mut self, pod: &PodFacts) {
        self.change(pod, 1);
    }

    /// Removes a pod from its node.
    pub(super) fn take_off(&mut self, pod: &PodFacts) {
        self.change(pod, -1);
    }

    fn change(&mut self, pod: &PodFacts, by: i64) {
        if pod.node.is_empty() || pod.has_ended() {
            return;
        }
        let load = self.all.entry(pod.node.clone()).or_default();
        if load.facts.is_some() {
            self.by_load.remove(&(load.pods, pod.node.clone()));
            self.by_load.insert((load.pods + by, pod.node.clone()));
        }
        load.pods += by;
        load.requested.cpu = load.requested.cpu.saturating_add(pod.requests.cpu.saturating_mul(by));
        load.requested.memory = load.requested.memory.saturating_add(pod.requests.memory.saturating_mul(by));
        if load.facts.is_none() && load.pods == 0 {
            self.all.remove(&pod.node);
        }
    }

    /// Returns the node with the fewest pods among those that take the pod; the error is the message of kube-scheduler.
    pub(super) fn choose(&self, needs: &PodNeeds) -> Result<String, String> {
        let mut misfits = Vec::new();
        for (_, name) in &self.by_load {
            match self.all.get(name).and_then(|load| load.refuses(needs)) {
                None => return Ok(name.clone()),
                Some(misfit) => misfits.push(misfit),
            }
        }
        Err(message(&misfits))
    }

    pub(super) fn eligible(&self, needs: &PodNeeds) -> Vec<String> {
        let accepts = |load: &NodeLoad| load.facts.as_ref().is_some_and(|facts| needs.refuses(facts).is_none());
        self.all.iter().filter(|(_, load)| accepts(load)).map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn wait(&mut self, pod: &ObjectKey) {
        if self.is_waiting.insert(pod.clone()) {
            self.waiting.push_back(pod.clone());
        }
    }

    pub(super) fn take_waiting(&mut self, most: usize) -> Vec<ObjectKey> {
        let taken: Vec<_> = self.waiting.drain(..most.min(self.waiting.len())).collect();
        taken.iter().for_each(|pod| _ = self.is_waiting.remove(pod));
        taken
    }
}

fn message(misfits: &[NodeMisfit]) -> String {
    if misfits.is_empty() {
        return "no nodes available to schedule pods".into();
    }
    let total = misfits.len();
    let reasons = histogram(misfits.iter().flat_map(|misfit| misfit.reasons.iter().copied()));
    let preemption = histogram(misfits.iter().map(|misfit| {
        if misfit.is_resolvable {
            "No preemption victims found for incoming pod"
        } else {
            "Preemption is not helpful for scheduling"
        }
    }));
    format!("0/{total} nodes are available: {reasons}. preemption: 0/{total} nodes are available: {preemption}.")
}

/// Returns each reason with the number of its nodes, sorted as texts.
fn histogram(reasons: impl Iterator<Item = &'static str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    reasons.for_each(|reason| *counts.entry(reason).or_default() += 1);
    let mut texts: Vec<String> = counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    texts.sort();
    texts.join(", ")
}
