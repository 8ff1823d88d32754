//! Load of concurrent clients, each of which sends one request after the other, and its measured outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use http::Method;
use serde_json::json;
use tokio::task::JoinSet;

use super::figures::{Figure, Unit};
use super::objects::Size;
use super::proc;
use harness::client::HttpClient;
use harness::kubeconfig::UserKubeconfig;

/// Outcome of a load: operations, latency of each, wall time, CPU time of the server.
pub(super) struct LoadOutcome {
    pub(super) operations: usize,
    /// From the shortest to the longest.
    waits: Vec<Duration>,
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
}

impl LoadOutcome {
    pub(super) fn rate(&self) -> f64 {
        self.operations as f64 / self.wall.as_secs_f64()
    }

    pub(super) fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.operations.max(1) as f64
    }

    /// Returns rate, CPU of the server per operation, p50 and p99.
    pub(super) fn figures(&self, name: &str) -> [Figure; 4] {
        [
            Figure::new(name, self.rate(), Unit::PerSecond),
            Figure::new(format!("{name}: server"), self.cpu_micros(), Unit::MicrosOfCpu),
            Figure::millis(format!("{name}: p50"), self.percentile(50)),
            Figure::millis(format!("{name}: p99"), self.percentile(99)),
        ]
    }

    /// Returns the latency that `percent` in a hundred requests did not exceed.
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        self.waits.get(self.waits.len() * percent / 100).copied().unwrap_or_default()
    }

    /// Returns the server's CPU time per operation in milliseconds.
    pub(super) fn cpu_millis(&self, name: &str) -> Figure {
        Figure::new(format!("{name}: server"), self.cpu_micros() / 1000.0, Unit::MillisOfCpu)
    }
}

/// End of a load.
#[derive(Clone, Copy)]
pub(super) enum Until {
    Time(Duration),
    Count(usize),
}

/// A server under load.
pub(super) struct LoadTarget {
    pub(super) config: UserKubeconfig,
    pub(super) pids: Vec<u32>,
}

impl LoadTarget {
    /// Creates objects for a second, so that one-time work of the server is not part of a measurement.
    pub(super) async fn warm_up(&self) -> Result<()> {
        self.make_namespace("warm").await?;
        self.create("warm", 16, Size::SMALL, Until::Time(Duration::from_secs(1))).await.map(drop)
    }

    pub(super) async fn make_namespace(&self, name: &str) -> Result<()> {
        let client = HttpClient::connect(&self.config, 1).await?;
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}).to_string();
        client.send(Method::POST, "/api/v1/namespaces", body.into()).await?.success().map(drop)
    }

    /// Opens a connection. The server closes one that has no requests for a while.
    pub(super) async fn client(&self) -> Result<HttpClient> {
        HttpClient::connect(&self.config, 1).await
    }

    /// Opens a connection for each of `count` clients, and sends one request over it.
    pub(super) async fn clients(&self, count: usize) -> Result<Vec<HttpClient>> {
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            let client = HttpClient::connect(&self.config, 1).await?;
            client.get("/api/v1/namespaces/default").await?;
            clients.push(client);
        }
        Ok(clients)
    }

    /// Measures `clients` clients, each of which sends one request after the other. `request(client, n)` sends the nth
    /// request of the load, counted from 0 over all clients.
    pub(super) async fn load<R, F>(&self, clients: usize, until: Until, request: R) -> Result<LoadOutcome>
    where
        R: Fn(Arc<HttpClient>, usize) -> F + Clone + Send + 'static,
        F: Future<Output = Result<()>> + Send,
    {
        let clients = self.clients(clients).await?;
        let issued = Arc::new(AtomicUsize::new(0));
        let (start, cpu) = (Instant::now(), proc::cpu_time(&self.pids)?);
        let mut loops = JoinSet::new();
        for client in clients.into_iter().map(Arc::new) {
            let (request, issued) = (request.clone(), issued.clone());
            loops.spawn(async move {
                let mut waits = Vec::new();
                loop {
                    let number = issued.fetch_add(1, Ordering::Relaxed);
                    match until {
                        Until::Time(limit) if start.elapsed() >= limit => return Ok(waits),
                        Until::Count(count) if number >= count => return Ok(waits),
                        Until::Time(_) | Until::Count(_) => {}
                    }
                    let begun = Instant::now();
                    request(client.clone(), number).await?;
                    waits.push(begun.elapsed());
                }
            });
        }
        let waits = loops.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
        let (wall, cpu) = (start.elapsed(), proc::cpu_time(&self.pids)? - cpu);
        let mut waits = waits.concat();
        waits.sort_unstable();
        Ok(LoadOutcome { operations: waits.len(), waits, wall, cpu })
    }
}
