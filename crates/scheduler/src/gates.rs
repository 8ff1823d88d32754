//! Scheduling gates. A Pod that has some is placed once they are gone; a template whose Pods would get some is not placed at
//! all, since they would be taken off Pods that only exist downstream.

use portolan_placement::Refusal;
use serde_json::Value;

use crate::{
    gather::{Gathered, Planned},
    scheduler::{Inner, SchedulerError},
};

/// Reason of a Pod or a template that scheduling gates keep from being placed, as kube-scheduler has it.
pub(crate) const SCHEDULING_GATED: &str = "SchedulingGated";

fn gates(pod: &Value) -> Vec<&str> {
    let all = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    all.into_iter().flatten().filter_map(|gate| gate["name"].as_str()).collect()
}

/// Why a Pod waits that has scheduling gates and is nowhere yet.
fn refusal_of_pod(gathered: &Gathered) -> Option<Refusal> {
    let kind = &gathered.workload.kind;
    let is_unplaced_pod = kind.group.is_empty() && &*kind.kind == "Pod" && gathered.record.clusters.is_empty();
    if !is_unplaced_pod {
        return None;
    }
    let gates = gates(&gathered.object);
    let message = || format!("it waits until its scheduling gates are gone: {}", gates.join(", "));
    (!gates.is_empty()).then(|| Refusal { reason: SCHEDULING_GATED, message: message() })
}

/// Why a template is not placed whose Pods get scheduling gates. `pod` is one as admission has left it.
pub(crate) fn refusal_of_template(pod: &Value) -> Option<Refusal> {
    let gates = gates(pod);
    let message = || {
        format!(
            "its Pods get the scheduling gates {}, which nothing takes off Pods on physical clusters: Pods that are created \
             in this workspace may have them",
            gates.join(", ")
        )
    };
    (!gates.is_empty()).then(|| Refusal { reason: SCHEDULING_GATED, message: message() })
}

impl Inner {
    /// Plans for an object, which comes nowhere while it is a Pod with scheduling gates.
    pub(crate) fn plan_behind_gates(&self, gathered: &Gathered) -> Result<Planned, SchedulerError> {
        self.plan(gathered, refusal_of_pod(gathered))
    }
}
