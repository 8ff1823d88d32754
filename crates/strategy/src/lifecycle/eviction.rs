//! Eviction of a pod (the `eviction` subresource): the check of its disruption budget, and the changes to both.

use portolan_types::{
    GroupResource, Reason, Status, StatusCause,
    object::{self, child_mut},
};
use serde_json::{Value, json};

use super::{WriteContext, pods};

/// Evictions of one budget that were not counted yet, at most.
const MAX_DISRUPTED: usize = 2000;
/// Seconds after which a client may retry if the budget is not up to date.
const LATER: u32 = 10;
const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
const ALLOWED: &str = "DisruptionAllowed";

/// Returns true if a pod is evicted without a check of budgets: it has ended, has not started, or is being deleted.
pub fn bypasses_budgets(pod: &Value) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed" | "Pending") || object::is_deleting(pod)
}

/// Returns true if such a pod may come to need a budget's permission: one that has not started.
pub fn may_need_budget_later(pod: &Value) -> bool {
    !matches!(phase(pod), "Succeeded" | "Failed") && !object::is_deleting(pod)
}

fn phase(pod: &Value) -> &str {
    pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default()
}

/// The leave that a budget gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Leave {
    /// The pod is not ready, so the budget does not count it. Valid for this revision of the pod only.
    Uncounted,
    /// The budget is spent by one: it is to be stored like this.
    Spent(Value),
}

/// Asks the budget that covers a pod for leave to evict it.
///
/// # Errors
/// 429 if no disruption is allowed, or the budget is not up to date; 403 if its status is invalid.
pub fn ask(ctx: &WriteContext<'_>, pod: &Value, budget: &Value) -> Result<Leave, Status> {
    if !is_ready(pod) && lets_unready_go(budget) {
        return Ok(Leave::Uncounted);
    }
    let status = |key: &str| number(budget, &format!("/status/{key}"));
    if status("observedGeneration") < object::generation(budget) {
        return Err(still_processed(object::name(budget)));
    }
    let senseless = |why: &str| {
        Err(Status::forbidden(&GroupResource::new("policy", "poddisruptionbudget"), object::name(budget), why))
    };
    if status("disruptionsAllowed") < 0 {
        return senseless("pdb disruptions allowed is negative");
    }
    let disrupted = budget.pointer("/status/disruptedPods").and_then(Value::as_object).map_or(0, |pods| pods.len());
    if disrupted > MAX_DISRUPTED {
        return senseless("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    match status("disruptionsAllowed") {
        0 => Err(disruption_refused(budget)),
        _ => Ok(Leave::Spent(spent(ctx, budget.clone(), object::name(pod)))),
    }
}

/// Returns a 429: a budget, or the state it is computed from, is changing.
pub fn still_processed(budget: &str) -> Status {
    let message = format!("The disruption budget {budget} is still being processed by the server.");
    refused(message).retry_after(LATER)
}

fn refused(message: String) -> Status {
    let cause = StatusCause { reason: "DisruptionBudget".into(), message, field: String::new() };
    Status::new(Reason::TooManyRequests, REFUSED).with_cause(cause)
}

fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

fn conditions(object: &Value) -> impl Iterator<Item = &Value> {
    object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten()
}

/// Returns true for a ready pod.
pub fn is_ready(pod: &Value) -> bool {
    conditions(pod).any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn lets_unready_go(budget: &Value) -> bool {
    let wanted = number(budget, "/status/desiredHealthy");
    let policy = budget.pointer("/spec/unhealthyPodEvictionPolicy").and_then(Value::as_str);
    policy == Some("AlwaysAllow") || (wanted > 0 && number(budget, "/status/currentHealthy") >= wanted)
}

fn disruption_refused(budget: &Value) -> Status {
    let name = object::name(budget);
    let (wanted, present) = (number(budget, "/status/desiredHealthy"), number(budget, "/status/currentHealthy"));
    let text = |condition: &Value, key: &str| condition.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let denied = conditions(budget)
        .find(|condition| condition["type"] == ALLOWED)
        .filter(|condition| condition["status"] == "False")
        .map(|condition| (text(condition, "reason"), text(condition, "message")))
        .filter(|(_, message)| !message.is_empty());
    let currently = format!("The disruption budget {name} does not allow evicting pods currently");
    refused(match denied {
        Some((reason, message)) if reason == "SyncFailed" => format!("{currently} because it failed sync: {message}"),
        _ if present <= wanted => {
            format!("The disruption budget {name} needs {wanted} healthy pods and has {present} currently")
        }
        Some((reason, message)) => format!("{currently} ({reason}): {message}"),
        None => currently,
    })
}

/// The budget when the pod is on its way. The owner of the status finds the pod among the disrupted ones.
fn spent(ctx: &WriteContext<'_>, mut budget: Value, pod: &str) -> Value {
    let left = number(&budget, "/status/disruptionsAllowed") - 1;
    let seen = number(&budget, "/status/observedGeneration");
    let now = ctx.seams.now_text();
    if let Some(top) = budget.as_object_mut() {
        let status = child_mut(top, "status");
        status.insert("disruptionsAllowed".into(), left.into());
        child_mut(status, "disruptedPods").insert(pod.to_owned(), now.as_str().into());
        if left == 0 {
            let condition = json!({"type": ALLOWED, "status": "False", "reason": "InsufficientPods", "message": ""});
            let condition = with_generation(condition, seen);
            pods::put_condition(status, condition, &now);
        }
    }
    budget
}

fn with_generation(mut condition: Value, seen: i64) -> Value {
    if seen != 0 {
        condition["observedGeneration"] = seen.into();
    }
    condition
}

/// Returns the pod with the condition that it was evicted, which precedes its deletion.
pub fn evicted(ctx: &WriteContext<'_>, pod: &Value) -> Value {
    let mut pod = pod.clone();
    if let Some(top) = pod.as_object_mut() {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "lastProbeTime": null,
            "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
        });
        pods::put_condition(child_mut(top, "status"), condition, &ctx.seams.now_text());
    }
    pod
}

#[cfg(test)]
mod tests {
    use portolan_types::Seams;

    use super::*;
    use portolan_kinds::KindTable;

    fn eviction_of(pod: &Value, spec: &Value, status: &Value) -> Result<Leave, Status> {
        let seams = Seams::system();
        let context = WriteContext::new(KindTable::builtin(), &seams);
        let budget = json!({"metadata": {"name": "b", "generation": 2}, "spec": spec, "status": status});
        ask(&context, pod, &budget)
    }

    #[test]
    fn budgets_permit_evictions_in_kube_apiservers_words() {
        let ready = json!({"metadata": {"name": "p"}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let unready = json!({"metadata": {"name": "p"}, "status": {"phase": "Running"}});
        let denied = |reason: &str, current: i64| {
            json!({"observedGeneration": 2, "desiredHealthy": 1, "currentHealthy": current,
                "conditions": [{"type": ALLOWED, "status": "False", "reason": reason, "message": "why"}]})
        };
        let none = json!({});
        let always = json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"});
        for (case, pod, spec, status, expected) in [
            (
                "an old status",
                &ready,
                &none,
                json!({"observedGeneration": 1, "disruptionsAllowed": 1}),
                "is still being processed by the server.",
            ),
            (
                "fewer than none",
                &ready,
                &none,
                json!({"observedGeneration": 2, "disruptionsAllowed": -1}),
                "pdb disruptions allowed is negative",
            ),
            (
                "too few",
                &ready,
                &none,
                json!({"observedGeneration": 2, "desiredHealthy": 2, "currentHealthy": 2}),
                "b needs 2 healthy pods and has 2 currently",
            ),
            (
                "enough, and none allowed",
                &ready,
                &none,
                json!({"observedGeneration": 2, "desiredHealthy": 1, "currentHealthy": 2}),
                "b does not allow evicting pods currently",
            ),
            (
                "a failed sync",
                &ready,
                &none,
                denied("SyncFailed", 0),
                "does not allow evicting pods currently because it failed sync: why",
            ),
            ("a condition", &ready, &none, denied("Other", 2), "does not allow evicting pods currently (Other): why"),
            ("a condition of too few", &ready, &none, denied("Other", 1), "b needs 1 healthy pods and has 1 currently"),
            (
                "an unready pod of too few",
                &unready,
                &none,
                json!({"observedGeneration": 2, "desiredHealthy": 1}),
                "b needs 1 healthy pods and has 0 currently",
            ),
            ("an unready pod of enough", &unready, &none, json!({"desiredHealthy": 1, "currentHealthy": 1}), ""),
            ("an unready pod that may always go", &unready, &always, json!({}), ""),
        ] {
            let said = match eviction_of(pod, spec, &status) {
                Ok(leave) => {
                    assert_eq!(leave, Leave::Uncounted, "{case}");
                    String::new()
                }
                Err(failure) => {
                    let cause = failure.details().causes.first().map(|cause| cause.message.clone());
                    cause.unwrap_or_else(|| failure.message().to_owned())
                }
            };
            assert!(said.ends_with(expected) && said.is_empty() == expected.is_empty(), "{case}: {said}");
        }
    }

    #[test]
    fn the_last_allowance_is_noted_as_a_condition() {
        let pod = json!({"metadata": {"name": "p"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        for (allowed, conditions) in [(2, 0), (1, 1)] {
            let status = json!({"observedGeneration": 2, "disruptionsAllowed": allowed});
            let Ok(Leave::Spent(budget)) = eviction_of(&pod, &json!({}), &status) else { panic!("there is leave") };
            assert_eq!(budget["status"]["disruptionsAllowed"], allowed - 1);
            assert!(budget["status"]["disruptedPods"]["p"].is_string());
            assert_eq!(super::conditions(&budget).count(), conditions);
        }
    }
}
