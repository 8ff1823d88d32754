//! Protection of objects in use: releases volume claims, volumes, and classes of their attributes once nothing uses
//! them.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use portolan_store::{ChangeKind, Event, RangeScope};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Scope, object};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneError},
    runtime::{Controller, WorkOutcome},
};

/// Interval at which a waiting object is checked without an event. Each check of a claim reads all pods of its
/// namespace.
const AGAIN: Duration = Duration::from_secs(300);
/// Delay in which a check collects further events.
const LINGER: Duration = Duration::from_millis(20);

const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";
const CLASSES: &str = "volumeattributesclasses";

/// Protected resources with their finalizers.
const PROTECTED: [(&str, &str, &str); 3] = [
    ("", CLAIMS, "kubernetes.io/pvc-protection"),
    ("", VOLUMES, "kubernetes.io/pv-protection"),
    ("storage.k8s.io", CLASSES, "kubernetes.io/vac-protection"),
];

/// Controller of protected objects that are being deleted.
pub struct ProtectionController {
    plane: Arc<Plane>,
    waiting: ProtectedObjects,
}

/// Objects that wait until nothing uses them. In memory only while they do.
#[derive(Default)]
struct ProtectedObjects(Mutex<HashMap<ScopeAddress, HashSet<ObjectKey>>>);

/// Namespace of a logical cluster, or its cluster scope.
type ScopeAddress = (LogicalClusterId, Scope);

impl ProtectedObjects {
    /// Begins to track releases of an object. Call it before reading its users, so that none is missed.
    fn begin(&self, key: &ObjectKey) {
        self.lock().entry((key.cluster, key.scope.clone())).or_default().insert(key.clone());
    }

    fn end(&self, key: &ObjectKey) {
        let (mut places, place) = (self.lock(), (key.cluster, key.scope.clone()));
        if let Some(keys) = places.get_mut(&place) {
            keys.remove(key);
            if keys.is_empty() {
                places.remove(&place);
            }
        }
    }

    /// Returns the waiting objects of a scope for which `wanted` is true.
    fn at(&self, place: &ScopeAddress, wanted: impl Fn(&ObjectKey) -> bool) -> Vec<ObjectKey> {
        let places = self.lock();
        places.get(place).into_iter().flatten().filter(|key| wanted(key)).cloned().collect()
    }

    fn is_empty(&self, place: &ScopeAddress) -> bool {
        !self.lock().contains_key(place)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ScopeAddress, HashSet<ObjectKey>>> {
        self.0.lock().expect("no code panics under this lock")
    }
}

impl ProtectionController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>) -> Self {
        Self { plane, waiting: ProtectedObjects::default() }
    }

    async fn is_used(&self, key: &ObjectKey, protected: &Value) -> Result<bool, PlaneError> {
        let all = |resource| RangeScope::Cluster(key.cluster, GroupResource::new("", resource));
        match (&*key.resource.resource, key.namespace()) {
            (CLAIMS, Some(namespace)) => {
                let scope = RangeScope::Namespace(key.cluster, GroupResource::new("", "pods"), namespace.clone());
                self.exists(scope, |pod| uses_claim(pod, protected)).await
            }
            (VOLUMES, _) => Ok(protected.pointer("/status/phase").and_then(Value::as_str) == Some("Bound")),
            _ => {
                let names = |holder: &Value| names_class(holder, &key.name);
                Ok(self.exists(all(CLAIMS), names).await? || self.exists(all(VOLUMES), names).await?)
            }
        }
    }

    /// Returns waiting objects that the object of an event may have released.
    fn released_by(&self, event: &Event) -> Vec<ObjectKey> {
        let is_pod = &*event.key.resource.resource == "pods";
        let place = (event.key.cluster, if is_pod { event.key.scope.clone() } else { Scope::Cluster });
        if self.waiting.is_empty(&place) {
            return Vec::new();
        }
        let (before, now) = match event.change {
            ChangeKind::Deleted => (Some(&event.record), None),
            ChangeKind::Created | ChangeKind::Updated => (event.previous.as_ref(), Some(&event.record)),
        };
        let Some(before) = before.map(|record| tree(record)) else { return Vec::new() };
        let now = now.and_then(|record| tree(record));
        // The references of a damaged object are unknown.
        let lets_go = |used: &dyn Fn(&Value) -> bool, uses: &dyn Fn(&Value) -> bool| {
            before.as_ref().is_none_or(used) && !now.as_ref().is_some_and(uses)
        };
        self.waiting.at(&place, |key| {
            let names = |pod: &Value| claims_of(pod).any(|own| own == key.name.as_str());
            let is_of_class = |holder: &Value| names_class(holder, &key.name);
            match &*key.resource.resource {
                CLAIMS => is_pod && lets_go(&names, &|pod| !is_shut_down(pod) && names(pod)),
                CLASSES => !is_pod && lets_go(&is_of_class, &is_of_class),
                _ => false,
            }
        })
    }

    /// Returns true if `is_it` holds of any object of a scope, or one is damaged.
    async fn exists(&self, scope: RangeScope, is_it: impl Fn(&Value) -> bool + Send) -> Result<bool, PlaneError> {
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

/// Returns the value of a stored object, if it is readable.
fn tree(record: &Record) -> Option<Value> {
    let object = record.to_value(ResourceVersion::FIRST).ok()?;
    object.get("kind").is_some().then_some(object)
}

/// Returns the names of the claims of a pod's volumes.
fn claims_of(pod: &Value) -> impl Iterator<Item = String> {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    volumes.filter_map(|volume| match volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str) {
        Some(name) => Some(name.to_owned()),
        None => {
            volume.get("ephemeral").filter(|source| !source.is_null())?;
            Some(format!("{}-{}", object::name(pod), volume.get("name")?.as_str()?))
        }
    })
}

/// Returns true if a pod uses a claim, by name or as one of its ephemeral volumes, as in kube-controller-manager: a
/// pod without a node does not, since no node starts it with a claim that is being deleted; a pod that has ended does,
/// by name.
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

/// Returns true if its node has seen its end, or nothing waits for that.
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

impl Controller for ProtectionController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "protection"
    }

    fn resources(&self) -> Vec<GroupResource> {
        let pods = GroupResource::new("", "pods");
        PROTECTED.iter().map(|(group, resource, _)| GroupResource::new(*group, *resource)).chain([pods]).collect()
    }

    fn keys(&self, event: &Event) -> Vec<Self::Key> {
        let mut keys = self.released_by(event);
        // A deleted object is queued as well, to stop waiting for it.
        if event.record.header.is_deleting && finalizer_of(&event.key.resource).is_some() {
            keys.push(event.key.clone());
        }
        keys
    }

    fn linger(&self, event: &Event, key: &ObjectKey) -> Duration {
        if event.key == *key { Duration::ZERO } else { LINGER }
    }

    fn reconcile<'a>(&'a self, key: &'a Self::Key) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let Some(finalizer) = finalizer_of(&key.resource) else { return Ok(WorkOutcome::Done) };
            let waits =
                |object: &Value| object::is_deleting(object) && object::finalizers(object).any(|own| own == finalizer);
            let found = self.plane.get_reconciled(key).await?.filter(|found| waits(&found.object));
            let (Some(found), Some(kind)) = (found, self.plane.stored_kind(&key.resource)) else {
                self.waiting.end(key);
                return Ok(WorkOutcome::Done);
            };
            self.waiting.begin(key);
            if self.is_used(key, &found.object).await? {
                return Ok(WorkOutcome::RequeueAfter(AGAIN));
            }
            self.plane.drop_finalizer(kind, key, finalizer).await?;
            self.waiting.end(key);
            Ok(WorkOutcome::Done)
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

    #[test]
    fn the_pods_that_hold_a_claim_are_named() {
        let key = |group: &str, resource: &str, name: &str| {
            let (resource, name) = (GroupResource::new(group, resource), name.parse().unwrap());
            ObjectKey::namespaced(LogicalClusterId::ROOT, resource, "shop".parse().unwrap(), name)
        };
        let pod = |claims: &[&str], grace: Option<u64>| {
            let volumes: Vec<_> = claims
                .iter()
                .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
                .chain([json!({"name": "own", "ephemeral": {"volumeClaimTemplate": {}}})])
                .collect();
            let mut pod = json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"volumes": volumes}});
            if let Some(grace) = grace {
                pod["metadata"]["deletionTimestamp"] = json!("t");
                pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            }
            Arc::new(Record::of(&pod))
        };
        let event = |change, record: &Arc<Record>, previous: Option<&Arc<Record>>| Event {
            revision: ResourceVersion::FIRST,
            change,
            key: key("", "pods", "p"),
            record: record.clone(),
            previous: previous.cloned(),
        };
        let plane = portolan_kinds::KindTable::builtin();
        let plane = Plane::new(portolan_store::memory(), plane, portolan_types::Seams::system());
        let protection = ProtectionController::new(Arc::new(plane));
        let waiting = ["a", "b", "p-own"].map(|name| key("", CLAIMS, name));
        let (whole, less) = (pod(&["a", "b", "c"], None), pod(&["b", "c"], None));
        let (ending, ended) = (pod(&["a", "b"], Some(30)), pod(&["a", "b"], Some(0)));
        let damaged = Arc::new(Record::of(&json!({})));
        assert_eq!(protection.keys(&event(ChangeKind::Deleted, &whole, None)), [], "no object waits");
        waiting.iter().for_each(|key| protection.waiting.begin(key));
        for (case, event, expected) in [
            ("it is made", event(ChangeKind::Created, &whole, None), &[] as &[&str]),
            ("it is changed otherwise", event(ChangeKind::Updated, &whole, Some(&whole)), &[]),
            ("it is to go", event(ChangeKind::Updated, &ending, Some(&whole)), &[]),
            ("it uses less", event(ChangeKind::Updated, &less, Some(&whole)), &["a"]),
            (
                "its node has seen the end of it",
                event(ChangeKind::Updated, &ended, Some(&ending)),
                &["a", "b", "p-own"],
            ),
            ("it is gone", event(ChangeKind::Deleted, &less, None), &["b", "p-own"]),
            ("it was damaged, and is gone", event(ChangeKind::Deleted, &damaged, None), &["a", "b", "p-own"]),
        ] {
            let mut names: Vec<_> = protection.keys(&event).iter().map(|key| key.name.to_string()).collect();
            names.sort();
            assert_eq!(names, expected, "{case}");
        }
        waiting.iter().for_each(|key| protection.waiting.end(key));
        assert!(protection.waiting.lock().is_empty(), "nothing stays in memory");
    }
}
