//! Pods: the status column sums up phase, conditions and containers.

use serde_json::{Value, json};

use super::{
    age,
    column::{AGE, CLUSTERS, Column, NAME, NONE, Row, text},
};

pub(super) const POD: &[Column] = &[
    NAME,
    text("Ready", "Containers that are ready, of all.", |row| Summary::of(row).ready.into()),
    text("Status", "Phase, or the reason that the pod does not run.", |row| Summary::of(row).reason.into()),
    text("Restarts", "How often containers were restarted, and when last.", |row| {
        Summary::of(row).restarts(row).into()
    }),
    AGE,
    text("IP", "First address of the pod.", |row| row.text_or("/status/podIPs/0/ip", NONE).into()).wide(),
    text("Node", "Node that the pod runs on.", |row| row.text_or("/spec/nodeName", NONE).into()).wide(),
    text("Nominated Node", "Node where room is being made for the pod.", |row| {
        row.text_or("/status/nominatedNodeName", NONE).into()
    })
    .wide(),
    text("Readiness Gates", "Further conditions that hold, of all that must.", |row| readiness_gates(row).into())
        .wide(),
    CLUSTERS,
];

/// Conditions of the row: pods that have run to their end.
pub(super) fn row_conditions(object: &Value) -> Option<Value> {
    let (reason, message) = match object.pointer("/status/phase").and_then(Value::as_str)? {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}

struct Summary {
    ready: String,
    reason: String,
    restarts: i64,
    /// The latest end of a container that was restarted; empty if none was.
    last_restart: String,
}

/// The state of one container, as the summary needs it.
#[derive(Clone, Copy)]
struct Container<'a>(&'a Value);

impl<'a> Container<'a> {
    fn restarts(self) -> i64 {
        self.0["restartCount"].as_i64().unwrap_or(0)
    }

    fn last_end(self) -> &'a str {
        self.0.pointer("/lastState/terminated/finishedAt").and_then(Value::as_str).unwrap_or_default()
    }

    fn is_ready(self) -> bool {
        self.0["ready"] == true
    }

    fn is_running(self) -> bool {
        self.0["state"]["running"].is_object()
    }

    fn waiting(self) -> Option<&'a str> {
        self.0["state"]["waiting"]["reason"].as_str().filter(|reason| !reason.is_empty())
    }

    fn terminated(self) -> Option<&'a Value> {
        Some(&self.0["state"]["terminated"]).filter(|state| state.is_object())
    }
}

fn exit_code(terminated: &Value) -> i64 {
    terminated["exitCode"].as_i64().unwrap_or(0)
}

/// Returns the reason why a container ended: its own word, else signal or exit code.
fn end_reason(terminated: &Value) -> String {
    let signal = terminated["signal"].as_i64().unwrap_or(0);
    match terminated["reason"].as_str().unwrap_or_default() {
        "" if signal != 0 => format!("Signal:{signal}"),
        "" => format!("ExitCode:{}", exit_code(terminated)),
        reason => reason.to_owned(),
    }
}

/// Counts of containers, while they are walked through.
#[derive(Default)]
struct Count {
    ready: usize,
    restarts: i64,
    last_restart: String,
}

impl Count {
    fn restarted(&mut self, container: Container<'_>) {
        self.restarts += container.restarts();
        // Timestamps of one form sort as text.
        if self.last_restart.as_str() < container.last_end() {
            self.last_restart = container.last_end().to_owned();
        }
    }
}

impl Summary {
    fn of(row: &Row<'_>) -> Self {
        let sidecars: Vec<&str> = row
            .list("/spec/initContainers")
            .iter()
            .filter(|container| container["restartPolicy"] == "Always")
            .filter_map(|container| container["name"].as_str())
            .collect();
        let total = row.list("/spec/containers").len() + sidecars.len();
        let (initializing, sidecar_count, init_count) = initialization(row, &sidecars);
        let (mut count, mut reason) = (sidecar_count, phase_reason(row));
        match initializing {
            Some(blocked) if row.condition("Initialized") != Some("True") => {
                reason = blocked;
                count.restarts = init_count.restarts;
                count.last_restart = init_count.last_restart;
            }
            blocked => reason = running(row, blocked.unwrap_or(reason), &mut count),
        }
        if row.is_deleting() {
            let ended = ["Failed", "Succeeded"].contains(&row.text("/status/phase"));
            if row.text("/status/reason") == "NodeLost" {
                reason = "Unknown".into();
            } else if !ended {
                reason = "Terminating".into();
            }
        }
        let ready = format!("{}/{total}", count.ready);
        Self { ready, reason, restarts: count.restarts, last_restart: count.last_restart }
    }

    fn restarts(&self, row: &Row<'_>) -> String {
        match (self.restarts, self.last_restart.as_str()) {
            (0, _) | (_, "") => self.restarts.to_string(),
            (restarts, last) => format!("{restarts} ({} ago)", age::since(last, row.now)),
        }
    }
}

fn phase_reason(row: &Row<'_>) -> String {
    let gated = |c: &Value| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated";
    if row.list("/status/conditions").iter().any(gated) {
        "SchedulingGated".into()
    } else {
        row.first_text(&["/status/reason", "/status/phase"]).into()
    }
}

/// Walks through the init containers up to the first that is not done. Returns its reason, the counts of sidecars, and
/// the counts of all.
fn initialization(row: &Row<'_>, sidecars: &[&str]) -> (Option<String>, Count, Count) {
    let (mut sidecar_count, mut all) = (Count::default(), Count::default());
    for (at, status) in row.list("/status/initContainerStatuses").iter().enumerate() {
        let container = Container(status);
        let is_sidecar = status["name"].as_str().is_some_and(|name| sidecars.contains(&name));
        all.restarted(container);
        if is_sidecar {
            sidecar_count.restarted(container);
        }
        let blocked = match container.terminated() {
            Some(end) if exit_code(end) == 0 => continue,
            _ if is_sidecar && status["started"] == true => {
                sidecar_count.ready += usize::from(container.is_ready());
                continue;
            }
            Some(end) => end_reason(end),
            None => match container.waiting().filter(|reason| *reason != "PodInitializing") {
                Some(reason) => reason.to_owned(),
                None => format!("{at}/{}", row.list("/spec/initContainers").len()),
            },
        };
        return (Some(format!("Init:{blocked}")), sidecar_count, all);
    }
    (None, sidecar_count, all)
}

/// Sums up the containers of an initialized pod. The first container with a reason decides.
fn running(row: &Row<'_>, phase: String, count: &mut Count) -> String {
    let (mut reason, mut error, mut has_running) = (phase, None, false);
    for status in row.list("/status/containerStatuses").iter().rev() {
        let container = Container(status);
        count.restarted(container);
        if let Some(waiting) = container.waiting() {
            reason = waiting.to_owned();
        } else if let Some(end) = container.terminated() {
            reason = end_reason(end);
            if exit_code(end) != 0 {
                error = Some(reason.clone());
            }
        } else if container.is_ready() && container.is_running() {
            has_running = true;
            count.ready += 1;
        }
    }
    match (reason.as_str(), error) {
        ("Completed", _) if has_running && row.condition("Ready") == Some("True") => "Running".into(),
        ("Completed", Some(error)) => error,
        ("Completed", None) if has_running => "NotReady".into(),
        _ => reason,
    }
}

fn readiness_gates(row: &Row<'_>) -> String {
    let gates = row.list("/spec/readinessGates");
    let holds = |gate: &&Value| gate["conditionType"].as_str().and_then(|kind| row.condition(kind)) == Some("True");
    match gates.len() {
        0 => NONE.into(),
        all => format!("{}/{all}", gates.iter().filter(holds).count()),
    }
}
