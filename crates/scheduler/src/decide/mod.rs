//! The decision about an object, and the next legal step towards it.

pub(crate) mod admission_request;
pub(crate) mod evictions;
pub(crate) mod pod_admission;
pub(crate) mod refusal_status;
pub(crate) mod scheduling_gates;

use std::collections::{BTreeMap, BTreeSet};

use portolan_placement::{
    ClusterFacts, ClusterInfo, CopyHealth, DecisionOutcome, LeveledPolicy, PlacementDecision, PlacementInputs,
    PlacementStep, PodRefusal, Role, RolloutInputs, StepJustification, Workload, check_justification, contribution,
    place, transition, with_overrides, with_rollout,
};
use portolan_types::{
    Uid,
    placement::{DrainStage, PlacementCopyStatus, PlacementRecord, PlacementStatus, ResourceAmounts},
};
use serde_json::{Value, json};

use crate::{
    context::SchedulerContext,
    decide::evictions::defer_evictions,
    drain::{adjust_to_mark, workload_under_mark},
    facts::Facts,
    facts::overruns::record_overruns,
    inputs::DecisionInputs,
    scheduler::SchedulerError,
};

/// Reason of a copy on an unreachable physical cluster, as the syncer reports it.
const UNREACHABLE: &str = "Unreachable";
/// Decision and the next step towards it.
pub(crate) struct PlannedStep {
    pub(crate) decision: PlacementDecision,
    pub(crate) step: PlacementStep,
}

/// Policies and physical clusters that a decision depends on.
pub(crate) struct DecisionView {
    pub(crate) policies: Vec<LeveledPolicy>,
    pub(crate) clusters: Vec<ClusterFacts>,
}

impl DecisionView {
    /// Returns the policies that may hold for an object, and the physical clusters within its reach and of its record.
    pub(crate) fn of(ctx: &SchedulerContext, facts: &Facts, inputs: &DecisionInputs) -> Self {
        Self {
            policies: facts.policies(&inputs.reach, &inputs.namespace),
            clusters: facts.clusters(&inputs.reach, &*ctx.rights, &inputs.record),
        }
    }
}

/// Decides about an object. `amend` may change the answer to the question.
pub(crate) fn decide(
    ctx: &SchedulerContext,
    inputs: &DecisionInputs,
    DecisionView { policies, clusters }: &DecisionView,
    amend: impl FnOnce(&PlacementInputs, PlacementDecision) -> PlacementDecision,
) -> PlacementDecision {
    let record = &inputs.record;
    let workload = workload_under_mark(&inputs.workload, record);
    let workload = &*workload;
    let existing = inputs.existing();
    let question = PlacementInputs {
        workload,
        policies,
        clusters,
        previous: record,
        home: &inputs.home.uids,
        existing: &existing,
        now: ctx.now(),
    };
    let mut decision = adjust_to_mark(amend(&question, place(&question)), record);
    let selected = policies.iter().any(|p| !p.policy.is_constraint() && p.policy.is_about(workload));
    if workload.role == Role::Explicit && !selected {
        decision = no_longer_selected(decision);
    }
    decision
}

/// Maximum attempts to decide without the lock on the facts. After that, the lock keeps the sums of the placed objects
/// from changing.
const MAX_FREE_ATTEMPTS: usize = 4;

/// Decides, plans the next step, and reserves the requests of new copies. A refusal of the pods overrides the
/// decision. Expressions of tenants are evaluated without the lock on the facts; a decision is made again if others
/// have taken room meanwhile where it takes some.
///
/// # Errors
/// `Behind` while the sums of the placed objects do not contain the object as it was read, `Illegal` when the step is
/// not legal; it is never taken then.
pub(crate) fn plan(
    ctx: &SchedulerContext,
    inputs: &DecisionInputs,
    refusal: Option<PodRefusal>,
) -> Result<PlannedStep, SchedulerError> {
    for _ in 0..MAX_FREE_ATTEMPTS {
        let view = {
            let facts = ctx.facts();
            check_counted(&facts, inputs)?;
            DecisionView::of(ctx, &facts, inputs)
        };
        let planned = plan_within(ctx, inputs, &view, refusal.as_ref())?;
        if reserve(&mut ctx.facts(), inputs, &planned, Some(&view)) {
            record_overruns(ctx, inputs, &view.policies, &planned.step.record);
            return Ok(planned);
        }
    }
    let mut facts = ctx.facts();
    check_counted(&facts, inputs)?;
    let view = DecisionView::of(ctx, &facts, inputs);
    let planned = plan_within(ctx, inputs, &view, refusal.as_ref())?;
    reserve(&mut facts, inputs, &planned, None);
    drop(facts);
    record_overruns(ctx, inputs, &view.policies, &planned.step.record);
    Ok(planned)
}

fn check_counted(facts: &Facts, inputs: &DecisionInputs) -> Result<(), SchedulerError> {
    let is_counted = inputs.workload.pods == 0 || facts.usage.has_counted(&inputs.key, inputs.revision);
    if is_counted { Ok(()) } else { Err(SchedulerError::Behind) }
}

/// Reserves the requests of new copies. Returns false, and reserves nothing, if more is used than `view` shows of a
/// physical cluster where the step takes more than before.
fn reserve(facts: &mut Facts, inputs: &DecisionInputs, planned: &PlannedStep, view: Option<&DecisionView>) -> bool {
    let (key, record, next) = (&inputs.key, &inputs.record, &planned.step.record);
    if next.clusters == record.clusters && next.awaited == record.awaited {
        facts.usage.release(key);
        return true;
    }
    let workload = workload_under_mark(&inputs.workload, record);
    let (before, after) = (contribution(&workload, record), contribution(&workload, next));
    let is_fuller = |uid: &Uid| {
        let seen = view.and_then(|view| view.clusters.iter().find(|known| known.info.uid == *uid));
        seen.is_some_and(|seen| seen.used != facts.usage.of(uid))
    };
    let grows = |(uid, takes): &&(Uid, ResourceAmounts)| !before.iter().any(|(on, took)| on == uid && took == takes);
    if after.iter().filter(grows).any(|(uid, _)| is_fuller(uid)) {
        return false;
    }
    facts.usage.reserve(key, &before, &after);
    true
}

fn plan_within(
    ctx: &SchedulerContext,
    inputs: &DecisionInputs,
    view: &DecisionView,
    refusal: Option<&PodRefusal>,
) -> Result<PlannedStep, SchedulerError> {
    let record = &inputs.record;
    let workload = workload_under_mark(&inputs.workload, record);
    let workload = &*workload;
    let amend = |question: &PlacementInputs, decision| defer_evictions(&ctx.failover, &inputs.key, question, decision);
    let mut decision = decide(ctx, inputs, view, amend);
    let DecisionView { policies, clusters } = view;
    if let Some(refusal) = refusal {
        decision = decision.refused(refusal.clone());
    }
    let up = uids(clusters, ClusterInfo::is_ready);
    let mut drained = uids(clusters, ClusterInfo::is_drained);
    let marked = record.drain.iter().filter(|mark| mark.stage == DrainStage::Leaving);
    drained.extend(marked.flat_map(|mark| mark.from.iter().cloned()));
    let epoch = inputs.revision.get();
    let available = available(workload, record, inputs.placement.as_ref().map(|(placement, _)| placement));
    let health =
        CopyHealth { ready: &available, up: &up, drained: &drained, gone: &inputs.gone, epoch, gates: &inputs.gates };
    let step = transition(workload, record, &decision, &health);
    let mut step = with_overrides(step, workload, policies, clusters);
    // Refused pods are not placed, and no stage begins.
    if refusal.is_none() {
        let copies = copies_of(inputs.placement.as_ref().map(|(placement, _)| placement));
        let by =
            RolloutInputs { object: &inputs.object, workload, policies, clusters, copies: &copies, now: ctx.now() };
        step = with_rollout(step, &by);
    }
    let grounds = StepJustification { workload, health: &health, stopped: decision.is_to_end() };
    check_justification(record, &step.record, &grounds)
        .map_err(|step| SchedulerError::Illegal { key: Box::new(inputs.key.clone()), step })?;
    Ok(PlannedStep { decision, step })
}

/// Ends the placement of an object of a kind that is placed only by a policy, once no policy selects it.
fn no_longer_selected(decision: PlacementDecision) -> PlacementDecision {
    let outcome = DecisionOutcome::Stopped;
    PlacementDecision {
        chosen: Vec::new(),
        policy: None,
        outcome,
        by: "as no policy selects it".into(),
        held: Vec::new(),
        move_refused: false,
        ..decision
    }
}

fn uids(clusters: &[ClusterFacts], of: impl Fn(&ClusterInfo) -> bool) -> BTreeSet<Uid> {
    clusters.iter().filter(|c| of(&c.info)).map(|c| c.info.uid.clone()).collect()
}

/// Returns the available pods by the uids of the record. A copy with ready and no available pods is unknown, not
/// empty. A kind that counts pods by nodes is available when it runs on all of them.
fn available(workload: &Workload, record: &PlacementRecord, placement: Option<&Value>) -> BTreeMap<Uid, i64> {
    by_uid(record, placement, |shown| {
        let available = shown.available.unwrap_or(shown.ready);
        let per_node = shown.desired.filter(|_| workload.replicas.is_none() && shown.available.is_some());
        match per_node {
            Some(desired) if available >= desired => Some(available.max(1)),
            Some(_) if shown.ready == 0 => Some(0),
            Some(_) => None,
            None => (available > 0 || shown.ready == 0).then_some(available),
        }
    })
}

/// Returns the reports about the copies in a `Placement`.
fn copies_of(placement: Option<&Value>) -> Vec<PlacementCopyStatus> {
    let status = placement.and_then(|p| p.get("status")).cloned().unwrap_or(json!({}));
    serde_json::from_value::<PlacementStatus>(status).unwrap_or_default().clusters
}

fn by_uid(
    record: &PlacementRecord,
    placement: Option<&Value>,
    count: impl Fn(&PlacementCopyStatus) -> Option<i64>,
) -> BTreeMap<Uid, i64> {
    let copies = copies_of(placement);
    let of = |copy: &portolan_types::placement::PlacedCopy| {
        let shown = copies.iter().find(|s| s.uid == *copy.uid).filter(|s| s.reason != UNREACHABLE)?;
        Some((copy.uid.clone(), count(shown)?))
    };
    record.clusters.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use portolan_types::placement::{CopyPhase, PlacedCopy};

    use super::*;

    #[test]
    fn usage_of_an_earlier_cluster_of_the_same_name_does_not_count() {
        let uid = |text: &str| text.parse::<Uid>().unwrap();
        let copy = |of: &str, phase| PlacedCopy { name: "east".into(), uid: uid(of), phase, replicas: None, epoch: 1 };
        let clusters = vec![copy("old", CopyPhase::Leaving), copy("new", CopyPhase::Active)];
        let record = PlacementRecord { clusters, ..PlacementRecord::default() };
        let shown = |of: &str, ready: i64| json!({"name": "east", "uid": of, "phase": "Active", "ready": ready});
        let placement = json!({"status": {"clusters": [shown("old", 3), shown("new", 0)]}});
        let ready = by_uid(&record, Some(&placement), |shown| Some(shown.ready));
        assert_eq!(ready, BTreeMap::from([(uid("old"), 3), (uid("new"), 0)]));
    }
}
