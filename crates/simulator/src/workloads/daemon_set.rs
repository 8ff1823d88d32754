//! DaemonSet → one Pod per node.

use std::sync::Arc;

use portolan_controllers::{Controller, Outcome, Plane, PlaneError, plane::Found};
use portolan_store::{Event, RangeScope};
use portolan_types::{BoxFuture, GroupResource, ObjectKey, object};
use serde_json::{Value, json};

use super::children::{Family, generate_name, is_active, is_ready, pod_from};
use crate::fields::{short_hash, text};

const REVISION: &str = "controller-revision-hash";

pub(super) struct DaemonSets(Family);

impl DaemonSets {
    pub(super) fn new(plane: Arc<Plane>) -> Self {
        Self(Family::new(plane, ("apps", "DaemonSet"), ("", "Pod")))
    }

    async fn nodes(&self, set: &Found) -> Result<Vec<String>, PlaneError> {
        let all = self.0.plane.list(RangeScope::Cluster(set.key.cluster, GroupResource::new("", "nodes"))).await?;
        let selector = set.object.pointer("/spec/template/spec/nodeSelector").and_then(Value::as_object);
        let fits = |node: &Value| {
            selector.into_iter().flatten().all(|(key, value)| object::label(node, key) == value.as_str())
        };
        Ok(all.iter().filter(|node| fits(&node.object)).map(|node| object::name(&node.object).to_owned()).collect())
    }

    async fn create(&self, set: &Found, node: &str, revision: &str) -> Result<(), PlaneError> {
        let mut pod = pod_from(&set.object, &set.object["spec"]["template"], &[(REVISION, revision.to_owned())]);
        generate_name(&mut pod, &set.object, &self.0.plane);
        pod["spec"]["nodeName"] = node.into();
        self.0.create(set, pod).await
    }
}

impl Controller for DaemonSets {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-daemonsets"
    }

    fn resources(&self) -> Vec<GroupResource> {
        self.0.resources()
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        self.0.keys(event)
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let Some(set) = self.0.parent(key).await? else { return Ok(Outcome::Done) };
            let pods = self.0.children(&set).await?;
            let nodes = self.nodes(&set).await?;
            let revision = short_hash(&set.object["spec"]["template"]);
            let on = |pod: &Found, node: &str| text(&pod.object, "/spec/nodeName") == node;
            for node in nodes.iter().filter(|node| !pods.iter().any(|pod| on(pod, node))) {
                self.create(&set, node, &revision).await?;
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
                self.0.delete(pod).await?;
            }
            for pod in active.iter().filter(|pod| !nodes.iter().any(|node| on(pod, node))) {
                self.0.delete(pod).await?;
            }
            let updated = active.iter().filter(|pod| is_current(pod)).count();
            let status = json!({
                "observedGeneration": object::generation(&set.object), "desiredNumberScheduled": nodes.len(),
                "currentNumberScheduled": active.len(), "updatedNumberScheduled": updated, "numberReady": ready,
                "numberAvailable": ready, "numberMisscheduled": 0,
                "numberUnavailable": nodes.len().saturating_sub(ready),
            });
            self.0.write_status(key, &status).await?;
            Ok(Outcome::Done)
        })
    }
}
