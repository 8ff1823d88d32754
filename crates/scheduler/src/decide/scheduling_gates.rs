//! Scheduling gates. A Pod with gates is placed once they are gone; a template whose Pods would get gates is not
//! placed, because nothing removes gates from Pods that exist only downstream.

use portolan_placement::PodRefusal;
use serde_json::Value;

use crate::{
    context::SchedulerContext,
    decide::{PlannedStep, plan},
    inputs::DecisionInputs,
    scheduler::SchedulerError,
};

/// Reason of a Pod or a template that scheduling gates keep from being placed, as kube-scheduler words it.
pub(crate) const SCHEDULING_GATED: &str = "SchedulingGated";

fn gates(pod: &Value) -> Vec<&str> {
    let all = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    all.into_iter().flatten().filter_map(|gate| gate["name"].as_str()).collect()
}

/// Returns the refusal of a Pod that has scheduling gates and no copy yet.
pub(crate) fn refusal_of_pod(inputs: &DecisionInputs) -> Option<PodRefusal> {
    let kind = &inputs.workload.kind;
    let is_unplaced_pod = kind.group.is_empty() && &*kind.kind == "Pod" && inputs.record.clusters.is_empty();
    if !is_unplaced_pod {
        return None;
    }
    let gates = gates(&inputs.object);
    let message = || format!("it waits until its scheduling gates are gone: {}", gates.join(", "));
    (!gates.is_empty()).then(|| PodRefusal { reason: SCHEDULING_GATED, message: message() })
}

/// Returns the refusal of a template whose Pods get scheduling gates. `pod` is one after admission.
pub(crate) fn refusal_of_template(pod: &Value) -> Option<PodRefusal> {
    let gates = gates(pod);
    let message = || {
        format!(
            "its Pods get the scheduling gates {}, which nothing takes off Pods on physical clusters: Pods that are created \
             in this workspace may have them",
            gates.join(", ")
        )
    };
    (!gates.is_empty()).then(|| PodRefusal { reason: SCHEDULING_GATED, message: message() })
}

/// Plans for an object. A Pod with scheduling gates gets no copy.
pub(crate) fn plan_with_gates(ctx: &SchedulerContext, inputs: &DecisionInputs) -> Result<PlannedStep, SchedulerError> {
    plan(ctx, inputs, refusal_of_pod(inputs))
}
