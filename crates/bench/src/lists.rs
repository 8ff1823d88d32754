//! Requests for many objects, and watchers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::Value;

use super::figures::{Figure, Unit};
use super::load::{LoadOutcome, LoadTarget, Until};
use super::objects::Size;
use super::watchers::Crowd;
use super::{proc, protobuf};

/// Number of lists that are measured, one after the other.
const LISTS: usize = 20;
/// Objects of a page.
const PAGE: usize = 500;
/// Number of watches on one connection.
const WATCHERS_EACH: usize = 50;

/// Form of a list request: media type, query and encoding.
#[derive(Clone, Copy)]
pub(super) struct ListForm {
    pub(super) encoding: &'static str,
    pub(super) accept: &'static str,
    /// Part of the query.
    pub(super) query: &'static str,
    /// Least size of the answer in bytes. A smaller one is incomplete.
    pub(super) at_least: usize,
}

impl ListForm {
    pub(super) fn json(at_least: usize) -> Self {
        Self { encoding: "identity", accept: "application/json", query: "", at_least }
    }

    pub(super) fn table(at_least: usize) -> Self {
        Self { accept: "application/json;as=Table;v=v1;g=meta.k8s.io", ..Self::json(at_least) }
    }

    pub(super) fn protobuf(at_least: usize) -> Self {
        Self { accept: protobuf::MEDIA, ..Self::json(at_least) }
    }
}

impl LoadTarget {
    pub(super) async fn list(&self, namespace: &str, form: ListForm) -> Result<LoadOutcome> {
        let url: Arc<str> = format!("/api/v1/namespaces/{namespace}/configmaps{}", form.query).into();
        self.load(1, Until::Count(LISTS), move |client, _| {
            let url = url.clone();
            async move {
                let headers = [("accept-encoding", form.encoding), ("accept", form.accept)];
                let body = client.send_with(Method::GET, &url, &headers, Bytes::new()).await?.success()?;
                ensure!(body.len() >= form.at_least, "a list of {} bytes is not whole", body.len());
                Ok(())
            }
        })
        .await
    }

    /// Measures the same list page by page.
    pub(super) async fn pages(&self, namespace: &str, objects: usize) -> Result<LoadOutcome> {
        let path: Arc<str> = format!("/api/v1/namespaces/{namespace}/configmaps?limit={PAGE}").into();
        self.load(1, Until::Count(LISTS / 4), move |client, _| {
            let path = path.clone();
            async move {
                let (mut seen, mut token) = (0, String::new());
                loop {
                    let page: Value = serde_json::from_slice(&client.get(&format!("{path}&continue={token}")).await?)?;
                    seen += page["items"].as_array().map_or(0, Vec::len);
                    token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
                    if token.is_empty() {
                        ensure!(seen >= objects, "{seen} objects of {objects}");
                        return Ok(());
                    }
                }
            }
        })
        .await
    }

    /// Measures the watches of a namespace while objects are created in it. `create` is the cost of a create without
    /// watches.
    pub(super) async fn watch(
        &self,
        namespace: &str,
        watchers: usize,
        time: Duration,
        create: &LoadOutcome,
    ) -> Result<Vec<Figure>> {
        let connections = self.clients(watchers.min((watchers / WATCHERS_EACH).max(100))).await?;
        let crowd = Crowd::start(connections, watchers, namespace).await?;
        let (start, cpu) = (Instant::now(), proc::cpu_time(&self.pids)?);
        let written = self.create(namespace, 16, Size::SMALL, Until::Time(time)).await?.operations;
        let expected = written * watchers;
        crowd.wait_for(expected, time * 20).await?;
        let (wall, cpu) = (start.elapsed(), proc::cpu_time(&self.pids)? - cpu);

        let name = format!("watch fan-out, {watchers} watchers");
        let rate = |count: usize| count as f64 / wall.as_secs_f64();
        let per_event = |cpu: f64| (cpu * 1e6 / expected.max(1) as f64).max(0.0);
        let writes = create.cpu_micros() * written as f64 / 1e6;
        let figure = |what: &str, value, unit| Figure::new(format!("{name}: {what}"), value, unit);
        Ok(vec![
            figure("writes", rate(written), Unit::PerSecond),
            figure("events", rate(expected), Unit::PerSecond),
            figure("server, per event, the writes included", per_event(cpu.as_secs_f64()), Unit::MicrosOfCpu),
            figure(
                "server, per event, less the cost of the writes",
                per_event(cpu.as_secs_f64() - writes),
                Unit::MicrosOfCpu,
            ),
            figure("watches cut off and resumed", crowd.resumed() as f64, Unit::Count),
        ])
    }
}
