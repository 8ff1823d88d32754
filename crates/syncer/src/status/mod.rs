//! The status of 1 to N copies as one. Pure, and one path for every number of copies.
//!
//! - Counts: copies that share the replicas are summed; of copies that each have all, the worst one counts, so that what is
//!   ready never exceeds what is wanted; nor does it while shares overlap in a move.
//! - Conditions: the worst, with the physical cluster's name where there are several. What cannot be seen is `Unknown`.
//! - `observedGeneration`: the least that all copies have observed, and never lower than before.

mod absent;
mod bounds;
mod conditions;
mod kinds;

use portolan_types::{GroupKind, Uid, object, upstream::CopyState};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use absent::without_copies;
pub use bounds::bounded;

/// The reason of a copy whose physical cluster cannot be reached.
pub const UNREACHABLE: &str = "Unreachable";
/// The reason of a copy that the physical cluster has not taken for a while, without having refused it.
pub const PENDING: &str = "Pending";
/// Most replicas that the field takes, an int32 of Kubernetes' API.
const MAX_REPLICAS: i64 = i32::MAX as i64;
/// Type of the condition that says that a copy could not be made or updated.
pub const SYNCED: &str = "portolan.dev/Synced";
/// Type of the condition by which tools know that an object does not get ready by waiting (kstatus): a copy is refused.
pub const STALLED: &str = "Stalled";

/// What is known of one copy. Can be stored; the physical cluster's word in it is bounded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyStatus {
    /// Name of the physical cluster.
    pub name: String,
    /// Uid of the physical cluster.
    pub uid: Uid,
    /// `PlacedCopy::epoch` of the stay that this is about; what is known of an earlier one says nothing about it.
    #[serde(default)]
    pub epoch: u64,
    /// Replicas of this copy, when the copies share them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Replicas that an autoscaler there has given this copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaled: Option<i64>,
    /// Which revision of its template a Deployment is at there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Upstream generation that the copy was made from; 0 before the first report.
    pub stamp: i64,
    /// The physical cluster has acted on what the copy says.
    pub is_current: bool,
    /// `.status` there, as last seen.
    pub status: Value,
    /// Reason and message, while the copy cannot be made, updated or seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<(String, String)>,
    /// Upstream generation that the physical cluster, or what may go to it, has refused; 0 when there is none.
    #[serde(default)]
    pub refused: i64,
    /// It has once had all that it should have: from then on what it lacks counts. Before, while others have arrived, it is
    /// the second half of a move, which nobody should notice.
    #[serde(default)]
    pub arrived: bool,
    /// When `failed` last came or went, RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
}

impl CopyStatus {
    /// A copy that nothing has been reported of.
    pub fn unreported(name: impl Into<String>, uid: Uid, replicas: Option<i64>) -> Self {
        Self {
            name: name.into(),
            uid,
            epoch: 0,
            replicas,
            scaled: None,
            revision: None,
            stamp: 0,
            is_current: false,
            status: Value::Null,
            failed: None,
            refused: 0,
            arrived: false,
            since: String::new(),
        }
    }

    /// Takes in a report that came at `now` (RFC 3339). A failure keeps the status that was seen last.
    pub fn update(&mut self, state: CopyState, now: &str) {
        let failed_before = self.failed.take();
        self.refused = 0;
        match state {
            CopyState::Synced { stamp, is_current, scaled, revision, status } => {
                (self.stamp, self.is_current, self.revision) = (stamp, is_current, revision);
                self.scaled = scaled.filter(|replicas| (0..=MAX_REPLICAS).contains(replicas));
                self.status = bounded(&status);
            }
            CopyState::Failed { generation, reason, message } => {
                self.failed = Some((bounds::text(&reason, 64), bounds::text(&message, 1024)));
                self.refused = if self.is_uncertain() { 0 } else { generation };
            }
        }
        let reason = |failed: &Option<(String, String)>| failed.as_ref().map(|(reason, _)| reason.clone());
        if self.since.is_empty() || reason(&failed_before) != reason(&self.failed) {
            self.since = now.to_owned();
        }
    }

    /// Takes note that the copy has all that `upstream` asks for, if it does.
    pub fn note_arrival(&mut self, kind: &GroupKind, upstream: &Value) {
        self.arrived |= self.is_current && self.failed.is_none() && kinds::is_whole(kind, wanted(upstream), self);
    }

    /// Returns true once the physical cluster has said anything of the copy.
    pub fn is_reported(&self) -> bool {
        self.stamp > 0 || self.failed.is_some() || !self.status.is_null()
    }

    /// Returns true while the physical cluster cannot be reached.
    pub fn is_unreachable(&self) -> bool {
        self.failed.as_ref().is_some_and(|(reason, _)| reason == UNREACHABLE)
    }

    /// Whether nobody can say what stands there.
    fn is_uncertain(&self) -> bool {
        self.is_unreachable() || self.failed.as_ref().is_some_and(|(reason, _)| reason == PENDING)
    }

    /// The upstream generation that the physical cluster has acted on, as far as is known.
    fn acted_on(&self) -> i64 {
        if self.is_current { self.stamp } else { self.stamp - 1 }
    }

    /// The upstream generation that was acted on or refused: an answer either way.
    fn observed(&self) -> i64 {
        self.acted_on().max(self.refused)
    }

    fn count(&self, field: &str) -> i64 {
        self.status.get(field).and_then(Value::as_i64).unwrap_or(0)
    }
}

/// Whether a downstream object has been acted on: its generation and observedGeneration agree, or its kind has none.
pub fn is_current(kind: &GroupKind, object: &Value) -> bool {
    let observed = object.get("status").and_then(|status| status.get("observedGeneration")).and_then(Value::as_i64);
    match observed {
        Some(observed) => observed >= object::generation(object),
        None => !kinds::observes(kind),
    }
}

/// `.status` of the upstream object of `copies`, from the one that it has now. Give the copies that should be there (phase
/// `Active`, or `Projected`); the addresses of those that leave are then gone from it. A copy without a report counts only
/// for `observedGeneration`.
pub fn merge(kind: &GroupKind, upstream: &Value, copies: &[CopyStatus]) -> Value {
    let reported = copies.iter().filter(|copy| copy.is_reported()).map(sanitized);
    let reported: Vec<CopyStatus> = reported.map(|copy| absent::as_it_counts(kind, copy)).collect();
    let before = upstream.get("status").cloned().unwrap_or_else(|| json!({}));
    if reported.is_empty() {
        return if copies.is_empty() { kinds::nowhere(kind, &before) } else { before };
    }
    let counted = counted(kind, &reported);
    let mut status = kinds::merge(kind, (&before, wanted(upstream)), &counted);
    hold_back(&before, &counted, &mut status);
    set_observed(kind, &before, copies, &reported, &mut status);
    let conditions = conditions::merge(kind, &before, &counted);
    match conditions.is_empty() {
        true => drop(status.remove("conditions")),
        false => drop(status.insert("conditions".into(), Value::Array(conditions))),
    }
    Value::Object(status)
}

fn wanted(upstream: &Value) -> i64 {
    upstream.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

/// What the autoscalers below say about the number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autoscaled {
    /// There is none.
    No,
    /// A copy is not there yet that was made from what the object says now, or shares overlap in a move.
    NotYet,
    /// They want so many: the sum of the shares, or the least of copies that each have all, so that what is ready does not
    /// fall short of it.
    To(i64),
}

impl Autoscaled {
    /// Asks the copies that are to stay.
    pub fn of(upstream: &Value, copies: &[CopyStatus]) -> Self {
        let replicas = |copy: &CopyStatus| copy.scaled.or(copy.replicas);
        let is_behind = |copy: &CopyStatus| copy.stamp != object::generation(upstream);
        let shares = copies.iter().filter_map(|copy| copy.replicas).reduce(i64::saturating_add);
        let is_moving = shares.is_some_and(|shares| shares != wanted(upstream));
        match copies.iter().filter_map(|copy| copy.scaled).min() {
            None => Self::No,
            Some(_) if is_moving || copies.iter().any(is_behind) => Self::NotYet,
            Some(_) if shares.is_some() => {
                let sum = copies.iter().filter_map(replicas).fold(0, i64::saturating_add);
                Self::To(sum.min(MAX_REPLICAS))
            }
            Some(least) => Self::To(least),
        }
    }
}

/// Of copies that each have all: those that have arrived, when there are any.
fn counted(kind: &GroupKind, reported: &[CopyStatus]) -> Vec<CopyStatus> {
    let each_has_all = kinds::has_replicas(kind) && reported.iter().all(|copy| copy.replicas.is_none());
    if !each_has_all || !reported.iter().any(|copy| copy.arrived) {
        return reported.to_vec();
    }
    reported.iter().filter(|copy| copy.arrived).cloned().collect()
}

/// The first KiB of a text that a physical cluster sent.
pub(crate) fn bounds_text(content: &str) -> String {
    bounds::text(content, 1024)
}

/// The first `limit` bytes of a text that a physical cluster sent.
pub(crate) fn bounds_to(content: &str, limit: usize) -> String {
    bounds::text(content, limit)
}

fn sanitized(copy: &CopyStatus) -> CopyStatus {
    CopyStatus { status: bounded(&copy.status), ..copy.clone() }
}

/// While the generation that is shown as observed has not come to a copy, or not been acted on there, it has no pods of its
/// template: those that are counted are of an earlier one. So it is once pods are let in that were refused above, where nobody
/// below had seen the change.
fn hold_back(before: &Value, counted: &[CopyStatus], status: &mut Map<String, Value>) {
    let number = |status: Option<&Value>| status.and_then(Value::as_i64).unwrap_or(0);
    let (shown, observed) = (number(before.get("updatedReplicas")), number(before.get("observedGeneration")));
    let is_behind = counted.iter().any(|copy| copy.acted_on() < observed);
    if is_behind && number(status.get("updatedReplicas")) > shown {
        match shown == 0 {
            true => drop(status.remove("updatedReplicas")),
            false => drop(status.insert("updatedReplicas".into(), shown.into())),
        }
    }
}

fn set_observed(
    kind: &GroupKind,
    before: &Value,
    copies: &[CopyStatus],
    reported: &[CopyStatus],
    status: &mut Map<String, Value>,
) {
    let shown = reported.iter().any(|copy| copy.status.get("observedGeneration").is_some());
    let earlier = before.get("observedGeneration").and_then(Value::as_i64).unwrap_or(0);
    status.remove("observedGeneration");
    let observed = copies.iter().map(CopyStatus::observed).min().unwrap_or(0).max(earlier);
    if (shown || kinds::observes(kind)) && observed > 0 {
        status.insert("observedGeneration".into(), observed.into());
    }
}

#[cfg(test)]
mod tests;
