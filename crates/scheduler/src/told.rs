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
                    new_template: is_new(template_of(gathered).as_deref(), gathered.workload.generation, admitted),
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

/// Whether a template is another one than that which was let in. A `Placement` of before fingerprints were kept knows only the
/// generation: what has not changed since has the template of then.
fn is_new(template: Option<&str>, generation: i64, admitted: &Admitted) -> bool {
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
        let admitted = |generation, template: Option<&str>| Admitted {
            generation,
            template: template.map(str::to_owned),
            ..Admitted::default()
        };
        for (case, admitted, expected) in [
            ("the same, of an earlier generation", admitted(Some(1), Some("t")), false),
            ("another one", admitted(Some(1), Some("s")), true),
            ("not known, of the same generation", admitted(Some(2), None), false),
            ("not known, of an earlier generation", admitted(Some(1), None), true),
            ("none was let in", admitted(None, None), true),
        ] {
            assert_eq!(is_new(Some("t"), 2, &admitted), expected, "{case}");
        }
        assert!(!is_new(None, 2, &admitted(Some(1), None)), "what has no template has no new one");
    }
}
