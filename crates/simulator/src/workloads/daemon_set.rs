//! DaemonSet → one Pod per node.

use std::{collections::HashSet, time::Duration};

use portolan_controllers::{PlaneError, WorkOutcome, plane::PlaneObject};
use portolan_types::object;
use serde_json::{Value, json};

use super::{
    SimulatedWorkload,
    children::{ChildKinds, STEP, generate_name, pod_from},
    revisions,
};
use crate::{
    fields::{int_or_percent, number, text},
    index::{OwnedPods, PodFacts, PodNeeds},
};

const REVISION: &str = "controller-revision-hash";

pub(super) struct DaemonSets;

async fn create(family: &ChildKinds, set: &PlaneObject, node: &str, revision: &str) -> Result<(), PlaneError> {
    let mut pod = pod_from(&set.object, &set.object["spec"]["template"], &[(REVISION, revision.to_owned())]);
    generate_name(&mut pod, &set.object, &family.plane);
    pod["spec"]["nodeName"] = node.into();
    family.create_pod(set, pod).await
}

/// Pods to delete: those on nodes that the set does not run on, and outdated ones, as many as may be unavailable.
fn surplus(
    set: &Value,
    pods: &OwnedPods,
    nodes: &HashSet<&str>,
    revision: &str,
) -> Vec<(portolan_types::ObjectKey, String)> {
    let count = i64::try_from(nodes.len()).unwrap_or(i64::MAX);
    let most = int_or_percent(set.pointer("/spec/updateStrategy/rollingUpdate/maxUnavailable"), count, 1, true).max(1);
    let rolls = text(set, "/spec/updateStrategy/type") != "OnDelete";
    let unavailable = count - i64::try_from(pods.ready).unwrap_or(i64::MAX);
    let mut room = usize::try_from(most - unavailable).unwrap_or(0);
    let is_outdated = |pod: &PodFacts| rolls && pod.label(REVISION) != Some(revision);
    let active = pods.pods().iter().filter(|(_, pod)| pod.is_active());
    let goes = active.filter(|(_, pod)| {
        if !nodes.contains(pod.node.as_str()) {
            return true;
        }
        // A pod that does not serve costs nothing.
        let goes = is_outdated(pod) && (!pod.is_ready || room > 0);
        room -= usize::from(goes && pod.is_ready);
        goes
    });
    goes.map(|(key, pod)| (key.clone(), pod.uid.clone())).take(STEP).collect()
}

fn status(set: &Value, pods: &OwnedPods, nodes: &HashSet<&str>, revision: &str, available: usize) -> Value {
    let on_nodes = || pods.pods().values().filter(|pod| pod.is_active() && nodes.contains(pod.node.as_str()));
    let updated = on_nodes().filter(|pod| pod.label(REVISION) == Some(revision)).count();
    json!({
        "observedGeneration": object::generation(set), "desiredNumberScheduled": nodes.len(),
        "currentNumberScheduled": on_nodes().count(), "updatedNumberScheduled": updated, "numberReady": pods.ready,
        "numberAvailable": available, "numberMisscheduled": pods.active() - on_nodes().count(),
        "numberUnavailable": nodes.len().saturating_sub(available),
    })
}

impl SimulatedWorkload for DaemonSets {
    const NAME: &'static str = "simulated-daemonsets";
    const PARENT: (&'static str, &'static str) = ("apps", "DaemonSet");
    const CHILD: (&'static str, &'static str) = ("", "Pod");

    async fn step(family: &ChildKinds, set: &PlaneObject) -> Result<WorkOutcome, PlaneError> {
        let revision = revisions::keep(family, set).await?;
        let nodes = family.eligible_nodes(&PodNeeds::of_daemon(&set.object["spec"]["template"]));
        let names: HashSet<&str> = nodes.iter().map(String::as_str).collect();
        let taken: HashSet<String> =
            family.pods(set, |pods| pods.pods().values().map(|pod| pod.node.clone()).collect());
        for node in nodes.iter().filter(|node| !taken.contains(*node)).take(STEP) {
            create(family, set, node, &revision).await?;
        }
        let ended: Vec<_> = family.pods(set, |pods| {
            let ended = pods.pods().iter().filter(|(_, pod)| pod.has_ended() && !pod.is_deleting);
            ended.map(|(key, pod)| (key.clone(), pod.uid.clone())).take(STEP).collect()
        });
        family.delete_pods(ended).await?;
        let surplus = family.pods(set, |pods| surplus(&set.object, pods, &names, &revision));
        family.delete_pods(surplus).await?;
        let least = number(&set.object, "/spec/minReadySeconds").unwrap_or(0);
        let now = family.plane.seams().clock.now();
        let (status, next) = family.pods(set, |pods| {
            let (available, next) = pods.available(least, now);
            (status(&set.object, pods, &names, &revision, available), next)
        });
        family.write_status(&set.key, &status).await?;
        Ok(next.map_or(WorkOutcome::Done, |seconds| WorkOutcome::RequeueAfter(Duration::from_secs(seconds))))
    }
}
