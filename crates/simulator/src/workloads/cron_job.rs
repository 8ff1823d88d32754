//! CronJob → Jobs, in time.

use std::time::Duration;

use jiff::Timestamp;
use portolan_controllers::{PlaneError, WorkOutcome, plane::PlaneObject};
use portolan_types::{object, seams::seconds_text};
use serde_json::{Value, json};

use super::{SimulatedWorkload, children::ChildKinds};
use crate::{
    fields::{controller_ref, is_true, number, text},
    schedule::Schedule,
};

pub(super) struct CronJobs;

async fn start(family: &ChildKinds, cron: &PlaneObject, at: Timestamp) -> Result<(), PlaneError> {
    let template = &cron.object["spec"]["jobTemplate"];
    let mut metadata = template.get("metadata").cloned().unwrap_or_else(|| json!({}));
    metadata["name"] = format!("{}-{}", object::name(&cron.object), at.as_second() / 60).into();
    metadata["namespace"] = object::namespace(&cron.object).into();
    metadata["ownerReferences"] = json!([controller_ref(&cron.object)]);
    metadata["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"] = seconds_text(at).into();
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]});
    family.create(cron, job).await
}

async fn tidy(family: &ChildKinds, cron: &Value, jobs: &[PlaneObject]) -> Result<(), PlaneError> {
    for (condition, limit, default) in
        [("Complete", "/spec/successfulJobsHistoryLimit", 3), ("Failed", "/spec/failedJobsHistoryLimit", 1)]
    {
        let mut ended: Vec<&PlaneObject> = jobs.iter().filter(|job| is_true(&job.object, condition)).collect();
        ended.sort_by_key(|job| job.revision);
        let keep = usize::try_from(number(cron, limit).unwrap_or(default)).unwrap_or(0);
        let spare = ended.len().saturating_sub(keep);
        for job in ended.into_iter().take(spare) {
            family.delete(job).await?;
        }
    }
    Ok(())
}

/// Returns the latest due time that has not run, and the next one.
fn due(cron: &Value, now: Timestamp) -> Option<(Option<Timestamp>, Timestamp)> {
    let schedule = Schedule::parse(text(cron, "/spec/schedule"))?;
    let since = [text(cron, "/status/lastScheduleTime"), object::meta_text(cron, "creationTimestamp")];
    let since: Timestamp = since.iter().find_map(|text| text.parse().ok())?;
    let (mut latest, mut next) = (None, schedule.next_after(since)?);
    // Missed times are not made up for, as in Kubernetes: only the last one runs. A day of minutes is enough to find
    // it.
    for _ in 0..1440 {
        if next > now {
            break;
        }
        latest = Some(next);
        next = schedule.next_after(next)?;
    }
    Some((latest, next))
}

/// Returns true when a Job that was due at a time may not start any more.
fn is_too_late(cron: &Value, due: Timestamp, now: Timestamp) -> bool {
    let deadline = number(cron, "/spec/startingDeadlineSeconds");
    deadline.is_some_and(|seconds| due.as_second().saturating_add(seconds) < now.as_second())
}

/// Returns when the last Job succeeded, according to the status and the Jobs that still exist.
fn last_success(cron: &Value, jobs: &[PlaneObject]) -> Option<String> {
    let ended = jobs.iter().filter(|job| is_true(&job.object, "Complete"));
    let known = std::iter::once(text(cron, "/status/lastSuccessfulTime"));
    // Times of one form and zone are ordered as texts are.
    let last = ended.map(|job| text(&job.object, "/status/completionTime")).chain(known).max();
    last.filter(|at| !at.is_empty()).map(str::to_owned)
}

impl SimulatedWorkload for CronJobs {
    const NAME: &'static str = "simulated-cronjobs";
    const PARENT: (&'static str, &'static str) = ("batch", "CronJob");
    const CHILD: (&'static str, &'static str) = ("batch", "Job");

    async fn step(family: &ChildKinds, cron: &PlaneObject) -> Result<WorkOutcome, PlaneError> {
        let jobs = family.children(cron).await?;
        tidy(family, &cron.object, &jobs).await?;
        let now = family.plane.seams().clock.now();
        let Some((latest, next)) = due(&cron.object, now) else { return Ok(WorkOutcome::Done) };
        let ended = |job: &&PlaneObject| is_true(&job.object, "Complete") || is_true(&job.object, "Failed");
        let active: Vec<&PlaneObject> = jobs.iter().filter(|job| !ended(job)).collect();
        let suspended = cron.object.pointer("/spec/suspend").and_then(Value::as_bool) == Some(true);
        let latest = latest.filter(|at| !is_too_late(&cron.object, *at, now));
        let policy = text(&cron.object, "/spec/concurrencyPolicy");
        let mut status = cron.object.get("status").cloned().unwrap_or_else(|| json!({}));
        if let Some(at) = latest.filter(|_| !suspended && (policy != "Forbid" || active.is_empty())) {
            if policy == "Replace" {
                for job in &active {
                    family.delete(job).await?;
                }
            }
            start(family, cron, at).await?;
            status["lastScheduleTime"] = seconds_text(at).into();
        }
        let reference = |job: &&PlaneObject| {
            json!({"apiVersion": "batch/v1", "kind": "Job", "name": object::name(&job.object),
                   "namespace": object::namespace(&job.object), "uid": object::meta_text(&job.object, "uid")})
        };
        if let Some(at) = last_success(&cron.object, &jobs) {
            status["lastSuccessfulTime"] = at.into();
        }
        status["active"] = active.iter().map(reference).collect();
        family.write_status(&cron.key, &status).await?;
        let wait = next.duration_since(now).as_secs().clamp(1, 3600);
        Ok(WorkOutcome::RequeueAfter(Duration::from_secs(wait.unsigned_abs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_start_past_its_deadline_is_skipped() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let cron = json!({"spec": {"startingDeadlineSeconds": 60}});
        for (now, expected) in [("2026-01-01T00:01:00Z", false), ("2026-01-01T00:01:01Z", true)] {
            assert_eq!(is_too_late(&cron, at("2026-01-01T00:00:00Z"), at(now)), expected, "{now}");
        }
        assert!(!is_too_late(&json!({}), at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z")));
    }

    #[test]
    fn only_the_last_missed_time_is_due() {
        let cron = json!({
            "metadata": {"creationTimestamp": "2026-01-01T00:00:30Z"}, "spec": {"schedule": "*/5 * * * *"},
        });
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let due_at = |now: &str| due(&cron, at(now));
        assert_eq!(due_at("2026-01-01T00:04:00Z"), Some((None, at("2026-01-01T00:05:00Z"))));
        let late = Some((Some(at("2026-01-01T00:15:00Z")), at("2026-01-01T00:20:00Z")));
        assert_eq!(due_at("2026-01-01T00:17:00Z"), late);
    }
}
