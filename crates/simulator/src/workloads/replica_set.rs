//! ReplicaSet → Pods.

use std::sync::Arc;

use portolan_controllers::{Controller, Outcome, Plane, PlaneError, plane::Found};
use portolan_store::Event;
use portolan_types::{BoxFuture, GroupResource, ObjectKey, object};
use serde_json::json;

use super::children::{Family, generate_name, is_active, is_ready, pod_from};
use crate::fields::number;

/// Pods made or deleted per look, so that a large set does not starve others.
const STEP: usize = 100;

pub(super) struct ReplicaSets(Family);

impl ReplicaSets {
    pub(super) fn new(plane: Arc<Plane>) -> Self {
        Self(Family::new(plane, ("apps", "ReplicaSet"), ("", "Pod")))
    }

    async fn scale(&self, set: &Found, active: &[&Found]) -> Result<(), PlaneError> {
        let wanted = usize::try_from(number(&set.object, "/spec/replicas").unwrap_or(1)).unwrap_or(0);
        for _ in 0..wanted.saturating_sub(active.len()).min(STEP) {
            let mut pod = pod_from(&set.object, &set.object["spec"]["template"], &[]);
            generate_name(&mut pod, &set.object, &self.0.plane);
            self.0.create(set, pod).await?;
        }
        let mut spare: Vec<&&Found> = active.iter().collect();
        // Those that do not serve go first, then the youngest.
        spare.sort_by_key(|pod| (is_ready(&pod.object), std::cmp::Reverse(pod.revision)));
        for pod in spare.into_iter().take(active.len().saturating_sub(wanted).min(STEP)) {
            self.0.delete(pod).await?;
        }
        Ok(())
    }
}

impl Controller for ReplicaSets {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-replicasets"
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
            let active: Vec<&Found> = pods.iter().filter(|pod| is_active(&pod.object)).collect();
            self.scale(&set, &active).await?;
            let ready = active.iter().filter(|pod| is_ready(&pod.object)).count();
            let status = json!({
                "replicas": active.len(), "fullyLabeledReplicas": active.len(), "readyReplicas": ready,
                "availableReplicas": ready, "observedGeneration": object::generation(&set.object),
            });
            self.0.write_status(key, &status).await?;
            Ok(Outcome::Done)
        })
    }
}
