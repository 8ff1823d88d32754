//! Tables of workloads.

use serde_json::Value;

use super::{
    age,
    column::{AGE, CLUSTERS, Column, NAME, NONE, Row, UNSET, flag, number, text},
    format,
};

macro_rules! template_columns {
    ($template:literal) => {
        [
            text("Containers", "Names of the containers.", |row| {
                format::column_of(row.list(concat!($template, "/spec/containers")), "name").into()
            })
            .wide(),
            text("Images", "Images of the containers.", |row| {
                format::column_of(row.list(concat!($template, "/spec/containers")), "image").into()
            })
            .wide(),
        ]
    };
}

const OWN: [Column; 2] = template_columns!("/spec/template");
const OF_CRON_JOB: [Column; 2] = template_columns!("/spec/jobTemplate/spec/template");

const SELECTOR: Column =
    text("Selector", "Labels of its pods.", |row| format::selector(row.at("/spec/selector")).into()).wide();
const DESIRED: Column = number("Desired", "Replicas that are wanted.", |row| row.int("/spec/replicas").into());
const CURRENT: Column = number("Current", "Replicas that there are.", |row| row.int("/status/replicas").into());
const READY: Column = number("Ready", "Replicas that are ready.", |row| row.int("/status/readyReplicas").into());
const READY_OF_ALL: Column = text("Ready", "Replicas that are ready, of those wanted.", |row| {
    format!("{}/{}", row.int("/status/readyReplicas"), row.int("/spec/replicas")).into()
});

pub(super) const DEPLOYMENT: &[Column] = &[
    NAME,
    READY_OF_ALL,
    text("Up-to-date", "Replicas of the latest template.", |row| row.int("/status/updatedReplicas").into()),
    text("Available", "Replicas that have been ready for long enough.", |row| {
        row.int("/status/availableReplicas").into()
    }),
    AGE,
    OWN[0],
    OWN[1],
    text("Selector", "Labels of its pods.", |row| format::selector_of_deployment(row.at("/spec/selector")).into())
        .wide(),
    CLUSTERS,
];

pub(super) const REPLICA_SET: &[Column] = &[NAME, DESIRED, CURRENT, READY, AGE, OWN[0], OWN[1], SELECTOR, CLUSTERS];

pub(super) const REPLICATION_CONTROLLER: &[Column] = &[
    NAME,
    DESIRED,
    CURRENT,
    READY,
    AGE,
    OWN[0],
    OWN[1],
    text("Selector", "Labels of its pods.", |row| format::labels(row.at("/spec/selector")).into()).wide(),
    CLUSTERS,
];

pub(super) const STATEFUL_SET: &[Column] = &[NAME, READY_OF_ALL, AGE, OWN[0], OWN[1], CLUSTERS];

pub(super) const DAEMON_SET: &[Column] = &[
    NAME,
    number("Desired", "Nodes that should run a pod.", |row| row.int("/status/desiredNumberScheduled").into()),
    number("Current", "Nodes that run a pod.", |row| row.int("/status/currentNumberScheduled").into()),
    number("Ready", "Nodes whose pod is ready.", |row| row.int("/status/numberReady").into()),
    number("Up-to-date", "Nodes whose pod is of the latest template.", |row| {
        row.int("/status/updatedNumberScheduled").into()
    }),
    number("Available", "Nodes whose pod has been ready for long enough.", |row| {
        row.int("/status/numberAvailable").into()
    }),
    text("Node Selector", "Labels of the nodes.", |row| {
        format::labels(row.at("/spec/template/spec/nodeSelector")).into()
    }),
    AGE,
    OWN[0],
    OWN[1],
    SELECTOR,
    CLUSTERS,
];

pub(super) const JOB: &[Column] = &[
    NAME,
    text("Status", "State of the job.", |row| job_status(row).into()),
    text("Completions", "Pods that succeeded, of those wanted.", |row| completions(row).into()),
    text("Duration", "Time from start to completion, or until now.", |row| duration(row).into()),
    AGE,
    OWN[0],
    OWN[1],
    SELECTOR,
    CLUSTERS,
];

pub(super) const CRON_JOB: &[Column] = &[
    NAME,
    text("Schedule", "Schedule in cron format.", |row| row.text("/spec/schedule").into()),
    text("Timezone", "Time zone of the schedule.", |row| row.given_or("/spec/timeZone", NONE).into()),
    flag("Suspend", "True if no further jobs start.", |row| match row.at("/spec/suspend").and_then(Value::as_bool) {
        Some(true) => "True".into(),
        Some(false) => "False".into(),
        None => UNSET.into(),
    }),
    number("Active", "Jobs that are running.", |row| row.list("/status/active").len().into()),
    text("Last Schedule", "Time since the last job started.", |row| match row.at("/status/lastScheduleTime") {
        Some(_) => row.age("/status/lastScheduleTime").into(),
        None => NONE.into(),
    }),
    AGE,
    OF_CRON_JOB[0],
    OF_CRON_JOB[1],
    text("Selector", "Labels of the pods of its jobs.", |row| {
        format::selector(row.at("/spec/jobTemplate/spec/selector")).into()
    })
    .wide(),
    CLUSTERS,
];

pub(super) const POD_TEMPLATE: &[Column] = &[
    NAME,
    text("Containers", "Names of the containers.", |row| {
        format::column_of(row.list("/template/spec/containers"), "name").into()
    }),
    text("Images", "Images of the containers.", |row| {
        format::column_of(row.list("/template/spec/containers"), "image").into()
    }),
    text("Pod Labels", "Labels of the template.", |row| format::labels(row.at("/template/metadata/labels")).into()),
];

pub(super) const CONTROLLER_REVISION: &[Column] = &[
    NAME,
    text("Controller", "Owner of the revision.", |row| controller(row).into()),
    text("Revision", "Number of the revision.", |row| row.int("/revision").into()),
    AGE,
];

fn job_status(row: &Row<'_>) -> &'static str {
    let holds = |kind: &str| row.condition(kind) == Some("True");
    match () {
        () if holds("Complete") => "Complete",
        () if holds("Failed") => "Failed",
        () if row.is_deleting() => "Terminating",
        () if holds("Suspended") => "Suspended",
        () if holds("FailureTarget") => "FailureTarget",
        () if holds("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

fn completions(row: &Row<'_>) -> String {
    let succeeded = row.int("/status/succeeded");
    match (row.at("/spec/completions").and_then(Value::as_i64), row.int("/spec/parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn duration(row: &Row<'_>) -> String {
    match (row.text("/status/startTime"), row.text("/status/completionTime")) {
        ("", _) => String::new(),
        (start, "") => age::since(start, row.now),
        (start, end) => age::between(start, end),
    }
}

fn controller(row: &Row<'_>) -> String {
    let Some(owner) = portolan_types::object::controller_of(row.object) else { return NONE.into() };
    let text = |key: &str| owner[key].as_str().unwrap_or_default();
    let group = text("apiVersion").split_once('/').map(|(group, _)| format!(".{group}")).unwrap_or_default();
    format!("{}/{}", format!("{}{group}", text("kind")).to_lowercase(), text("name"))
}
