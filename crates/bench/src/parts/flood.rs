//! Effect of a noisy neighbor: the requests of one tenant alone, and beside writes and lists of many clients of
//! another one. A tenant is a user with a workspace of its own in Portolan, and with a namespace of its own elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::super::figures::{Figure, Unit};
use super::super::load::{LoadTarget, Until};
use super::super::objects::{Size, config_map, maps};
use super::super::subject::{BenchSubject, Which};
use super::MeasureLimits;
use harness::client::HttpClient;

/// Clients of the tenant who is measured.
const CALM: usize = 4;
/// Clients of the other tenant.
const FLOOD: usize = 128;
/// Objects that the flood lists again and again.
const LISTED: usize = 2000;
/// Time in which a workspace must be ready.
const READY: Duration = Duration::from_secs(60);

pub(super) fn measure(subject: &BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let admin = subject.bench();
    let workspaces = subject.which() != Which::Kube;
    super::runtime()?.block_on(async {
        admin.warm_up().await?;
        let calm = Arc::new(tenant(&admin, "calm", workspaces).await?);
        let noisy = tenant(&admin, "flood", workspaces).await?;
        noisy.create("flood", 16, Size::SMALL, Until::Count(LISTED)).await?;
        let mut figures = waits(&calm, "alone", 0, limits.time).await?;
        // The flood runs on its own threads, so that it does not delay the measured clients within this process.
        let threads = super::runtime()?;
        let flood = threads.spawn(async move { Flood::begin(&noisy).await }).await??;
        figures.extend(waits(&calm, &format!("beside a flood of {FLOOD} clients"), 1, limits.time).await?);
        figures.extend(flood.end().await?);
        threads.shutdown_background();
        Ok(figures)
    })
}

/// Creates a user with all rights in a namespace, or in the namespace of a workspace, of this name.
async fn tenant(admin: &LoadTarget, name: &str, workspaces: bool) -> Result<LoadTarget> {
    let bench = if workspaces {
        workspace(admin, name).await?
    } else {
        LoadTarget { config: admin.config.clone(), pids: admin.pids.clone() }
    };
    bench.make_namespace(name).await?;
    let client = bench.clients(1).await?.remove(0);
    let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bench"}});
    let subject = json!({"kind": "ServiceAccount", "name": "bench", "namespace": name});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": format!("bench-{name}")}, "subjects": [subject],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    for (path, body) in [(&*accounts, account), (bindings, binding)] {
        client.send(Method::POST, path, body.to_string().into()).await?.success()?;
    }
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}).to_string();
    let answer = client.send(Method::POST, &format!("{accounts}/bench/token"), asked.into()).await?.success()?;
    let answer: Value = serde_json::from_slice(&answer)?;
    let token = answer["status"]["token"].as_str().context("no token was given")?;
    Ok(LoadTarget { config: bench.config.with_token(token), ..bench })
}

/// Creates a workspace below root and waits until it is ready.
async fn workspace(admin: &LoadTarget, name: &str) -> Result<LoadTarget> {
    let (client, begun) = (admin.clients(1).await?.remove(0), Instant::now());
    let body = json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": name}});
    client.send(Method::POST, "/apis/tenancy.kcp.io/v1alpha1/workspaces", body.to_string().into()).await?.success()?;
    let config = admin.config.with_server(&format!("{}:{name}", admin.config.server().trim_end_matches('/')));
    let inside = HttpClient::connect(&config, 1).await?;
    while inside.send(Method::GET, "/api/v1/namespaces/default", Bytes::new()).await?.status != StatusCode::OK {
        ensure!(begun.elapsed() < READY, "workspace {name} is not ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(LoadTarget { config, pids: admin.pids.clone() })
}

/// Measures rate and latency of the calm tenant. Every other request is a create, the rest are reads.
async fn waits(calm: &LoadTarget, when: &str, round: usize, time: Duration) -> Result<Vec<Figure>> {
    let taken = calm
        .load(CALM, Until::Time(time), move |client, number| async move {
            let made = round * 10_000_000 + number;
            let answer = match number % 2 {
                0 => client.send(Method::POST, &maps("calm"), config_map("calm", made, Size::SMALL)).await?,
                _ => client.send(Method::GET, "/api/v1/namespaces/calm", Bytes::new()).await?,
            };
            answer.success().map(drop)
        })
        .await?;
    let name = |what: &str| format!("a tenant of {CALM} clients {when}: {what}");
    Ok(vec![
        Figure::new(name("requests"), taken.rate(), Unit::PerSecond),
        Figure::millis(name("p50"), taken.percentile(50)),
        Figure::millis(name("p99"), taken.percentile(99)),
    ])
}

/// Clients that send requests without a pause, also after a 429.
struct Flood {
    clients: JoinSet<Result<()>>,
    begun: Instant,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    over: AtomicBool,
    asked: AtomicUsize,
    refused: AtomicUsize,
}

impl Flood {
    async fn begin(noisy: &LoadTarget) -> Result<Self> {
        let (mut clients, state) = (JoinSet::new(), Arc::<State>::default());
        for (index, client) in noisy.clients(FLOOD).await?.into_iter().enumerate() {
            let state = state.clone();
            clients.spawn(async move {
                while !state.over.load(Ordering::Relaxed) {
                    let number = state.asked.fetch_add(1, Ordering::Relaxed);
                    let path = maps("flood");
                    let answer = match index % 2 {
                        0 => {
                            client.send(Method::POST, &path, config_map("flood", LISTED + number, Size::SMALL)).await?
                        }
                        _ => client.send(Method::GET, &format!("{path}?limit={LISTED}"), Bytes::new()).await?,
                    };
                    match answer.status {
                        StatusCode::TOO_MANY_REQUESTS => drop(state.refused.fetch_add(1, Ordering::Relaxed)),
                        _ => drop(answer.success()?),
                    }
                }
                Ok(())
            });
        }
        Ok(Self { clients, begun: Instant::now(), state })
    }

    async fn end(self) -> Result<[Figure; 2]> {
        let lasted = self.begun.elapsed().as_secs_f64();
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed) as f64;
        let (asked, refused) = (count(&self.state.asked), count(&self.state.refused));
        self.state.over.store(true, Ordering::Relaxed);
        self.clients.join_all().await.into_iter().collect::<Result<()>>()?;
        Ok([
            Figure::new("the flood: requests answered", (asked - refused) / lasted, Unit::PerSecond),
            Figure::new("the flood: requests told to come back", refused, Unit::Count),
        ])
    }
}
