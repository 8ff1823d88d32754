//! Claims are bound at once to a volume made for them.

use std::sync::Arc;

use portolan_controllers::{Controller, Plane, PlaneError, WorkOutcome};
use portolan_kinds::Kind;
use portolan_store::Event;
use portolan_strategy::lifecycle::DeleteOptions;
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, object};
use serde_json::json;

use crate::fields::text;

const CLASS: &str = "standard";

/// Makes the default storage class of a new cluster.
pub(crate) async fn create_classes(plane: &Arc<Plane>) -> Result<(), PlaneError> {
    let gvk = GroupVersionKind::new("storage.k8s.io", "v1", "StorageClass");
    let kind = plane.table().kind(&gvk).expect("the table has storage/v1");
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "simulated.portolan.dev/volume",
        "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    });
    plane.create(kind, LogicalClusterId::ROOT, class).await.map(drop)
}

/// Binds claims.
pub(crate) struct ClaimBinder {
    plane: Arc<Plane>,
    volumes: &'static Kind,
}

impl ClaimBinder {
    pub(crate) fn new(plane: Arc<Plane>) -> Self {
        let gvk = GroupVersionKind::new("", "v1", "PersistentVolume");
        let volumes = plane.table().kind(&gvk).expect("the table has core/v1");
        Self { plane, volumes }
    }

    /// Deletes the volume of a deleted claim: its reclaim policy is `Delete`.
    async fn delete_volume(&self, cluster: LogicalClusterId, uid: &str) -> Result<WorkOutcome, PlaneError> {
        let Ok(name) = volume_name(uid).parse() else { return Ok(WorkOutcome::Done) };
        let key = ObjectKey::cluster_scoped(cluster, self.volumes.group_resource(), name);
        self.plane.delete(self.volumes, &key, &DeleteOptions::default()).await?;
        Ok(WorkOutcome::Done)
    }
}

fn volume_name(uid: &str) -> String {
    format!("pvc-{uid}")
}

impl Controller for ClaimBinder {
    /// A claim and its uid, which names the volume even after the claim is deleted.
    type Key = (LogicalClusterId, (ObjectKey, String));

    fn name(&self) -> &'static str {
        "simulated-volumes"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![GroupResource::new("", "persistentvolumeclaims")]
    }

    fn keys(&self, event: &Event) -> Vec<Self::Key> {
        vec![(event.key.cluster, (event.key.clone(), event.record.header.uid.clone()))]
    }

    fn reconcile<'a>(&'a self, (cluster, (key, uid)): &'a Self::Key) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let claim = self.plane.get(key).await?;
            let Some(claim) = claim.filter(|found| object::meta_text(&found.object, "uid") == uid) else {
                return self.delete_volume(*cluster, uid).await;
            };
            if object::is_deleting(&claim.object) || text(&claim.object, "/status/phase") == "Bound" {
                return Ok(WorkOutcome::Done);
            }
            let volume = volume_name(uid);
            let asked =
                claim.object.pointer("/spec/resources/requests/storage").cloned().unwrap_or_else(|| "1Gi".into());
            let modes = claim.object.pointer("/spec/accessModes").cloned().unwrap_or_else(|| json!(["ReadWriteOnce"]));
            let made = json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
                "spec": {
                    "capacity": {"storage": asked}, "accessModes": modes, "storageClassName": CLASS,
                    "persistentVolumeReclaimPolicy": "Delete",
                    "claimRef": {
                        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "uid": uid,
                        "namespace": object::namespace(&claim.object), "name": object::name(&claim.object),
                    },
                    "csi": {"driver": "simulated.portolan.dev", "volumeHandle": volume},
                },
                "status": {"phase": "Bound"},
            });
            self.plane.create(self.volumes, key.cluster, made).await?;
            self.plane
                .force(key, |claim| {
                    claim["spec"]["volumeName"] = volume.clone().into();
                    if text(claim, "/spec/storageClassName").is_empty() {
                        claim["spec"]["storageClassName"] = CLASS.into();
                    }
                    claim["status"] =
                        json!({"phase": "Bound", "accessModes": modes.clone(), "capacity": {"storage": asked.clone()}});
                    true
                })
                .await?;
            Ok(WorkOutcome::Done)
        })
    }
}
