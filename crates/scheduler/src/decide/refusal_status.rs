//! Status of a workload while its pods are refused.

use std::time::Duration;

use portolan_placement::{
    AdmissionRecord, DecisionOutcome, RefusalFacts, admitted_status, is_refused, refused_status,
    remaining_progress_deadline,
};
use portolan_types::object;
use serde_json::Value;

use crate::{
    context::SchedulerContext, decide::PlannedStep, decide::pod_admission::template_of, inputs::DecisionInputs,
    queue::Task,
};

/// Returns the status of a workload whose pods are refused, or no longer refused; `None` if the status is current.
/// Queues a rollout that waits again for the end of its deadline.
pub(crate) fn refusal_status_of(
    ctx: &SchedulerContext,
    inputs: &DecisionInputs,
    planned: &PlannedStep,
    admitted: &AdmissionRecord,
) -> Option<Value> {
    let (kind, object, now) = (&inputs.workload.kind, &inputs.object, ctx.seams.clock.now());
    let uid = object::meta_text(object, "uid");
    let status = match &planned.decision.outcome {
        DecisionOutcome::Refused(refusal) => {
            let facts = RefusalFacts {
                message: &refusal.message,
                nowhere: planned.step.record.clusters.is_empty(),
                new_template: is_new(template_of(inputs).as_deref(), inputs.workload.generation, admitted),
                now,
            };
            refused_status(kind, object, &facts)?
        }
        _ if is_refused(inputs.placement.as_ref().map(|(placement, _)| placement), uid) => {
            admitted_status(kind, object, now)?
        }
        _ => return None,
    };
    if let Some(left) = remaining_progress_deadline(object, &status, now) {
        // A deadline is over once it has passed; times have whole seconds.
        let left = Duration::from_secs(left.as_secs().max(0).unsigned_abs() + 1);
        ctx.queue.tasks.add_after(Task::Object(inputs.key.clone()), left);
    }
    (object.get("status") != Some(&status)).then_some(status)
}

/// Returns true if a template is not the admitted one. A `Placement` without a fingerprint has only the generation: an
/// unchanged generation has the same template.
fn is_new(template: Option<&str>, generation: i64, admitted: &AdmissionRecord) -> bool {
    match &admitted.template {
        Some(known) => template != Some(known.as_str()),
        None => template.is_some() && admitted.generation != Some(generation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_new_when_it_is_not_the_one_that_was_let_in() {
        let admitted = |generation, template: Option<&str>| AdmissionRecord {
            generation,
            template: template.map(str::to_owned),
            ..AdmissionRecord::default()
        };
        for (case, admitted, expected) in [
            ("the same, of an earlier generation", admitted(Some(1), Some("t")), false),
            ("another one", admitted(Some(1), Some("s")), true),
            ("not known, of the same generation", admitted(Some(2), None), false),
            ("not known, of an earlier generation", admitted(Some(1), None), true),
            ("none was admitted", admitted(None, None), true),
        ] {
            assert_eq!(is_new(Some("t"), 2, &admitted), expected, "{case}");
        }
        assert!(!is_new(None, 2, &admitted(Some(1), None)), "what has no template has no new one");
    }
}
