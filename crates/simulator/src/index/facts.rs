//! A pod as the index knows it.

use jiff::Timestamp;
use portolan_types::{object, quantity::Quantity};
use serde_json::Value;

use crate::fields::{is_true, list, text};

/// Controller of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PodController {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Amounts that pods ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodAmounts {
    /// Thousandths of a CPU.
    pub(crate) cpu: i64,
    /// Bytes.
    pub(crate) memory: i64,
}

/// Phase of a pod, as far as the controllers distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// Named port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPort {
    pub(crate) name: String,
    pub(crate) number: i64,
}

/// A pod as of one write.
#[derive(Clone, Debug)]
pub(crate) struct PodFacts {
    pub(crate) revision: u64,
    pub(crate) uid: String,
    pub(crate) owner: Option<PodController>,
    /// Sorted by key.
    pub(crate) labels: Vec<(String, String)>,
    /// Its node; empty before one is chosen.
    pub(crate) node: String,
    /// Its address; empty before it has one.
    pub(crate) address: String,
    pub(crate) hostname: String,
    pub(crate) subdomain: String,
    pub(crate) ports: Vec<NamedPort>,
    pub(crate) phase: PodPhase,
    /// The condition `Ready` is `True`.
    pub(crate) is_ready: bool,
    pub(crate) ready_since: Option<Timestamp>,
    /// It is being deleted.
    pub(crate) is_deleting: bool,
    pub(crate) requests: PodAmounts,
}

impl PodFacts {
    pub(crate) fn of(pod: &Value) -> Self {
        let labels = object::metadata(pod).get("labels").and_then(Value::as_object);
        let label = |(key, value): (&String, &Value)| (key.clone(), value.as_str().unwrap_or_default().to_owned());
        let mut labels: Vec<_> = labels.into_iter().flatten().map(label).collect();
        labels.sort();
        let conditions = list(pod, "/status/conditions");
        let ready = conditions.iter().find(|condition| text(condition, "/type") == "Ready");
        Self {
            revision: object::meta_text(pod, "resourceVersion").parse().unwrap_or(0),
            uid: object::meta_text(pod, "uid").to_owned(),
            owner: object::controller_of(pod).map(PodController::of),
            labels,
            node: text(pod, "/spec/nodeName").to_owned(),
            address: text(pod, "/status/podIP").to_owned(),
            hostname: text(pod, "/spec/hostname").to_owned(),
            subdomain: text(pod, "/spec/subdomain").to_owned(),
            ports: list(pod, "/spec/containers")
                .iter()
                .flat_map(|c| list(c, "/ports"))
                .filter_map(named_port)
                .collect(),
            phase: phase(pod),
            is_ready: is_true(pod, "Ready"),
            ready_since: ready.and_then(|condition| text(condition, "/lastTransitionTime").parse().ok()),
            is_deleting: object::is_deleting(pod),
            requests: pod_requests(pod),
        }
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(own, _)| own.as_str().cmp(key)).ok()?;
        Some(&self.labels[at].1)
    }

    /// Returns true for a pod that runs or will: neither ended nor being deleted.
    pub(crate) fn is_active(&self) -> bool {
        !self.is_deleting && !self.has_ended()
    }

    /// Returns true for a pod that has run to its end.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Returns true for an active pod that is ready.
    pub(crate) fn serves(&self) -> bool {
        self.is_active() && self.is_ready
    }
}

impl PodController {
    /// Reads an entry of `ownerReferences`.
    pub(crate) fn of(reference: &Value) -> Self {
        let field = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { api_version: field("apiVersion"), kind: field("kind"), name: field("name"), uid: field("uid") }
    }
}

fn named_port(port: &Value) -> Option<NamedPort> {
    let name = Some(text(port, "/name")).filter(|name| !name.is_empty())?;
    Some(NamedPort { name: name.to_owned(), number: port.get("containerPort")?.as_i64()? })
}

fn phase(pod: &Value) -> PodPhase {
    match text(pod, "/status/phase") {
        "Running" => PodPhase::Running,
        "Succeeded" => PodPhase::Succeeded,
        "Failed" => PodPhase::Failed,
        _ => PodPhase::Pending,
    }
}

/// Returns the total requests of a pod's containers. Of init containers, which run one after the other, the largest
/// counts.
pub(crate) fn pod_requests(pod: &Value) -> PodAmounts {
    let stays = |container: &&Value| text(container, "/restartPolicy") == "Always";
    let sum = |amounts: PodAmounts, one: PodAmounts| PodAmounts {
        cpu: amounts.cpu.saturating_add(one.cpu),
        memory: amounts.memory.saturating_add(one.memory),
    };
    let init = list(pod, "/spec/initContainers");
    let sidecars = init.iter().filter(stays).map(container_requests);
    let running = list(pod, "/spec/containers").iter().map(container_requests).chain(sidecars);
    let running = running.fold(PodAmounts::default(), sum);
    let before = init.iter().filter(|container| !stays(container)).map(container_requests);
    before.fold(running, |most, one| PodAmounts { cpu: most.cpu.max(one.cpu), memory: most.memory.max(one.memory) })
}

/// Returns the requests of a container.
pub(crate) fn container_requests(container: &Value) -> PodAmounts {
    let amount = |name: &str| {
        let of = |part: &str| container.pointer(&format!("/resources/{part}/{name}")).and_then(quantity);
        of("requests").or_else(|| of("limits"))
    };
    PodAmounts {
        cpu: amount("cpu").map_or(0, |cpu| cpu.times(1000).units()),
        memory: amount("memory").map_or(0, Quantity::units),
    }
}

/// Returns an amount as resources have it, a text or a number.
pub(crate) fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}
