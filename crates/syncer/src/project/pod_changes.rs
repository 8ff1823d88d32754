//! Changes of running pods that were made upstream and have yet to get there: images, resources, and the ephemeral
//! containers of `kubectl debug`. Pure.

use portolan_types::{Uid, fingerprint, object, placement::ProjectionSource};
use serde_json::{Map, Value, json};

use crate::transform;

/// Lists of containers whose images can be changed in place.
const LISTS: [&str; 2] = ["containers", "initContainers"];
/// Key of the entry that marks a pod's values as recorded.
const KNOWN: &str = "pod";
/// Most ephemeral containers that are sent at once.
const MAX_EPHEMERAL: usize = 64;

/// Changes of a pod, each for its part of the API.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodChanges {
    /// Items of `containers` and `initContainers` with another image, by list.
    images: Map<String, Value>,
    /// Items of `containers` and `initContainers` with other resources, by list.
    resources: Map<String, Value>,
    /// New ephemeral containers.
    pub ephemeral: Vec<Value>,
}

/// Part of the API that takes a change of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPart {
    /// The pod itself.
    Whole,
    /// The subresource `resize`.
    Resize,
    /// The subresource `ephemeralcontainers`.
    EphemeralContainers,
}

impl PodPart {
    /// Returns the end of the path of the part.
    pub fn path(self) -> &'static str {
        match self {
            Self::Whole => "",
            Self::Resize => "/resize",
            Self::EphemeralContainers => "/ephemeralcontainers",
        }
    }
}

impl PodChanges {
    /// Returns the changes of the upstream pod that its downstream copy lacks and an apply does not bring: resources,
    /// which may be larger downstream, and ephemeral containers.
    pub fn missing_in(there: &Value, upstream: &Value) -> Self {
        let mut changes = Self::default();
        for (list, container) in containers(upstream) {
            let is_it = |(other, own): &(&str, &Value)| *other == list && own["name"] == container["name"];
            let Some((_, own)) = containers(there).find(is_it) else { continue };
            if !transform::covers(&own["resources"], &container["resources"]) {
                let item = json!({"name": container["name"], "resources": container["resources"]});
                changes.push(Field::Resources, list, item);
            }
        }
        let known: Vec<&Value> = ephemeral(there).filter_map(|own| own.get("name")).collect();
        let is_new = |container: &&Value| container.get("name").is_some_and(|name| !known.contains(&name));
        changes.ephemeral = ephemeral(upstream).filter(is_new).take(MAX_EPHEMERAL).cloned().collect();
        changes
    }

    /// Returns the upstream changes of a projected pod since its last projection from `physical`.
    pub fn pending(upstream: &Value, physical: &Uid) -> Self {
        let mut changes = Self::default();
        let Some(source) = ProjectionSource::on(upstream, physical).filter(|s| s.shown.contains_key(KNOWN)) else {
            return changes;
        };
        for (list, container) in containers(upstream) {
            for field in [Field::Image, Field::Resources] {
                let known = source.shown.get(&field.key(list, container));
                if known.is_some_and(|known| *known != field.print(container)) {
                    changes.add(field, list, container);
                }
            }
        }
        let is_new = |container: &&Value| !source.shown.contains_key(&ephemeral_key(container));
        changes.ephemeral = ephemeral(upstream).filter(is_new).take(MAX_EPHEMERAL).cloned().collect();
        changes
    }

    fn add(&mut self, field: Field, list: &str, container: &Value) {
        let mut item = json!({"name": container.get("name")});
        let value = match field {
            Field::Image => container.get("image").cloned().unwrap_or_default(),
            Field::Resources => replacing(container.get("resources")),
        };
        item[field.name()] = value;
        self.push(field, list, item);
    }

    fn push(&mut self, field: Field, list: &str, item: Value) {
        let changes = match field {
            Field::Image => &mut self.images,
            Field::Resources => &mut self.resources,
        };
        if let Some(items) = changes.entry(list).or_insert_with(|| json!([])).as_array_mut() {
            items.push(item);
        }
    }

    /// Returns true if nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty() && self.resources.is_empty() && self.ephemeral.is_empty()
    }

    /// Returns the next strategic merge patch and the part that takes it, onto the pod that was read; `None` if nothing
    /// was changed.
    pub fn next_patch(&self, there: &Value) -> Option<(PodPart, Value)> {
        let (part, spec) = if !self.images.is_empty() {
            (PodPart::Whole, Value::Object(self.images.clone()))
        } else if !self.resources.is_empty() {
            (PodPart::Resize, Value::Object(self.resources.clone()))
        } else if !self.ephemeral.is_empty() {
            (PodPart::EphemeralContainers, json!({"ephemeralContainers": self.ephemeral}))
        } else {
            return None;
        };
        let text = |key: &str| object::meta_text(there, key).to_owned();
        let metadata = json!({"uid": text("uid"), "resourceVersion": text("resourceVersion")});
        Some((part, json!({"metadata": metadata, "spec": spec})))
    }
}

/// Field of a container that can be changed in place.
#[derive(Clone, Copy)]
enum Field {
    Image,
    Resources,
}

impl Field {
    fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Resources => "resources",
        }
    }

    fn key(self, list: &str, container: &Value) -> String {
        format!("{}/{list}/{}", self.name(), container["name"].as_str().unwrap_or_default())
    }

    fn print(self, container: &Value) -> String {
        fingerprint(container.get(self.name()).unwrap_or(&Value::Null))
    }
}

/// Returns resources that replace existing ones as a whole, in a strategic merge patch.
fn replacing(resources: Option<&Value>) -> Value {
    let mut whole = resources.and_then(Value::as_object).cloned().unwrap_or_default();
    whole.insert("$patch".into(), "replace".into());
    Value::Object(whole)
}

fn containers(pod: &Value) -> impl Iterator<Item = (&'static str, &Value)> {
    LISTS.into_iter().flat_map(move |list| {
        let items = pod.pointer("/spec").and_then(|spec| spec.get(list)).and_then(Value::as_array);
        items.into_iter().flatten().map(move |container| (list, container))
    })
}

fn ephemeral(pod: &Value) -> impl Iterator<Item = &Value> {
    pod.pointer("/spec/ephemeralContainers").and_then(Value::as_array).into_iter().flatten()
}

fn ephemeral_key(container: &Value) -> String {
    format!("ephemeral/{}", container["name"].as_str().unwrap_or_default())
}

/// Returns the recorded values of a projected pod: hashes of images and resources, and the ephemeral containers.
pub(super) fn shown_entries(pod: &Value) -> Vec<(String, String)> {
    if pod["kind"] != "Pod" {
        return Vec::new();
    }
    let fields = containers(pod).flat_map(|(list, container)| {
        [Field::Image, Field::Resources].map(|field| (field.key(list, container), field.print(container)))
    });
    let ephemeral = ephemeral(pod).map(|container| (ephemeral_key(container), String::new()));
    fields.chain(ephemeral).chain([(KNOWN.to_owned(), String::new())]).collect()
}

/// Copies the upstream changes of `stored` that `physical` has yet to receive into `put`, its present projection.
pub(super) fn keep_pending(stored: &Value, put: &mut Value, physical: &Uid) {
    let changes = PodChanges::pending(stored, physical);
    let Some(spec) = put.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for (list, stored) in containers(stored) {
        let is_changed = |changes: &Map<String, Value>| {
            let items = changes.get(list).and_then(Value::as_array).into_iter().flatten();
            items.into_iter().any(|item| item["name"] == stored["name"])
        };
        let own = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        let Some(own) = own.into_iter().find(|own| own["name"] == stored["name"]) else { continue };
        for (field, changes) in [("image", &changes.images), ("resources", &changes.resources)] {
            if is_changed(changes) {
                own[field] = stored.get(field).cloned().unwrap_or_default();
            }
        }
    }
    if !changes.ephemeral.is_empty() {
        let all = spec.entry("ephemeralContainers").or_insert_with(|| json!([]));
        if let Some(all) = all.as_array_mut() {
            let known: Vec<Value> = all.iter().map(|own| own["name"].clone()).collect();
            all.extend(changes.ephemeral.into_iter().filter(|new| !known.contains(&new["name"])));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::{ProjectionOrigin, merge_put, projected_object};

    fn east() -> Uid {
        "east".parse().unwrap()
    }

    fn pod(image: &str, cpu: &str, ephemeral: &[&str]) -> Value {
        let ephemeral: Vec<Value> = ephemeral.iter().map(|name| json!({"name": name, "image": "busybox"})).collect();
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-1", "namespace": "shop-x", "uid": "down", "resourceVersion": "7",
                "labels": {"sync.portolan.dev/cluster": "7"}},
            "spec": {"containers": [{"name": "a", "image": image, "resources": {"requests": {"cpu": cpu}}}, {"name": "b", "image": "b"}],
                "ephemeralContainers": ephemeral}})
    }

    fn projected_pod(pod: &Value) -> Value {
        projected_object(pod, "shop", None, ProjectionOrigin { name: "east", uid: &east() }).unwrap()
    }

    #[test]
    fn a_copy_lacks_resources_and_ephemeral_containers_that_upstream_has() {
        let mut there = pod("i:1", "1", &[]);
        there["spec"]["containers"][0]["resources"]["limits"] = json!({"cpu": "4"});
        for (case, upstream, expected) in [
            ("more limits are not ours", pod("i:1", "1", &[]), None),
            ("an image comes by apply", pod("i:2", "1", &[]), None),
            (
                "other requests",
                pod("i:1", "2", &[]),
                Some((
                    PodPart::Resize,
                    json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]}),
                )),
            ),
            (
                "an ephemeral container",
                pod("i:1", "1", &["debug"]),
                Some((
                    PodPart::EphemeralContainers,
                    json!({"ephemeralContainers": [{"name": "debug", "image": "busybox"}]}),
                )),
            ),
        ] {
            let patch = PodChanges::missing_in(&there, &upstream).next_patch(&there);
            assert_eq!(patch.map(|(part, patch)| (part, patch["spec"].clone())), expected, "{case}");
        }
    }

    #[test]
    fn each_change_goes_to_its_part_of_the_api() {
        let there = pod("i:1", "1", &[]);
        for (case, upstream, expected) in [
            ("nothing", pod("i:1", "1", &[]), None),
            (
                "an image",
                pod("i:2", "1", &[]),
                Some((PodPart::Whole, json!({"containers": [{"name": "a", "image": "i:2"}]}))),
            ),
            (
                "resources",
                pod("i:1", "2", &[]),
                Some((
                    PodPart::Resize,
                    json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}, "$patch": "replace"}}]}),
                )),
            ),
            (
                "an ephemeral container",
                pod("i:1", "1", &["debug"]),
                Some((
                    PodPart::EphemeralContainers,
                    json!({"ephemeralContainers": [{"name": "debug", "image": "busybox"}]}),
                )),
            ),
        ] {
            let mut changed = projected_pod(&there);
            changed["spec"] = upstream["spec"].clone();
            let patch = PodChanges::pending(&changed, &east()).next_patch(&there);
            let found = patch.as_ref().map(|(part, patch)| (*part, patch["spec"].clone()));
            assert_eq!(found, expected, "{case}");
            if let Some((_, patch)) = patch {
                assert_eq!(patch["metadata"], json!({"uid": "down", "resourceVersion": "7"}), "{case}");
            }
        }
    }

    #[test]
    fn an_upstream_change_stays_until_it_is_synced() {
        let stored = projected_pod(&pod("i:1", "1", &[]));
        assert!(PodChanges::pending(&stored, &east()).is_empty());
        let mut changed = stored.clone();
        changed["spec"] = pod("i:2", "2", &["debug"])["spec"].clone();
        let pending = PodChanges::pending(&changed, &east());
        assert!(!pending.is_empty());
        let kept = merge_put(Some(&changed), projected_pod(&pod("i:1", "1", &[]))).unwrap();
        assert_eq!(kept["spec"], changed["spec"], "a projection in between does not undo it");
        assert_eq!(PodChanges::pending(&kept, &east()), pending);
        let arrived = merge_put(Some(&kept), projected_pod(&pod("i:2", "2", &["debug"]))).unwrap();
        assert!(PodChanges::pending(&arrived, &east()).is_empty());
        let resized = merge_put(Some(&arrived), projected_pod(&pod("i:2", "4", &["debug"]))).unwrap();
        assert_eq!(
            resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "4",
            "from then on downstream says it"
        );
    }
}
