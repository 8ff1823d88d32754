//! Status of an object from those of its copies. Pure, and one path for every number of copies.
//!
//! - Counts: copies that share the replicas are summed; of copies that each have all replicas, the worst one counts.
//!   Ready never exceeds the requested number, not even while shares overlap in a move.
//! - Conditions: the worst, with the physical cluster's name if there are several. An unreadable one is `Unknown`.
//! - `observedGeneration`: the lowest that all copies have observed, and never lower than before.

mod absent;
mod bounds;
mod conditions;
mod custom;
mod jobs;
mod kinds;

use portolan_types::{GroupKind, ScaleFields, Uid, object, upstream::CopyState};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use absent::without_copies;
pub use bounds::bounded;
pub use custom::map_generations;

/// Reason of a copy whose physical cluster is unreachable.
pub const UNREACHABLE: &str = "Unreachable";
/// Reason of a copy that the physical cluster has not accepted for a while, without a refusal.
pub const PENDING: &str = "Pending";
/// Most replicas that the field takes, an int32 of Kubernetes' API.
const MAX_REPLICAS: i64 = i32::MAX as i64;
/// Type of the condition that says that a copy could not be made or updated.
pub const SYNCED: &str = "portolan.dev/Synced";
/// Type of the condition by which tools know that an object does not get ready by waiting (kstatus): a copy is refused.
pub const STALLED: &str = "Stalled";

/// State of one copy. It can be stored: the part that the physical cluster reported is bounded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyStatus {
    /// Name of the physical cluster.
    pub name: String,
    /// Uid of the physical cluster.
    pub uid: Uid,
    /// `PlacedCopy::epoch` of the copy's stay. Facts about an earlier stay do not apply to this one.
    #[serde(default)]
    pub epoch: u64,
    /// Replicas of this copy, when the copies share them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Replicas that an autoscaler there has given this copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaled: Option<i64>,
    /// Revision of its template that a Deployment has there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Upstream generation that the copy was made from; 0 before the first report.
    pub stamp: i64,
    /// The physical cluster has acted on the copy's present spec.
    pub is_current: bool,
    /// `.status` there, as last seen.
    pub status: Value,
    /// Reason and message, while the copy cannot be made, updated or seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<(String, String)>,
    /// Upstream generation that the physical cluster or the sync rules have refused; 0 if there is none.
    #[serde(default)]
    pub refused: i64,
    /// The copy was complete once: from then on missing replicas count. Before, while other copies are complete, it is
    /// the second half of a move, which clients should not notice.
    #[serde(default)]
    pub arrived: bool,
    /// Time at which `failed` last changed, in RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
}

impl CopyStatus {
    /// Creates the state of a copy without a report.
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

    /// Updates the state from a report of `now` (RFC 3339). A failure keeps the last status.
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

    /// Records the arrival of the copy once it has everything that `upstream` requests.
    pub fn note_arrival(&mut self, shape: StatusShape<'_>, upstream: &Value) {
        let is_whole = match shape.scale {
            Some(scale) => custom::observed(scale, self) >= self.replicas.unwrap_or(shape.wanted(upstream)),
            None => kinds::is_whole(shape.kind, shape.wanted(upstream), self),
        };
        self.arrived |= self.is_current && self.failed.is_none() && is_whole;
    }

    /// Returns the number of load balancer addresses that the copy of a Service or Ingress has.
    pub fn addresses(&self) -> usize {
        self.status.pointer("/loadBalancer/ingress").and_then(Value::as_array).map_or(0, Vec::len)
    }

    /// Removes the addresses, so that none is published.
    pub fn withdraw_addresses(&mut self) {
        if let Some(status) = self.status.as_object_mut().filter(|status| status.contains_key("loadBalancer")) {
            status.insert("loadBalancer".into(), json!({}));
        }
    }

    /// Returns true once the physical cluster has reported anything about the copy.
    pub fn is_reported(&self) -> bool {
        self.stamp > 0 || self.failed.is_some() || !self.status.is_null()
    }

    /// Returns true while the physical cluster cannot be reached.
    pub fn is_unreachable(&self) -> bool {
        self.failed.as_ref().is_some_and(|(reason, _)| reason == UNREACHABLE)
    }

    /// Returns true while the state downstream is unknown.
    fn is_uncertain(&self) -> bool {
        self.is_unreachable() || self.failed.as_ref().is_some_and(|(reason, _)| reason == PENDING)
    }

    /// Returns the upstream generation that the physical cluster has acted on, as far as is known.
    fn acted_on(&self) -> i64 {
        if self.is_current { self.stamp } else { self.stamp - 1 }
    }

    /// Returns the upstream generation that was acted on or refused.
    fn observed(&self) -> i64 {
        self.acted_on().max(self.refused)
    }

    fn count(&self, field: &str) -> i64 {
        self.status.get(field).and_then(Value::as_i64).unwrap_or(0)
    }
}

/// Returns true when controllers have acted on a downstream object: its generation and observedGeneration agree, or its
/// kind has none.
pub fn is_current(kind: &GroupKind, object: &Value) -> bool {
    let observed = object.get("status").and_then(|status| status.get("observedGeneration")).and_then(Value::as_i64);
    match observed {
        Some(observed) => observed >= object::generation(object),
        None => !kinds::observes(kind),
    }
}

/// Kind of an object, as far as the merge of its status depends on it.
#[derive(Clone, Copy, Debug)]
pub struct StatusShape<'a> {
    /// Its group and kind.
    pub kind: &'a GroupKind,
    /// Fields of the subresource `scale` of a custom kind.
    pub scale: Option<&'a ScaleFields>,
}

impl<'a> StatusShape<'a> {
    /// Returns the shape of a built-in kind, or of a custom one without a scale.
    pub fn of(kind: &'a GroupKind) -> Self {
        Self { kind, scale: None }
    }

    /// Returns the requested replicas of an object.
    fn wanted(&self, upstream: &Value) -> i64 {
        self.scale.map_or_else(|| wanted(upstream), |scale| scale.wanted(upstream).unwrap_or(0))
    }

    /// Returns true if the copies each run replicas of their own.
    fn has_replicas(&self) -> bool {
        self.scale.is_some() || kinds::has_replicas(self.kind)
    }
}

/// Merges the status of an object of a built-in kind, as [`merge_as`] does.
pub fn merge(kind: &GroupKind, upstream: &Value, copies: &[CopyStatus]) -> Value {
    merge_as(StatusShape::of(kind), upstream, copies)
}

/// Returns the upstream `.status` for `copies`, based on the present status. Pass only the copies that should exist
/// (phase `Active`, or `Projected`), so that addresses of leaving copies are removed. A copy without a report counts
/// only for `observedGeneration`.
pub fn merge_as(shape: StatusShape<'_>, upstream: &Value, copies: &[CopyStatus]) -> Value {
    let kind = shape.kind;
    let reported = copies.iter().filter(|copy| copy.is_reported()).map(sanitized);
    let reported: Vec<CopyStatus> = reported.map(|copy| absent::effective_copy(kind, copy)).collect();
    let before = upstream.get("status").cloned().unwrap_or_else(|| json!({}));
    if reported.is_empty() {
        return if copies.is_empty() { kinds::zero_counts(kind, &before) } else { before };
    }
    let counted = counted_copies(shape, &reported);
    let mut status = kinds::merge(kind, (&before, shape.wanted(upstream)), &counted);
    if let Some(scale) = shape.scale {
        custom::set_counts(scale, shape.wanted(upstream), &counted, &mut status);
    }
    hold_back(&before, &counted, &mut status);
    set_observed(kind, &before, copies, &reported, &mut status);
    // A custom kind may call something else so.
    if status.get("conditions").is_some_and(|conditions| !conditions.is_array()) {
        return Value::Object(status);
    }
    let mut conditions = conditions::merge(kind, &before, &counted);
    if jobs::is_divided(kind, copies) {
        jobs::settle_end(upstream, copies, &mut conditions, &mut status);
    }
    if conditions.is_empty() {
        drop(status.remove("conditions"))
    } else {
        drop(status.insert("conditions".into(), Value::Array(conditions)))
    }
    Value::Object(status)
}

fn wanted(upstream: &Value) -> i64 {
    upstream.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

/// Number of replicas that autoscalers downstream have settled on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoscaledReplicas {
    /// No autoscaler.
    No,
    /// A copy from the present spec is still missing, or shares overlap in a move.
    NotYet,
    /// The copies want this number: the sum of the shares, or the minimum over copies that each have all replicas, so
    /// that the ready count does not fall short of it.
    To(i64),
}

impl AutoscaledReplicas {
    /// Reads the number from the copies that stay.
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

/// Returns the copies that count: of those that each have all replicas, the ones that have arrived, when there are any.
fn counted_copies(shape: StatusShape<'_>, reported: &[CopyStatus]) -> Vec<CopyStatus> {
    let each_has_all = shape.has_replicas() && reported.iter().all(|copy| copy.replicas.is_none());
    if !each_has_all || !reported.iter().any(|copy| copy.arrived) {
        return reported.to_vec();
    }
    reported.iter().filter(|copy| copy.arrived).cloned().collect()
}

/// Returns the first KiB of a text of a physical cluster.
pub(crate) fn bounds_text(content: &str) -> String {
    bounds::text(content, 1024)
}

/// Returns the first `limit` bytes of a text of a physical cluster.
pub(crate) fn bounds_to(content: &str, limit: usize) -> String {
    bounds::text(content, limit)
}

fn sanitized(copy: &CopyStatus) -> CopyStatus {
    CopyStatus { status: bounded(&copy.status), ..copy.clone() }
}

/// While the generation that is shown as observed has not come to a copy, or not been acted on there, it has no pods of
/// its template: those that are counted are of an earlier one. So it is once pods are admitted that were refused
/// upstream, where no downstream controller had seen the change.
fn hold_back(before: &Value, counted: &[CopyStatus], status: &mut Map<String, Value>) {
    let number = |status: Option<&Value>| status.and_then(Value::as_i64).unwrap_or(0);
    let (shown, observed) = (number(before.get("updatedReplicas")), number(before.get("observedGeneration")));
    let is_behind = counted.iter().any(|copy| copy.acted_on() < observed);
    if is_behind && number(status.get("updatedReplicas")) > shown {
        if shown == 0 {
            drop(status.remove("updatedReplicas"))
        } else {
            drop(status.insert("updatedReplicas".into(), shown.into()))
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
