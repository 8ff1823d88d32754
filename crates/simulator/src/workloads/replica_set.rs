//! ReplicaSet and ReplicationController → Pods.

use std::time::Duration;

use portolan_controllers::{PlaneError, WorkOutcome, plane::PlaneObject};
use portolan_types::object;
use serde_json::{Value, json};

use super::{
    SimulatedWorkload,
    children::{ChildKinds, STEP, generate_name, pod_from},
};
use crate::fields::number;

pub(super) struct ReplicaSets;

pub(super) struct ReplicationControllers;

async fn scale(family: &ChildKinds, set: &PlaneObject) -> Result<(), PlaneError> {
    let wanted = usize::try_from(number(&set.object, "/spec/replicas").unwrap_or(1)).unwrap_or(0);
    let active = family.pods(set, |pods| pods.active());
    for _ in 0..wanted.saturating_sub(active).min(STEP) {
        let mut pod = pod_from(&set.object, &set.object["spec"]["template"], &[]);
        generate_name(&mut pod, &set.object, &family.plane);
        family.create_pod(set, pod).await?;
    }
    let spare = active.saturating_sub(wanted).min(STEP);
    let spare = family.pods(set, |pods| pods.first_to_delete(spare));
    family.delete_pods(spare).await
}

/// Scales by one step, and writes the status. Only ReplicaSets count pods that are being deleted.
async fn step(family: &ChildKinds, set: &PlaneObject, counts_terminating: bool) -> Result<WorkOutcome, PlaneError> {
    scale(family, set).await?;
    let least = number(&set.object, "/spec/minReadySeconds").unwrap_or(0);
    let now = family.plane.seams().clock.now();
    let (mut status, next) = family.pods(set, |pods| {
        let (available, next) = pods.available(least, now);
        let status = json!({
            "replicas": pods.active(), "fullyLabeledReplicas": pods.active(), "readyReplicas": pods.ready,
            "availableReplicas": available, "terminatingReplicas": pods.deleting,
            "observedGeneration": object::generation(&set.object),
        });
        (status, next)
    });
    if let Some(status) = status.as_object_mut().filter(|_| !counts_terminating) {
        status.remove("terminatingReplicas");
    }
    if let Some(conditions) = set.object.pointer("/status/conditions").filter(|own| !own.is_null()) {
        status["conditions"] = Value::clone(conditions);
    }
    family.write_status(&set.key, &status).await?;
    Ok(next.map_or(WorkOutcome::Done, |seconds| WorkOutcome::RequeueAfter(Duration::from_secs(seconds))))
}

impl SimulatedWorkload for ReplicaSets {
    const NAME: &'static str = "simulated-replicasets";
    const PARENT: (&'static str, &'static str) = ("apps", "ReplicaSet");
    const CHILD: (&'static str, &'static str) = ("", "Pod");

    async fn step(family: &ChildKinds, set: &PlaneObject) -> Result<WorkOutcome, PlaneError> {
        step(family, set, true).await
    }
}

impl SimulatedWorkload for ReplicationControllers {
    const NAME: &'static str = "simulated-replicationcontrollers";
    const PARENT: (&'static str, &'static str) = ("", "ReplicationController");
    const CHILD: (&'static str, &'static str) = ("", "Pod");

    async fn step(family: &ChildKinds, set: &PlaneObject) -> Result<WorkOutcome, PlaneError> {
        step(family, set, false).await
    }
}
