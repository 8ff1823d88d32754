//! Decisions about marked objects, and the way back to the split of before.

use std::{borrow::Cow, collections::BTreeMap};

use portolan_placement::{
    ChosenCluster, DecisionOutcome, ExclusionReason, MoveStrategy, PlacementDecision, PlacementInputs, RejectedCluster,
    Workload, place,
};
use portolan_types::{
    Uid,
    placement::{CopyPhase, DrainMark, DrainStage, PlacedCopy, PlacementRecord, RecordedCopy},
};

use super::{preview::BlockedReason, progress::is_split};
use crate::{
    context::SchedulerContext,
    decide::{DecisionView, decide},
    inputs::DecisionInputs,
};

/// Returns the workload as a mark lets it move: by force it abandons its volumes, and a started Job starts again.
pub(crate) fn workload_under_mark<'a>(workload: &'a Workload, record: &PlacementRecord) -> Cow<'a, Workload> {
    let Some(mark) = record.drain.as_deref().filter(|mark| mark.force && mark.stage == DrainStage::Leaving) else {
        return Cow::Borrowed(workload);
    };
    let started = workload.moves == MoveStrategy::Stay;
    let force = workload.force.clone().or_else(|| started.then(|| mark.title()));
    Cow::Owned(Workload { keeps_volumes: false, force, ..workload.clone() })
}

/// Returns the decision as the mark of a drain changes it: who moves the object, and that one that returns goes to the
/// split of before.
pub(crate) fn adjust_to_mark(decision: PlacementDecision, record: &PlacementRecord) -> PlacementDecision {
    let Some(mark) = record.drain.as_deref() else { return decision };
    match mark.stage {
        _ if decision.is_to_end() || matches!(decision.outcome, DecisionOutcome::Suspended(_)) => decision,
        DrainStage::Left | DrainStage::Returned => decision,
        DrainStage::Leaving => PlacementDecision { by: format!("by {}", mark.title()), ..decision },
        DrainStage::Returning => back_to_before(decision, mark, record),
    }
}

fn back_to_before(decision: PlacementDecision, mark: &DrainMark, record: &PlacementRecord) -> PlacementDecision {
    let is_back = |uid: &Uid| mark.before.iter().any(|copy| copy.uid == *uid);
    let choose =
        |copy: &RecordedCopy| ChosenCluster { name: copy.name.clone(), uid: copy.uid.clone(), replicas: copy.replicas };
    let mut chosen: Vec<_> = mark.before.iter().map(choose).collect();
    chosen.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
    let leaves = decision.chosen.iter().filter(|chosen| !is_back(&chosen.uid)).map(|chosen| RejectedCluster {
        name: chosen.name.clone(),
        uid: chosen.uid.clone(),
        reason: ExclusionReason::NotNeeded,
    });
    let mut rejected: Vec<_> = decision.rejected.iter().filter(|one| !is_back(&one.uid)).cloned().collect();
    rejected.extend(leaves);
    rejected.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
    let limits = decision.limits.iter().filter(|(uid, _)| is_back(uid));
    PlacementDecision {
        ordinals: decision.ordinals_for(&chosen, record),
        chosen,
        rejected,
        outcome: DecisionOutcome::Placed,
        held: Vec::new(),
        abandoned: None,
        move_refused: false,
        limits: limits.map(|(uid, limit)| (uid.clone(), *limit)).collect(),
        divided_by: mark.divided_by.clone(),
        by: format!("by the undo of {}", mark.title()),
        ..decision
    }
}

/// Decides about an object with the facts of this moment, and its mark.
pub(super) fn decision_under_mark(ctx: &SchedulerContext, inputs: &DecisionInputs) -> PlacementDecision {
    let view = DecisionView::of(ctx, &ctx.facts(), inputs);
    decide(ctx, inputs, &view, |_, decision| decision)
}

fn decide_with(
    ctx: &SchedulerContext,
    DecisionView { policies, clusters }: &DecisionView,
    inputs: &DecisionInputs,
    record: &PlacementRecord,
    existing: &BTreeMap<Uid, i64>,
) -> PlacementDecision {
    place(&PlacementInputs {
        workload: &workload_under_mark(&inputs.workload, record),
        policies,
        clusters,
        previous: record,
        home: &inputs.home.uids,
        existing,
        now: ctx.now(),
    })
}

/// Reason for which an object does not return to the split of before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReturnObstacle {
    /// It may pass: a physical cluster is not ready or has no room now.
    Passing(BlockedReason),
    /// Something has changed since: the planner would not keep the object there.
    Lasting(BlockedReason),
}

/// Returns true for a reason that says nothing about where an object should be.
fn passes(reason: ExclusionReason) -> bool {
    use ExclusionReason as Reason;
    matches!(
        reason,
        Reason::NotReady
            | Reason::Draining
            | Reason::Cordoned
            | Reason::TaintNotTolerated
            | Reason::ExpressionFailed
            | Reason::AffinityNotMet
            | Reason::AntiAffinityNotMet
            | Reason::OutOfBounds
            | Reason::InsufficientCapacity
    )
}

/// Returns true if an object has all copies of before a drain again: without the drain its policy may bring it back
/// before its turn in the undo comes.
fn has_copies_of(mark: &DrainMark, record: &PlacementRecord) -> bool {
    mark.before.iter().all(|copy| record.active().any(|active| active.uid == copy.uid))
}

/// Returns the reason for which an object cannot return to the split of before, or would not stay there. `None` if the
/// undo is exact.
pub(super) fn obstacle(ctx: &SchedulerContext, inputs: &DecisionInputs, mark: &DrainMark) -> Option<ReturnObstacle> {
    let lasting = |reason: &str, message: String| Some(ReturnObstacle::Lasting(BlockedReason::new(reason, message)));
    if mark.stage == DrainStage::Left && !is_split(&inputs.record, &mark.after) && !has_copies_of(mark, &inputs.record)
    {
        return lasting("MovedSince", format!("it was moved again since: the drain left it on {}", names(&mark.after)));
    }
    let plain = PlacementRecord { drain: None, ..inputs.record.clone() };
    let view = DecisionView::of(ctx, &ctx.facts(), inputs);
    let now = decide_with(ctx, &view, inputs, &plain, &inputs.existing());
    if let DecisionOutcome::Suspended(hold) = &now.outcome {
        return Some(ReturnObstacle::Passing(BlockedReason::new(hold.reason, now.summary())));
    }
    if now.is_to_end() {
        return lasting("DecidedOtherwise", now.summary());
    }
    for copy in &mark.before {
        let Some(name) = ctx.facts().physical(&copy.uid).map(|physical| physical.info.name.clone()) else {
            return lasting("ClusterGone", format!("{} does not exist any more", copy.name));
        };
        let is_new = plain.on(&copy.uid).is_none_or(|copy| copy.phase != CopyPhase::Active);
        let fits = |reason| {
            matches!(reason, ExclusionReason::NotNeeded | ExclusionReason::SpreadSkew | ExclusionReason::HeldDown)
        };
        let refused = now.rejected.iter().find(|one| one.uid == copy.uid && is_new && !fits(one.reason));
        if let Some(refused) = refused {
            let blocked = BlockedReason::new(refused.reason.word(), format!("{name} is {}", refused.reason.phrase()));
            let passing = passes(refused.reason);
            let obstacle = if passing { ReturnObstacle::Passing } else { ReturnObstacle::Lasting };
            return Some(obstacle(blocked));
        }
    }
    would_not_stay(ctx, &view, inputs, mark).map(ReturnObstacle::Lasting)
}

/// Decides as if the object were back, because a split that the planner would change at once must not be restored.
fn would_not_stay(
    ctx: &SchedulerContext,
    view: &DecisionView,
    inputs: &DecisionInputs,
    mark: &DrainMark,
) -> Option<BlockedReason> {
    let copy = |copy: &RecordedCopy| PlacedCopy {
        name: copy.name.clone(),
        uid: copy.uid.clone(),
        phase: CopyPhase::Active,
        replicas: copy.replicas,
        epoch: 1,
    };
    let back = PlacementRecord {
        clusters: mark.before.iter().map(copy).collect(),
        divided_by: mark.divided_by.clone(),
        drain: None,
        awaited: Vec::new(),
        ..inputs.record.clone()
    };
    let all = inputs.workload.replicas.unwrap_or(1);
    let existing = mark.before.iter().map(|copy| (copy.uid.clone(), copy.replicas.unwrap_or(all))).collect();
    let then = decide_with(ctx, view, inputs, &back, &existing);
    let chosen = then.chosen.iter().map(|chosen| (&chosen.uid, chosen.replicas)).collect::<BTreeMap<_, _>>();
    let before = mark.before.iter().map(|copy| (&copy.uid, copy.replicas)).collect::<BTreeMap<_, _>>();
    (chosen != before)
        .then(|| BlockedReason::new("DecidedOtherwise", format!("it would not stay there: {}", then.summary())))
}

/// Returns a split for people: `east=3,west=2`, or names only where the replicas are not divided.
pub(super) fn names(split: &[RecordedCopy]) -> String {
    let word = |copy: &RecordedCopy| match copy.replicas {
        Some(replicas) => format!("{}={replicas}", copy.name),
        None => copy.name.clone(),
    };
    split.iter().map(word).collect::<Vec<_>>().join(",")
}
