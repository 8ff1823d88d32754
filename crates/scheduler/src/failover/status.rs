//! Conditions, taint and Events of lost physical clusters.

use std::{collections::BTreeMap, time::Duration};

use portolan_store::{Expect, ModifyOutcome, Step, StoreError, Transaction};
use portolan_types::{
    ObjectKey, Record, Uid, annotations,
    event_draft::EventDraft,
    object,
    placement::{PhysicalClusterStatus, ServerTaint, StatusCondition},
};
use serde_json::{Value, json};
use tracing::warn;

use super::mass_loss::MassLoss;
use crate::{
    context::SchedulerContext,
    drain::{seconds_of, time_text},
};

/// Reason of `Ready` while no worker reports about a physical cluster.
const NO_HEARTBEAT: &str = "NoHeartbeat";
/// Condition type: objects stay on a lost physical cluster, because most look lost at once.
const SUSPENDED: &str = "FailoverSuspended";

/// Seconds between two times of heartbeats in the status of a physical cluster.
const HEARTBEAT_STEP: i64 = 60;

/// Verdict about one physical cluster.
#[derive(Clone, Debug)]
pub(crate) struct FailoverVerdict {
    pub(crate) uid: Uid,
    pub(crate) key: ObjectKey,
    pub(crate) is_lost: bool,
    /// True if the facts have its taint.
    pub(crate) was_tainted: bool,
    /// True if the facts have it as ready.
    pub(crate) was_ready: bool,
    pub(crate) silence: Duration,
    /// True while it is silent; a lost one that is not returns.
    pub(crate) is_silent: bool,
    /// Reason for which its objects stay.
    pub(crate) suspension: Option<MassLoss>,
    /// True if no further object leaves at present.
    pub(crate) is_paused: bool,
}

impl FailoverVerdict {
    /// Returns true if its objects leave after their tolerations.
    pub(crate) fn is_tainted(&self) -> bool {
        self.is_lost && self.suspension.is_none()
    }

    /// Returns true if the facts differ from the verdict.
    fn is_news(&self) -> bool {
        self.was_tainted != self.is_tainted() || (self.is_lost && self.is_silent && self.was_ready)
    }
}

/// Writer of verdicts. It writes changed verdicts, and verdicts that the facts lack.
#[derive(Default)]
pub(crate) struct VerdictWriter {
    written: BTreeMap<Uid, (bool, Option<MassLoss>)>,
    /// Times of the last heartbeats in the status of physical clusters, in seconds since the epoch.
    heartbeats: BTreeMap<Uid, i64>,
}

impl VerdictWriter {
    /// Forgets what was written: another server leads.
    pub(crate) fn forget(&mut self) {
        self.written.clear();
        self.heartbeats.clear();
    }

    /// Writes the verdicts. A failure is tried again with the next ones.
    pub(crate) async fn write(&mut self, ctx: &SchedulerContext, verdicts: Vec<FailoverVerdict>) {
        self.written.retain(|uid, _| verdicts.iter().any(|verdict| verdict.uid == *uid));
        self.write_heartbeats(ctx, &verdicts).await;
        for verdict in verdicts {
            let now = (verdict.is_lost, verdict.suspension);
            if self.written.get(&verdict.uid) == Some(&now) && !verdict.is_news() {
                continue;
            }
            match write_verdict(ctx, &verdict).await {
                Ok(()) | Err(StoreError::ClusterGone { .. }) => drop(self.written.insert(verdict.uid, now)),
                Err(error) => {
                    warn!(cluster = %verdict.key, %error, "the loss of a physical cluster was not written, will retry");
                }
            }
        }
    }
}

impl VerdictWriter {
    /// Writes the times of the last heartbeats, each at most once in [`HEARTBEAT_STEP`] seconds.
    async fn write_heartbeats(&mut self, ctx: &SchedulerContext, verdicts: &[FailoverVerdict]) {
        self.heartbeats.retain(|uid, _| verdicts.iter().any(|verdict| verdict.uid == *uid));
        for verdict in verdicts.iter().filter(|verdict| ctx.failover.is_heard(&verdict.uid)) {
            let at = ctx.now().saturating_sub(i64::try_from(verdict.silence.as_secs()).unwrap_or(i64::MAX));
            let written = self.heartbeats.get(&verdict.uid).copied();
            if written.is_some_and(|written| at - written < HEARTBEAT_STEP) {
                continue;
            }
            match write_heartbeat(ctx, verdict, at).await {
                Ok(()) | Err(StoreError::ClusterGone { .. }) => drop(self.heartbeats.insert(verdict.uid.clone(), at)),
                Err(error) => {
                    warn!(cluster = %verdict.key, %error, "the time of a heartbeat was not written, will retry");
                }
            }
        }
    }
}

async fn write_heartbeat(ctx: &SchedulerContext, verdict: &FailoverVerdict, at: i64) -> Result<(), StoreError> {
    let change = |physical: &mut Value| {
        let known = physical.pointer("/status/heartbeatTime").and_then(Value::as_str).and_then(seconds_of);
        let is_recent = known.is_some_and(|known| at - known < HEARTBEAT_STEP);
        if is_recent || object::uid(physical).as_ref() != Some(&verdict.uid) || !physical["status"].is_object() {
            return Ok(Step::Keep);
        }
        physical["status"]["heartbeatTime"] = time_text(at).into();
        Ok::<_, StoreError>(Step::Write)
    };
    ctx.objects.modify(&verdict.key, change).await.map(drop)
}

async fn write_verdict(ctx: &SchedulerContext, verdict: &FailoverVerdict) -> Result<(), StoreError> {
    let now = ctx.seams.now_text();
    let mut turns = Vec::new();
    let change = |physical: &mut Value| {
        turns.clear();
        let before = physical.get("status").cloned().unwrap_or_else(|| json!({}));
        let Ok(before) = serde_json::from_value::<PhysicalClusterStatus>(before) else { return Ok(Step::Keep) };
        if object::uid(physical).as_ref() != Some(&verdict.uid) {
            return Ok(Step::Keep);
        }
        let after = status_after(&before, verdict, &now);
        if after == before {
            return Ok(Step::Keep);
        }
        turns = turns_between(&before, &after, verdict);
        // Other fields of the status stay as they are.
        physical["status"]["conditions"] = json!(after.conditions);
        physical["status"]["taints"] = json!(after.taints);
        if let (true, Some(status)) = (after.taints.is_empty(), physical["status"].as_object_mut()) {
            status.remove("taints");
        }
        Ok::<_, StoreError>(Step::Write)
    };
    let Some(ModifyOutcome::Written(physical, ..)) = ctx.objects.modify(&verdict.key, change).await? else {
        return Ok(());
    };
    for turn in turns {
        tracing::info!(cluster = %verdict.key.name, uid = %verdict.uid, reason = turn.reason, "{}", turn.message);
        turn.announce(ctx, &verdict.key, &physical).await;
    }
    Ok(())
}

/// Returns the status after a verdict.
fn status_after(before: &PhysicalClusterStatus, verdict: &FailoverVerdict, now: &str) -> PhysicalClusterStatus {
    let mut after = before.clone();
    let is_ours = |taint: &ServerTaint| taint.key == annotations::UNREACHABLE_TAINT;
    match (verdict.is_tainted(), before.taints.iter().any(is_ours)) {
        (true, false) => after.taints.push(ServerTaint {
            key: annotations::UNREACHABLE_TAINT.to_owned(),
            effect: "NoExecute".to_owned(),
            time_added: now.to_owned(),
        }),
        (false, true) => after.taints.retain(|taint| !is_ours(taint)),
        (true, true) | (false, false) => {}
    }
    let ready = before.conditions.iter().find(|condition| condition.kind == "Ready");
    if verdict.is_lost && verdict.is_silent && ready.is_none_or(|condition| condition.status == "True") {
        let message = "no syncer has heard of it for a while".to_owned();
        set_condition(&mut after, condition("Ready", "Unknown", NO_HEARTBEAT, message), now);
    } else if !verdict.is_lost && ready.is_some_and(|condition| condition.reason == NO_HEARTBEAT) {
        let message = "the API server answers".to_owned();
        set_condition(&mut after, condition("Ready", "True", "Reachable", message), now);
    }
    match verdict.suspension {
        Some(MassLoss { lost, total }) => {
            let message = format!(
                "{lost} of {total} physical clusters look lost at once, which is likely a fault of this control plane's own network: \
                 nothing leaves them until most are heard again"
            );
            set_condition(&mut after, condition(SUSPENDED, "True", "MostClustersLost", message), now);
        }
        None if before.conditions.iter().any(|condition| condition.kind == SUSPENDED) => {
            let message = "most physical clusters are heard".to_owned();
            set_condition(&mut after, condition(SUSPENDED, "False", "MostClustersHeard", message), now);
        }
        None => {}
    }
    after
}

fn condition(kind: &str, status: &str, reason: &str, message: String) -> StatusCondition {
    let (kind, status, reason) = (kind.to_owned(), status.to_owned(), reason.to_owned());
    StatusCondition { kind, status, reason, message, ..StatusCondition::default() }
}

/// Sets a condition. It keeps its time while its status is the same.
fn set_condition(status: &mut PhysicalClusterStatus, condition: StatusCondition, now: &str) {
    let at = status.conditions.iter().position(|known| known.kind == condition.kind);
    let same = at.map(|at| &status.conditions[at]).filter(|known| known.status == condition.status);
    let since = same.map_or_else(|| now.to_owned(), |known| known.last_transition_time.clone());
    let condition = StatusCondition { last_transition_time: since, ..condition };
    match at {
        Some(at) => status.conditions[at] = condition,
        None => status.conditions.push(condition),
    }
}

/// Turn in the state of a physical cluster, for an Event.
struct FailoverTurn {
    reason: &'static str,
    is_warning: bool,
    message: String,
}

impl FailoverTurn {
    /// Writes the Event of the turn. It is lost if the store fails: the conditions say the same.
    async fn announce(&self, ctx: &SchedulerContext, key: &ObjectKey, physical: &Value) {
        let name = format!("failover-{}", self.reason.to_lowercase());
        let note = EventDraft {
            component: "portolan-scheduler",
            name: &name,
            is_warning: self.is_warning,
            reason: self.reason,
            message: &self.message,
        };
        let Some((at, event)) = note.about(&ctx.seams, key, physical) else { return };
        let write = Transaction::one(at, Expect::Anything, Some(Record::of(&event)));
        if let Err(error) = ctx.objects.store().commit(write).await {
            tracing::debug!(cluster = %key.name, %error, "an Event about failover was not written");
        }
    }
}

/// Returns the turns from one status to the next.
fn turns_between(
    before: &PhysicalClusterStatus,
    after: &PhysicalClusterStatus,
    verdict: &FailoverVerdict,
) -> Vec<FailoverTurn> {
    let is_tainted =
        |status: &PhysicalClusterStatus| status.taints.iter().any(|t| t.key == annotations::UNREACHABLE_TAINT);
    let suspension = |status: &PhysicalClusterStatus| {
        let is_true = |c: &&StatusCondition| c.kind == SUSPENDED && c.status == "True";
        status.conditions.iter().find(is_true).map(|c| c.message.clone())
    };
    let mut turns = Vec::new();
    match (is_tainted(before), is_tainted(after)) {
        (false, true) => turns.push(FailoverTurn {
            reason: "ClusterLost",
            is_warning: true,
            message: format!(
                "not heard of for {} s: objects leave after their tolerations of {}",
                verdict.silence.as_secs(),
                annotations::UNREACHABLE_TAINT
            ),
        }),
        (true, false) if !verdict.is_lost => turns.push(FailoverTurn {
            reason: "ClusterReturned",
            is_warning: false,
            message: "heard again: what has not left stays".to_owned(),
        }),
        _ => {}
    }
    if let (None, Some(message)) = (suspension(before), suspension(after)) {
        turns.push(FailoverTurn { reason: SUSPENDED, is_warning: true, message });
    }
    turns
}
