//! `portolan status`: readiness and contents of a running server.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use http_body_util::{BodyExt as _, Limited};
use kube::{Client, client::Body};
use serde::Serialize;
use serde_json::Value;

use super::{
    admin::{KUBECONFIG, connect, no_answer},
    output,
};

/// Most bytes of one response.
const ANSWER_BYTES: usize = 32 << 20;
/// Timeout of a request that is not about readiness.
const EACH: std::time::Duration = std::time::Duration::from_secs(2);
/// Timeout of all requests together.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// Ask a running server whether it is ready, and print its contents. Exit code 0: it is ready. 1: it is not, or does
/// not respond.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Data directory of the server, with its admin.kubeconfig.
    #[arg(long, required_unless_present = "kubeconfig")]
    pub(super) data_dir: Option<PathBuf>,
    /// Administrator's kubeconfig of the server.
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum)]
    pub(super) output: Option<StatusFormat>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum StatusFormat {
    Json,
    Yaml,
}

/// Report of a server, without values that it does not provide.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServerReport {
    /// Address of the server.
    pub(super) server: String,
    /// Kubernetes version that it serves.
    pub(super) version: String,
    pub(super) ready: bool,
    /// Failed checks and notes of `/readyz`.
    pub(super) notes: Vec<String>,
    /// Storage engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) store: Option<String>,
    /// Revision of the latest write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) revision: Option<String>,
    /// Bytes of the store's files, and free bytes on their disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) store_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) free_bytes: Option<u64>,
    /// Number of workspaces, and the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) logical_clusters: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) physical_clusters: Option<u64>,
    /// Number of objects of all kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) objects: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) damaged_objects: Option<u64>,
}

impl StatusArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let kubeconfig = match (self.kubeconfig, self.data_dir) {
            (Some(file), _) => file,
            (None, Some(dir)) => dir.join(KUBECONFIG),
            (None, None) => bail!("--data-dir or --kubeconfig must say which server"),
        };
        let report = super::runtime()?.block_on(async {
            let asked = tokio::time::timeout(PATIENCE, ask(&kubeconfig)).await;
            asked.with_context(|| format!("the server that {} leads to does not answer", kubeconfig.display()))?
        })?;
        match self.output {
            None => output::print(&text(&report))?,
            Some(StatusFormat::Json) => output::line(&serde_json::to_string_pretty(&report)?)?,
            Some(StatusFormat::Yaml) => output::print(&serde_saphyr::to_string(&report)?)?,
        }
        if !report.ready {
            bail!("the server is not ready");
        }
        Ok(())
    }
}

/// Queries the server.
pub(super) async fn ask(kubeconfig: &std::path::Path) -> anyhow::Result<ServerReport> {
    let (client, server) = connect(kubeconfig).await?;
    let (code, readiness) = get(&client, "/readyz?verbose").await.map_err(|error| no_answer(&server, &error))?;
    if code == http::StatusCode::UNAUTHORIZED || code == http::StatusCode::FORBIDDEN {
        bail!("the server at {server} answered {code}: it is another one's, or has got other keys since");
    }
    let place =
        format!("{}://{}", server.scheme_str().unwrap_or("https"), server.authority().map_or("", |at| at.as_str()));
    let mut report =
        ServerReport { server: place, ready: code.is_success(), notes: notes(&readiness), ..ServerReport::default() };
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    // Readiness is reported at once, whatever the store does; other values may be missing.
    let asking = async |path: &str| match tokio::time::timeout(EACH, get(&client, path)).await {
        Ok(Ok((_, answer))) => answer,
        Ok(Err(_)) | Err(_) => String::new(),
    };
    report.version = json(&asking("/version").await)["gitVersion"].as_str().unwrap_or_default().to_owned();
    let namespaces = json(&asking("/api/v1/namespaces?limit=1").await);
    report.revision = namespaces["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    count(&asking("/metrics").await, &mut report);
    Ok(report)
}

async fn get(client: &Client, path: &str) -> Result<(http::StatusCode, String), kube::Error> {
    let request = http::Request::get(path).body(Body::empty()).map_err(kube::Error::HttpError)?;
    let answer = client.send(request).await?;
    let code = answer.status();
    // A response that is cut off or too long has no value.
    let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    Ok((code, String::from_utf8_lossy(&body).into_owned()))
}

/// Returns the lines of `/readyz?verbose` that are not just `ok`.
fn notes(readiness: &str) -> Vec<String> {
    let is_note = |line: &&str| line.starts_with("[-]") || line.starts_with("[+]") && !line.ends_with(" ok");
    let lines = readiness.lines().filter(is_note).map(|line| line[3..].to_owned());
    let lines: Vec<_> = lines.collect();
    let message = || serde_json::from_str::<Value>(readiness).ok()?["message"].as_str().map(str::to_owned);
    if lines.is_empty() { message().into_iter().collect() } else { lines }
}

/// Reads the numbers from the metrics.
fn count(metrics: &str, report: &mut ServerReport) {
    let objects = |resource: &str| value(metrics, &format!("apiserver_storage_objects{{resource=\"{resource}\"}}"));
    report.store = label(metrics, "portolan_store_info", "engine");
    report.store_bytes = values(metrics, "apiserver_storage_size_bytes").next();
    report.free_bytes = value(metrics, "portolan_store_free_bytes");
    // Of several servers on one etcd only the leader counts.
    report.logical_clusters = objects("workspaces.tenancy.kcp.io").map(|workspaces| workspaces + 1);
    report.physical_clusters = objects("physicalclusters.portolan.dev");
    report.objects = report.logical_clusters.map(|_| values(metrics, "apiserver_storage_objects").sum());
    report.damaged_objects = value(metrics, "portolan_store_damaged_objects");
}

/// Returns all values of a metric in Prometheus' text format.
fn values<'m>(metrics: &'m str, name: &'m str) -> impl Iterator<Item = u64> + 'm {
    metrics.lines().filter_map(move |line| {
        let (series, value) = line.rsplit_once(' ')?;
        let is_it = series.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'));
        // Numbers of bytes and objects are whole.
        is_it.then(|| value.parse::<f64>().ok()).flatten().map(|value| value as u64)
    })
}

/// Returns the value of one series.
fn value(metrics: &str, series: &str) -> Option<u64> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok()).map(|value| value as u64)
}

fn label(metrics: &str, name: &str, label: &str) -> Option<String> {
    let series = metrics.lines().find(|line| line.starts_with(name))?;
    let (_, rest) = series.split_once(&format!("{label}=\""))?;
    rest.split_once('"').map(|(value, _)| value.to_owned())
}

fn text(report: &ServerReport) -> String {
    let size = |bytes: &u64| match bytes >> 20 {
        0..10 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    };
    let number = |number: &u64| number.to_string();
    let ready = if report.ready { "yes" } else { "no" };
    let mut lines = vec![
        ("server", Some(format!("{}, Kubernetes {}", report.server, report.version))),
        ("ready", Some(ready.to_owned())),
    ];
    lines.extend(report.notes.iter().map(|note| ("", Some(note.clone()))));
    lines.extend([
        ("store", report.store.clone()),
        ("revision", report.revision.clone()),
        ("on disk", report.store_bytes.as_ref().map(size)),
        ("free on disk", report.free_bytes.as_ref().map(size)),
        ("logical clusters", report.logical_clusters.as_ref().map(number)),
        ("physical clusters", report.physical_clusters.as_ref().map(number)),
        ("objects", report.objects.as_ref().map(number)),
        ("damaged objects", report.damaged_objects.as_ref().filter(|count| **count > 0).map(number)),
    ]);
    let shown = lines.into_iter().filter_map(|(name, value)| Some(format!("{name:<19}{}\n", value?)));
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "# TYPE apiserver_storage_objects gauge\n\
        apiserver_storage_objects{resource=\"namespaces\"} 8\n\
        apiserver_storage_objects{resource=\"workspaces.tenancy.kcp.io\"} 2\n\
        apiserver_storage_size_bytes{storage_cluster_id=\"local-0\"} 3.145728e+06\n\
        portolan_store_damaged_objects 0\nportolan_store_free_bytes 1.073741824e+09\n\
        portolan_store_info{engine=\"redb\"} 1\n";

    #[test]
    fn numbers_come_out_of_the_metrics() {
        let mut report = ServerReport {
            ready: true,
            version: "v1.36.3".into(),
            server: "https://a:1".into(),
            ..ServerReport::default()
        };
        count(METRICS, &mut report);
        assert_eq!(
            (report.store.as_deref(), report.logical_clusters, report.objects),
            (Some("redb"), Some(3), Some(10))
        );
        assert_eq!(
            (report.store_bytes, report.free_bytes, report.physical_clusters),
            (Some(3 << 20), Some(1 << 30), None)
        );
        let text = text(&report);
        for line in [
            "server             https://a:1, Kubernetes v1.36.3\n",
            "free on disk       1024 MiB\n",
            "logical clusters   3\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(
            !text.contains("physical clusters") && !text.contains("damaged"),
            "what is not report is left out: {text}"
        );
    }

    #[test]
    fn unready_parts_are_reported() {
        let readiness = "[+]ping ok\n[-]store failed: the disk is full\n[+]store ok: 2 stored objects are damaged\nreadyz check failed\n";
        assert_eq!(notes(readiness), ["store failed: the disk is full", "store ok: 2 stored objects are damaged"]);
        assert_eq!(notes("{\"message\":\"the store is being opened\"}"), ["the store is being opened"]);
        assert!(notes("[+]ping ok\nreadyz check passed\n").is_empty());
    }
}
