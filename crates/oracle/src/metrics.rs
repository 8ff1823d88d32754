//! `/metrics` of both servers: the types, labels and buckets of the common families and of those that dashboards read,
//! and the series that requests count in.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use bytes::Bytes;
use http::Method;
use serde_json::{Map, Value, json};

use super::diff::{Pairs, differences};
use super::exchange::OracleServer;
use super::replay::{Servers, StepOutcome};
use harness::client::HttpClient;

pub(super) const SCRIPT: &str = "server/metrics";
/// Metrics that the dashboards and alerts of kubernetes-mixin and other common ones read.
const WANTED: [&str; 22] = [
    "apiserver_admission_controller_admission_duration_seconds",
    "apiserver_admission_step_admission_duration_seconds",
    "apiserver_client_certificate_expiration_seconds",
    "apiserver_current_inflight_requests",
    "apiserver_longrunning_requests",
    "apiserver_request_duration_seconds",
    "apiserver_request_sli_duration_seconds",
    "apiserver_request_total",
    "apiserver_resource_objects",
    "apiserver_response_sizes",
    "apiserver_storage_objects",
    "apiserver_watch_events_sizes",
    "apiserver_watch_events_total",
    "authentication_attempts",
    "authorization_attempts_total",
    "etcd_request_duration_seconds",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "workqueue_adds_total",
    "workqueue_depth",
    "workqueue_queue_duration_seconds",
];
/// Families in which the requests of this script are counted individually.
const COUNTED: [&str; 6] = [
    "apiserver_request_total",
    "apiserver_request_duration_seconds_count",
    "apiserver_request_sli_duration_seconds_count",
    "apiserver_request_terminations_total",
    "apiserver_response_sizes_count",
    "apiserver_watch_events_total",
];
/// Resources that no other script reads.
const RESOURCES: [&str; 2] = ["podtemplates", "replicationcontrollers"];
const NAMESPACE: &str = "server-metrics";
const MERGE: &str = "application/merge-patch+json";

/// Requests whose series are compared: method, path below the namespace, media type of the body, and body.
const REQUESTS: [(&str, &str, &str, &str); 22] = [
    ("POST", "podtemplates", "application/json", TEMPLATE),
    ("POST", "podtemplates", "application/json", TEMPLATE),
    ("POST", "podtemplates?dryRun=All", "application/json", r#"{"metadata": {"name": "b"}, "template": {}}"#),
    ("POST", "podtemplates", "text/html", "<a/>"),
    ("GET", "podtemplates/a", "", ""),
    ("GET", "podtemplates/none", "", ""),
    ("GET", "podtemplates", "", ""),
    ("GET", "podtemplates?limit=1", "", ""),
    ("GET", "podtemplates?labelSelector=%21%21", "", ""),
    ("GET", "podtemplates?watch=true&timeoutSeconds=1", "", ""),
    ("PATCH", "podtemplates/a", MERGE, r#"{"metadata": {"labels": {"x": "y"}}}"#),
    ("PATCH", "podtemplates/a?dryRun=All", MERGE, "{}"),
    ("PATCH", "podtemplates/a?fieldManager=m", "application/apply-patch+yaml", APPLIED),
    ("PATCH", "podtemplates/none", MERGE, "{}"),
    ("DELETE", "podtemplates/a?dryRun=All", "", ""),
    ("DELETE", "podtemplates/a", "", ""),
    ("DELETE", "podtemplates", "", ""),
    ("POST", "replicationcontrollers", "application/json", CONTROLLER),
    ("GET", "replicationcontrollers/c/scale", "", ""),
    ("PATCH", "replicationcontrollers/c/scale", MERGE, r#"{"spec": {"replicas": 0}}"#),
    ("GET", "replicationcontrollers/c/status", "", ""),
    ("DELETE", "replicationcontrollers/c", "", ""),
];
const TEMPLATE: &str =
    r#"{"metadata": {"name": "a"}, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}"#;
const APPLIED: &str = r#"{"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a", "labels": {"z": "z"}}}"#;
const CONTROLLER: &str = r#"{"metadata": {"name": "c"}, "spec": {"replicas": 0, "selector": {"a": "b"}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}"#;

/// Runs both comparisons after all other scripts.
pub(super) async fn outcomes(servers: &Servers) -> Result<Vec<StepOutcome>> {
    let (kube, portolan) = tokio::join!(counted(&servers.kube), counted(&servers.portolan));
    let (kube, portolan) = (kube?, portolan?);
    let compared = |step: &str, kube: Value, portolan: Value| {
        let answer = |body: Value| json!({"status": 200, "body": body});
        let (kube, portolan) = (answer(kube), answer(portolan));
        StepOutcome {
            script: SCRIPT.to_owned(),
            step: step.to_owned(),
            request: "GET /metrics".to_owned(),
            differences: differences(&kube, &portolan, &mut Pairs::default()),
            kube,
            portolan,
        }
    };
    let (mut theirs, mut ours) = (families(&kube.text), families(&portolan.text));
    let is_compared = |name: &str, other: &Families| WANTED.contains(&name) || other.contains_key(name);
    let all_of_ours = ours.clone();
    ours.retain(|name, _| is_compared(name, &theirs));
    theirs.retain(|name, _| is_compared(name, &all_of_ours));
    Ok(vec![
        compared("families", Value::Object(theirs), Value::Object(ours)),
        compared("what requests count as", kube.requests, portolan.requests),
    ])
}

struct MetricCount {
    /// Returns all differences.
    text: String,
    /// Returns the growth of the series of this script's requests.
    requests: Value,
}

async fn counted(server: &OracleServer) -> Result<MetricCount> {
    let client = server.client().await;
    let namespace = Bytes::from(json!({"metadata": {"name": NAMESPACE}}).to_string());
    client.send(Method::POST, "/api/v1/namespaces", namespace).await?;
    let before = read(&client).await?;
    for (method, path, media, body) in REQUESTS {
        let headers = if media.is_empty() { vec![] } else { vec![("content-type", media)] };
        let path = format!("/api/v1/namespaces/{NAMESPACE}/{path}");
        client.send_with(Method::from_bytes(method.as_bytes())?, &path, &headers, Bytes::from(body)).await?;
    }
    client.get("/api/v1/podtemplates").await?;
    let text = read(&client).await?;
    let requests = grown(&before, &text);
    Ok(MetricCount { text, requests })
}

async fn read(client: &HttpClient) -> Result<String> {
    Ok(String::from_utf8_lossy(&client.get("/metrics").await?).into_owned())
}

/// Series of requests for resources that no other script reads.
fn grown(before: &str, after: &str) -> Value {
    let read = |text: &str| -> BTreeMap<String, f64> {
        let series = text.lines().filter(|line| {
            let name = line.split('{').next().unwrap_or(line);
            COUNTED.contains(&name) && RESOURCES.iter().any(|own| line.contains(&format!("resource=\"{own}\"")))
        });
        let pair = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        };
        series.filter_map(pair).collect()
    };
    let before = read(before);
    let grown = read(after).into_iter().map(|(series, value)| {
        let grown = value - before.get(&series).copied().unwrap_or_default();
        (series, Value::from(grown))
    });
    Value::Object(grown.filter(|(_, value)| value.as_f64() != Some(0.0)).collect())
}

/// Series by name.
type Families = Map<String, Value>;

/// Family, reduced to what its readers depend on.
#[derive(Default)]
struct MetricFamily {
    kind: String,
    labels: BTreeSet<String>,
    /// Upper bounds as numbers, since their notation differs.
    buckets: BTreeSet<String>,
}

/// Returns all families with their types, labels and buckets.
fn families(text: &str) -> Families {
    let mut found: BTreeMap<&str, MetricFamily> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            found.entry(name).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap_or(line);
            let ends = ["", "_bucket", "_sum", "_count"].iter().filter_map(|end| name.strip_suffix(end));
            let Some(family) = ends.filter(|name| found.contains_key(name)).max_by_key(|name| name.len()) else {
                continue;
            };
            found.entry(family).or_default().add(line);
        }
    }
    found.into_iter().map(|(name, family)| (name.to_owned(), family.into_value())).collect()
}

impl MetricFamily {
    fn add(&mut self, line: &str) {
        for (name, value) in labels(line).into_iter().filter(|(name, _)| *name != "quantile") {
            // The same number has several notations.
            let bound = || value.parse::<f64>().map_or(value.to_owned(), |bound| bound.to_string());
            match name {
                "le" => self.buckets.insert(bound()),
                _ => self.labels.insert(name.to_owned()),
            };
        }
    }

    fn into_value(self) -> Value {
        let list = |all: BTreeSet<String>| all.into_iter().collect::<Vec<_>>().join(" ");
        json!({"type": self.kind, "labels": list(self.labels), "buckets": list(self.buckets)})
    }
}

/// Parses the labels of a series. Quoted values may contain anything.
fn labels(line: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = line.split_once('{').map_or("", |(_, rest)| rest);
    while let Some((name, value)) = rest.split_once("=\"") {
        let escaped = |at: usize| value[..at].bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
        let Some(end) = value.match_indices('"').map(|(at, _)| at).find(|at| !escaped(*at)) else { break };
        found.push((name, &value[..end]));
        rest = value[end + 1..].trim_start_matches(',');
        if rest.starts_with('}') {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP a_seconds Time.
# TYPE a_seconds histogram
a_seconds_bucket{verb="GET",le="0.5"} 1
a_seconds_bucket{verb="GET",le="1.0"} 1
a_seconds_bucket{verb="GET",le="+Inf"} 1
a_seconds_sum{verb="GET"} 0.1
a_seconds_count{verb="GET"} 1
# TYPE b_total counter
b_total{path="a\"}b",code="200"} 7
# TYPE c_count gauge
c_count 3
"#;

    #[test]
    fn families_have_types_labels_and_buckets() {
        let expected = json!({
            "a_seconds": {"type": "histogram", "labels": "verb", "buckets": "0.5 1 inf"},
            "b_total": {"type": "counter", "labels": "code path", "buckets": ""},
            "c_count": {"type": "gauge", "labels": "", "buckets": ""},
        });
        assert_eq!(Value::Object(families(TEXT)), expected);
    }

    #[test]
    fn series_of_requests_are_counted_since() {
        let line = |count: u32| format!("apiserver_request_total{{resource=\"podtemplates\",verb=\"GET\"}} {count}\n");
        let other = "apiserver_request_total{resource=\"pods\",verb=\"GET\"} 9\n";
        let expected = json!({"apiserver_request_total{resource=\"podtemplates\",verb=\"GET\"}": 3.0});
        assert_eq!(grown(&line(4), &(line(7) + other)), expected);
        assert_eq!(grown(&line(4), &line(4)), json!({}));
    }

    #[test]
    fn sent_metrics_have_the_expected_values() {
        for body in [TEMPLATE, APPLIED, CONTROLLER] {
            assert!(serde_json::from_str::<Value>(body).is_ok_and(|body| body.is_object()), "{body}");
        }
    }
}
