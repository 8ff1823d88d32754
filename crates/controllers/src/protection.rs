//! Lets go of what admission protected while it was in use: volume claims, volumes, and classes of their attributes.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use portolan_store::{Change, Event, RangeScope};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Scope, object};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneError},
    runtime::{Controller, Outcome},
};

/// How soon something that is waited for is looked at again though nothing was seen to let go of it. Each look at a claim reads all
/// pods of its namespace.
const AGAIN: Duration = Duration::from_secs(300);
/// How long a look waits for more to let go.
const LINGER: Duration = Duration::from_millis(20);

const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";
const CLASSES: &str = "volumeattributesclasses";

/// What is protected, and by which finalizer.
const PROTECTED: [(&str, &str, &str); 3] = [
    ("", CLAIMS, "kubernetes.io/pvc-protection"),
    ("", VOLUMES, "kubernetes.io/pv-protection"),
    ("storage.k8s.io", CLASSES, "kubernetes.io/vac-protection"),
];

/// The loop over what is protected and being deleted.
pub struct Protection {
    plane: Arc<Plane>,
    waiting: Waiting,
}

/// What waits until nobody uses it. In memory only while it does.
#[derive(Default)]
struct Waiting(Mutex<HashMap<Place, HashSet<ObjectKey>>>);

/// A namespace of a logical cluster, or what is in none.
type Place = (LogicalClusterId, Scope);

impl Waiting {
    /// From now on it matters who lets go of it. To be called before it is looked who uses it, so that none is missed.
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

    /// What waits at a place, as far as `wanted`.
    fn at(&self, place: &Place, wanted: impl Fn(&ObjectKey) -> bool) -> Vec<ObjectKey> {
        let places = self.lock();
        places.get(place).into_iter().flatten().filter(|key| wanted(key)).cloned().collect()
    }

    fn is_nothing(&self, place: &Place) -> bool {
        !self.lock().contains_key(place)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, HashSet<ObjectKey>>> {
        self.0.lock().expect("no code panics under this lock")
    }
}

impl Protection {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>) -> Self {
        Self { plane, waiting: Waiting::default() }
    }

    async fn is_used(&self, key: &ObjectKey, protected: &Value) -> Result<bool, PlaneError> {
        let all = |resource| RangeScope::Cluster(key.cluster, GroupResource::new("", resource));
        match (&*key.resource.resource, key.namespace()) {
            (CLAIMS, Some(namespace)) => {
                let scope = RangeScope::Namespace(key.cluster, GroupResource::new("", "pods"), namespace.clone());
                self.any(scope, |pod| uses_claim(pod, protected)).await
            }
            (VOLUMES, _) => Ok(protected.pointer("/status/phase").and_then(Value::as_str) == Some("Bound")),
            _ => {
                let names = |holder: &Value| names_class(holder, &key.name);
                Ok(self.any(all(CLAIMS), names).await? || self.any(all(VOLUMES), names).await?)
            }
        }
    }

    /// What waits, and the object of an event may have let go of with it.
    fn let_go(&self, event: &Event) -> Vec<ObjectKey> {
        let is_pod = &*event.key.resource.resource == "pods";
        let place = (event.key.cluster, if is_pod { event.key.scope.clone() } else { Scope::Cluster });
        if self.waiting.is_nothing(&place) {
            return Vec::new();
        }
        let (before, now) = match event.change {
            Change::Deleted => (Some(&event.record), None),
            Change::Created | Change::Updated => (event.previous.as_ref(), Some(&event.record)),
        };
        let Some(before) = before.map(|record| tree(record)) else { return Vec::new() };
        let now = now.and_then(|record| tree(record));
        // Of what was damaged nobody knows what it used.
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

/// An object that was stored, if it can be read.
fn tree(record: &Record) -> Option<Value> {
    let object = record.to_value(ResourceVersion::FIRST).ok()?;
    object.get("kind").is_some().then_some(object)
}

/// The names of claims that a pod has volumes of, or would have.
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
        let pods = GroupResource::new("", "pods");
        PROTECTED.iter().map(|(group, resource, _)| GroupResource::new(*group, *resource)).chain([pods]).collect()
    }

    fn keys(&self, event: &Event) -> Vec<Self::Key> {
        let mut keys = self.let_go(event);
        // Also when it is gone: then it waits no more.
        if event.record.header.is_deleting && finalizer_of(&event.key.resource).is_some() {
            keys.push(event.key.clone());
        }
        keys
    }

    fn linger(&self, event: &Event, key: &ObjectKey) -> Duration {
        if event.key == *key { Duration::ZERO } else { LINGER }
    }

    fn reconcile<'a>(&'a self, key: &'a Self::Key) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let Some(finalizer) = finalizer_of(&key.resource) else { return Ok(Outcome::Done) };
            let waits =
                |object: &Value| object::is_deleting(object) && object::finalizers(object).any(|own| own == finalizer);
            let found = self.plane.get(key).await?.filter(|found| waits(&found.object));
            let (Some(found), Some(kind)) = (found, self.plane.stored_kind(&key.resource)) else {
                self.waiting.end(key);
                return Ok(Outcome::Done);
            };
            self.waiting.begin(key);
            if self.is_used(key, &found.object).await? {
                return Ok(Outcome::CheckAgainIn(AGAIN));
            }
            self.plane.drop_finalizer(kind, key, finalizer).await?;
            self.waiting.end(key);
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

    #[test]
    fn who_lets_go_of_a_claim_names_it_while_it_waits() {
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
        let plane = portolan_machinery::kinds::KindTable::builtin();
        let plane = Plane::new(portolan_store::memory(), plane, portolan_types::Seams::system());
        let protection = Protection::new(Arc::new(plane));
        let waiting = ["a", "b", "p-own"].map(|name| key("", CLAIMS, name));
        let (whole, less) = (pod(&["a", "b", "c"], None), pod(&["b", "c"], None));
        let (ending, ended) = (pod(&["a", "b"], Some(30)), pod(&["a", "b"], Some(0)));
        let damaged = Arc::new(Record::of(&json!({})));
        assert_eq!(protection.keys(&event(Change::Deleted, &whole, None)), [], "nobody waits");
        waiting.iter().for_each(|key| protection.waiting.begin(key));
        for (case, event, expected) in [
            ("it is made", event(Change::Created, &whole, None), &[] as &[&str]),
            ("it is changed otherwise", event(Change::Updated, &whole, Some(&whole)), &[]),
            ("it is to go", event(Change::Updated, &ending, Some(&whole)), &[]),
            ("it uses less", event(Change::Updated, &less, Some(&whole)), &["a"]),
            ("its node has seen the end of it", event(Change::Updated, &ended, Some(&ending)), &["a", "b", "p-own"]),
            ("it is gone", event(Change::Deleted, &less, None), &["b", "p-own"]),
            ("it was damaged, and is gone", event(Change::Deleted, &damaged, None), &["a", "b", "p-own"]),
        ] {
            let mut names: Vec<_> = protection.keys(&event).iter().map(|key| key.name.to_string()).collect();
            names.sort();
            assert_eq!(names, expected, "{case}");
        }
        waiting.iter().for_each(|key| protection.waiting.end(key));
        assert!(protection.waiting.lock().is_empty(), "nothing stays in memory");
    }
}
