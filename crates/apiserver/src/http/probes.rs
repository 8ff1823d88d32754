//! Routes of probes, version and metrics.

use std::{fmt::Write as _, sync::Arc};

use http::{HeaderValue, Response, header::X_CONTENT_TYPE_OPTIONS};
use portolan_strategy::rbac::MASTERS;
use portolan_types::Status;
use serde_json::json;

use crate::{
    ApiServer, Body, encode,
    hooks::ReadyCheck,
    metrics::ServerVersion,
    request::RequestContext,
    routing::routes::{self, RouteEndpoint},
};

use super::routed::{AuthorizedCall, RoutedResponse};

struct HealthCheck {
    name: String,
    outcome: Result<(), String>,
    /// Note that is shown although the check passes.
    note: Option<String>,
}

fn checks(api: &ApiServer, endpoint: RouteEndpoint) -> Vec<HealthCheck> {
    let own = |name: &str, outcome| HealthCheck { name: name.into(), outcome, note: None };
    let mut all = vec![own("ping", Ok(()))];
    let is_asked = |hook: &&Arc<dyn ReadyCheck>| endpoint == RouteEndpoint::Readyz || hook.is_vital();
    if endpoint == RouteEndpoint::Readyz {
        let stopping =
            if api.streams.stopping.is_cancelled() { Err("process is shutting down".to_owned()) } else { Ok(()) };
        all.push(own("shutdown", stopping));
    }
    let asked = api.config.hooks.ready.iter().filter(is_asked);
    all.extend(asked.map(|hook| HealthCheck {
        name: hook.name().to_owned(),
        outcome: hook.check(),
        note: hook.note(),
    }));
    all
}

/// `/livez`, `/readyz`, `/healthz` and their single checks.
pub(super) async fn health(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    RoutedResponse::from(run_checks(&api, &call))
}

fn run_checks(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    let what = match call.endpoint {
        RouteEndpoint::Livez => "livez",
        RouteEndpoint::Readyz => "readyz",
        _ => "healthz",
    };
    let mut checks = checks(api, call.endpoint);
    let one = call.captures.name.as_str();
    if !one.is_empty() {
        checks.retain(|check| check.name == one);
        if checks.is_empty() {
            return Err(routes::not_found_at(&call.path));
        }
    }
    let excluded: Vec<&str> = call.query.all("exclude").collect();
    // Health is public, but reasons are for administrators of the server.
    let may_know = call.identity.user.is_in(MASTERS);
    let mut report = String::new();
    let mut failed = false;
    for check in &checks {
        api.failing.record(&check.name, &check.outcome);
        let is_excluded = excluded.contains(&check.name.as_str());
        // kube-apiserver does not count single checks either.
        if one.is_empty() && !is_excluded {
            api.metrics.health.checked(&check.name, what, check.outcome.is_ok());
        }
        // Writing into a string cannot fail.
        let _ = match (&check.outcome, is_excluded) {
            (_, true) => writeln!(report, "[+]{} excluded: ok", check.name),
            (Ok(()), false) => match check.note.as_ref().filter(|_| may_know) {
                None => writeln!(report, "[+]{} ok", check.name),
                Some(note) => writeln!(report, "[+]{} ok: {note}", check.name),
            },
            (Err(why), false) => {
                failed = true;
                let why = if may_know { why } else { "reason withheld" };
                writeln!(report, "[-]{} failed: {why}", check.name)
            }
        };
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|name| checks.iter().all(|c| c.name != **name))
        .map(|name| format!("{name:?}"))
        .collect();
    if !unknown.is_empty() {
        let names = unknown.join(", ");
        let _ = writeln!(report, "warn: some health checks cannot be excluded: no matches for {names}");
    }
    let mut response = match (failed, call.query.get("verbose").is_some()) {
        (true, _) => encode::text(500, format!("{report}{what} check failed\n")),
        (false, true) => encode::text(200, format!("{report}{what} check passed\n")),
        (false, false) => encode::text(200, "ok"),
    };
    // As in kube-apiserver, a passed single check lacks the header.
    if one.is_empty() || failed {
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    Ok(response)
}

/// `/version`.
pub(super) async fn version(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    RoutedResponse::from(version_document(&api, &call))
}

fn version_document(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    encode::route(&call.headers, &["application/json"])?;
    let ServerVersion { major, minor, .. } = &api.version;
    Ok(encode::indented(&json!({
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": minor.parse::<u32>().map_or(0, |n| n.saturating_sub(1)).to_string(),
        "gitVersion": api.version.git_version,
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": ServerVersion::COMPILER,
        "platform": ServerVersion::platform(),
    })))
}

/// `/metrics`.
pub(super) async fn metrics(AuthorizedCall { api, .. }: AuthorizedCall) -> RoutedResponse {
    api.measure_caches();
    RoutedResponse::from(api.metrics.text().map(numbers))
}

/// `/metrics/slis`.
pub(super) async fn health_metrics(AuthorizedCall { api, .. }: AuthorizedCall) -> RoutedResponse {
    RoutedResponse::from(api.metrics.health.text().map(numbers))
}

/// Returns metrics in the text format of Prometheus.
fn numbers(text: String) -> Response<Body> {
    encode::finish(200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", encode::full(text))
}
