//! Job → Pods that run to their end.

use portolan_controllers::{Outcome, PlaneError, plane::Found};
use serde_json::{Value, json};

use super::{
    Workload,
    children::{Family, generate_name, is_active, is_ready, pod_from},
};
use crate::fields::{is_true, list, number, set_condition, text};

pub(super) struct Jobs;

/// The pods of a Job, counted.
struct Counts {
    active: i64,
    ready: i64,
    succeeded: i64,
    failed: i64,
}

impl Counts {
    fn of(pods: &[Found]) -> Self {
        let count = |test: &dyn Fn(&Value) -> bool| {
            i64::try_from(pods.iter().filter(|pod| test(&pod.object)).count()).unwrap_or(i64::MAX)
        };
        Self {
            active: count(&is_active),
            ready: count(&is_ready),
            succeeded: count(&|pod| text(pod, "/status/phase") == "Succeeded"),
            failed: count(&|pod| text(pod, "/status/phase") == "Failed"),
        }
    }
}

/// How a Job ended.
enum End {
    Complete,
    Failed,
}

async fn start_pods(family: &Family, job: &Found, counts: &Counts) -> Result<(), PlaneError> {
    let parallelism = number(&job.object, "/spec/parallelism").unwrap_or(1);
    let wanted = match number(&job.object, "/spec/completions") {
        Some(completions) => parallelism.min(completions - counts.succeeded),
        None if counts.succeeded > 0 => 0,
        None => parallelism,
    };
    for _ in counts.active..wanted {
        let mut pod = pod_from(&job.object, &job.object["spec"]["template"], &[]);
        generate_name(&mut pod, &job.object, &family.plane);
        family.create(job, pod).await?;
    }
    Ok(())
}

fn end(job: &Value, counts: &Counts) -> Option<End> {
    let completions = number(job, "/spec/completions");
    let enough = completions.map_or(counts.succeeded > 0 && counts.active == 0, |wanted| counts.succeeded >= wanted);
    let too_many = counts.failed > number(job, "/spec/backoffLimit").unwrap_or(6);
    match (enough, too_many) {
        (true, _) => Some(End::Complete),
        (_, true) => Some(End::Failed),
        _ => None,
    }
}

fn status(job: &Value, counts: &Counts, end: Option<&End>, now: &str) -> Value {
    let mut conditions = list(job, "/status/conditions").to_vec();
    let started = text(job, "/status/startTime");
    let mut status = json!({
        "startTime": if started.is_empty() { now } else { started },
        "ready": counts.ready, "uncountedTerminatedPods": {}, "terminating": 0,
    });
    for (key, value) in [("active", counts.active), ("succeeded", counts.succeeded), ("failed", counts.failed)] {
        if value > 0 {
            status[key] = value.into();
        }
    }
    match end {
        Some(End::Complete) => {
            let message = "Reached expected number of succeeded pods";
            set_condition(&mut conditions, "SuccessCriteriaMet", true, "CompletionsReached", message, now);
            set_condition(&mut conditions, "Complete", true, "CompletionsReached", message, now);
            status["completionTime"] = now.into();
        }
        Some(End::Failed) => {
            let message = "Job has reached the specified backoff limit";
            set_condition(&mut conditions, "FailureTarget", true, "BackoffLimitExceeded", message, now);
            set_condition(&mut conditions, "Failed", true, "BackoffLimitExceeded", message, now);
        }
        None => {}
    }
    if !conditions.is_empty() {
        status["conditions"] = conditions.into();
    }
    status
}

impl Workload for Jobs {
    const NAME: &'static str = "simulated-jobs";
    const PARENT: (&'static str, &'static str) = ("batch", "Job");
    const CHILD: (&'static str, &'static str) = ("", "Pod");

    async fn step(family: &Family, job: &Found) -> Result<Outcome, PlaneError> {
        if is_true(&job.object, "Complete") || is_true(&job.object, "Failed") {
            return Ok(Outcome::Done);
        }
        let pods = family.children(job).await?;
        let counts = Counts::of(&pods);
        let end = end(&job.object, &counts);
        let suspended = job.object.pointer("/spec/suspend").and_then(Value::as_bool) == Some(true);
        if suspended || end.is_some() {
            for pod in pods.iter().filter(|pod| is_active(&pod.object)) {
                family.delete(pod).await?;
            }
        } else {
            start_pods(family, job, &counts).await?;
        }
        let now = family.plane.seams().now_text();
        family.write_status(&job.key, &status(&job.object, &counts, end.as_ref(), &now)).await?;
        Ok(Outcome::Done)
    }
}
