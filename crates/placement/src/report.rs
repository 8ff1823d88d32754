//! `Placement` object that explains a record.

use portolan_types::{
    Uid, object,
    placement::{
        ChargedClaims, ChargedPods, CopyPhase, GROUP, ObjectReference, PlacementCopyStatus, PlacementRecord,
        PlacementSpec, PlacementStatus, StatusCondition, Transition, VERSION,
    },
};
use serde_json::{Value, json};

use crate::{
    decide::{DecisionOutcome, PlacementDecision},
    transition::PlacementStep,
};

/// Transitions that are kept.
const MAX_TRANSITIONS: usize = 10;

/// Object of a `Placement`, and the metadata of a new one.
#[derive(Clone, Debug)]
pub struct PlacementSubject<'a> {
    /// Name of the `Placement`.
    pub name: &'a str,
    /// Namespace of both.
    pub namespace: &'a str,
    /// The object.
    pub object: ObjectReference,
    /// `metadata.uid` if the `Placement` is new.
    pub new_uid: Uid,
    /// The present moment, RFC 3339.
    pub now: &'a str,
}

/// Change that a `Placement` reports.
#[derive(Clone, Copy, Debug)]
pub struct PlacementReport<'a> {
    /// The record before.
    pub previous: &'a PlacementRecord,
    /// The step that is taken in the same transaction.
    pub step: &'a PlacementStep,
    /// The decision; `None` for an object that follows others.
    pub decision: Option<&'a PlacementDecision>,
    /// Record of the last admission.
    pub admitted: &'a AdmissionRecord,
    /// Cause of the step, if it changes where the object is.
    pub because: Option<&'a TransitionCause>,
}

/// Cause of a transition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransitionCause {
    /// One word, such as `Policy` or `Drain`.
    pub reason: String,
    /// Object that caused it: `ClusterPlacementPolicy root:web`.
    pub actor: String,
    /// Revision at which that was last changed; empty if unknown.
    pub revision: String,
}

/// Record of the last admission of an object, as its `Placement` keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionRecord {
    /// Admitted generation; `None` if no pods are made of a template, or none are admitted.
    pub generation: Option<i64>,
    /// Charge of its pods.
    pub pods: Option<ChargedPods>,
    /// Charge of its volume claims that do not exist yet.
    pub claims: Vec<ChargedClaims>,
    /// [`crate::template_fingerprint`] of it.
    pub template: Option<String>,
}

impl AdmissionRecord {
    /// Reads the record from the `Placement` of the object with this uid.
    pub fn of(placement: Option<&Value>, uid: &str) -> Self {
        let own = placement.filter(|placement| is_about(placement, uid));
        let status = own.and_then(|p| p.get("status")).cloned().unwrap_or(json!({}));
        let status: PlacementStatus = serde_json::from_value(status).unwrap_or_default();
        Self {
            generation: status.admitted_generation,
            pods: status.pods,
            claims: status.claims,
            template: status.admitted_template,
        }
    }
}

fn is_about(placement: &Value, uid: &str) -> bool {
    placement.pointer("/spec/object/uid").and_then(Value::as_str) == Some(uid)
}

/// Returns true if the `Placement` of the object with this uid says that its pods are refused.
pub fn is_refused(placement: Option<&Value>, uid: &str) -> bool {
    let reason = placement.filter(|placement| is_about(placement, uid)).and_then(placed_condition);
    reason.is_some_and(|(reason, _)| matches!(reason, "AdmissionRefused" | "QuotaExceeded" | "SchedulingGated"))
}

/// Returns reason and message of the condition `Placed` of a `Placement`.
pub fn placed_condition(placement: &Value) -> Option<(&str, &str)> {
    let conditions = placement.pointer("/status/conditions")?.as_array()?;
    let placed = conditions.iter().find(|condition| condition["type"] == "Placed")?;
    Some((placed["reason"].as_str()?, placed["message"].as_str()?))
}

/// Returns the `Placement` after a step. `current` is the present one; one of an object with another uid is replaced.
pub fn placement_object(current: Option<&Value>, about: &PlacementSubject, report: &PlacementReport) -> Value {
    let current = current.filter(|placement| is_about(placement, &about.object.uid));
    let before = current.and_then(|p| p.get("status")).cloned().unwrap_or_default();
    let before: PlacementStatus = serde_json::from_value(before).unwrap_or_default();
    let status = status_after(&before, about, report);
    let mut placement = current.cloned().unwrap_or_else(|| new_placement(about));
    if let Some(fields) = placement.as_object_mut() {
        object::child_mut(fields, "metadata").remove("resourceVersion");
        fields.insert("status".into(), serde_json::to_value(status).unwrap_or_default());
    }
    placement
}

fn new_placement(about: &PlacementSubject) -> Value {
    let object = &about.object;
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "Placement",
        "metadata": {
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.new_uid.as_str(),
            "generation": 1,
            "creationTimestamp": about.now,
            "ownerReferences": [{
                "apiVersion": object.api_version, "kind": object.kind, "name": object.name, "uid": object.uid,
            }],
        },
        "spec": PlacementSpec { object: object.clone() },
    })
}

fn status_after(before: &PlacementStatus, about: &PlacementSubject, report: &PlacementReport) -> PlacementStatus {
    let record = &report.step.record;
    PlacementStatus {
        clusters: copy_statuses(record, report.previous, &before.clusters),
        policy: report.decision.map_or_else(|| record.policy.clone(), |d| d.policy.clone()),
        rejected: report
            .decision
            .map(PlacementDecision::counts)
            .into_iter()
            .flatten()
            .map(|(r, n)| (r.word().into(), n))
            .collect(),
        conditions: conditions(before, about, report),
        transitions: transitions(before, about, report),
        admitted_generation: report.admitted.generation,
        pods: report.admitted.pods.clone(),
        claims: report.admitted.claims.clone(),
        admitted_template: report.admitted.template.clone(),
        waiting_for: report.step.waiting.clone().or(report.step.rolling_out.clone()).unwrap_or_default(),
    }
}

/// Returns the copies of a record for the status of a `Placement`. The report of a copy stays as long as the copy
/// does.
pub fn copy_statuses(
    record: &PlacementRecord,
    previous: &PlacementRecord,
    before: &[PlacementCopyStatus],
) -> Vec<PlacementCopyStatus> {
    let copies = record.clusters.iter().filter(|c| c.phase != CopyPhase::Projected);
    let status = |copy: &portolan_types::placement::PlacedCopy| {
        let stays = previous.on(&copy.uid).is_some_and(|was| was.epoch == copy.epoch);
        let known = before.iter().find(|s| stays && s.uid == *copy.uid);
        PlacementCopyStatus {
            name: copy.name.clone(),
            uid: copy.uid.to_string(),
            phase: if copy.phase == CopyPhase::Leaving { "Leaving" } else { "Active" }.into(),
            replicas: copy.replicas,
            ready: known.map_or(0, |s| s.ready),
            available: known.and_then(|s| s.available),
            desired: copy.replicas.or_else(|| known.and_then(|s| s.desired)),
            updated: known.and_then(|s| s.updated).filter(|_| record.rollout.is_some()),
            addresses: known.map_or(0, |s| s.addresses),
            reason: known.map(|s| s.reason.clone()).unwrap_or_default(),
            message: known.map(|s| s.message.clone()).unwrap_or_default(),
        }
    };
    copies.map(status).collect()
}

fn conditions(before: &PlacementStatus, about: &PlacementSubject, report: &PlacementReport) -> Vec<StatusCondition> {
    let (status, reason, message) = placed_status(report, &about.object.kind);
    let last = before.conditions.iter().find(|c| c.kind == "Placed");
    let since = last.filter(|c| c.status == status).map(|c| c.last_transition_time.clone());
    let placed = StatusCondition {
        kind: "Placed".into(),
        status: status.into(),
        reason: reason.into(),
        message,
        last_transition_time: since.unwrap_or_else(|| about.now.to_owned()),
        observed_generation: 0,
    };
    let others = before.conditions.iter().filter(|c| c.kind != "Placed").cloned();
    std::iter::once(placed).chain(others).collect()
}

/// Returns status, reason and message of the condition `Placed`.
fn placed_status(report: &PlacementReport, kind: &str) -> (&'static str, &'static str, String) {
    let is_somewhere = report.step.record.active().next().is_some();
    // A copy that stays only because nothing else fits is misplaced.
    let is_misplaced = report.decision.is_some_and(|decision| {
        decision.move_refused || matches!(decision.outcome, DecisionOutcome::Unplaced | DecisionOutcome::Refused(_))
    });
    let status = if is_somewhere && !is_misplaced { "True" } else { "False" };
    let Some(decision) = report.decision else {
        let reason = if is_somewhere { "Follows" } else { "NotNeeded" };
        return (status, reason, note_on_followers(report.step, kind));
    };
    let mut message = decision.summary();
    decision.held.iter().chain(&report.step.waiting).chain(&report.step.rolling_out).for_each(|line| {
        message.push_str("; ");
        message.push_str(line);
    });
    let reason = match &decision.outcome {
        DecisionOutcome::Unplaced if decision.move_refused => "MoveRefused",
        DecisionOutcome::Unplaced if decision.rejected.is_empty() => "NoClusterInReach",
        DecisionOutcome::Unplaced => "NoClusterFits",
        DecisionOutcome::Stopped => "Stopped",
        DecisionOutcome::Finished => "Finished",
        DecisionOutcome::Refused(refusal) => refusal.reason,
        DecisionOutcome::Suspended(hold) => hold.reason,
        DecisionOutcome::Placed | DecisionOutcome::Partly(_) if decision.move_refused => "MoveRefused",
        DecisionOutcome::Placed | DecisionOutcome::Partly(_) if report.step.waiting.is_some() => "Moving",
        DecisionOutcome::Placed | DecisionOutcome::Partly(_) if report.step.rolling_out.is_some() => "RollingOut",
        DecisionOutcome::Placed => "Placed",
        DecisionOutcome::Partly(_) => "PartlyPlaced",
    };
    (status, reason, message)
}

/// Returns the sentence about copies of a kind that means something else on several physical clusters than on one.
fn note_on_followers(step: &PlacementStep, kind: &str) -> String {
    if kind != "PodDisruptionBudget" || step.record.active().count() < 2 {
        return String::new();
    }
    "each physical cluster counts its own pods: while the budget permits any disruption, at least one pod on each may be disrupted".into()
}

fn transitions(before: &PlacementStatus, about: &PlacementSubject, report: &PlacementReport) -> Vec<Transition> {
    let names = |record: &PlacementRecord| record.active().map(|c| c.name.as_str()).collect::<Vec<_>>().join(",");
    let (from, to) = (names(report.previous), names(&report.step.record));
    let because = report.because.cloned().unwrap_or_default();
    let new = report.step.cause.as_ref().filter(|_| from != to).map(|cause| Transition {
        time: about.now.to_owned(),
        from,
        to,
        cause: cause.clone(),
        reason: because.reason,
        actor: because.actor,
        revision: because.revision,
    });
    new.into_iter().chain(before.transitions.iter().cloned()).take(MAX_TRANSITIONS).collect()
}
