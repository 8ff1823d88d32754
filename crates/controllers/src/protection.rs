//! Lets go of what admission protected while it was in use: volume claims, volumes, and classes of their attributes.

use std::{sync::Arc, time::Duration};

use portolan_store::{Change, Event, RangeScope};
use portolan_types::{BoxFuture, GroupResource, ObjectKey, object};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneError, Step},
    runtime::{Controller, Outcome},
};

/// How often something that is waited for is looked at again. Few things are: no watch of all pods is worth them.
const AGAIN: Duration = Duration::from_secs(1);

/// What is protected, and by which finalizer.
const PROTECTED: [(&str, &str, &str); 3] = [
    ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
    ("", "persistentvolumes", "kubernetes.io/pv-protection"),
    ("storage.k8s.io", "volumeattributesclasses", "kubernetes.io/vac-protection"),
];

/// The loop over what is protected and being deleted.
pub struct Protection {
    plane: Arc<Plane>,
}

impl Protection {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>) -> Self {
        Self { plane }
    }

    async fn is_used(&self, key: &ObjectKey, protected: &Value) -> Result<bool, PlaneError> {
        let all = |resource| RangeScope::Cluster(key.cluster, GroupResource::new("", resource));
        match (&*key.resource.resource, key.namespace()) {
            ("persistentvolumeclaims", Some(namespace)) => {
                let scope = RangeScope::Namespace(key.cluster, GroupResource::new("", "pods"), namespace.clone());
                let pods = self.plane.list(scope).await?;
                Ok(pods.iter().any(|pod| uses_claim(&pod.object, &key.name)))
            }
            ("persistentvolumes", _) => Ok(protected.pointer("/status/phase").and_then(Value::as_str) == Some("Bound")),
            _ => {
                let (claims, volumes) = (self.plane.list(all("persistentvolumeclaims")), all("persistentvolumes"));
                let holders = claims.await?.into_iter().chain(self.plane.list(volumes).await?);
                let mut holders = holders.map(|found| found.object);
                Ok(holders.any(|holder| names_class(&holder, &key.name)))
            }
        }
    }
}

/// Whether a pod that has not ended uses a claim of its namespace, by name or as one of its ephemeral volumes.
fn uses_claim(pod: &Value, claim: &str) -> bool {
    let ended = matches!(pod.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed"));
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let names = |volume: &Value| {
        let own = || Some(format!("{}-{}", object::name(pod), volume.get("name")?.as_str()?));
        let ephemeral = volume.get("ephemeral").is_some_and(|source| !source.is_null());
        volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str) == Some(claim)
            || (ephemeral && own().as_deref() == Some(claim))
    };
    !ended && volumes.into_iter().any(names)
}

fn names_class(holder: &Value, class: &str) -> bool {
    const PLACES: [&str; 3] = [
        "/spec/volumeAttributesClassName",
        "/status/currentVolumeAttributesClassName",
        "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
    ];
    PLACES.iter().any(|place| holder.pointer(place).and_then(Value::as_str) == Some(class))
}

fn finalizer_of(resource: &GroupResource) -> Option<&'static str> {
    let of = |(group, name, _): &&(&str, &str, &str)| *resource.group == **group && *resource.resource == **name;
    PROTECTED.iter().find(of).map(|(.., finalizer)| *finalizer)
}

impl Controller for Protection {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "protection"
    }

    fn resources(&self) -> Vec<GroupResource> {
        PROTECTED.iter().map(|(group, resource, _)| GroupResource::new(*group, *resource)).collect()
    }

    fn keys(&self, event: &Event) -> Vec<Self::Key> {
        let is_asked = event.change != Change::Deleted && event.record.header.is_deleting;
        is_asked.then(|| event.key.clone()).into_iter().collect()
    }

    fn reconcile<'a>(&'a self, key: &'a Self::Key) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let (Some(found), Some(finalizer)) = (self.plane.get(key).await?, finalizer_of(&key.resource)) else {
                return Ok(Outcome::Done);
            };
            let waits =
                |object: &Value| object::is_deleting(object) && object::finalizers(object).any(|own| own == finalizer);
            if !waits(&found.object) {
                return Ok(Outcome::Done);
            }
            if self.is_used(key, &found.object).await? {
                return Ok(Outcome::CheckAgainIn(AGAIN));
            }
            let Some(kind) = self.plane.stored_kind(&key.resource) else { return Ok(Outcome::Done) };
            let release = |current: &mut Value| {
                let list = object::metadata_mut(current).get_mut("finalizers").and_then(Value::as_array_mut);
                let Some(list) = list else { return Step::Keep };
                list.retain(|own| own != finalizer);
                Step::Write(None)
            };
            self.plane.change(kind, key, release).await?;
            Ok(Outcome::Done)
        })
    }
}
