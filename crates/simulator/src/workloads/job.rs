//! Job → Pods that run to their end.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use portolan_controllers::{PlaneError, WorkOutcome, plane::PlaneObject};
use serde_json::{Value, json};

use super::{
    SimulatedWorkload,
    children::{ChildKinds, STEP, generate_name, pod_from},
};
use crate::{
    fields::{is_true, list, number, set_condition, text},
    index::{OwnedPods, PodPhase},
};

/// Label and annotation of the index that a pod completes.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Value of `spec.managedBy` for which the Job is this controller's.
const CONTROLLER: &str = "kubernetes.io/job-controller";

pub(super) struct Jobs;

/// The pods of a Job, counted.
#[derive(Clone, Debug, Default)]
struct JobCounts {
    active: i64,
    ready: i64,
    deleting: i64,
    succeeded: i64,
    failed: i64,
    /// For an Indexed Job: the completed indexes, and those that have a pod.
    completed: BTreeSet<i64>,
    taken: BTreeSet<i64>,
}

impl JobCounts {
    fn of(job: &Value, pods: &OwnedPods) -> Self {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let mut counts = Self {
            active: number(pods.active()),
            ready: number(pods.ready),
            deleting: number(pods.deleting),
            succeeded: number(pods.succeeded),
            failed: number(pods.failed),
            ..Self::default()
        };
        if is_indexed(job) {
            for pod in pods.pods().values() {
                let Some(index) = pod.label(INDEX).and_then(|index| index.parse().ok()) else { continue };
                match pod.phase {
                    PodPhase::Succeeded => drop(counts.completed.insert(index)),
                    _ if pod.is_active() => drop(counts.taken.insert(index)),
                    _ => {}
                }
            }
            counts.succeeded = number(counts.completed.len());
        }
        counts
    }

    /// Returns the indexes for which there is no pod, the lowest first.
    fn free_indexes(&self) -> impl Iterator<Item = i64> {
        (0..).filter(|index| !self.completed.contains(index) && !self.taken.contains(index))
    }
}

/// End of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobEnd {
    Complete,
    Failed { reason: &'static str, message: &'static str },
}

fn is_indexed(job: &Value) -> bool {
    text(job, "/spec/completionMode") == "Indexed"
}

fn is_suspended(job: &Value) -> bool {
    job.pointer("/spec/suspend").and_then(Value::as_bool) == Some(true)
}

/// Number of pods that should be active.
fn wanted_active_pods(job: &Value, counts: &JobCounts) -> i64 {
    let parallelism = number(job, "/spec/parallelism").unwrap_or(1);
    match number(job, "/spec/completions") {
        Some(completions) => parallelism.min(completions - counts.succeeded).max(0),
        None if counts.succeeded > 0 => counts.active,
        None => parallelism,
    }
}

async fn start_pods(family: &ChildKinds, job: &PlaneObject, counts: &JobCounts) -> Result<(), PlaneError> {
    let missing = usize::try_from(wanted_active_pods(&job.object, counts) - counts.active).unwrap_or(0);
    for index in counts.free_indexes().take(missing.min(STEP)) {
        let mut pod = pod_from(&job.object, &job.object["spec"]["template"], &[]);
        generate_name(&mut pod, &job.object, &family.plane);
        if is_indexed(&job.object) {
            give_index(&mut pod, index);
        }
        family.create_pod(job, pod).await?;
    }
    Ok(())
}

/// Gives a pod of an Indexed Job its index: as a label, an annotation, the host name, and a variable of its containers.
fn give_index(pod: &mut Value, index: i64) {
    let text = index.to_string();
    for map in ["labels", "annotations"] {
        pod["metadata"][map][INDEX] = text.as_str().into();
    }
    let base = crate::fields::text(pod, "/metadata/ownerReferences/0/name").to_owned();
    pod["metadata"]["name"] = format!("{base}-{index}-{}", tail(pod)).into();
    pod["metadata"]["generateName"] = format!("{base}-{index}-").into();
    pod["spec"]["hostname"] = format!("{base}-{index}").into();
    for containers in ["initContainers", "containers"] {
        for container in pod["spec"][containers].as_array_mut().into_iter().flatten() {
            let from = json!({"fieldRef": {"apiVersion": "v1", "fieldPath": format!("metadata.labels['{INDEX}']")}});
            let variable = json!({"name": "JOB_COMPLETION_INDEX", "valueFrom": from});
            match container["env"].as_array_mut() {
                Some(env) => env.push(variable),
                None => container["env"] = json!([variable]),
            }
        }
    }
}

/// The random part of a generated name.
fn tail(pod: &Value) -> String {
    let name = text(pod, "/metadata/name");
    name.rsplit('-').next().unwrap_or_default().to_owned()
}

fn end(job: &Value, counts: &JobCounts, now: Timestamp) -> Option<JobEnd> {
    let completions = number(job, "/spec/completions");
    let enough = completions.map_or(counts.succeeded > 0 && counts.active == 0, |wanted| counts.succeeded >= wanted);
    let too_many = counts.failed > number(job, "/spec/backoffLimit").unwrap_or(6);
    match (enough, too_many, deadline(job, now)) {
        (true, ..) => Some(JobEnd::Complete),
        (_, true, _) => Some(JobEnd::Failed {
            reason: "BackoffLimitExceeded",
            message: "Job has reached the specified backoff limit",
        }),
        (.., Some(0)) => Some(JobEnd::Failed {
            reason: "DeadlineExceeded",
            message: "Job was active longer than specified deadline",
        }),
        _ => None,
    }
}

/// Seconds until the Job has been active for longer than it may; `None` without a deadline.
fn deadline(job: &Value, now: Timestamp) -> Option<u64> {
    let seconds = number(job, "/spec/activeDeadlineSeconds").filter(|_| !is_suspended(job))?;
    let started: Timestamp = text(job, "/status/startTime").parse().ok()?;
    let left = started.as_second().saturating_add(seconds).saturating_sub(now.as_second());
    Some(u64::try_from(left).unwrap_or(0))
}

/// The condition `Suspended` and `startTime` as kube-controller-manager keeps them: a Job that is suspended has no
/// start, and one that is resumed starts again. Returns the reason of the event, if there is one.
fn suspend(job: &Value, status: &mut Value, conditions: &mut Vec<Value>, now: &str) -> Option<&'static str> {
    let was = conditions.iter().any(|own| text(own, "/type") == "Suspended");
    let is_so = is_true(job, "Suspended");
    match (is_suspended(job), is_so) {
        (true, false) => {
            set_condition(conditions, "Suspended", true, "JobSuspended", "Job suspended", now);
            status["startTime"] = Value::Null;
            Some("Suspended")
        }
        (false, true) if was => {
            set_condition(conditions, "Suspended", false, "JobResumed", "Job resumed", now);
            status["startTime"] = now.into();
            Some("Resumed")
        }
        _ => None,
    }
}

/// Returns the status, and the reason of an event about it.
fn status(job: &Value, counts: &JobCounts, end: Option<JobEnd>, now: &str) -> (Value, Option<&'static str>) {
    let mut conditions = list(job, "/status/conditions").to_vec();
    let started = text(job, "/status/startTime");
    let mut status = json!({
        "startTime": if started.is_empty() && !is_suspended(job) { now } else { started },
        "ready": counts.ready, "uncountedTerminatedPods": {}, "terminating": counts.deleting,
    });
    let event = end.is_none().then(|| suspend(job, &mut status, &mut conditions, now)).flatten();
    for (key, value) in [("active", counts.active), ("succeeded", counts.succeeded), ("failed", counts.failed)] {
        if value > 0 {
            status[key] = value.into();
        }
    }
    if is_indexed(job) && !counts.completed.is_empty() {
        status["completedIndexes"] = ranges(&counts.completed).into();
    }
    match end {
        Some(JobEnd::Complete) => {
            let message = "Reached expected number of succeeded pods";
            set_condition(&mut conditions, "SuccessCriteriaMet", true, "CompletionsReached", message, now);
            set_condition(&mut conditions, "Complete", true, "CompletionsReached", message, now);
            status["completionTime"] = now.into();
        }
        Some(JobEnd::Failed { reason, message }) => {
            set_condition(&mut conditions, "FailureTarget", true, reason, message, now);
            set_condition(&mut conditions, "Failed", true, reason, message, now);
        }
        None => {}
    }
    if text(&status, "/startTime").is_empty()
        && let Some(status) = status.as_object_mut()
    {
        status.remove("startTime");
    }
    if !conditions.is_empty() {
        status["conditions"] = conditions.into();
    }
    (status, event)
}

/// Returns indexes as the API has them, such as `0-2,4`.
fn ranges(indexes: &BTreeSet<i64>) -> String {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let text = |(first, last): &(i64, i64)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

impl SimulatedWorkload for Jobs {
    const NAME: &'static str = "simulated-jobs";
    const PARENT: (&'static str, &'static str) = ("batch", "Job");
    const CHILD: (&'static str, &'static str) = ("", "Pod");

    async fn step(family: &ChildKinds, job: &PlaneObject) -> Result<WorkOutcome, PlaneError> {
        let object = &job.object;
        let manager = text(object, "/spec/managedBy");
        if is_true(object, "Complete") || is_true(object, "Failed") || !["", CONTROLLER].contains(&manager) {
            return Ok(WorkOutcome::Done);
        }
        let counts = || family.pods(job, |pods| JobCounts::of(object, pods));
        let (before, now) = (counts(), family.plane.seams().clock.now());
        let mut end = end(object, &before, now);
        let surplus = if end.is_some() || is_suspended(object) {
            before.active
        } else {
            before.active - wanted_active_pods(object, &before)
        };
        match usize::try_from(surplus) {
            Ok(surplus) if surplus > 0 => {
                // It has not ended before its last pod is being deleted.
                end = end.filter(|_| surplus <= STEP);
                family.delete_pods(family.pods(job, |pods| pods.first_to_delete(surplus.min(STEP)))).await?;
            }
            _ if end.is_none() && !is_suspended(object) => start_pods(family, job, &before).await?,
            _ => {}
        }
        let now_text = family.plane.seams().now_text();
        let (status, event) = status(object, &counts(), end, &now_text);
        family.write_status(&job.key, &status).await?;
        if let Some(reason) = event {
            let message = format!("Job {}", reason.to_lowercase());
            family.note(job, "job-controller", (false, reason, &message)).await?;
        }
        let active_for = status.get("startTime").and(deadline(object, now));
        Ok(active_for.map_or(WorkOutcome::Done, |left| WorkOutcome::RequeueAfter(Duration::from_secs(left.max(1)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspended_job_has_no_start_until_it_is_resumed() {
        let counts = JobCounts::default();
        let written = |suspend: bool, before: &Value, now: &str| {
            status(&json!({"spec": {"suspend": suspend}, "status": before}), &counts, None, now)
        };
        let (suspended, event) = written(true, &Value::Null, "2026-01-01T00:00:00Z");
        assert_eq!((suspended.get("startTime"), event), (None, Some("Suspended")));
        let condition = json!({"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        assert_eq!(suspended["conditions"], json!([condition]));
        assert_eq!(written(true, &suspended, "2026-01-01T00:00:01Z"), (suspended.clone(), None), "written once");
        let (resumed, event) = written(false, &suspended, "2026-01-01T00:00:02Z");
        assert_eq!((&resumed["startTime"], event), (&json!("2026-01-01T00:00:02Z"), Some("Resumed")));
        assert_eq!(
            (&resumed["conditions"][0]["status"], &resumed["conditions"][0]["reason"]),
            (&json!("False"), &json!("JobResumed"))
        );
        let (again, event) = written(true, &resumed, "2026-01-01T00:00:03Z");
        assert_eq!((again.get("startTime"), event), (None, Some("Suspended")));
        let (started, event) = written(false, &Value::Null, "2026-01-01T00:00:00Z");
        assert_eq!((&started["startTime"], event), (&json!("2026-01-01T00:00:00Z"), None));
        assert_eq!(started.get("conditions"), None, "one that never was suspended has no such condition");
    }

    #[test]
    fn indexes_are_written_as_ranges() {
        for (indexes, expected) in [(&[0_i64, 1, 2, 4][..], "0-2,4"), (&[1, 3, 4], "1,3,4"), (&[], "")] {
            assert_eq!(ranges(&indexes.iter().copied().collect()), expected);
        }
    }
}
