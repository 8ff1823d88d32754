//! The worst of the conditions of all copies.

use portolan_types::GroupKind;
use serde_json::{Value, json};

use super::{CopyStatus, STALLED, SYNCED, UNREACHABLE, bounds, kinds};

/// Conditions whose `True` is bad news, or that stay away while all is well.
const NEGATIVE: [&str; 9] = [
    "Failed",
    "FailureTarget",
    "ReplicaFailure",
    "Suspended",
    "ScalingLimited",
    "Degraded",
    "Stalled",
    "Resizing",
    "DisruptionTarget",
];

/// Merges by type, in the order in which the types first appear. Conditions of other upstream writers than the kind's
/// controllers stay.
pub(super) fn merge(kind: &GroupKind, before: &Value, copies: &[CopyStatus]) -> Vec<Value> {
    let mut types: Vec<&str> = Vec::new();
    for condition in copies.iter().flat_map(of) {
        let name = text(condition, "type");
        if !name.is_empty() && !types.contains(&name) {
            types.push(name);
        }
    }
    let mut merged: Vec<Value> = types.iter().filter_map(|name| worst(name, before, copies)).collect();
    if kinds::has_conditions(kind) {
        merged.extend(synced(copies));
        merged.extend(stalled(copies).filter(|_| !types.contains(&STALLED)));
    }
    merged.extend(foreign(kind, before).filter(|condition| !types.contains(&text(condition, "type"))));
    merged
}

/// Returns the conditions of other upstream writers than the kind's controllers.
pub(super) fn foreign<'a>(kind: &GroupKind, before: &'a Value) -> impl Iterator<Item = Value> + use<'a> {
    let own = kinds::own_conditions(kind);
    let is_foreign =
        move |name: &str| own.is_some_and(|own| !own.contains(&name)) && ![SYNCED, STALLED].contains(&name);
    listed(before).filter(move |condition| is_foreign(text(condition, "type"))).cloned()
}

/// All conditions of a status.
pub(super) fn all(status: &Value) -> impl Iterator<Item = Value> + use<'_> {
    listed(status).cloned()
}

fn of(copy: &CopyStatus) -> impl Iterator<Item = &Value> {
    listed(&copy.status)
}

fn listed(status: &Value) -> impl Iterator<Item = &Value> {
    status.get("conditions").and_then(Value::as_array).into_iter().flatten().filter(|c| c.is_object())
}

fn text<'a>(condition: &'a Value, field: &str) -> &'a str {
    condition.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The larger, the worse.
fn badness(name: &str, status: &str) -> u8 {
    match (status, NEGATIVE.contains(&name)) {
        ("True", true) | ("False", false) => 2,
        ("Unknown", _) => 1,
        _ => 0,
    }
}

fn worst(name: &str, before: &Value, copies: &[CopyStatus]) -> Option<Value> {
    let candidates = copies.iter().filter_map(|copy| Some((copy, condition_of_copy(name, before, copy)?)));
    let (copy, mut condition) = candidates.reduce(|worst, next| {
        let worse = badness(name, text(&next.1, "status")) > badness(name, text(&worst.1, "status"));
        if worse { next } else { worst }
    })?;
    if copies.len() > 1 {
        let message = format!("{}: {}", copy.name, text(&condition, "message"));
        condition["message"] = Value::String(bounds::text(&message, 4096));
    }
    Some(condition)
}

/// The condition of one copy: its own, or `Unknown` if the copy is unreachable or has not reported it yet.
fn condition_of_copy(name: &str, before: &Value, copy: &CopyStatus) -> Option<Value> {
    let own = of(copy).find(|condition| text(condition, "type") == name).cloned();
    match (own, &copy.failed) {
        (_, Some((reason, message))) if reason == UNREACHABLE => {
            Some(unknown(name, before, copy, "ClusterUnreachable", message))
        }
        (Some(condition), _) => Some(condition),
        (None, _) if NEGATIVE.contains(&name) => None,
        (None, _) => Some(unknown(name, before, copy, "NotReported", "has not reported it")),
    }
}

fn unknown(name: &str, before: &Value, copy: &CopyStatus, reason: &str, message: &str) -> Value {
    let same = |c: &&Value| text(c, "type") == name && text(c, "status") == "Unknown";
    let at = listed(before).find(same).map(|c| text(c, "lastTransitionTime")).filter(|at| !at.is_empty());
    condition(name, "Unknown", reason, message, at.unwrap_or(&copy.since))
}

fn condition(name: &str, status: &str, reason: &str, message: &str, at: &str) -> Value {
    let mut condition = json!({"type": name, "status": status, "reason": reason, "message": message});
    if !at.is_empty() {
        condition["lastTransitionTime"] = Value::String(at.to_owned());
    }
    condition
}

/// Says which copies could not be made or updated; absent while all is well.
fn synced(copies: &[CopyStatus]) -> Option<Value> {
    let failed: Vec<_> = copies.iter().filter_map(|copy| Some((copy, copy.failed.as_ref()?))).collect();
    let (first, (reason, _)) = failed.first()?;
    let texts: Vec<String> = failed.iter().map(|(copy, (_, message))| format!("{}: {message}", copy.name)).collect();
    let status = if failed.iter().all(|(copy, _)| copy.is_uncertain()) { "Unknown" } else { "False" };
    Some(condition(SYNCED, status, reason, &bounds::text(&texts.join("; "), 4096), &first.since))
}

/// Says that a copy is refused, which waiting does not change.
fn stalled(copies: &[CopyStatus]) -> impl Iterator<Item = Value> {
    let refused = copies.iter().filter(|copy| copy.refused > 0).find_map(|copy| Some((copy, copy.failed.as_ref()?)));
    refused.into_iter().map(|(copy, (reason, message))| {
        let message = bounds::text(&format!("{}: {message}", copy.name), 4096);
        condition(STALLED, "True", reason, &message, &copy.since)
    })
}
