//! Garbage collection of pods that are being deleted and whose end nobody reports: pods without a node, and pods whose
//! node is gone, as in kube-controller-manager's podgc. The syncer handles pods on physical clusters, because it sees
//! their end.

use std::{sync::Arc, time::Duration};

use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event, StoreError};
use portolan_strategy::lifecycle::DeleteOptions;
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, ObjectKey, annotations, object};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    emptying::CarriedState,
    plane::{Plane, PlaneChange, PlaneError},
    runtime::{Controller, WorkOutcome},
};

/// Time for which a node has to be gone, as in kube-controller-manager.
const QUARANTINE: Duration = Duration::from_secs(40);
/// Interval at which a pod on an existing node is checked: the node may go.
const AGAIN: Duration = Duration::from_secs(60);

/// Controller of pods that are being deleted.
pub struct OrphanedPodController {
    plane: Arc<Plane>,
    pods: &'static Kind,
    nodes: &'static Kind,
    /// Times since when the nodes of pods have been missing.
    missing: CarriedState<ObjectKey, Instant>,
}

impl OrphanedPodController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>) -> Self {
        let kind = |name| plane.table().kind(&GroupVersionKind::new("", "v1", name)).expect("the table has core/v1");
        let (pods, nodes) = (kind("Pod"), kind("Node"));
        Self { pods, nodes, missing: CarriedState::default(), plane }
    }

    /// Returns true if there is a node of that name, even a damaged one.
    async fn is_there(&self, pod: &ObjectKey, node: &str) -> Result<bool, PlaneError> {
        let Ok(name) = node.parse() else { return Ok(false) };
        match self.plane.get(&ObjectKey::cluster_scoped(pod.cluster, self.nodes.group_resource(), name)).await {
            Err(PlaneError::Store(StoreError::Damaged { .. })) => Ok(true),
            found => Ok(found?.is_some()),
        }
    }

    /// Marks the pod as failed, unless it has ended, and removes it.
    async fn end(&self, key: &ObjectKey, has_node: bool) -> Result<(), PlaneError> {
        let now = self.plane.seams().now_text();
        let fail = |pod: &mut Value| {
            let phase = pod.pointer("/status/phase").and_then(Value::as_str);
            if !is_left(pod) || matches!(phase, Some("Failed" | "Succeeded")) {
                return PlaneChange::Keep;
            }
            pod["status"]["phase"] = "Failed".into();
            if has_node {
                disrupt(&mut pod["status"], &now);
            }
            PlaneChange::Write(Some("status"))
        };
        self.plane.change(self.pods, key, fail).await?;
        let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        self.plane.delete_if(self.pods, key, &options, is_left).await
    }
}

/// Returns true if only this controller can end a pod: it is being deleted, and is neither placed on a physical
/// cluster nor shown by one.
fn is_left(pod: &Value) -> bool {
    object::is_deleting(pod)
        && object::annotation(pod, annotations::PLACEMENT).is_none()
        && object::label(pod, annotations::PROJECTED_FROM).is_none()
}

/// Sets the condition that tells this end from a failure of the pod itself.
fn disrupt(status: &mut Value, now: &str) {
    let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
        "message": "PodGC: node no longer exists", "lastProbeTime": null, "lastTransitionTime": now});
    match status.get_mut("conditions").and_then(Value::as_array_mut) {
        None => status["conditions"] = json!([condition]),
        Some(conditions) => {
            conditions.retain(|own| own["type"] != condition["type"]);
            conditions.push(condition);
        }
    }
}

fn node_of(pod: &Value) -> Option<&str> {
    pod.pointer("/spec/nodeName").and_then(Value::as_str).filter(|node| !node.is_empty())
}

impl Controller for OrphanedPodController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "ending-pods"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.pods.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        let header = &event.record.header;
        let is_left = header.is_deleting && header.placed_on.is_empty() && event.change != ChangeKind::Deleted;
        let is_shown = header.label(annotations::PROJECTED_FROM).is_some();
        (is_left && !is_shown).then(|| event.key.clone()).into_iter().collect()
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let since = self.missing.take(key).unwrap_or_else(Instant::now);
            let pod = self.plane.get_reconciled(key).await?.map(|found| found.object);
            let Some(pod) = pod.filter(is_left) else { return Ok(WorkOutcome::Done) };
            if let Some(node) = node_of(&pod) {
                if self.is_there(key, node).await? {
                    return Ok(WorkOutcome::RequeueAfter(AGAIN));
                }
                let rest = QUARANTINE.saturating_sub(since.elapsed());
                if !rest.is_zero() {
                    self.missing.keep(key.clone(), since);
                    return Ok(WorkOutcome::RequeueAfter(rest));
                }
            }
            self.end(key, node_of(&pod).is_some()).await?;
            Ok(WorkOutcome::Done)
        })
    }
}

#[cfg(test)]
mod tests {
    use portolan_kinds::KindTable;
    use portolan_store::{Expect, Transaction};
    use portolan_types::{LogicalClusterId, Record, Seams};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pod_ends_when_its_node_has_been_missing_for_a_while() {
        let plane = Arc::new(Plane::new(portolan_store::memory(), KindTable::builtin(), Seams::system()));
        let ending = OrphanedPodController::new(plane.clone());
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "there"}});
        plane.create(ending.nodes, LogicalClusterId::ROOT, node).await.unwrap();
        let placed = (annotations::PLACEMENT, "{}");
        for (case, node, annotation, held, first) in [
            ("no node", None, None, false, WorkOutcome::Done),
            ("no node, and something else holds it", None, None, true, WorkOutcome::Done),
            ("a node that is there", Some("there"), None, false, WorkOutcome::RequeueAfter(AGAIN)),
            ("one that is not", Some("nowhere"), None, false, WorkOutcome::RequeueAfter(QUARANTINE)),
            ("one of a physical cluster", Some("nowhere"), Some(placed), false, WorkOutcome::Done),
        ] {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "shop",
                    "finalizers": held.then_some(["example.com/hold"]), "deletionTimestamp": "2026-01-01T00:00:00Z",
                    "deletionGracePeriodSeconds": 30, "uid": "u", "annotations": annotation.map(|(key, text)| json!({key: text}))},
                "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Pending"}});
            let key = plane.key_of(ending.pods, LogicalClusterId::ROOT, &pod).unwrap();
            let txn = Transaction::one(key.clone(), Expect::Anything, Some(Record::of(&pod)));
            plane.store().commit(txn).await.unwrap();
            assert_eq!(ending.reconcile(&key).await.unwrap(), first, "{case}");
            if first == WorkOutcome::RequeueAfter(QUARANTINE) {
                tokio::time::advance(QUARANTINE / 2).await;
                assert_eq!(ending.reconcile(&key).await.unwrap(), WorkOutcome::RequeueAfter(QUARANTINE / 2), "{case}");
                tokio::time::advance(QUARANTINE / 2).await;
                assert_eq!(ending.reconcile(&key).await.unwrap(), WorkOutcome::Done, "{case}");
            }
            let left = plane.get(&key).await.unwrap().map(|found| found.object["status"]["phase"].clone());
            let expected = match (held, node == Some("there") || annotation.is_some()) {
                (true, _) => Some(json!("Failed")),
                (false, true) => Some(json!("Pending")),
                (false, false) => None,
            };
            assert_eq!(left, expected, "{case}");
        }
    }

    #[test]
    fn a_pod_whose_node_is_gone_says_so_once() {
        let mut status = json!({"conditions": [{"type": "Ready"}, {"type": "DisruptionTarget", "status": "False"}]});
        disrupt(&mut status, "t");
        disrupt(&mut status, "t");
        let types: Vec<_> = status["conditions"].as_array().unwrap().iter().map(|own| &own["type"]).collect();
        assert_eq!(types, ["Ready", "DisruptionTarget"]);
        assert_eq!(status["conditions"][1]["reason"], "DeletionByPodGC");
    }
}
