//! Expiry of ended Jobs by `ttlSecondsAfterFinished`, as in kube-controller-manager. It is done here and not on
//! physical clusters, whose copies lack the field: it would end the copy alone.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use portolan_strategy::lifecycle::Propagation;
use portolan_types::{object, placement::PlacementRecord};
use serde_json::Value;

use super::ExpiryRule;

/// Rule of ended Jobs.
pub const ENDED_JOBS: ExpiryRule = ExpiryRule {
    name: "ended-jobs",
    of: ("batch", "v1", "Job"),
    ends,
    propagation: Some(Propagation::Foreground),
    only_lengthens: false,
    round: Duration::ZERO,
};

/// Returns when a Job expires. `None` while it runs, for one that stays or is being deleted, and for one that a
/// physical cluster shows: it expires there.
fn ends(job: &Value, _: Timestamp) -> Option<Timestamp> {
    if object::is_deleting(job) || PlacementRecord::of(job).is_some_and(|record| record.is_projected()) {
        return None;
    }
    let stays = job.pointer("/spec/ttlSecondsAfterFinished")?.as_i64()?;
    let ended: Timestamp = object::end_of_job(job)?.get("lastTransitionTime")?.as_str()?.parse().ok()?;
    ended.saturating_add(SignedDuration::from_secs(stays)).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_kinds::KindTable;
    use portolan_types::{
        LogicalClusterId, Seams,
        placement::{CopyPhase, PlacedCopy},
    };
    use serde_json::json;

    use super::*;
    use crate::{Controller as _, Plane, WorkOutcome, expiry::ExpiryController};

    fn job(stays: Value, conditions: &Value) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once", "namespace": "default"},
            "spec": {"ttlSecondsAfterFinished": stays, "template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
            "status": {"conditions": conditions}})
    }

    fn condition(kind: &str, status: &str) -> Value {
        json!([{"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": "2026-01-01T11:00:00Z"},
            {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T12:00:00Z"}])
    }

    #[test]
    fn a_job_goes_some_time_after_its_end() {
        let mut going = job(json!(0), &condition("Complete", "True"));
        object::metadata_mut(&mut going).insert("deletionTimestamp".into(), json!("2026-01-01T12:00:00Z"));
        let mut shown = job(json!(0), &condition("Complete", "True"));
        let below = PlacedCopy {
            name: "east".into(),
            uid: "e-1".parse().unwrap(),
            phase: CopyPhase::Projected,
            replicas: None,
            epoch: 0,
        };
        PlacementRecord { clusters: vec![below], ..PlacementRecord::default() }.write_to(&mut shown);
        for (case, job, expected) in [
            ("one that a physical cluster has made", shown, None),
            ("one that is complete", job(json!(90), &condition("Complete", "True")), Some("2026-01-01T12:01:30Z")),
            ("one that failed, at once", job(json!(0), &condition("Failed", "True")), Some("2026-01-01T12:00:00Z")),
            ("one that stays for good", job(Value::Null, &condition("Complete", "True")), None),
            ("one that is about to end", job(json!(0), &condition("FailureTarget", "True")), None),
            ("one that has not ended", job(json!(0), &condition("Complete", "False")), None),
            ("one that runs", job(json!(0), &json!([])), None),
            ("one that is going", going, None),
        ] {
            assert_eq!(ends(&job, Timestamp::UNIX_EPOCH), expected.map(|at| at.parse().unwrap()), "{case}");
        }
    }

    #[tokio::test]
    async fn an_ended_job_goes_in_the_foreground_when_its_time_is_over() {
        let store = portolan_store::memory();
        let jobs = |now: &str| {
            let seams = Seams::seeded(1, now.parse().unwrap());
            ExpiryController::new(Arc::new(Plane::new(store.clone(), KindTable::builtin(), seams)), ENDED_JOBS)
        };
        let (early, late) = (jobs("2026-01-01T12:00:30Z"), jobs("2026-01-01T12:01:30Z"));
        let ended = job(json!(90), &condition("Complete", "True"));
        let key = early.plane.create(early.kind, LogicalClusterId::ROOT, ended).await.unwrap().unwrap().key;
        assert_eq!(early.reconcile(&key).await.unwrap(), WorkOutcome::RequeueAfter(Duration::from_secs(60)));
        assert!(!object::is_deleting(&early.plane.get(&key).await.unwrap().unwrap().object));
        assert_eq!(late.reconcile(&key).await.unwrap(), WorkOutcome::Done);
        let going = late.plane.get(&key).await.unwrap().unwrap().object;
        assert!(object::is_deleting(&going));
        assert_eq!(object::finalizers(&going).collect::<Vec<_>>(), ["foregroundDeletion"]);
        assert_eq!(late.reconcile(&key).await.unwrap(), WorkOutcome::Done, "once");
    }
}
