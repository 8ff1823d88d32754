//! Decisions and plans of a server. Its two physical clusters are simulated, and policies suspend the dispatch to them,
//! so that only placement works.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::super::super::figures::{Figure, Unit};
use super::super::super::load::{LoadTarget, Until};
use super::super::super::proc::{self, ProcessMemory};
use super::super::super::subject::BenchSubject;
use harness::client::HttpClient;

const GROUP: &str = "/apis/portolan.dev/v1alpha1";
const REPLICAS: usize = 3;
/// Pods of a simulated node.
const PODS_OF_NODE: usize = 110;
const NAMESPACES: usize = 100;
/// Objects whose way from the request to the annotation is measured, one after the other.
const WATCHED: usize = 300;
/// Objects of the small drain.
const FEW: usize = 1_000;
const LIMIT: Duration = Duration::from_secs(900);
const LOOK: Duration = Duration::from_millis(20);

pub(super) fn measure(subject: &BenchSubject, objects: usize) -> Result<Vec<Figure>> {
    let bench = subject.bench();
    super::super::runtime()?.block_on(async {
        let server = PlacedServer::set_up(&bench, objects).await?;
        let mut figures = server.annotations().await?;
        figures.extend(server.small_drain().await?);
        figures.extend(server.many(objects).await?);
        Ok(figures)
    })
}

/// Server with two physical clusters and a policy that places everything on the first one.
struct PlacedServer<'a> {
    bench: &'a LoadTarget,
    client: HttpClient,
}

impl<'a> PlacedServer<'a> {
    async fn set_up(bench: &'a LoadTarget, objects: usize) -> Result<Self> {
        let client = bench.clients(1).await?.remove(0);
        let server = Self { bench, client };
        let nodes = (objects + FEW + WATCHED) * REPLICAS / PODS_OF_NODE + 1;
        for name in ["first", "second"] {
            let spec = json!({"connection": {"simulated": {"nodes": nodes}}});
            server.create("physicalclusters", "PhysicalCluster", name, &spec).await?;
        }
        for name in ["first", "second"] {
            server.until(&format!("{name} to be ready"), async || server.is_ready(name).await).await?;
        }
        server.create("clusterplacementpolicies", "ClusterPlacementPolicy", "all", &policy("first", 300)).await?;
        for number in 0..NAMESPACES {
            bench.make_namespace(&namespace(number)).await?;
        }
        Ok(server)
    }

    async fn create(&self, resource: &str, kind: &str, name: &str, spec: &Value) -> Result<()> {
        let body =
            json!({"apiVersion": "portolan.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let answer = self.client.send(Method::POST, &format!("{GROUP}/{resource}"), body.to_string().into()).await?;
        answer.success().with_context(|| format!("{kind} {name}")).map(drop)
    }

    async fn physical(&self, name: &str) -> Result<Value> {
        Ok(serde_json::from_slice(&self.client.get(&format!("{GROUP}/physicalclusters/{name}")).await?)?)
    }

    async fn is_ready(&self, name: &str) -> Result<bool> {
        let physical = self.physical(name).await?;
        let conditions = physical.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
        Ok(conditions.filter(|one| one["type"] == "Ready").any(|one| one["status"] == "True"))
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !holds().await? {
            ensure!(begun.elapsed() < LIMIT, "no end of the wait for {what}");
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Measures the time from a create to the event with the placement.
    async fn annotations(&self) -> Result<Vec<Figure>> {
        let watch = "/apis/apps/v1/namespaces/team-0/deployments?watch=true";
        let mut body = self.client.open(Method::GET, watch, &[], Bytes::new()).await?.into_body();
        let (mut waits, mut text) = (Vec::with_capacity(WATCHED), Vec::new());
        for number in 0..WATCHED {
            let (name, begun) = (format!("watched-{number}"), Instant::now());
            self.client.send(Method::POST, &path(0), deployment(&name)).await?.success()?;
            while !is_annotated(&mut text, &name)? {
                let frame = body.frame().await.context("the watch ended")??;
                text.extend_from_slice(frame.data_ref().context("a watch has data")?);
            }
            waits.push(begun.elapsed());
        }
        waits.sort_unstable();
        let name = "create of a Deployment to its placement";
        let at = |percent: usize| waits[waits.len() * percent / 100];
        Ok(vec![Figure::millis(format!("{name}: p50"), at(50)), Figure::millis(format!("{name}: p99"), at(99))])
    }

    /// Creates Deployments until there are `wanted`, and waits until all are placed. Returns the time from the first
    /// request.
    async fn fill(&self, from: usize, wanted: usize) -> Result<Duration> {
        let begun = Instant::now();
        let create = move |client: Arc<HttpClient>, number: usize| {
            let (path, body) = (path(number + from), deployment(&format!("web-{}", number + from)));
            async move { client.send(Method::POST, &path, body).await?.success().map(drop) }
        };
        self.bench.load(64, Until::Count(wanted - from), create).await?;
        self.until("the placements", async || Ok(self.workloads("first").await? >= wanted + WATCHED)).await?;
        Ok(begun.elapsed())
    }

    async fn workloads(&self, name: &str) -> Result<usize> {
        let physical = self.physical(name).await?;
        let count = physical.pointer("/status/workloads").and_then(Value::as_u64).unwrap_or(0);
        Ok(usize::try_from(count)?)
    }

    async fn small_drain(&self) -> Result<Vec<Figure>> {
        self.fill(0, FEW).await?;
        let moves = FEW + WATCHED;
        self.plan(&format!("plan of a drain that moves {moves} objects"), &json!({"drain": ["first"]}), moves).await
    }

    async fn many(&self, objects: usize) -> Result<Vec<Figure>> {
        let taken = self.fill(FEW, objects).await?;
        let rate = (objects - FEW) as f64 / taken.as_secs_f64();
        let mut figures = vec![Figure::new("creates of Deployments until all are placed", rate, Unit::PerSecond)];
        let all = objects + WATCHED;
        let cordon = json!({"cordon": {"cluster": "first", "unschedulable": true}});
        figures.extend(self.plan(&format!("plan over {objects} objects, none moves"), &cordon, 0).await?);
        let drain = json!({"drain": ["first"]});
        figures.extend(self.plan(&format!("plan over {objects} objects, all move"), &drain, all).await?);
        figures.extend(self.policy_edits(objects).await?);
        Ok(figures)
    }

    /// Requests a plan three times, and returns the median time, and the growth of the server's memory by the first.
    async fn plan(&self, name: &str, change: &Value, moves: usize) -> Result<Vec<Figure>> {
        let body = json!({
            "apiVersion": "portolan.dev/v1alpha1", "kind": "PlacementPlan", "metadata": {"name": "what-if"},
            "spec": {"changes": [change]},
        });
        let path = format!("{GROUP}/placementplans");
        let before = ProcessMemory::of(&self.bench.pids)?.resident;
        proc::reset_peak(&self.bench.pids)?;
        let (mut times, mut growth) = (Vec::new(), None);
        for _ in 0..3 {
            let begun = Instant::now();
            let answer = self.client.send(Method::POST, &path, body.to_string().into()).await?.success()?;
            let answer: Value = serde_json::from_slice(&answer)?;
            times.push(begun.elapsed());
            let found = answer.pointer("/status/counts/moves").and_then(Value::as_u64).unwrap_or(0);
            ensure!(usize::try_from(found)? == moves, "{found} moves, not {moves}: {}", answer["status"]["summary"]);
            growth.get_or_insert(proc::peak_memory(&self.bench.pids)? - before);
        }
        times.sort_unstable();
        let growth = growth.unwrap_or_default().max(0.0);
        Ok(vec![Figure::millis(name, times[1]), Figure::new(format!("{name}: peak of memory"), growth, Unit::MiB)])
    }

    /// Edits the policy of all objects: once without an effect, and once so that each object moves.
    async fn policy_edits(&self, objects: usize) -> Result<Vec<Figure>> {
        let path = format!("{GROUP}/clusterplacementpolicies/all");
        let merge = [("content-type", "application/merge-patch+json")];
        let edit = async |spec: Value| {
            let body = json!({"spec": spec}).to_string();
            self.client.send_with(Method::PATCH, &path, &merge, body.into()).await?.success().map(drop)
        };
        let (decided, cpu, begun) = (self.decisions().await?, proc::cpu_time(&self.bench.pids)?, Instant::now());
        edit(policy("first", 301)).await?;
        self.until("the decisions", async || Ok(self.decisions().await? >= decided + objects as f64)).await?;
        let name = format!("policy edit without an effect on {objects} objects, until all are decided");
        let each = (proc::cpu_time(&self.bench.pids)? - cpu).as_secs_f64() * 1e6 / objects as f64;
        let mut figures = vec![
            Figure::millis(name.clone(), begun.elapsed()),
            Figure::new(format!("{name}: server, per object"), each, Unit::MicrosOfCpu),
        ];
        let begun = Instant::now();
        edit(policy("second", 301)).await?;
        self.until("the moves", async || Ok(self.workloads("second").await? >= objects)).await?;
        let name = format!("policy edit that moves {objects} objects, until all are written");
        figures.push(Figure::millis(name, begun.elapsed()));
        Ok(figures)
    }

    /// Returns the number of decisions so far.
    async fn decisions(&self) -> Result<f64> {
        let metrics = self.client.get("/metrics").await?;
        let counts = std::str::from_utf8(&metrics)?.lines().filter_map(|line| {
            let counted = line.strip_prefix("portolan_scheduler_decisions_total")?;
            counted.rsplit_once(' ')?.1.parse::<f64>().ok()
        });
        Ok(counts.sum())
    }
}

/// Policy that places all Deployments on one physical cluster, and sends nothing there.
fn policy(cluster: &str, seconds: u32) -> Value {
    json!({
        "resources": [{"apiGroup": "apps", "kinds": ["Deployment"]}],
        "clusters": {"names": [cluster], "fallback": [{}]},
        "suspend": {"dispatch": true},
        "tolerations": [{"key": "portolan.dev/unreachable", "operator": "Exists", "tolerationSeconds": seconds}],
    })
}

fn namespace(number: usize) -> String {
    format!("team-{}", number % NAMESPACES)
}

fn path(number: usize) -> String {
    format!("/apis/apps/v1/namespaces/{}/deployments", namespace(number))
}

fn deployment(name: &str) -> Bytes {
    let labels = BTreeMap::from([("app", name)]);
    let container = json!({"name": "web", "image": "registry.example/web:1.2.3"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template},
    })
    .to_string()
    .into()
}

/// Takes whole events off `text`. Returns true if one of them has the object with its placement.
fn is_annotated(text: &mut Vec<u8>, name: &str) -> Result<bool> {
    while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = text.drain(..=end).collect();
        let event: Value = serde_json::from_slice(&line)?;
        let metadata = &event["object"]["metadata"];
        if metadata["name"] == name && metadata["annotations"].get("portolan.dev/clusters").is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
