//! Health and capacity of a physical cluster.

use portolan_types::{placement::ResourceAmounts, quantity::Quantity};
use serde_json::Value;

use super::session::{NodeAmounts, bounded_text};
use crate::client::{DownstreamClient, DownstreamError};

/// Resources that are summed; nodes may name any number of others.
const SUMMED: [&str; 4] = ["cpu", "memory", "pods", "ephemeral-storage"];

/// Health of a physical cluster that answers.
pub(super) struct ClusterHealth {
    pub(super) version: String,
    pub(super) capacity: NodeAmounts,
    pub(super) allocatable: NodeAmounts,
}

/// Asks for the version and the nodes. A credential that may not list nodes leaves the amounts unknown.
pub(super) async fn probe(api: &DownstreamClient) -> Result<ClusterHealth, DownstreamError> {
    let version = api.get("/version").await?;
    let (mut capacity, mut allocatable) = (ResourceAmounts::new(), ResourceAmounts::new());
    let page = |nodes: Vec<Value>| {
        add(&mut capacity, nodes.iter(), "capacity");
        add(&mut allocatable, nodes.iter().filter(|node| is_usable(node)), "allocatable");
        Ok(true)
    };
    let are_known = match api.pages("/api/v1/nodes", "", page).await {
        Ok(_) => true,
        Err(error) if error.code() == 403 => false,
        Err(error) => return Err(error),
    };
    Ok(ClusterHealth {
        version: bounded_text(&version["gitVersion"]),
        capacity: are_known.then_some(capacity),
        allocatable: are_known.then_some(allocatable),
    })
}

/// Adds what `nodes` have to a total. No node is kept.
fn add<'a>(total: &mut ResourceAmounts, nodes: impl Iterator<Item = &'a Value>, field: &str) {
    for node in nodes {
        for name in SUMMED {
            let amount = node["status"][field][name].as_str().and_then(|text| text.parse::<Quantity>().ok());
            if let Some(amount) = amount {
                let sum = total.get(name).copied().unwrap_or(Quantity::ZERO) + amount;
                total.insert(name.to_owned(), sum);
            }
        }
    }
}

/// Returns true for a node that users' pods are scheduled to: ready, not cordoned, and not reserved for the control
/// plane.
fn is_usable(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let is_ready = conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let keeps_off =
        taints.into_iter().any(|taint| matches!(taint["effect"].as_str(), Some("NoSchedule" | "NoExecute")));
    is_ready && !keeps_off && node["spec"]["unschedulable"] != true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_nodes_for_users_pods_count_as_allocatable() {
        let node = |cpu: &str, spec: Value, ready: &str| {
            json!({"spec": spec, "status": {"conditions": [{"type": "Ready", "status": ready}],
                "capacity": {"cpu": cpu}, "allocatable": {"cpu": cpu, "hugepages-2Mi": "0"}}})
        };
        let taint = json!({"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]});
        let nodes = [
            node("2", json!({}), "True"),
            node("500m", json!({}), "True"),
            node("4", json!({"unschedulable": true}), "True"),
            node("8", json!({}), "Unknown"),
            node("16", taint, "True"),
        ];
        let sum = |usable: bool, field: &str| {
            let mut total = ResourceAmounts::new();
            add(&mut total, nodes.iter().filter(|node| !usable || is_usable(node)), field);
            total.into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>()
        };
        assert_eq!(sum(false, "capacity"), ["cpu=30500m"]);
        assert_eq!(sum(true, "allocatable"), ["cpu=2500m"]);
    }
}
