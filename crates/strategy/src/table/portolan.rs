//! Portolan's own kinds, and kcp's.

use portolan_types::{object, placement::DEFAULT_MAX_UNAVAILABLE};
use serde_json::Value;

use super::{
    column::{AGE, Column, NAME, NONE, Row, UNKNOWN, flag, number, text},
    format,
};

pub(super) const PHYSICAL_CLUSTER: &[Column] = &[
    NAME,
    text("Ready", "Readiness of its API, and state of its drain.", |row| ready(row).into()),
    text("Version", "Kubernetes version.", |row| row.text_or("/status/version", UNKNOWN).into()),
    flag("Unschedulable", "True if nothing new is placed on it.", |row| row.flag("/spec/unschedulable").into()),
    text("Mode", "Type of connection.", |row| mode(row).into()),
    text(
        "CPU-Used",
        "Requested CPU of the objects that are placed on it, of the amount that its bounds allow.",
        |row| used(row, "cpu").into(),
    ),
    text(
        "Memory-Used",
        "Requested memory of the objects that are placed on it, of the amount that its bounds allow.",
        |row| used(row, "memory").into(),
    ),
    text("Pods", "Pods of the objects that are placed on it, of the number that its bounds allow.", |row| {
        used(row, "pods").into()
    }),
    text("Workloads", "Objects that are placed on it, without those that follow them.", |row| {
        row.at("/status/workloads").map_or_else(|| UNKNOWN.to_owned(), Value::to_string).into()
    }),
    text("Drain", "Objects that its drain has moved, of all that it has to move.", |row| drained(row).into()),
    text("Heartbeat", "Time since the last heartbeat, as of at most a minute ago.", |row| {
        if row.text("/status/heartbeatTime").is_empty() {
            UNKNOWN.into()
        } else {
            row.age("/status/heartbeatTime").into()
        }
    })
    .wide(),
    text("CPU", "Processors of its schedulable nodes.", |row| {
        format::amount(row.at("/status/allocatable/cpu"), UNKNOWN).into()
    })
    .wide(),
    text("Memory", "Memory of its schedulable nodes.", |row| {
        format::amount(row.at("/status/allocatable/memory"), UNKNOWN).into()
    })
    .wide(),
    text("Reason", "Reason that it is not ready or not fully usable.", |row| reason(row).into()).wide(),
    AGE,
];

/// Returns the kind of connection. Descendants of its workspace see it as an annotation, without the connection.
fn mode<'r>(row: &Row<'r>) -> &'r str {
    let modes = ["direct", "tunnel", "simulated"];
    let own = modes.into_iter().find(|mode| row.at(&format!("/spec/connection/{mode}")).is_some());
    own.or_else(|| object::annotation(row.object, "portolan.dev/mode")).unwrap_or(NONE)
}

/// Returns `12/20`, with the phase unless the drain runs: `12/20,Paused`.
fn drained(row: &Row<'_>) -> String {
    let Some(drain) = row.at("/status/drain") else { return NONE.to_owned() };
    let done = format!("{}/{}", drain["done"].as_i64().unwrap_or(0), drain["total"].as_i64().unwrap_or(0));
    match drain["phase"].as_str().unwrap_or_default() {
        "" | "Running" => done,
        phase => format!("{done},{phase}"),
    }
}

/// Returns `5/7`, or `5` without a bound.
fn used(row: &Row<'_>, resource: &str) -> String {
    let amount = |part: &str| row.at(&format!("/status/{part}/{resource}"));
    let used = format::amount(amount("usage"), UNKNOWN);
    match amount("bounds") {
        Some(bound) => format!("{used}/{}", format::amount(Some(bound), UNKNOWN)),
        None => used.to_string(),
    }
}

/// Returns `True`, `False` or `Unknown`; `True,Draining` while it is being deleted.
fn ready(row: &Row<'_>) -> String {
    let ready = row.condition("Ready").unwrap_or("Unknown");
    if object::is_deleting(row.object) { format!("{ready},Draining") } else { ready.to_owned() }
}

/// Returns the reasons of unhealthy conditions.
fn reason(row: &Row<'_>) -> String {
    let is_wrong = |condition: &&Value| match condition["type"].as_str() {
        Some("Ready" | "Drained") => condition["status"] != "True",
        _ => condition["status"] == "True",
    };
    let reasons = row.list("/status/conditions").iter().filter(is_wrong);
    format::or_none(reasons.filter_map(|condition| condition["reason"].as_str()).collect::<Vec<_>>().join(","))
}

pub(super) const PLACEMENT_POLICY: &[Column] = &[
    NAME,
    text("Enforcement", "Default or Constraint.", |row| row.text_or("/spec/enforcement", "Default").into()),
    number("Priority", "The higher one decides.", |row| row.int("/spec/priority").into()),
    number("Matched", "Objects that it decides.", |row| row.int("/status/matched").into()),
    AGE,
];

pub(super) const PLACEMENT: &[Column] = &[
    NAME,
    text("Kind", "Kind of the placed object.", |row| row.text("/spec/object/kind").into()),
    text("Object", "Name of the placed object.", |row| row.text("/spec/object/name").into()),
    text("Clusters", "Physical clusters, with ready replicas of all.", |row| {
        let copies: Vec<String> = row.list("/status/clusters").iter().map(copy).collect();
        format::or_none(copies.join(",")).into()
    }),
    text("Policy", "Policy that decided.", |row| match row.at("/status/policy") {
        None => "<default>".into(),
        Some(_) => policy(row).into(),
    }),
    text("Reason", "Reason of the condition Placed.", |row| placed_condition_field(row, "reason").into()),
    AGE,
    text("Waiting-For", "Condition that its next step waits for.", |row| {
        row.text_or("/status/waitingFor", NONE).into()
    })
    .wide(),
    text("Message", "Message of the condition Placed.", |row| placed_condition_field(row, "message").into()).wide(),
];

pub(super) const DRAIN: &[Column] = &[
    NAME,
    text("Clusters", "Physical clusters that are drained.", |row| {
        let names: Vec<&str> = row.list("/spec/physicalClusters").iter().filter_map(Value::as_str).collect();
        format::or_none(names.join(",")).into()
    }),
    text("Phase", "Phase of the drain.", |row| row.text_or("/status/phase", "Planned").into()),
    text("Moved", "Objects that have left, of all.", |row| {
        format!("{}/{}", row.int("/status/counts/moved"), row.int("/status/counts/total")).into()
    }),
    number("Moving", "Objects under way.", |row| row.int("/status/counts/moving").into()),
    number("Blocked", "Objects that cannot move.", |row| row.int("/status/counts/blocked").into()),
    text("Unavailable", "Replicas that its moves make unavailable, of those that it may.", |row| {
        let most = row.at("/spec/budget/maxUnavailable").and_then(Value::as_i64);
        let most = most.unwrap_or(DEFAULT_MAX_UNAVAILABLE.into());
        format!("{}/{most}", row.int("/status/unavailableReplicas")).into()
    }),
    AGE,
    text("End", "Time of its end, estimated while it runs.", |row| {
        row.text_or("/status/completionTime", row.text_or("/status/estimatedCompletionTime", UNKNOWN)).into()
    })
    .wide(),
    text("Message", "Condition that it waits for, or its result.", |row| drain_message(row).into()).wide(),
];

/// Returns the report of a drain that has ended, or else the message of the condition that holds it up.
fn drain_message(row: &Row<'_>) -> String {
    let conditions = row.list("/status/conditions").iter();
    let holds_up = |condition: &&Value| match condition["type"].as_str() {
        Some("Accepted") => condition["status"] == "False",
        _ => condition["status"] == "True",
    };
    let held_up = conditions.filter(holds_up).find_map(|condition| condition["message"].as_str());
    let report = Some(row.text("/status/report/summary")).filter(|summary| !summary.is_empty());
    format::or_none(report.or(held_up).unwrap_or_default().to_owned())
}

/// Returns a field of the condition `Placed`.
fn placed_condition_field(row: &Row<'_>, field: &str) -> String {
    let placed = row.list("/status/conditions").iter().find(|condition| condition["type"] == "Placed");
    format::or_none(placed.and_then(|condition| condition[field].as_str()).unwrap_or_default().to_owned())
}

/// `east(2/3)` if pods are counted; `east` if they are not and the copy is healthy; `east(Pending)`, `east(Conflict)`,
/// `east(2/3,leaving)`.
fn copy(copy: &Value) -> String {
    let number = |field: &str| copy[field].as_i64();
    let ready = number("ready").unwrap_or(0);
    let mut words: Vec<String> = Vec::new();
    words.extend(number("desired").or(number("replicas")).map(|all| format!("{ready}/{all}")));
    match copy["reason"].as_str().unwrap_or_default() {
        "" if words.is_empty() && ready == 0 => words.push("Pending".into()),
        "" => {}
        reason => words.push(reason.into()),
    }
    words.extend(copy["phase"].as_str().filter(|phase| !matches!(*phase, "" | "Active")).map(str::to_lowercase));
    let name = copy["name"].as_str().unwrap_or_default();
    if words.is_empty() { name.to_owned() } else { format!("{name}({})", words.join(",")) }
}

fn policy(row: &Row<'_>) -> String {
    let place = match row.text("/status/policy/namespace") {
        "" => String::new(),
        namespace => format!("{namespace}/"),
    };
    format!("{}:{place}{}", row.text("/status/policy/workspace"), row.text("/status/policy/name"))
}

pub(super) const WORKSPACE: &[Column] = &[
    NAME,
    text("Type", "Type of the workspace.", |row| row.text_or("/spec/type/name", NONE).into()),
    text("Region", "Label `region` of the workspace.", |row| {
        object::label(row.object, "region").unwrap_or_default().into()
    }),
    text("Phase", "Phase.", |row| row.text("/status/phase").into()),
    text("URL", "URL.", |row| row.text("/spec/URL").into()).wide(),
    AGE,
];

pub(super) const LOGICAL_CLUSTER: &[Column] = &[
    NAME,
    text("Phase", "Phase.", |row| row.text("/status/phase").into()),
    text("URL", "URL.", |row| row.text("/status/URL").into()).wide(),
    AGE,
];
