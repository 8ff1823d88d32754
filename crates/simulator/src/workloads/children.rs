//! Objects that a workload made, and the pods it makes.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use portolan_controllers::{Plane, PlaneError, plane::PlaneObject};
use portolan_kinds::Kind;
use portolan_store::{Event, RangeScope};
use portolan_strategy::lifecycle::{DeleteOptions, Propagation};
use portolan_types::{GroupResource, GroupVersionKind, ObjectKey, ObjectName, Scope, event_draft::EventDraft, object};
use serde_json::{Map, Value, json};

use crate::{
    events,
    fields::{controller_ref, text},
    index::{OwnedPods, PodIndex, PodNeeds, uid_of},
};

/// Pods created or deleted per reconcile, so that a large workload does not starve others.
pub(super) const STEP: usize = 100;
/// Delay of a workload's reconcile per pod, to batch the events of its pods.
const LINGER_PER_POD: Duration = Duration::from_micros(50);
/// Maximum delay.
const MAX_LINGER: Duration = Duration::from_millis(200);

/// A workload kind, and the kind of its children.
pub(super) struct ChildKinds {
    pub(super) plane: Arc<Plane>,
    pub(super) parent: &'static Kind,
    pub(super) child: &'static Kind,
    pods: Arc<PodIndex>,
    /// Parents whose template is kept as a revision: uid, generation and hash.
    pub(super) revisions: Mutex<HashMap<ObjectKey, (String, i64, String)>>,
}

impl ChildKinds {
    pub(super) fn new(plane: Arc<Plane>, pods: Arc<PodIndex>, parent: (&str, &str), child: (&str, &str)) -> Self {
        let (parent, child) = (kind(&plane, parent), kind(&plane, child));
        Self { plane, parent, child, pods, revisions: Mutex::default() }
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
        let owners = &event.record.header.owners;
        if owners.is_empty() {
            return Vec::new();
        }
        // The index knows the owners of pods; only the event of the last pod is read.
        if let Some(owner) = owners.iter().find_map(|uid| self.pods.owner(uid)) {
            return self.parent_key(&event.key, &owner.kind, &owner.name).into_iter().collect();
        }
        let Ok(child) = event.record.to_value(event.revision) else { return Vec::new() };
        let owner = object::controller_of(&child);
        owner
            .and_then(|owner| self.parent_key(&event.key, text(owner, "/kind"), text(owner, "/name")))
            .into_iter()
            .collect()
    }

    /// Returns the wait for more events of the pods of one workload, the longer the more pods it has.
    pub(super) fn linger(&self, event: &Event) -> Duration {
        let count = |uid: &String| self.pods.owned(uid, |owned| owned.pods().len());
        let pods = event.record.header.owners.iter().map(count).max().unwrap_or(0);
        LINGER_PER_POD.saturating_mul(u32::try_from(pods).unwrap_or(u32::MAX)).min(MAX_LINGER)
    }

    fn parent_key(&self, child_key: &ObjectKey, kind: &str, name: &str) -> Option<ObjectKey> {
        let name: ObjectName = name.parse().ok()?;
        let scope: Scope = child_key.scope.clone();
        let resource = self.parent.group_resource();
        let same = kind == &*self.parent.gvk.kind;
        same.then_some(ObjectKey { cluster: child_key.cluster, resource, scope, name })
    }

    /// The parent, unless it is deleted or being deleted.
    pub(super) async fn parent(&self, key: &ObjectKey) -> Result<Option<PlaneObject>, PlaneError> {
        Ok(self.plane.get(key).await?.filter(|found| !object::is_deleting(&found.object)))
    }

    /// Removes the state of a deleted parent.
    pub(super) fn forget(&self, key: &ObjectKey) {
        self.revisions.lock().expect("no code panics under this lock").remove(key);
    }

    /// Reads the known state of the pods that the parent controls.
    pub(super) fn pods<T>(&self, parent: &PlaneObject, read: impl FnOnce(&OwnedPods) -> T) -> T {
        self.pods.owned(uid_of(&parent.object), read)
    }

    /// Returns the nodes that a pod accepts.
    pub(super) fn eligible_nodes(&self, needs: &PodNeeds) -> Vec<String> {
        self.pods.eligible_nodes(needs)
    }

    /// Makes a pod.
    pub(super) async fn create_pod(&self, parent: &PlaneObject, pod: Value) -> Result<(), PlaneError> {
        if let Some(made) = self.plane.create(self.child, parent.key.cluster, pod).await? {
            self.pods.observe(&made.key, &made.object);
        }
        Ok(())
    }

    /// Records a child that was just adopted.
    pub(super) async fn note_adopted(&self, key: &ObjectKey) -> Result<(), PlaneError> {
        if &*self.child.gvk.kind == "Pod"
            && let Some(found) = self.plane.get(key).await?
        {
            self.pods.observe(key, &found.object);
        }
        Ok(())
    }

    /// Deletes these pods.
    pub(super) async fn delete_pods(&self, pods: Vec<(ObjectKey, String)>) -> Result<(), PlaneError> {
        for (key, uid) in pods {
            let options = DeleteOptions {
                uid: Some(uid.clone()),
                propagation: Some(Propagation::Background),
                ..DeleteOptions::default()
            };
            match self.plane.delete(self.child, &key, &options).await {
                // Another pod has its name.
                Err(PlaneError::Refused(status)) if status.code() == 409 => {}
                deleted => deleted?,
            }
            match self.plane.get(&key).await? {
                Some(found) if uid_of(&found.object) == uid => self.pods.observe(&key, &found.object),
                _ => self.pods.forget(&key, &uid),
            }
        }
        Ok(())
    }

    /// All objects of the child kind that the parent controls, by name.
    pub(super) async fn children(&self, parent: &PlaneObject) -> Result<Vec<PlaneObject>, PlaneError> {
        let uid = object::meta_text(&parent.object, "uid");
        let mut owned = self.plane.list(RangeScope::OwnedBy(parent.key.cluster, uid.to_owned())).await?;
        owned.retain(|found| found.key.resource == self.child.group_resource());
        owned.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(owned)
    }

    pub(super) async fn create(&self, parent: &PlaneObject, child: Value) -> Result<(), PlaneError> {
        self.plane.create(self.child, parent.key.cluster, child).await.map(drop)
    }

    pub(super) async fn delete(&self, child: &PlaneObject) -> Result<(), PlaneError> {
        self.delete_of(self.child, child).await
    }

    /// Deletes objects that differ in kind from the children.
    pub(super) async fn delete_as(&self, of: (&str, &str), found: &PlaneObject) -> Result<(), PlaneError> {
        self.delete_of(kind(&self.plane, of), found).await
    }

    async fn delete_of(&self, kind: &'static Kind, child: &PlaneObject) -> Result<(), PlaneError> {
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            uid: Some(object::meta_text(&child.object, "uid").to_owned()),
            ..DeleteOptions::default()
        };
        self.plane.delete(kind, &child.key, &options).await
    }

    /// Writes an Event about the parent: whether it is a warning, its reason and its message.
    pub(super) async fn note(
        &self,
        parent: &PlaneObject,
        component: &str,
        (is_warning, reason, message): (bool, &str, &str),
    ) -> Result<(), PlaneError> {
        let name = reason.to_lowercase();
        let note = EventDraft { component, name: &name, is_warning, reason, message };
        events::write(&self.plane, &parent.key, &parent.object, note).await
    }

    /// Writes `.status` of the parent when it differs.
    pub(super) async fn write_status(&self, key: &ObjectKey, status: &Value) -> Result<(), PlaneError> {
        let write = |current: &mut Value| {
            if current.get("status") == Some(status) {
                false
            } else {
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

/// Creates a pod from the template of `owner`, with further labels and without a name.
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
    let (prefix, name) = generated_name(base, plane);
    pod["metadata"]["generateName"] = prefix.into();
    pod["metadata"]["name"] = name.into();
}

/// Returns a `generateName` derived from an object's name, and a name generated from it as the API server does.
pub(crate) fn generated_name(base: &str, plane: &Plane) -> (String, String) {
    /// Length of a name without its random part.
    const MAX_BASE: usize = 58;
    let prefix = format!("{base}-");
    let cut: String = prefix.chars().take(MAX_BASE).collect();
    let name = format!("{cut}{}", plane.seams().name_suffix(5));
    (prefix, name)
}
