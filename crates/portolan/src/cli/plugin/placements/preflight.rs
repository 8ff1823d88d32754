//! Checks of a move before its pin is written.

use anyhow::bail;
use portolan_types::{
    annotations, object,
    placement::{PlacementPlanStatus, PlacementRecord, PlannedObject},
};
use serde_json::Value;

use crate::cli::plugin::{plans::AnsweredPlan, resources::ResourceType, session::RequestError};

/// Reasons of a refusal that pass with time, or that still place a part.
pub(super) const PASSING: [&str; 3] = ["PartlyPlaced", "Held", "NotProvenGone"];

/// Returns true for the kind Namespace: its pin is for the objects in it.
pub(super) fn is_namespace(of: &ResourceType) -> bool {
    of.group.is_empty() && of.kind == "Namespace"
}

/// Returns the plan. Without the right to plans, or a server that has them, there is none: the move continues without.
///
/// # Errors
/// Any other refusal of the plan, such as an unknown physical cluster.
pub(super) fn usable_plan(planned: anyhow::Result<AnsweredPlan>) -> anyhow::Result<Option<AnsweredPlan>> {
    match planned {
        Ok(planned) => Ok(Some(planned)),
        Err(error) => match error.downcast_ref::<RequestError>().and_then(RequestError::code) {
            Some(403 | 404) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Refuses a pin by which the object would not move.
///
/// # Errors
/// Fails if the object has ended, if the plan refuses it, or if it only follows others.
pub(super) fn check_move(
    of: &ResourceType,
    read: &Value,
    pin: &[String],
    plan: Option<&PlacementPlanStatus>,
) -> anyhow::Result<()> {
    if pin.is_empty() || is_namespace(of) {
        return Ok(());
    }
    let title = of.title(object::name(read));
    if has_ended(of, read) {
        bail!("{title} has ended, and does not move");
    }
    let Some(plan) = plan else { return Ok(()) };
    let refused = plan.refused.iter().find(|row| is_of(&row.object, of, read));
    if let Some(row) = refused.filter(|row| !PASSING.contains(&row.reason.as_str())) {
        bail!("{title} does not move ({}): {}\n  see:  kubectl portolan why {title}", row.reason, row.message);
    }
    let mut own = plan.moves.iter().chain(&plan.splits).filter(|row| !row.follows);
    let is_planned = refused.is_some() || own.any(|row| is_of(&row.object, of, read)) || !plan.omitted.is_zero();
    if !is_planned && !is_under_way(read, pin) {
        bail!("{title} does not move by itself: it follows the objects that use it; move those");
    }
    Ok(())
}

/// Returns the physical clusters to wait for: those of the pin; without one, those of the plan. Empty if neither names
/// any.
pub(super) fn target(
    of: &ResourceType,
    read: &Value,
    pin: &[String],
    plan: Option<&PlacementPlanStatus>,
) -> Vec<String> {
    if !pin.is_empty() {
        return pin.to_vec();
    }
    let rows = plan.into_iter().flat_map(|plan| plan.moves.iter().chain(&plan.splits));
    let row = rows.into_iter().find(|row| is_of(&row.object, of, read));
    row.map(|row| row.to.iter().map(|copy| copy.cluster.clone()).collect()).unwrap_or_default()
}

fn is_of(row: &PlannedObject, of: &ResourceType, read: &Value) -> bool {
    row.kind == of.kind
        && row.api_version == of.api_version()
        && row.namespace == object::namespace(read)
        && row.name == object::name(read)
}

/// Returns true if the object has this pin, or a copy on all physical clusters of it: there is nothing left to plan.
fn is_under_way(read: &Value, pin: &[String]) -> bool {
    let record = PlacementRecord::of(read).unwrap_or_default();
    let is_pinned = read["metadata"]["annotations"][annotations::PIN] == pin.join(",").as_str();
    let has_copies = pin.iter().all(|name| record.clusters.iter().any(|copy| copy.name == *name));
    !record.clusters.is_empty() && (is_pinned || has_copies)
}

fn has_ended(of: &ResourceType, read: &Value) -> bool {
    let conditions = read["status"]["conditions"].as_array();
    let is_true =
        |kind: &str| conditions.into_iter().flatten().any(|found| found["type"] == kind && found["status"] == "True");
    match (of.group.as_str(), of.kind.as_str()) {
        ("batch", "Job") => is_true("Complete") || is_true("Failed"),
        ("", "Pod") => read["status"]["phase"] == "Succeeded" || read["status"]["phase"] == "Failed",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(group: &str, resource: &str, kind: &str) -> ResourceType {
        ResourceType {
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            kind: kind.into(),
            is_namespaced: kind != "Namespace" && kind != "ClusterRole",
            ..ResourceType::default()
        }
    }

    fn plan(of: &ResourceType, row: Value) -> PlacementPlanStatus {
        let mut row = row;
        row["object"] = json!({"apiVersion": of.api_version(), "kind": of.kind, "namespace": "default", "name": "web"});
        let list = if row["reason"].is_null() { "moves" } else { "refused" };
        serde_json::from_value(json!({list: [row]})).unwrap()
    }

    #[test]
    fn a_pin_that_moves_nothing_is_refused() {
        let (deploy, job) = (kind("apps", "deployments", "Deployment"), kind("batch", "jobs", "Job"));
        let (service, role) = (kind("", "services", "Service"), kind("rbac", "clusterroles", "ClusterRole"));
        let web = json!({"metadata": {"namespace": "default", "name": "web"}});
        let mut done = web.clone();
        done["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
        let none = PlacementPlanStatus::default();
        let moves = plan(&deploy, json!({"to": [{"cluster": "b"}]}));
        let follows = plan(&service, json!({"to": [{"cluster": "b"}], "follows": true}));
        let refused = |reason: &str| plan(&deploy, json!({"reason": reason, "message": "no"}));
        for (case, of, read, plan, expected) in [
            ("it moves", &deploy, &web, Some(&moves), ""),
            ("no right to plans", &deploy, &web, None, ""),
            ("it fits nowhere", &deploy, &web, Some(&refused("NoClusterFits")), "does not move (NoClusterFits): no"),
            ("it moves later", &deploy, &web, Some(&refused("Held")), ""),
            ("a finished Job", &job, &done, Some(&none), "has ended"),
            ("a finished Job without a plan", &job, &done, None, "has ended"),
            ("a Service", &service, &web, Some(&none), "follows the objects that use it"),
            ("a Service that follows", &service, &web, Some(&follows), "follows the objects that use it"),
            ("a cluster-scoped kind", &role, &web, Some(&none), "follows the objects that use it"),
            ("a Namespace", &kind("", "namespaces", "Namespace"), &web, Some(&none), ""),
        ] {
            let found = check_move(of, read, &["b".to_owned()], plan).err().map(|error| error.to_string());
            let found = found.unwrap_or_default();
            assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{case}: {found}");
        }
        assert_eq!(target(&deploy, &web, &[], Some(&moves)), ["b"], "an unpinned object goes where the plan says");
        assert!(target(&deploy, &web, &[], None).is_empty());
        assert_eq!(target(&deploy, &web, &["c".to_owned()], Some(&moves)), ["c"]);
    }
}
