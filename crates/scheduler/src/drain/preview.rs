//! Preview of the move of an object: whether it can leave, and why not, by the planner that decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use portolan_placement::{DecisionOutcome, MoveStrategy, PlacementDecision, Workload};
use portolan_store::StoreError;
use portolan_types::{
    ObjectKey, ResourceVersion, Uid,
    placement::{DrainMark, DrainStage, PlacementRecord, PlacementStatus, RecordedCopy},
};

use super::{
    part,
    progress::{available, available_among},
    returns::decision_under_mark,
};
use crate::{
    context::SchedulerContext,
    inputs::{DecisionInputs, read_inputs},
    scheduler::SchedulerError,
};

/// Seconds for which a verdict is shown without a new look.
pub(super) const FRESH: i64 = 15;

/// Verdict about an object on a drained physical cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaveVerdict {
    /// The object has no decision of its own, or is gone.
    NotConcerned,
    /// It can leave, with this mark.
    Leaves(Box<DrainMark>),
    /// It cannot leave.
    Blocked(BlockedReason),
}

/// Reason for which an object cannot leave or return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockedReason {
    /// One word.
    pub(super) reason: String,
    /// One sentence.
    pub(super) message: String,
}

impl BlockedReason {
    pub(super) fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    /// Returns the reason of an object that cannot be read, or depends on something that cannot.
    ///
    /// # Errors
    /// The error itself if it is another one.
    pub(super) fn of_unreadable(error: SchedulerError) -> Result<Self, SchedulerError> {
        match error {
            SchedulerError::Unreadable(_) | SchedulerError::Store(StoreError::Damaged { .. }) => {
                Ok(Self::new("Unreadable", error.to_string()))
            }
            other => Err(other),
        }
    }
}

/// Object as it was when a verdict about it was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JudgedState {
    pub(super) split: Vec<RecordedCopy>,
    /// Revision of the object; `None` if the verdict holds for later ones too.
    pub(super) revision: Option<ResourceVersion>,
    /// Epoch of the facts, by [`VerdictCache::epoch`].
    pub(super) epoch: u64,
}

/// Verdict that was reached last.
#[derive(Clone, Debug)]
struct CachedVerdict {
    until: i64,
    of: JudgedState,
    blocked: Option<BlockedReason>,
}

/// Verdicts about the objects of each drain. They only spare looks: without them, as after a restart, each object is
/// looked at again. Their number is bounded by the objects on drained physical clusters.
#[derive(Default)]
pub(crate) struct VerdictCache {
    verdicts: Mutex<BTreeMap<Uid, BTreeMap<ObjectKey, CachedVerdict>>>,
    /// Number of changes for which another verdict may be reached.
    epoch: AtomicU64,
}

impl VerdictCache {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uid, BTreeMap<ObjectKey, CachedVerdict>>> {
        self.verdicts.lock().expect("no code panics under this lock")
    }

    /// Returns the epoch of the facts. A verdict of an earlier one is not fresh.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Begins a new epoch: a fact has changed.
    pub(super) fn begin_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if an object was found blocked.
    pub(super) fn has_blocked(&self, key: &ObjectKey) -> bool {
        let is_blocked = |cached: &CachedVerdict| cached.blocked.is_some();
        self.lock().values().any(|verdicts| verdicts.get(key).is_some_and(is_blocked))
    }

    /// Returns true if an object was found blocked for a reason.
    pub(super) fn has_blocked_for(&self, reason: &str) -> bool {
        let is_blocked =
            |cached: &CachedVerdict| cached.blocked.as_ref().is_some_and(|blocked| blocked.reason == reason);
        self.lock().values().any(|verdicts| verdicts.values().any(is_blocked))
    }

    /// Returns the last verdict about an object while it is fresh: `Some(None)` if it can leave.
    pub(super) fn fresh(
        &self,
        drain: &Uid,
        (key, state): (&ObjectKey, &JudgedState),
        now: i64,
    ) -> Option<Option<BlockedReason>> {
        let known = self.lock();
        let cached = known.get(drain)?.get(key)?;
        let is_same = cached.of.split == state.split && (cached.of.revision.is_none() || cached.of == *state);
        (now < cached.until && is_same).then(|| cached.blocked.clone())
    }

    /// Keeps a verdict until a time, in seconds since the epoch.
    pub(super) fn put(
        &self,
        drain: &Uid,
        (key, of): (&ObjectKey, JudgedState),
        blocked: Option<BlockedReason>,
        until: i64,
    ) {
        let cached = CachedVerdict { until, of, blocked };
        self.lock().entry(drain.clone()).or_default().insert(key.clone(), cached);
    }

    /// Drops the verdicts of a drain, except those about `keys`.
    pub(super) fn retain(&self, drain: &Uid, keys: &BTreeSet<ObjectKey>) {
        let mut known = self.lock();
        if let Some(verdicts) = known.get_mut(drain) {
            verdicts.retain(|key, _| keys.contains(key));
        }
        known.retain(|_, verdicts| !verdicts.is_empty());
    }
}

/// Drain, as marks name it.
pub(super) struct MarkTemplate<'a> {
    pub(super) cluster: &'a str,
    pub(super) home: &'a str,
    pub(super) name: &'a str,
    pub(super) uid: &'a Uid,
    pub(super) from: &'a BTreeSet<Uid>,
    pub(super) force: bool,
}

/// Returns whether an object can leave the physical clusters of a drain.
///
/// # Errors
/// The errors of the store, and if a fact that the decision needs cannot be read.
pub(super) async fn preview_leave(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    template: &MarkTemplate<'_>,
) -> Result<LeaveVerdict, SchedulerError> {
    let Some((object, revision)) = ctx.objects.get_value(key).await? else { return Ok(LeaveVerdict::NotConcerned) };
    let Some(mut inputs) = read_inputs(ctx, key, object, revision).await? else {
        return Ok(LeaveVerdict::NotConcerned);
    };
    if let Some(other) = inputs.record.drain.as_ref().filter(|other| other.uid != *template.uid && other.is_moving()) {
        let message = format!("{} moves it now", other.title());
        return Ok(LeaveVerdict::Blocked(BlockedReason::new("MovedByOther", message)));
    }
    let mark = mark_of(ctx, &inputs, template);
    inputs.record.drain = Some(Box::new(mark.clone()));
    let decision = decision_under_mark(ctx, &inputs);
    Ok(match blocked(&inputs, &decision, template.from) {
        Some(reason) => LeaveVerdict::Blocked(reason),
        None => LeaveVerdict::Leaves(Box::new(mark)),
    })
}

/// Returns the mark of an object that begins to leave.
fn mark_of(ctx: &SchedulerContext, inputs: &DecisionInputs, template: &MarkTemplate) -> DrainMark {
    let record = &inputs.record;
    let placement = inputs.placement.as_ref().map(|(placement, _)| placement);
    let status: PlacementStatus = placement.map(|placement| part(placement, "status")).unwrap_or_default();
    let runs_once = inputs.workload.moves.one_at_a_time();
    DrainMark {
        cluster: template.cluster.to_owned(),
        home: template.home.to_owned(),
        name: template.name.to_owned(),
        uid: template.uid.clone(),
        stage: DrainStage::Leaving,
        from: template.from.iter().cloned().collect(),
        force: template.force,
        since: ctx.now(),
        available: available(record, &status),
        downtime: if runs_once { available_among(record, &status, template.from) } else { 0 },
        before: record.split(),
        divided_by: record.divided_by.clone(),
        after: Vec::new(),
        earlier: None,
    }
}

/// Returns the reason for which an object stays, by the decision about it as if it were to leave.
fn blocked(inputs: &DecisionInputs, decision: &PlacementDecision, from: &BTreeSet<Uid>) -> Option<BlockedReason> {
    let workload = &inputs.workload;
    if decision.is_to_end() {
        return None;
    }
    if decision.chosen.iter().any(|chosen| from.contains(&chosen.uid)) || decision.move_refused {
        let reason = match workload.moves {
            _ if decision.move_refused => "Volumes",
            MoveStrategy::Stay => "StartedJob",
            _ => "Held",
        };
        return Some(BlockedReason::new(reason, decision.held.join("; ")));
    }
    if decision.chosen.is_empty() {
        let reason = match &decision.outcome {
            DecisionOutcome::Suspended(hold) => hold.reason,
            _ if workload.pin.is_some() => "Pinned",
            _ => "NoClusterFits",
        };
        return Some(BlockedReason::new(reason, decision.summary()));
    }
    lacks_room(workload, &inputs.record, decision).map(|message| BlockedReason::new(NO_ROOM, message))
}

/// Reason for an object that would run fewer replicas elsewhere.
pub(crate) const NO_ROOM: &str = "NoRoom";

/// Returns the sentence about a move after which fewer replicas would run than now.
pub(crate) fn lacks_room(
    workload: &Workload,
    record: &PlacementRecord,
    decision: &PlacementDecision,
) -> Option<String> {
    let (after, needed) = replicas(workload, record, decision).filter(|_| !decision.chosen.is_empty())?;
    (after < needed).then(|| format!("only {after} of {needed} replicas fit elsewhere: {}", decision.summary()))
}

/// Returns the replicas that would run after the move, and those that must: as many as now, or all of one copy.
fn replicas(workload: &Workload, record: &PlacementRecord, decision: &PlacementDecision) -> Option<(i64, i64)> {
    let all = workload.replicas?;
    let limit = |uid: &Uid| decision.limits.get(uid).copied().unwrap_or(i64::MAX);
    let after = decision.chosen.iter().map(|chosen| chosen.replicas.unwrap_or(all).min(limit(&chosen.uid))).sum();
    let before: i64 = record.active().map(|copy| record.replicas_of(copy, all)).sum();
    Some((after, before.min(all)))
}
