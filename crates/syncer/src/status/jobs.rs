//! End of a Job whose copies share its completions.
//!
//! It is complete once every part is, and no completion is without a copy. It has failed once a part has, and no pod
//! of another part runs: until then it has the condition `FailureTarget`, and the syncer suspends the other parts.

use portolan_types::{GroupKind, placement::PlacementRecord};
use serde_json::{Map, Value};

use super::CopyStatus;

const COMPLETE: [&str; 2] = ["Complete", "SuccessCriteriaMet"];

/// Returns true for a Job whose copies share its completions.
pub(super) fn is_divided(kind: &GroupKind, copies: &[CopyStatus]) -> bool {
    (&*kind.group, &*kind.kind) == ("batch", "Job") && copies.iter().any(|copy| copy.replicas.is_some())
}

/// Corrects the merged conditions of a divided Job. `copies` are all that should be there, with a report or without.
pub(super) fn settle_end(
    upstream: &Value,
    copies: &[CopyStatus],
    conditions: &mut Vec<Value>,
    status: &mut Map<String, Value>,
) {
    let has_failed = copies.iter().any(|copy| is_true(copy, "Failed"));
    let is_complete =
        !has_failed && covers_all_completions(upstream) && copies.iter().all(|copy| is_true(copy, "Complete"));
    if !is_complete {
        conditions.retain(|condition| !condition["type"].as_str().is_some_and(|name| COMPLETE.contains(&name)));
        status.remove("completionTime");
    }
    if !has_failed {
        return;
    }
    // Portolan suspends the other parts, not the user.
    if upstream.pointer("/spec/suspend").and_then(Value::as_bool) != Some(true) {
        conditions.retain(|condition| condition["type"] != "Suspended");
    }
    let has =
        |conditions: &[Value], name: &str| conditions.iter().any(|one| one["type"] == name && one["status"] == "True");
    if let Some(failed) = conditions.iter().find(|one| one["type"] == "Failed").cloned()
        && !has(conditions, "FailureTarget")
    {
        conditions.retain(|condition| condition["type"] != "FailureTarget");
        let mut target = failed;
        target["type"] = "FailureTarget".into();
        conditions.push(target);
    }
    if !copies.iter().all(is_at_rest) {
        conditions.retain(|condition| condition["type"] != "Failed");
    }
}

/// Returns true unless some completions wait for a copy.
fn covers_all_completions(upstream: &Value) -> bool {
    let Some(record) = PlacementRecord::of(upstream) else { return true };
    let has = |copy: &portolan_types::placement::PlacedCopy| record.completions.get(&copy.uid).copied();
    match upstream.pointer("/spec/completions").and_then(Value::as_i64) {
        Some(wanted) => record.active().filter_map(has).fold(0_i64, i64::saturating_add) >= wanted,
        None => record.active().count() == record.clusters.len() && record.awaited.is_empty(),
    }
}

/// Returns true for a part that has ended, or is suspended and has no pod.
fn is_at_rest(copy: &CopyStatus) -> bool {
    let has_ended = is_true(copy, "Complete") || is_true(copy, "Failed");
    let pods = ["active", "terminating"].iter().map(|field| copy.count(field)).sum::<i64>();
    has_ended || (copy.failed.is_none() && is_true(copy, "Suspended") && pods == 0)
}

fn is_true(copy: &CopyStatus, name: &str) -> bool {
    let conditions = copy.status.get("conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| one["type"] == name && one["status"] == "True")
}
