//! Validation of a Job's status.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    super::{
        Errors, FieldError, internal,
        view::{At, is_same},
    },
    indexes,
};

/// Returns true if a condition of a status is `True`.
pub(super) fn holds(status: &At<'_>, kind: &str) -> bool {
    state(status, kind) == "True"
}

fn state<'v>(status: &At<'v>, kind: &str) -> &'v str {
    let found = status.items("conditions").find(|condition| condition.text("type") == kind);
    found.map_or("", |condition| condition.text("status"))
}

/// Update of a job's status.
struct Step<'v> {
    spec: At<'v>,
    old: At<'v>,
    new: At<'v>,
}

impl Step<'_> {
    fn changed(&self, names: &[&str]) -> bool {
        names.iter().any(|name| !is_same(self.old.get(name), self.new.get(name)))
    }

    /// Returns true if one of these conditions changes to or from `True`.
    fn turned(&self, kinds: &[&str]) -> bool {
        kinds.iter().any(|kind| holds(&self.old, kind) != holds(&self.new, kind))
    }

    fn is_finished(&self) -> bool {
        holds(&self.new, "Complete") || holds(&self.new, "Failed")
    }

    fn finish_turned(&self) -> bool {
        (holds(&self.old, "Complete") || holds(&self.old, "Failed")) != self.is_finished()
    }

    fn conditions(&self, why: &str, errors: &mut Errors) {
        errors.push(FieldError::invalid_hidden(self.new.path("conditions"), why));
    }

    fn invalid(&self, name: &str, why: &str, errors: &mut Errors) {
        errors.invalid(self.new.path(name), self.new.get(name), why);
    }
}

pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let step = Step { spec: new.child("spec"), old: old.child("status"), new: new.child("status") };
    step.new.nonnegatives(&["active", "succeeded", "failed", "ready", "terminating"], errors);
    uncounted(&step.new, errors);
    complete_conditions(&step, errors);
    completion_time(&step, errors);
    final_conditions(&step, errors);
    finished(&step, errors);
    index_lists(&step, errors);
    let turned = step.finish_turned() || step.changed(&["terminating"]);
    if turned && step.new.number("terminating") > 0 && step.is_finished() {
        step.invalid("terminating", "terminating>0 is invalid for finished job", errors);
    }
    let counted = step.changed(&["ready", "active"]) && step.new.has("ready");
    if counted && step.new.number("ready") > step.new.number("active") {
        step.invalid("ready", "cannot set more ready pods than active", errors);
    }
    success_criteria(&step, errors);
    transitions(&step, errors);
}

fn uncounted(status: &At<'_>, errors: &mut Errors) {
    let pods = status.child("uncountedTerminatedPods");
    let mut taken = HashSet::new();
    for uid in ["succeeded", "failed"].iter().flat_map(|list| pods.items(list)) {
        if uid.as_text().is_empty() {
            errors.invalid(&uid.path, uid.value, "must not be empty");
        } else if !taken.insert(uid.as_text()) {
            errors.duplicate(&uid.path, uid.value);
        }
    }
}

fn complete_conditions(step: &Step<'_>, errors: &mut Errors) {
    for (other, word) in [("Failed", "Failed"), ("FailureTarget", "FailureTarget")] {
        if step.turned(&["Complete", other]) && holds(&step.new, "Complete") && holds(&step.new, other) {
            step.conditions(&format!("cannot set Complete=True and {word}=true conditions"), errors);
        }
    }
}

fn completion_time(step: &Step<'_>, errors: &mut Errors) {
    let (name, new) = ("completionTime", &step.new);
    if step.turned(&["Complete"]) || step.changed(&[name]) {
        if new.has(name) && !holds(new, "Complete") {
            let why = "cannot set completionTime when there is no Complete=True condition";
            step.invalid(name, why, errors);
        }
        if !new.has(name) && holds(new, "Complete") {
            errors.required(new.path(name), "completionTime is required for Complete jobs");
        }
    }
    let ordered = new.text("startTime") <= new.text(name);
    if step.changed(&["startTime", name]) && new.has("startTime") && new.has(name) && !ordered {
        step.invalid(name, "must be equal to or after `startTime`", errors);
    }
}

fn final_conditions(step: &Step<'_>, errors: &mut Errors) {
    let new = &step.new;
    let failing = step.turned(&["Failed"]) || step.changed(&["failedIndexes"]);
    if failing && holds(new, "Failed") && !holds(new, "FailureTarget") {
        step.conditions("cannot set Failed=True condition without the FailureTarget=true condition", errors);
    }
    let completing = step.turned(&["Complete", "SuccessCriteriaMet"]);
    if completing && holds(new, "Complete") && !holds(new, "SuccessCriteriaMet") {
        step.conditions("cannot set Complete=True condition without the SuccessCriteriaMet=true condition", errors);
    }
}

fn finished(step: &Step<'_>, errors: &mut Errors) {
    let (new, turned) = (&step.new, step.finish_turned());
    if !step.is_finished() {
        return;
    }
    if (turned || step.changed(&["active"])) && new.number("active") > 0 {
        step.invalid("active", "active>0 is invalid for finished job", errors);
    }
    let never_ran = step.spec.flag("suspend") && step.spec.int("completions") == Some(0);
    if (turned || step.changed(&["startTime"])) && !never_ran && !new.has("startTime") {
        errors.required(new.path("startTime"), "startTime is required for finished job");
    }
    let pods = new.child("uncountedTerminatedPods");
    let left = pods.count("failed") + pods.count("succeeded");
    if (turned || step.changed(&["uncountedTerminatedPods"])) && left > 0 {
        let shown = internal::printed_value("UncountedTerminatedPods", pods.value);
        errors.push(FieldError::invalid_shown(&pods.path, &shown, "must be empty for finished job"));
    }
}

fn index_lists(step: &Step<'_>, errors: &mut Errors) {
    let (completed, failed) = ("completedIndexes", "failedIndexes");
    let completions = step.spec.int("completions");
    let per_index = step.spec.has("backoffLimitPerIndex");
    for (name, read) in [(completed, true), (failed, per_index && step.new.has(failed))] {
        if let Some(completions) = completions.filter(|_| read && step.changed(&[name]))
            && let Err(why) = indexes::count(step.new.text(name), completions)
        {
            step.invalid(name, &format!("error parsing {name}: {why}"), errors);
        }
    }
    let indexed = step.spec.text("completionMode") == "Indexed";
    if step.changed(&[completed]) && !step.new.text(completed).is_empty() && !indexed {
        step.invalid(completed, "cannot set non-empty completedIndexes when non-indexed completion mode", errors);
    }
    if step.changed(&[failed]) && step.new.has(failed) && !per_index {
        step.invalid(failed, "cannot set non-null failedIndexes when backoffLimitPerIndex is null", errors);
    }
    if let Some(completions) = completions.filter(|_| step.changed(&[completed, failed]) && step.new.has(failed))
        && let Some(index) = indexes::shared(step.new.text(completed), step.new.text(failed), completions)
    {
        step.invalid(failed, &format!("failedIndexes and completedIndexes overlap at index: {index}"), errors);
    }
}

fn success_criteria(step: &Step<'_>, errors: &mut Errors) {
    let met = holds(&step.new, "SuccessCriteriaMet");
    for other in ["Failed", "FailureTarget"] {
        if met && holds(&step.new, other) {
            step.conditions(&format!("cannot set SuccessCriteriaMet=True and {other}=true conditions"), errors);
        }
    }
    if step.spec.has("successPolicy") && !met && holds(&step.new, "Complete") {
        let why = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        step.conditions(why, errors);
    }
}

/// Validates transitions that cannot be reverted.
fn transitions(step: &Step<'_>, errors: &mut Errors) {
    let (old, new) = (&step.old, &step.new);
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if holds(old, kind) && !holds(new, kind) {
            step.conditions(&format!("cannot disable the terminal {kind}=True condition"), errors);
        }
    }
    let shown = |name: &str| Value::from(new.number(name));
    if new.number("failed") < old.number("failed") {
        errors.invalid(new.path("failed"), &shown("failed"), "cannot decrease the failed counter");
    }
    let elastic =
        step.spec.text("completionMode") == "Indexed" && step.spec.get("completions") == step.spec.get("parallelism");
    if !elastic && new.number("succeeded") < old.number("succeeded") {
        errors.invalid(new.path("succeeded"), &shown("succeeded"), "cannot decrease the succeeded counter");
    }
    if new.has("completionTime") && old.has("completionTime") && step.changed(&["completionTime"]) {
        step.invalid("completionTime", "field is immutable", errors);
    }
    let resuming = holds(old, "Suspended") && state(new, "Suspended") == "False";
    if step.changed(&["startTime"]) && !resuming && old.has("startTime") && !step.spec.flag("suspend") {
        step.invalid("startTime", "field is immutable for unsuspended job once set", errors);
    }
    if holds(old, "SuccessCriteriaMet") && !holds(new, "SuccessCriteriaMet") {
        step.conditions("cannot disable the SuccessCriteriaMet=True condition", errors);
    }
    if holds(old, "Complete") && !holds(old, "SuccessCriteriaMet") && holds(new, "SuccessCriteriaMet") {
        let why = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        step.conditions(why, errors);
    }
}
