//! Objects that a workload made, and the pods it makes.

use std::sync::Arc;

use portolan_controllers::{Plane, PlaneError, plane::Found};
use portolan_machinery::{
    kinds::Kind,
    lifecycle::{DeleteOptions, Propagation},
};
use portolan_store::{Event, RangeScope};
use portolan_types::{GroupResource, GroupVersionKind, ObjectKey, ObjectName, Scope, object};
use serde_json::{Map, Value, json};

use crate::fields::{controller_ref, is_true, text};

/// One workload kind with the kind of what it makes.
pub(super) struct Family {
    pub(super) plane: Arc<Plane>,
    pub(super) parent: &'static Kind,
    pub(super) child: &'static Kind,
}

impl Family {
    pub(super) fn new(plane: Arc<Plane>, parent: (&str, &str), child: (&str, &str)) -> Self {
        let (parent, child) = (kind(&plane, parent), kind(&plane, child));
        Self { plane, parent, child }
    }

    /// Both kinds' events name the parent.
    pub(super) fn resources(&self) -> Vec<GroupResource> {
        vec![self.parent.group_resource(), self.child.group_resource()]
    }

    /// The parent that an event is about.
    pub(super) fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        if event.key.resource == self.parent.group_resource() {
            return vec![event.key.clone()];
        }
        let Ok(child) = event.record.to_value(event.revision) else { return Vec::new() };
        self.parent_key(&event.key, &child).into_iter().collect()
    }

    fn parent_key(&self, child_key: &ObjectKey, child: &Value) -> Option<ObjectKey> {
        let owner = object::controller_of(child)?;
        let name: ObjectName = text(owner, "/name").parse().ok()?;
        let scope: Scope = child_key.scope.clone();
        let resource = self.parent.group_resource();
        let same = text(owner, "/kind") == &*self.parent.gvk.kind;
        same.then_some(ObjectKey { cluster: child_key.cluster, resource, scope, name })
    }

    /// The parent, unless it is gone or going.
    pub(super) async fn parent(&self, key: &ObjectKey) -> Result<Option<Found>, PlaneError> {
        Ok(self.plane.get(key).await?.filter(|found| !object::is_deleting(&found.object)))
    }

    /// All objects of the child kind that the parent controls, by name.
    pub(super) async fn children(&self, parent: &Found) -> Result<Vec<Found>, PlaneError> {
        let uid = object::meta_text(&parent.object, "uid");
        let mut owned = self.plane.list(RangeScope::OwnedBy(parent.key.cluster, uid.to_owned())).await?;
        owned.retain(|found| found.key.resource == self.child.group_resource());
        owned.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(owned)
    }

    pub(super) async fn create(&self, parent: &Found, child: Value) -> Result<(), PlaneError> {
        self.plane.create(self.child, parent.key.cluster, child).await.map(drop)
    }

    pub(super) async fn delete(&self, child: &Found) -> Result<(), PlaneError> {
        self.delete_of(self.child, child).await
    }

    /// Deletes what is of another kind than the children.
    pub(super) async fn delete_as(&self, of: (&str, &str), found: &Found) -> Result<(), PlaneError> {
        self.delete_of(kind(&self.plane, of), found).await
    }

    async fn delete_of(&self, kind: &'static Kind, child: &Found) -> Result<(), PlaneError> {
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            uid: Some(object::meta_text(&child.object, "uid").to_owned()),
            ..DeleteOptions::default()
        };
        self.plane.delete(kind, &child.key, &options).await
    }

    /// Writes `.status` of the parent when it differs.
    pub(super) async fn write_status(&self, key: &ObjectKey, status: &Value) -> Result<(), PlaneError> {
        let write = |current: &mut Value| match current.get("status") == Some(status) {
            true => false,
            false => {
                current["status"] = status.clone();
                true
            }
        };
        self.plane.force(key, write).await.map(drop)
    }
}

/// A kind by group and name.
pub(super) fn kind(plane: &Plane, (group, name): (&str, &str)) -> &'static Kind {
    let gvk = GroupVersionKind::new(group, "v1", name);
    plane.table().kind(&gvk).expect("the table has every workload kind, and what workloads make, in v1")
}

/// A pod as the template of `owner` says, with further labels. Its name is still missing.
pub(super) fn pod_from(owner: &Value, template: &Value, labels: &[(&str, String)]) -> Value {
    let mut metadata = json!({
        "namespace": object::namespace(owner),
        "ownerReferences": [controller_ref(owner)],
        "labels": template.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({})),
    });
    if let Some(annotations) = template.pointer("/metadata/annotations") {
        metadata["annotations"] = annotations.clone();
    }
    for (key, value) in labels {
        metadata["labels"][*key] = value.as_str().into();
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
}

/// The annotations of a workload that its ReplicaSets or ControllerRevisions get, too.
pub(super) fn annotations_to_hand_on(owner: &Value) -> Map<String, Value> {
    let all = object::metadata(owner).get("annotations").and_then(Value::as_object).cloned().unwrap_or_default();
    all.into_iter().filter(|(key, _)| key != "kubectl.kubernetes.io/last-applied-configuration").collect()
}

/// Gives a pod a random name after its owner's.
pub(super) fn generate_name(pod: &mut Value, owner: &Value, plane: &Plane) {
    let base = object::name(owner);
    pod["metadata"]["generateName"] = format!("{base}-").into();
    pod["metadata"]["name"] = format!("{}-{}", &base[..base.len().min(57)], plane.seams().name_suffix(5)).into();
}

/// A pod that runs or will: neither ended nor being deleted.
pub(super) fn is_active(pod: &Value) -> bool {
    !object::is_deleting(pod) && !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// A pod that serves.
pub(super) fn is_ready(pod: &Value) -> bool {
    is_active(pod) && is_true(pod, "Ready")
}
