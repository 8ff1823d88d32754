//! What the status of a workload tells of its pods not being let in.

use std::time::Duration;

use portolan_placement::{Admitted, Outcome, Told, is_refused, left_to_progress, let_in_status, refused_status};
use portolan_types::object;
use serde_json::Value;

use crate::{
    admission::template_of,
    gather::{Gathered, Planned},
    queue::Task,
    scheduler::Inner,
};

impl Inner {
    /// The status that a workload is to have because its pods are refused, or are not any more. `None` when it is right. A
    /// rollout that waits is looked at again when its time is over.
    pub(crate) fn status_told(&self, gathered: &Gathered, planned: &Planned, admitted: &Admitted) -> Option<Value> {
        let (kind, object, now) = (&gathered.workload.kind, &gathered.object, self.seams.clock.now());
        let uid = object::meta_text(object, "uid");
        let status = match &planned.decision.outcome {
            Outcome::Refused(refusal) => {
                let told = Told {
                    message: &refusal.message,
                    nowhere: planned.step.record.clusters.is_empty(),
                    new_template: admitted.template != template_of(gathered),
                    now,
                };
                refused_status(kind, object, &told)?
            }
            _ if is_refused(gathered.placement.as_ref().map(|(placement, _)| placement), uid) => {
                let_in_status(kind, object, now)?
            }
            _ => return None,
        };
        if let Some(left) = left_to_progress(object, &status, now) {
            // Deadlines are over when they have passed, and times are told in whole seconds.
            let left = Duration::from_secs(left.as_secs().max(0).unsigned_abs() + 1);
            self.queue.tasks.add_after(Task::Object(gathered.key.clone()), left);
        }
        (object.get("status") != Some(&status)).then_some(status)
    }
}
