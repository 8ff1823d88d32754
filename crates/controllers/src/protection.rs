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
                self.any(scope, |pod| uses_claim(pod, protected)).await
            }
            ("persistentvolumes", _) => Ok(protected.pointer("/status/phase").and_then(Value::as_str) == Some("Bound")),
            _ => {
                let names = |holder: &Value| names_class(holder, &key.name);
                Ok(self.any(all("persistentvolumeclaims"), names).await?
                    || self.any(all("persistentvolumes"), names).await?)
            }
        }
    }

    /// Whether there is one of a kind. One that is damaged may be it.
    async fn any(&self, scope: RangeScope, is_it: impl Fn(&Value) -> bool + Send) -> Result<bool, PlaneError> {
        let (mut slices, mut known) = (self.plane.slices(scope), Ok(()));
        while let Some(slice) = slices.next().await? {
            if slice.found.iter().any(|found| is_it(&found.object)) {
                return Ok(true);
            }
            known = known.and(slice.check());
        }
        known.map(|()| false)
    }
}

/// Whether a pod uses a claim of its namespace, by name or as one of its ephemeral volumes, as upstream's controller of claims
/// sees it: one that has no node yet does not, since no node starts it with a claim that is being deleted; and one that has ended
/// does, by name.
fn uses_claim(pod: &Value, claim: &Value) -> bool {
    if pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default().is_empty() {
        return false;
    }
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let is_own = object::controller_of(claim).is_some_and(|owner| owner.get("uid") == object::metadata(pod).get("uid"));
    let may_hold_own = is_own && !is_shut_down(pod);
    let uses = |volume: &Value| {
        let own = || Some(format!("{}-{}", object::name(pod), volume.get("name")?.as_str()?));
        let ephemeral = volume.get("ephemeral").is_some_and(|source| !source.is_null());
        volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str) == Some(object::name(claim))
            || (may_hold_own && ephemeral && own().as_deref() == Some(object::name(claim)))
    };
    volumes.into_iter().any(uses)
}

/// Its node has seen the end of it, or nobody waits for that.
fn is_shut_down(pod: &Value) -> bool {
    let grace = object::metadata(pod).get("deletionGracePeriodSeconds").and_then(Value::as_i64);
    object::is_deleting(pod) && grace == Some(0)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_is_used_by_pods_that_have_a_node() {
        let claim = |owner: &str| {
            let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
            json!({"metadata": {"name": "p-v", "ownerReferences": owners}})
        };
        let named = json!({"name": "x", "persistentVolumeClaim": {"claimName": "p-v"}});
        let own = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {}}});
        let gone = json!({"deletionTimestamp": "t", "deletionGracePeriodSeconds": 0});
        let going = json!({"deletionTimestamp": "t", "deletionGracePeriodSeconds": 30});
        for (case, node, volume, phase, deletion, owner, expected) in [
            ("by name", "n", &named, "Running", &json!({}), "other", true),
            ("before it has a node", "", &named, "Pending", &json!({}), "other", false),
            ("by name, after its end", "n", &named, "Succeeded", &json!({}), "other", true),
            ("its own", "n", &own, "Running", &json!({}), "u", true),
            ("its own, on its way out", "n", &own, "Running", &going, "u", true),
            ("its own, after its end", "n", &own, "Running", &gone, "u", false),
            ("of that name, and somebody else's", "n", &own, "Running", &json!({}), "other", false),
        ] {
            let mut pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": node, "volumes": [volume]},
                "status": {"phase": phase}});
            pod["metadata"].as_object_mut().unwrap().extend(deletion.as_object().unwrap().clone());
            assert_eq!(uses_claim(&pod, &claim(owner)), expected, "{case}");
        }
    }
}
