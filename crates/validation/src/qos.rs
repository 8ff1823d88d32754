//! The quality-of-service class of a pod.

use portolan_types::quantity::Quantity;
use serde_json::Value;

const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// `Guaranteed` when every container has limits of CPU and memory, and all of them together ask for as much;
/// `BestEffort` when none has any, `Burstable` otherwise. Resources of the pod as a whole count instead of its
/// containers', also empty ones.
pub fn class_of(pod: &Value) -> &'static str {
    let list = |key| pod.pointer(key).and_then(Value::as_array).into_iter().flatten();
    let containers = list("/spec/containers").chain(list("/spec/initContainers"));
    let resources: Vec<&Value> = match pod.pointer("/spec/resources").filter(|resources| !resources.is_null()) {
        Some(resources) => vec![resources],
        None => containers.map(|container| &container["resources"]).collect(),
    };
    let (requests, limits) = (total(&resources, "requests"), total(&resources, "limits"));
    let is_limited = |resources: &&Value| COMPUTE.iter().all(|name| amount(resources, "limits", name).is_some());
    match (requests == [None, None] && limits == [None, None], requests == limits) {
        (true, _) => "BestEffort",
        (false, true) if resources.iter().all(is_limited) => "Guaranteed",
        _ => "Burstable",
    }
}

fn amount(resources: &Value, kind: &str, name: &str) -> Option<Quantity> {
    let amount: Quantity = resources.get(kind)?.get(name)?.as_str()?.parse().ok()?;
    (amount > Quantity::ZERO).then_some(amount)
}

/// Returns the totals of all containers.
fn total(resources: &[&Value], kind: &str) -> [Option<Quantity>; 2] {
    COMPUTE.map(|name| resources.iter().filter_map(|own| amount(own, kind, name)).reduce(|sum, own| sum + own))
}
