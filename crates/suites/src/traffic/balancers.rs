//! Load balancers of physical clusters: each Service of that type gets an address, as from a cloud's controller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use http::Method;
use serde_json::{Value, json};

use super::super::downstream::{items, name, namespace, text};
use super::server_link::ServerLink;
use harness::cluster::PhysicalCluster;

const INTERVAL: Duration = Duration::from_millis(200);
const MERGE: [(&str, &str); 1] = [("content-type", "application/merge-patch+json")];

/// Controllers of all physical clusters. They end when this is dropped.
pub(crate) struct LoadBalancers {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LoadBalancers {
    /// Starts a controller for each physical cluster.
    pub(crate) fn start(clusters: &[PhysicalCluster]) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let links: Vec<ServerLink> = clusters.iter().map(|one| ServerLink::new(one.kubeconfig().clone())).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = stop.clone();
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                while !ended.load(Ordering::Relaxed) {
                    for (number, link) in links.iter().enumerate() {
                        // A physical cluster that does not answer is asked again.
                        let _ = publish(link, number).await;
                    }
                    tokio::time::sleep(INTERVAL).await;
                }
            });
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for LoadBalancers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by itself.
            let _ = thread.join();
        }
    }
}

/// Returns the addresses of a Service's load balancers.
pub(super) fn addresses(service: &Value) -> impl Iterator<Item = &str> {
    let ingress = service.pointer("/status/loadBalancer/ingress").and_then(Value::as_array).into_iter().flatten();
    ingress.filter_map(|one| one["ip"].as_str())
}

/// Returns the number of the physical cluster that an address belongs to.
pub(super) fn cluster_of(address: &str) -> Option<usize> {
    address.strip_prefix("198.18.")?.split('.').next()?.parse().ok()
}

/// Gives an address to each Service that waits for one.
async fn publish(link: &ServerLink, number: usize) -> Result<()> {
    let list = link.get("/api/v1/services").await?.context("no Services are served")?;
    let waiting = items(&list)
        .iter()
        .enumerate()
        .filter(|(_, one)| text(one, "/spec/type") == "LoadBalancer" && addresses(one).next().is_none());
    for (index, service) in waiting {
        let path = format!("/api/v1/namespaces/{}/services/{}/status", namespace(service), name(service));
        let ip = format!("198.18.{number}.{}", index + 1);
        let patch = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}}).to_string();
        link.send(Method::PATCH, &path, &MERGE, patch.into()).await?.success()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_their_cluster() {
        let service = json!({"status": {"loadBalancer": {"ingress": [{"ip": "198.18.2.1"}, {"hostname": "x"}]}}});
        assert_eq!(addresses(&service).collect::<Vec<_>>(), ["198.18.2.1"]);
        assert_eq!((cluster_of("198.18.2.1"), cluster_of("10.0.0.1")), (Some(2), None));
    }
}
