//! Claims are bound at once to a volume made for them.

use std::sync::Arc;

use portolan_controllers::{Controller, Outcome, Plane, PlaneError};
use portolan_machinery::{kinds::Kind, lifecycle::DeleteOptions};
use portolan_store::{Event, RangeScope};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, object};
use serde_json::{Value, json};

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
pub(crate) struct Binder {
    plane: Arc<Plane>,
    volumes: &'static Kind,
}

impl Binder {
    pub(crate) fn new(plane: Arc<Plane>) -> Self {
        let gvk = GroupVersionKind::new("", "v1", "PersistentVolume");
        let volumes = plane.table().kind(&gvk).expect("the table has core/v1");
        Self { plane, volumes }
    }

    /// Their reclaim policy is `Delete`.
    async fn delete_volume(&self, claim: &ObjectKey) -> Result<Outcome, PlaneError> {
        let namespace = claim.namespace().map_or("", |namespace| namespace.as_str());
        let is_its = |volume: &Value| {
            text(volume, "/spec/claimRef/name") == claim.name.as_str()
                && text(volume, "/spec/claimRef/namespace") == namespace
        };
        let all = self.plane.list(RangeScope::Cluster(claim.cluster, self.volumes.group_resource())).await?;
        for volume in all.iter().filter(|volume| is_its(&volume.object)) {
            self.plane.delete(self.volumes, &volume.key, &DeleteOptions::default()).await?;
        }
        Ok(Outcome::Done)
    }
}

impl Controller for Binder {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-volumes"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![GroupResource::new("", "persistentvolumeclaims")]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        vec![event.key.clone()]
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let Some(claim) = self.plane.get(key).await? else { return self.delete_volume(key).await };
            if object::is_deleting(&claim.object) || text(&claim.object, "/status/phase") == "Bound" {
                return Ok(Outcome::Done);
            }
            let uid = object::meta_text(&claim.object, "uid").to_owned();
            let volume = format!("pvc-{uid}");
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
            Ok(Outcome::Done)
        })
    }
}
