//! Warnings about writes that make a move interrupt an object: the explicit exceptions of the rule that a healthy copy
//! stays until another is available.

use portolan_placement::{PinScope, Workload};
use portolan_types::{
    annotations, object,
    placement::{ClusterCount, PlacementPolicySpec, PlacementRecord},
};
use serde_json::Value;

use crate::context::SchedulerContext;

/// Returns a warning for each part of a placed object by which it may be interrupted.
pub(crate) fn move_warnings(ctx: &SchedulerContext, workload: &Workload, object: &Value) -> Vec<String> {
    let record = PlacementRecord::of(object).unwrap_or_default();
    let mut warnings = Vec::new();
    warnings.extend(force_warning(workload, object, &record));
    warnings.extend(pin_interruption(workload, &record));
    warnings.extend(write_off_warning(ctx, workload, &record));
    warnings
}

fn force_warning(workload: &Workload, object: &Value, record: &PlacementRecord) -> Option<String> {
    let key = annotations::FORCE;
    object::annotation(object, key)?;
    if workload.force.is_none() {
        return Some(format!("{key}: it needs a reason as its value: nothing is forced without one"));
    }
    let is_placed = record.active().next().is_some();
    is_placed.then(|| format!("{key}: the next move of {} waits for no new copy to be available", workload.title()))
}

/// Returns the warning about a pin that stops the object before it starts elsewhere.
fn pin_interruption(workload: &Workload, record: &PlacementRecord) -> Option<String> {
    let pin = workload.pin.as_ref().filter(|pin| pin.on == PinScope::Object)?;
    let leaving: Vec<_> =
        record.active().filter(|copy| !pin.names.contains(&copy.name)).map(|copy| copy.name.as_str()).collect();
    if leaving.is_empty() || workload.keeps_volumes || workload.force.is_some() {
        return None;
    }
    let (title, from, to) = (workload.title(), leaving.join(","), pin.names.join(","));
    if workload.moves.one_at_a_time() {
        return Some(format!("{title} stops on {from} before it starts on {to}, as two must not run at once"));
    }
    let has_none = workload.replicas == Some(0);
    has_none.then(|| format!("{title} wants no replicas: it leaves {from} without waiting for any on {to}"))
}

/// Returns the warning about a write-off of a copy whose physical cluster answers.
fn write_off_warning(ctx: &SchedulerContext, workload: &Workload, record: &PlacementRecord) -> Option<String> {
    let facts = ctx.facts();
    let answers = |name: &&String| {
        let copy = record.clusters.iter().find(|copy| copy.name == **name);
        copy.and_then(|copy| facts.physical(&copy.uid)).is_some_and(|known| known.info.is_ready())
    };
    let name = workload.written_off.iter().find(answers)?;
    let key = annotations::WRITE_OFF;
    Some(format!("{key}: {name} answers, so its copy is not written off; it would be if {name} were not heard of"))
}

/// Returns the warning about a policy that keeps objects from running.
pub(crate) fn count_warning(spec: &PlacementPolicySpec) -> Option<String> {
    let is_end = spec.count == Some(ClusterCount::Exactly(0));
    is_end.then(|| "spec.count: 0 ends all copies of the objects that the policy is about, at once".to_owned())
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupKind, GroupResource};
    use serde_json::json;

    use super::*;

    fn placed(kind: &str, annotations: Value, spec: Value) -> (Workload, PlacementRecord, Value) {
        let mut object = json!({"metadata": {"name": "web", "annotations": annotations}, "spec": spec});
        let record = json!({"clusters": [{"name": "east", "uid": "u", "phase": "Active", "epoch": 1}]});
        object::set_annotation(&mut object, annotations::PLACEMENT, Some(record.to_string()));
        let kind = GroupKind { group: "apps".into(), kind: kind.into() };
        let workload = Workload::of(kind, GroupResource::new("apps", "x"), &object);
        (workload, PlacementRecord::of(&object).unwrap(), object)
    }

    #[test]
    fn interruptions_are_announced() {
        for (case, kind, notes, spec, expected) in [
            ("a rolling move", "Deployment", json!({"portolan.dev/pin": "west"}), json!({"replicas": 2}), None),
            (
                "a restart",
                "StatefulSet",
                json!({"portolan.dev/pin": "west"}),
                json!({}),
                Some("statefulset/web stops on east before it starts on west, as two must not run at once"),
            ),
            ("a restart where it is", "StatefulSet", json!({"portolan.dev/pin": "east"}), json!({}), None),
            (
                "no replicas",
                "Deployment",
                json!({"portolan.dev/pin": "west"}),
                json!({"replicas": 0}),
                Some("deployment/web wants no replicas: it leaves east without waiting for any on west"),
            ),
            (
                "a reason",
                "Deployment",
                json!({"portolan.dev/force": "east burns"}),
                json!({}),
                Some("portolan.dev/force: the next move of deployment/web waits for no new copy to be available"),
            ),
            (
                "none",
                "Deployment",
                json!({"portolan.dev/force": " "}),
                json!({}),
                Some("portolan.dev/force: it needs a reason as its value: nothing is forced without one"),
            ),
        ] {
            let (workload, record, object) = placed(kind, notes, spec);
            let told = force_warning(&workload, &object, &record).or_else(|| pin_interruption(&workload, &record));
            assert_eq!(told.as_deref(), expected, "{case}");
        }
    }
}
