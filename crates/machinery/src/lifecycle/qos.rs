//! The quality-of-service class of a pod.

use portolan_types::quantity::Quantity;
use serde_json::Value;

const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// `Guaranteed` when every container has equal requests and limits of CPU and memory, `BestEffort` when none has any,
/// `Burstable` otherwise. Resources of the pod as a whole count instead of its containers' when there are any.
pub(crate) fn class_of(pod: &Value) -> &'static str {
    let list = |key| pod.pointer(key).and_then(Value::as_array).into_iter().flatten();
    let containers = list("/spec/containers").chain(list("/spec/initContainers"));
    let of_containers: Vec<&Value> = containers.map(|container| &container["resources"]).collect();
    let of_pod = pod.pointer("/spec/resources").filter(|resources| names_any(resources));
    let resources = of_pod.map_or(of_containers, |resources| vec![resources]);
    if !resources.iter().any(|resources| names_any(resources)) {
        return "BestEffort";
    }
    match resources.iter().all(|resources| is_guaranteed(resources)) {
        true => "Guaranteed",
        false => "Burstable",
    }
}

fn amount(resources: &Value, kind: &str, name: &str) -> Option<Quantity> {
    let amount: Quantity = resources.get(kind)?.get(name)?.as_str()?.parse().ok()?;
    (amount > Quantity::ZERO).then_some(amount)
}

fn names_any(resources: &Value) -> bool {
    COMPUTE
        .iter()
        .any(|name| amount(resources, "requests", name).is_some() || amount(resources, "limits", name).is_some())
}

fn is_guaranteed(resources: &Value) -> bool {
    COMPUTE.iter().all(|name| {
        let limit = amount(resources, "limits", name);
        limit.is_some() && amount(resources, "requests", name) == limit
    })
}
