//! DaemonSet → one Pod per node.

use portolan_controllers::{Outcome, PlaneError, plane::Found};
use portolan_store::RangeScope;
use portolan_types::{GroupResource, object};
use serde_json::{Value, json};

use super::{
    Workload,
    children::{Family, generate_name, is_active, is_ready, pod_from},
    revisions,
};
use crate::fields::text;

const REVISION: &str = "controller-revision-hash";

pub(super) struct DaemonSets;

async fn nodes(family: &Family, set: &Found) -> Result<Vec<String>, PlaneError> {
    let all = family.plane.list(RangeScope::Cluster(set.key.cluster, GroupResource::new("", "nodes"))).await?;
    let selector = set.object.pointer("/spec/template/spec/nodeSelector").and_then(Value::as_object);
    let fits =
        |node: &Value| selector.into_iter().flatten().all(|(key, value)| object::label(node, key) == value.as_str());
    Ok(all.iter().filter(|node| fits(&node.object)).map(|node| object::name(&node.object).to_owned()).collect())
}

async fn create(family: &Family, set: &Found, node: &str, revision: &str) -> Result<(), PlaneError> {
    let mut pod = pod_from(&set.object, &set.object["spec"]["template"], &[(REVISION, revision.to_owned())]);
    generate_name(&mut pod, &set.object, &family.plane);
    pod["spec"]["nodeName"] = node.into();
    family.create(set, pod).await
}

impl Workload for DaemonSets {
    const NAME: &'static str = "simulated-daemonsets";
    const PARENT: (&'static str, &'static str) = ("apps", "DaemonSet");
    const CHILD: (&'static str, &'static str) = ("", "Pod");

    async fn step(family: &Family, set: &Found) -> Result<Outcome, PlaneError> {
        let pods = family.children(set).await?;
        let nodes = nodes(family, set).await?;
        let revision = revisions::keep(family, set).await?;
        let on = |pod: &Found, node: &str| text(&pod.object, "/spec/nodeName") == node;
        for node in nodes.iter().filter(|node| !pods.iter().any(|pod| on(pod, node))) {
            create(family, set, node, &revision).await?;
        }
        let is_current = |pod: &Found| object::label(&pod.object, REVISION) == Some(revision.as_str());
        let active: Vec<&Found> = pods.iter().filter(|pod| is_active(&pod.object)).collect();
        let ready = active.iter().filter(|pod| is_ready(&pod.object)).count();
        let rolling = text(&set.object, "/spec/updateStrategy/type") != "OnDelete";
        // One at a time, and only while all others serve (maxUnavailable 1).
        if rolling
            && ready == nodes.len()
            && let Some(pod) = active.iter().find(|pod| !is_current(pod))
        {
            family.delete(pod).await?;
        }
        for pod in active.iter().filter(|pod| !nodes.iter().any(|node| on(pod, node))) {
            family.delete(pod).await?;
        }
        let updated = active.iter().filter(|pod| is_current(pod)).count();
        let status = json!({
            "observedGeneration": object::generation(&set.object), "desiredNumberScheduled": nodes.len(),
            "currentNumberScheduled": active.len(), "updatedNumberScheduled": updated, "numberReady": ready,
            "numberAvailable": ready, "numberMisscheduled": 0,
            "numberUnavailable": nodes.len().saturating_sub(ready),
        });
        family.write_status(&set.key, &status).await?;
        Ok(Outcome::Done)
    }
}
