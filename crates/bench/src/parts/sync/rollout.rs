//! Many Deployments at once, from the first create until all of them run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::super::super::figures::{Figure, Unit};
use super::super::super::load::Until;
use super::super::super::proc::{self, ProcessMemory};
use super::mib;
use super::stage::{FAR, MemberStage, NEAR, THIRD, register};
use harness::client::HttpClient;
use harness::cluster::PhysicalCluster;

/// Deployments of the small rollout.
const FEW: usize = 1_000;
/// Simulated physical clusters of the large rollout, beside the real ones.
const SIMULATED: usize = 10;
/// Namespaces of the large rollout.
const NAMESPACES: usize = 100;
/// Pods of a simulated node.
const PODS_OF_NODE: usize = 110;
const CREATORS: usize = 32;
const LIMIT: Duration = Duration::from_secs(900);
const LOOK: Duration = Duration::from_millis(50);
/// Time of a look at all Deployments, as a part of the time between two looks.
const SHARE_OF_LOOKS: u32 = 5;

pub(super) async fn measure(stage: &MemberStage, many: usize) -> Result<Vec<Figure>> {
    let real = [NEAR, FAR, THIRD].map(str::to_owned);
    let few = Rollout { stage, batch: "few", namespaces: 1, places: real.to_vec(), count: FEW };
    let mut figures = few.measure().await?;
    let simulated: Vec<String> = (0..SIMULATED).map(|number| format!("simulated-{number}")).collect();
    let nodes = many / (SIMULATED + real.len()) / PODS_OF_NODE + 2;
    let client = stage.bench.client().await?;
    for name in &simulated {
        register(&client, name, &json!({"simulated": {"nodes": nodes}})).await?;
    }
    for name in &simulated {
        stage.until_ready(name).await?;
    }
    let places = simulated.into_iter().chain(real).collect();
    figures.extend(Rollout { stage, batch: "many", namespaces: NAMESPACES, places, count: many }.measure().await?);
    Ok(figures)
}

/// Deployments of one replica, which are pinned to clusters in turn.
struct Rollout<'a> {
    stage: &'a MemberStage,
    /// Value of the label `batch` of them all.
    batch: &'static str,
    namespaces: usize,
    places: Vec<String>,
    count: usize,
}

impl Rollout<'_> {
    async fn measure(self) -> Result<Vec<Figure>> {
        let stage = self.stage;
        for number in 0..self.namespaces {
            stage.bench.make_namespace(&namespace(self.batch, number)).await?;
        }
        let members = Members::connect(stage).await?;
        let (server, agent) = (stage.bench.pids.clone(), [stage.agent.pid()]);
        let clusters: Vec<u32> = stage.clusters().iter().flat_map(PhysicalCluster::pids).collect();
        let cpu = [&server, agent.as_slice(), &clusters].map(proc::cpu_time);
        let before = (ProcessMemory::of(&server)?, ProcessMemory::of(&agent)?);
        let wanted = members.count().await? + self.on_real_clusters();
        let begun = Instant::now();
        let (created, copied) = tokio::join!(self.create(), members.until(wanted));
        let (created, copied) = (created? - begun, copied? - begun);
        self.until_available().await?;
        let available = begun.elapsed();
        let used = [&server, agent.as_slice(), &clusters].map(proc::cpu_time);
        let after = (ProcessMemory::of(&server)?, ProcessMemory::of(&agent)?);

        let places = self.places.len();
        let name = |what: &str| format!("{} Deployments over {places} physical clusters: {what}", self.count);
        let mut figures = Vec::new();
        for ((what, before), after) in
            ["server", "agent", "all processes of the real clusters"].into_iter().zip(cpu).zip(used)
        {
            let micros = (after? - before?).as_secs_f64() * 1e6 / self.count as f64;
            figures.push(Figure::new(name(&format!("{what}, per Deployment")), micros, Unit::MicrosOfCpu));
        }
        figures.extend([
            Figure::millis(name("created"), created),
            Figure::millis(name("all copies exist on real clusters"), copied),
            Figure::millis(name("all are available upstream"), available),
            mib(name("memory of the server, before"), before.0.resident),
            mib(name("memory of the server, after"), after.0.resident),
            mib(name("memory of the agent, before"), before.1.resident),
            mib(name("memory of the agent, after"), after.1.resident),
        ]);
        Ok(figures)
    }

    /// Returns the number of Deployments on physical clusters with a real API server.
    fn on_real_clusters(&self) -> usize {
        let is_real = |number: &usize| self.stage.cluster(&self.places[number % self.places.len()]).is_ok();
        (0..self.count).filter(is_real).count()
    }

    /// Creates all Deployments. Returns the time at which the last one was created.
    async fn create(&self) -> Result<Instant> {
        let (batch, namespaces, places) = (self.batch, self.namespaces, Arc::<[String]>::from(self.places.as_slice()));
        let create = move |client: Arc<HttpClient>, number: usize| {
            let places = places.clone();
            async move {
                let mut object = deployment(&format!("web-{number}"), &places[number % places.len()], 1);
                object["metadata"]["labels"] = json!({"batch": batch});
                let path = format!("/apis/apps/v1/namespaces/{}/deployments", namespace(batch, number % namespaces));
                client.send(Method::POST, &path, object.to_string().into()).await?.success().map(drop)
            }
        };
        self.stage.bench.load(CREATORS, Until::Count(self.count), create).await?;
        Ok(Instant::now())
    }

    /// Waits until the upstream status of each Deployment says that its replica is available.
    async fn until_available(&self) -> Result<()> {
        let path = format!("/apis/apps/v1/deployments?labelSelector=batch={}", self.batch);
        let (client, begun) = (self.stage.bench.client().await?, Instant::now());
        loop {
            let look = Instant::now();
            let list: Value = serde_json::from_slice(&client.get(&path).await?)?;
            let items = list["items"].as_array().into_iter().flatten();
            let available = items.filter(|one| one["status"]["availableReplicas"] == 1).count();
            if available == self.count {
                return Ok(());
            }
            ensure!(begun.elapsed() < LIMIT, "{available} of {} Deployments are available", self.count);
            tokio::time::sleep((look.elapsed() * SHARE_OF_LOOKS).max(LOOK)).await;
        }
    }
}

fn namespace(batch: &str, number: usize) -> String {
    format!("{batch}-{number}")
}

/// Clients of the real API servers.
struct Members(Vec<HttpClient>);

impl Members {
    async fn connect(stage: &MemberStage) -> Result<Self> {
        let mut clients = Vec::new();
        for cluster in stage.clusters() {
            clients.push(HttpClient::connect(cluster.kubeconfig(), 1).await?);
        }
        Ok(Self(clients))
    }

    /// Returns the number of Deployments on all of them.
    async fn count(&self) -> Result<usize> {
        let mut sum = 0;
        for client in &self.0 {
            let list: Value = serde_json::from_slice(&client.get("/apis/apps/v1/deployments?limit=1").await?)?;
            let shown = list["items"].as_array().map_or(0, Vec::len);
            let left = list.pointer("/metadata/remainingItemCount").and_then(Value::as_u64).unwrap_or_default();
            sum += shown + usize::try_from(left)?;
        }
        Ok(sum)
    }

    /// Waits until they have `wanted` Deployments, and returns the time.
    async fn until(&self, wanted: usize) -> Result<Instant> {
        let begun = Instant::now();
        loop {
            let count = self.count().await.context("the copies cannot be counted")?;
            if count >= wanted {
                return Ok(Instant::now());
            }
            ensure!(begun.elapsed() < LIMIT, "{count} of {wanted} Deployments exist");
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Returns a Deployment that is pinned to a physical cluster.
pub(super) fn deployment(name: &str, place: &str, replicas: usize) -> Value {
    let labels = json!({"app": name});
    let container = json!({"name": "web", "image": "registry.example/web:1.2.3", "ports": [{"containerPort": 8080}]});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "annotations": {"portolan.dev/pin": place}},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    })
}
