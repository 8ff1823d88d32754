//! Addresses that a Service publishes upstream, and the pods behind them.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::downstream::{items, text};
use super::balancers;
use super::server_link::ServerLink;

/// Service under load, in the namespace `default` of its workspace.
pub(crate) const SERVICE: &str = "web";

/// Published address of the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PublishedAddress {
    /// Load balancer of a physical cluster, which leads to any ready pod there.
    Balancer(usize),
    /// Pod of an EndpointSlice, with its physical cluster.
    Pod {
        /// Number of the physical cluster.
        cluster: usize,
        /// Name of the pod, which is the same downstream.
        pod: String,
    },
}

/// Servers that answer about addresses.
pub(super) struct AddressBook {
    pub(super) upstream: ServerLink,
    /// Names of the physical clusters, in the order of their addresses.
    pub(super) names: Vec<String>,
    pub(super) clusters: Vec<ServerLink>,
    /// Namespace downstream that stands for `default`.
    pub(super) namespace: String,
}

impl AddressBook {
    /// Reads the addresses that are published at this moment.
    pub(super) async fn published(&self) -> Result<Vec<PublishedAddress>> {
        let service = self.upstream.get(&format!("/api/v1/namespaces/default/services/{SERVICE}")).await?;
        let service = service.context("the Service is gone upstream")?;
        let balancers = balancers::addresses(&service).filter_map(balancers::cluster_of);
        let mut found: Vec<_> = balancers.map(PublishedAddress::Balancer).collect();
        let slices = self.upstream.get(&slices_of("default")).await?.context("no EndpointSlices are served")?;
        for slice in items(&slices) {
            let on = text(slice, "/metadata/labels/portolan.dev~1cluster");
            let cluster = self.names.iter().position(|name| name == on);
            let cluster = cluster.with_context(|| format!("a slice of {on:?}, which is no physical cluster"))?;
            found.extend(ready_pods(slice).map(|pod| PublishedAddress::Pod { cluster, pod: pod.to_owned() }));
        }
        Ok(found)
    }

    /// Returns the replicas that are ready upstream.
    pub(super) async fn ready_replicas(&self) -> Result<u64> {
        let path = format!("/apis/apps/v1/namespaces/default/deployments/{SERVICE}");
        let found = self.upstream.get(&path).await?.context("the Deployment is gone upstream")?;
        Ok(super::super::downstream::count(&found, "/status/readyReplicas"))
    }

    /// Sends a request to an address: it succeeds if the pod behind it exists and is Ready. `number` chooses the pod
    /// behind a load balancer.
    pub(super) async fn request(&self, address: &PublishedAddress, number: usize) -> Result<()> {
        match address {
            PublishedAddress::Pod { cluster, pod } => self.pod_answers(*cluster, pod).await,
            PublishedAddress::Balancer(cluster) => {
                let slices = self.clusters[*cluster].get(&slices_of(&self.namespace)).await;
                let slices = slices.with_context(|| format!("the load balancer of {}", self.names[*cluster]))?;
                let slices = slices.context("no EndpointSlices are served")?;
                let ready: Vec<&str> = items(&slices).iter().flat_map(ready_pods).collect();
                ensure!(!ready.is_empty(), "no pod is behind the load balancer of {}", self.names[*cluster]);
                self.pod_answers(*cluster, ready[number % ready.len()]).await
            }
        }
    }

    async fn pod_answers(&self, cluster: usize, pod: &str) -> Result<()> {
        let name = &self.names[cluster];
        let found = self.clusters[cluster].get(&format!("/api/v1/namespaces/{}/pods/{pod}", self.namespace)).await;
        let found = found.with_context(|| format!("{name} does not answer"))?;
        let found = found.with_context(|| format!("the pod {pod} of {name} is gone"))?;
        let conditions = found.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
        let is_ready = conditions.filter(|one| one["type"] == "Ready").any(|one| one["status"] == "True");
        ensure!(is_ready, "the pod {pod} of {name} is not Ready");
        Ok(())
    }
}

fn slices_of(namespace: &str) -> String {
    let selector = format!("labelSelector=kubernetes.io/service-name%3D{SERVICE}");
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{selector}")
}

/// Returns the names of the pods that a slice publishes as ready. An absent condition means ready.
fn ready_pods(slice: &Value) -> impl Iterator<Item = &str> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let ready = endpoints.filter(|one| one.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false));
    ready.filter_map(|one| one.pointer("/targetRef/name")?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ready_pods_are_published() {
        let slice = serde_json::json!({"endpoints": [
            {"targetRef": {"name": "a"}},
            {"conditions": {"ready": true}, "targetRef": {"name": "b"}},
            {"conditions": {"ready": false}, "targetRef": {"name": "c"}},
        ]});
        assert_eq!(ready_pods(&slice).collect::<Vec<_>>(), ["a", "b"]);
    }
}
