//! The condition `Progressing` of a Deployment, as kube-controller-manager's deployment controller keeps it. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::fields::{list, number, text};

/// Default of `spec.progressDeadlineSeconds`.
const DEADLINE_SECONDS: i64 = 600;
/// A value that means that there is no deadline.
const NO_DEADLINE: i64 = i32::MAX as i64;

/// Progress of a Deployment towards its new ReplicaSet.
pub(super) struct RolloutProgress<'a> {
    pub(super) deployment: &'a Value,
    /// The status that is to be written, without conditions.
    pub(super) status: &'a Value,
    /// Name of the new ReplicaSet, where there is one.
    pub(super) set: Option<&'a str>,
    pub(super) now: Timestamp,
    /// The same time as the API writes it.
    pub(super) now_text: &'a str,
}

impl RolloutProgress<'_> {
    fn deadline(&self) -> Option<i64> {
        let seconds = number(self.deployment, "/spec/progressDeadlineSeconds").unwrap_or(DEADLINE_SECONDS);
        (seconds != NO_DEADLINE).then_some(seconds)
    }

    fn progressing_condition(&self) -> Option<&Value> {
        list(self.deployment, "/status/conditions").iter().find(|own| text(own, "/type") == "Progressing")
    }

    /// Returns the condition, and the seconds until the deadline while it runs.
    pub(super) fn condition(&self) -> (Option<Value>, Option<u64>) {
        let Some(deadline) = self.deadline() else { return (None, None) };
        let known = self.progressing_condition();
        let was = known.map_or("", |own| text(own, "/reason"));
        let is = |field: &str| number(self.status, &format!("/{field}")).unwrap_or(0);
        let keep = || known.cloned();
        if self.deployment.pointer("/spec/paused").and_then(Value::as_bool) == Some(true) {
            let stays = ["DeploymentPaused", "ProgressDeadlineExceeded"].contains(&was);
            let paused = || self.new_condition("Unknown", "DeploymentPaused", "Deployment is paused".into());
            return (if stays { keep() } else { Some(paused()) }, None);
        }
        if was == "NewReplicaSetAvailable" && is("replicas") == is("updatedReplicas") {
            return (keep(), None);
        }
        let name = self.set.unwrap_or_default();
        if self.is_complete() {
            let message = format!("ReplicaSet \"{name}\" has successfully progressed.");
            return (Some(self.new_condition("True", "NewReplicaSetAvailable", message)), None);
        }
        if known.is_none() || self.is_moving() {
            let message = format!("ReplicaSet \"{name}\" is progressing.");
            return (
                Some(self.new_condition("True", "ReplicaSetUpdated", message)),
                Some(u64::try_from(deadline).unwrap_or(0)),
            );
        }
        if was == "DeploymentPaused" {
            let resumed = self.new_condition("Unknown", "DeploymentResumed", "Deployment is resumed".into());
            return (Some(resumed), Some(u64::try_from(deadline).unwrap_or(0)));
        }
        let since = known.and_then(|own| text(own, "/lastUpdateTime").parse::<Timestamp>().ok()).unwrap_or(self.now);
        let left = since.as_second().saturating_add(deadline).saturating_sub(self.now.as_second());
        match u64::try_from(left) {
            // It is over when the deadline is before now.
            Ok(left) => (keep(), Some(left + 1)),
            Err(_) if ["ProgressDeadlineExceeded", "NewReplicaSetAvailable"].contains(&was) => (keep(), None),
            Err(_) => {
                let message = format!("ReplicaSet \"{name}\" has timed out progressing.");
                (Some(self.new_condition("False", "ProgressDeadlineExceeded", message)), None)
            }
        }
    }

    /// Returns the condition after a ReplicaSet was created.
    pub(super) fn created(&self) -> Value {
        let name = self.set.unwrap_or_default();
        self.new_condition("True", "NewReplicaSetCreated", format!("Created new replica set \"{name}\""))
    }

    fn is_complete(&self) -> bool {
        let wanted = number(self.deployment, "/spec/replicas").unwrap_or(1);
        let has = |field: &&str| number(self.status, &format!("/{field}")).unwrap_or(0) == wanted;
        ["updatedReplicas", "replicas", "availableReplicas"].iter().all(has)
    }

    fn is_moving(&self) -> bool {
        let was = |field: &str| number(self.deployment, &format!("/status/{field}")).unwrap_or(0);
        let is = |field: &str| number(self.status, &format!("/{field}")).unwrap_or(0);
        let grew = |field: &&str| is(field) > was(field);
        ["updatedReplicas", "readyReplicas", "availableReplicas"].iter().any(grew)
            || is("replicas") - is("updatedReplicas") < was("replicas") - was("updatedReplicas")
    }

    fn new_condition(&self, status: &str, reason: &str, message: String) -> Value {
        let same = self.progressing_condition().filter(|own| text(own, "/status") == status);
        let since = same.map_or(self.now_text, |own| text(own, "/lastTransitionTime"));
        json!({
            "type": "Progressing", "status": status, "reason": reason, "message": message,
            "lastUpdateTime": self.now_text, "lastTransitionTime": since,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reason after a status with these numbers of updated and available replicas, `seconds` after the last
    /// progress; and the seconds left.
    fn next(deployment: &Value, [updated, available]: [i64; 2], seconds: i64) -> (Value, Option<u64>) {
        let status = json!({"replicas": 2, "updatedReplicas": updated, "readyReplicas": available, "availableReplicas": available});
        let now = Timestamp::from_second(1_000 + seconds).unwrap();
        let now_text = portolan_types::seams::seconds_text(now);
        let progress = RolloutProgress { deployment, status: &status, set: Some("web-1"), now, now_text: &now_text };
        let (condition, left) = progress.condition();
        (condition.unwrap_or_default(), left)
    }

    fn deployment(reason: &str, [updated, available]: [i64; 2]) -> Value {
        let since = portolan_types::seams::seconds_text(Timestamp::from_second(1_000).unwrap());
        json!({"spec": {"replicas": 2, "progressDeadlineSeconds": 60}, "status": {
            "replicas": 2, "updatedReplicas": updated, "readyReplicas": available, "availableReplicas": available,
            "conditions": [{"type": "Progressing", "status": "True", "reason": reason, "lastUpdateTime": since, "lastTransitionTime": since}],
        }})
    }

    #[test]
    fn a_rollout_that_makes_no_progress_times_out() {
        for (case, was, before, now, seconds, expected) in [
            ("it moves", "ReplicaSetUpdated", [1, 0], [1, 1], 30, ("ReplicaSetUpdated", Some(60))),
            ("it stands", "ReplicaSetUpdated", [1, 0], [1, 0], 30, ("ReplicaSetUpdated", Some(31))),
            ("it stood for too long", "ReplicaSetUpdated", [1, 0], [1, 0], 61, ("ProgressDeadlineExceeded", None)),
            ("it moves again", "ProgressDeadlineExceeded", [1, 0], [1, 1], 90, ("ReplicaSetUpdated", Some(60))),
            ("it is done", "ReplicaSetUpdated", [2, 1], [2, 2], 30, ("NewReplicaSetAvailable", None)),
            (
                "a pod of a finished one goes",
                "NewReplicaSetAvailable",
                [2, 2],
                [2, 1],
                90,
                ("NewReplicaSetAvailable", None),
            ),
            ("it goes on", "DeploymentPaused", [1, 1], [1, 1], 90, ("DeploymentResumed", Some(60))),
        ] {
            let (condition, left) = next(&deployment(was, before), now, seconds);
            assert_eq!((text(&condition, "/reason"), left), expected, "{case}");
        }
        let mut endless = deployment("ReplicaSetUpdated", [1, 0]);
        endless["spec"]["progressDeadlineSeconds"] = json!(i32::MAX);
        assert_eq!(next(&endless, [1, 0], 90), (Value::Null, None), "without a deadline there is no condition");
        let mut paused = deployment("ReplicaSetUpdated", [1, 0]);
        paused["spec"]["paused"] = json!(true);
        assert_eq!(next(&paused, [1, 0], 90).0["status"], "Unknown");
    }
}
