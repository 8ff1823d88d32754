//! Usage of simulated pods and nodes at `metrics.k8s.io`. Nothing runs, so the numbers follow from the requests: half
//! of a container's requests and a little more, which the load of its node includes.

use std::sync::Arc;

use portolan_apiserver::hooks::{MeasuredResource, MeasuredUsage, UsageRequest, UsageSource};
use portolan_types::{BoxFuture, Seams, Status, object};
use serde_json::{Value, json};

use crate::{
    fields::{list, text},
    index::{PodAmounts, PodIndex, container_requests},
};

/// Usage of a container without requests: thousandths of a core, and bytes.
const IDLE: PodAmounts = PodAmounts { cpu: 10, memory: 16 << 20 };
/// Usage of a node without pods.
const SYSTEM: PodAmounts = PodAmounts { cpu: 100, memory: 256 << 20 };

/// Source of the usage in a simulated cluster.
pub(crate) struct SimulatedUsage {
    pub(crate) pods: Arc<PodIndex>,
    pub(crate) seams: Seams,
}

impl UsageSource for SimulatedUsage {
    fn usage(&self, request: UsageRequest) -> BoxFuture<'_, Result<MeasuredUsage, Status>> {
        let now = self.seams.now_text();
        let of = |measured: &Value| match request.resource {
            MeasuredResource::Pods => pod(measured),
            MeasuredResource::Nodes => self.node(measured),
        };
        let items = request.objects.iter().filter_map(|measured| {
            let mut item = of(measured)?;
            item["metadata"] = json!({"name": object::name(measured), "creationTimestamp": now});
            for key in ["namespace", "labels"] {
                if let Some(value) = object::metadata(measured).get(key) {
                    item["metadata"][key] = value.clone();
                }
            }
            (item["timestamp"], item["window"]) = (now.as_str().into(), "15s".into());
            Some(item)
        });
        let measured = MeasuredUsage { items: items.collect(), warnings: Vec::new() };
        Box::pin(async move { Ok(measured) })
    }
}

impl SimulatedUsage {
    fn node(&self, node: &Value) -> Option<Value> {
        let (pods, requested) = self.pods.load_of(object::name(node))?;
        let of = |system: i64, requested: i64, idle: i64| system + requested / 2 + pods * idle;
        let used = PodAmounts {
            cpu: of(SYSTEM.cpu, requested.cpu, IDLE.cpu),
            memory: of(SYSTEM.memory, requested.memory, IDLE.memory),
        };
        Some(json!({"usage": written(used)}))
    }
}

/// Returns the usage of the running containers of a pod; `None` if none runs.
fn pod(pod: &Value) -> Option<Value> {
    let is_running = |container: &&Value| {
        let statuses = list(pod, "/status/containerStatuses").iter();
        let mut own = statuses.filter(|status| text(status, "/name") == text(container, "/name"));
        own.any(|status| status.pointer("/state/running").is_some())
    };
    let running = list(pod, "/spec/containers").iter().filter(is_running).map(|container| {
        let asked = container_requests(container);
        let used = PodAmounts { cpu: asked.cpu / 2 + IDLE.cpu, memory: asked.memory / 2 + IDLE.memory };
        json!({"name": container["name"], "usage": written(used)})
    });
    let running: Vec<Value> = running.collect();
    (!running.is_empty()).then(|| json!({"containers": running}))
}

fn written(PodAmounts { cpu, memory }: PodAmounts) -> Value {
    json!({"cpu": format!("{cpu}m"), "memory": format!("{}Ki", memory >> 10)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_follows_from_requests_and_only_of_running_containers() {
        let container = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let running = |name: &str| json!({"name": name, "state": {"running": {}}});
        let of = |statuses: Value| {
            pod(&json!({"spec": {"containers": [container("a", "1"), container("b", "100m")]},
                "status": {"containerStatuses": statuses}}))
        };
        let memory = "16384Ki";
        let expected = json!({"containers": [{"name": "a", "usage": {"cpu": "510m", "memory": memory}}]});
        assert_eq!(of(json!([running("a"), {"name": "b", "state": {"waiting": {}}}])), Some(expected));
        assert_eq!(of(json!([])), None);
    }
}
