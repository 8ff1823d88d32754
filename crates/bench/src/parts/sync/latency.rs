//! Latencies of one object at a time: from a create to the copy, and from a status of the copy to the upstream object.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::super::super::events::EventStream;
use super::super::super::figures::Figure;
use super::super::super::objects::post;
use super::rollout::deployment;
use super::stage::{CONNECTIONS, MemberStage, NEAR};
use harness::client::HttpClient;

const NAMESPACE: &str = "latency";
/// Objects that are created, one after the other.
const ROUNDS: usize = 200;
/// Objects that are created before, so that the namespace of the copies exists and all code has run.
const WARM: usize = 10;
/// Changes of the status of each copy. A status of one object is shown upstream at a bounded rate.
const CHANGES: usize = 2;
/// Time in which a change must arrive.
const LIMIT: Duration = Duration::from_secs(30);
/// Pause between two changes, in which controllers come to rest.
const PAUSE: Duration = Duration::from_millis(30);

pub(super) async fn measure(stage: &MemberStage) -> Result<Vec<Figure>> {
    stage.bench.make_namespace(NAMESPACE).await?;
    let mut figures = Vec::new();
    for (place, how) in CONNECTIONS {
        figures.extend(Route::open(stage, place).await?.measure(how).await?);
    }
    let own = OwnWatch::open(stage).await?.measure().await?;
    figures.extend(own.figures("of the physical cluster itself"));
    Ok(figures)
}

/// Measured durations.
#[derive(Default)]
struct Waits {
    created: Vec<Duration>,
    reported: Vec<Duration>,
}

impl Waits {
    fn figures(mut self, how: &str) -> Vec<Figure> {
        let parts = [
            (&mut self.created, format!("create of a Deployment to the event of its copy, {how}")),
            (&mut self.reported, format!("write of a copy's status to the event upstream, {how}")),
        ];
        let mut figures = Vec::new();
        for (waits, name) in parts {
            waits.sort_unstable();
            let at = |percent: usize| waits.get(waits.len() * percent / 100).copied().unwrap_or_default();
            figures.extend([50, 99].map(|percent| Figure::millis(format!("{name}: p{percent}"), at(percent))));
        }
        figures
    }
}

/// Watches on both ends of the way to a physical cluster.
struct Route {
    place: &'static str,
    server: HttpClient,
    member: HttpClient,
    above: EventStream,
    below: EventStream,
}

impl Route {
    async fn open(stage: &MemberStage, place: &'static str) -> Result<Self> {
        let member = HttpClient::connect(stage.cluster(place)?.kubeconfig(), 2).await?;
        let server = stage.bench.client().await?;
        let above = EventStream::open(&server, &upstream()).await?;
        let below = EventStream::open(&member, "/apis/apps/v1/deployments").await?;
        Ok(Self { place, server, member, above, below })
    }

    async fn measure(mut self, how: &str) -> Result<Vec<Figure>> {
        let mut waits = Waits::default();
        for number in 0..WARM + ROUNDS {
            let mut round = Waits::default();
            self.round(number, &mut round).await.with_context(|| format!("{} {number}", self.place))?;
            if number >= WARM {
                waits.created.extend(round.created);
                waits.reported.extend(round.reported);
            }
        }
        Ok(waits.figures(how))
    }

    async fn round(&mut self, number: usize, waits: &mut Waits) -> Result<()> {
        let name = format!("{}-{number}", self.place);
        let object = deployment(&name, self.place, 0);
        let (path, begun) = (upstream(), Instant::now());
        let creating = post(&self.server, &path, &object);
        let arriving = self.below.until(LIMIT, |copy| copy["metadata"]["name"] == *name);
        let (made, arrived) = tokio::join!(creating, arriving);
        made?;
        let (arrived, copy) = arrived.context("no copy")?;
        waits.created.push(arrived - begun);
        // The controllers of the physical cluster have written their status.
        let settled = |object: &Value| is_settled(object, &name);
        self.above.until(LIMIT, settled).await.context("no status")?;
        for change in 0..CHANGES {
            tokio::time::sleep(PAUSE).await;
            waits.reported.push(self.report(&copy, &name, change).await.context("no change of the status")?);
        }
        Ok(())
    }

    /// Writes a condition into the status of the copy, and returns the time until the upstream object has it.
    async fn report(&mut self, copy: &Value, name: &str, change: usize) -> Result<Duration> {
        let reason = format!("Change{change}");
        let begun = Instant::now();
        let writing = write_status(&self.member, copy, &reason);
        let arriving = self.above.until(LIMIT, |object| object["metadata"]["name"] == name && has(object, &reason));
        let (written, arrived) = tokio::join!(writing, arriving);
        written?;
        Ok(arrived?.0 - begun)
    }
}

/// Watch of a physical cluster's Deployments by a client of its own: the part of the latencies that its API server
/// takes.
struct OwnWatch {
    client: HttpClient,
    events: EventStream,
}

impl OwnWatch {
    async fn open(stage: &MemberStage) -> Result<Self> {
        let client = HttpClient::connect(stage.cluster(NEAR)?.kubeconfig(), 2).await?;
        let events = EventStream::open(&client, "/apis/apps/v1/namespaces/default/deployments").await?;
        Ok(Self { client, events })
    }

    async fn measure(mut self) -> Result<Waits> {
        let mut waits = Waits::default();
        for number in 0..ROUNDS {
            let name = format!("own-{number}");
            let object = deployment(&name, NEAR, 0);
            let begun = Instant::now();
            let creating = post(&self.client, "/apis/apps/v1/namespaces/default/deployments", &object);
            let arriving = self.events.until(LIMIT, |object| object["metadata"]["name"] == *name);
            let (made, arrived) = tokio::join!(creating, arriving);
            made?;
            let (arrived, object) = arrived?;
            waits.created.push(arrived - begun);
            self.events.until(LIMIT, |object| is_settled(object, &name)).await?;
            tokio::time::sleep(PAUSE).await;
            let begun = Instant::now();
            let writing = write_status(&self.client, &object, "Change");
            let arriving =
                self.events.until(LIMIT, |object| object["metadata"]["name"] == *name && has(object, "Change"));
            let (written, arrived) = tokio::join!(writing, arriving);
            written?;
            waits.reported.push(arrived?.0 - begun);
        }
        Ok(waits)
    }
}

fn upstream() -> String {
    format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments")
}

/// Writes a condition with this reason into the status of a Deployment.
async fn write_status(client: &HttpClient, object: &Value, reason: &str) -> Result<()> {
    let text = |field: &str| object["metadata"][field].as_str().context("an object without a name");
    let path = format!("/apis/apps/v1/namespaces/{}/deployments/{}/status", text("namespace")?, text("name")?);
    let condition = json!({"type": "Measured", "status": "True", "reason": reason});
    let body = Bytes::from(json!({"status": {"conditions": [condition]}}).to_string());
    let headers = [("content-type", "application/strategic-merge-patch+json")];
    client.send_with(Method::PATCH, &path, &headers, body).await?.success().map(drop)
}

fn conditions(object: &Value) -> impl Iterator<Item = &Value> {
    object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten()
}

/// Returns true if an object is the Deployment `name`, and its rollout has ended.
fn is_settled(object: &Value, name: &str) -> bool {
    object["metadata"]["name"] == name && conditions(object).any(|one| one["reason"] == "NewReplicaSetAvailable")
}

fn has(object: &Value, reason: &str) -> bool {
    conditions(object).any(|one| one["type"] == "Measured" && one["reason"] == reason)
}
