//! Health, version and numbers.

use std::{collections::BTreeSet, fmt::Write as _, sync::Arc};

use http::{HeaderValue, Response, header::X_CONTENT_TYPE_OPTIONS};
use parking_lot::Mutex;
use portolan_machinery::rbac::MASTERS;
use portolan_types::Status;
use serde_json::json;

use crate::{
    ApiServer, Body,
    call::Call,
    encode,
    hooks::ReadyCheck,
    routes::{self, Endpoint},
    version::Version,
};

struct Check {
    name: String,
    outcome: Result<(), String>,
    /// What is to be known of it although all is well.
    note: Option<String>,
}

fn checks(api: &ApiServer, endpoint: Endpoint) -> Vec<Check> {
    let own = |name: &str, outcome| Check { name: name.into(), outcome, note: None };
    let mut all = vec![own("ping", Ok(()))];
    let is_asked = |hook: &&Arc<dyn ReadyCheck>| endpoint == Endpoint::Readyz || hook.is_vital();
    if endpoint == Endpoint::Readyz {
        let stopping = if api.stopping.is_cancelled() { Err("process is shutting down".to_owned()) } else { Ok(()) };
        all.push(own("shutdown", stopping));
    }
    let asked = api.config.hooks.ready.iter().filter(is_asked);
    all.extend(asked.map(|hook| Check { name: hook.name().to_owned(), outcome: hook.check(), note: hook.note() }));
    all
}

/// The checks that failed when they were last asked for: each failure is told once in the log, however often it is asked for.
#[derive(Default)]
pub(crate) struct Failing(Mutex<BTreeSet<String>>);

impl Failing {
    fn note(&self, check: &Check) {
        let mut failing = self.0.lock();
        match &check.outcome {
            Err(why) if failing.insert(check.name.clone()) => {
                tracing::warn!(check = %check.name, reason = %why, "a health check fails");
            }
            Ok(()) if failing.remove(&check.name) => {
                tracing::info!(check = %check.name, "a health check is well again")
            }
            Err(_) | Ok(()) => {}
        }
    }
}

/// `/livez`, `/readyz`, `/healthz` and their single checks.
pub(super) fn answer(api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    let what = match call.endpoint {
        Endpoint::Livez => "livez",
        Endpoint::Readyz => "readyz",
        _ => "healthz",
    };
    let mut checks = checks(api, call.endpoint);
    let one = call.captures.name.as_str();
    if !one.is_empty() {
        checks.retain(|check| check.name == one);
        if checks.is_empty() {
            return Err(routes::nothing_at(&call.path));
        }
    }
    let excluded: Vec<&str> = call.query.all("exclude").collect();
    // Reasons are for those who run the server: health is public.
    let may_know = call.identity.user.is_in(MASTERS);
    let mut report = String::new();
    let mut failed = false;
    for check in &checks {
        api.failing.note(check);
        let is_excluded = excluded.contains(&check.name.as_str());
        // Of a check that is asked for alone, upstream counts nothing either.
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
    // As upstream: not where a single check is well.
    if one.is_empty() || failed {
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    Ok(response)
}

/// `/version`.
pub(super) fn version(api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    encode::route(&call.headers, &["application/json"])?;
    let Version { major, minor, .. } = &api.version;
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
        "compiler": Version::COMPILER,
        "platform": Version::platform(),
    })))
}

/// `/metrics`.
pub(super) fn metrics(api: &ApiServer) -> Result<Response<Body>, Status> {
    api.measure_caches();
    Ok(numbers(api.metrics.text()?))
}

/// Numbers as Prometheus reads them.
pub(super) fn numbers(text: String) -> Response<Body> {
    encode::finish(200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", encode::full(text))
}
