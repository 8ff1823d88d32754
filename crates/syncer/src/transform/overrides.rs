//! Overrides that policies apply to a copy. Pure.

use portolan_types::{
    GroupVersionKind, Uid,
    json_patch::{PatchBudget, PatchFailure, apply_within},
    object,
    placement::{Override, PlacedOverride},
};
use serde_json::{Map, Value, json};

use super::{is_our_key, pods};
use crate::rules::SyncRefusal;

/// Applies the overrides for the copy on `physical`, in their order. Name, namespace and identity stay.
///
/// # Errors
/// A [`SyncRefusal`] if a patch cannot be applied, or if all patches together exceed the API's budget for one: a copy
/// with half of a policy's overrides may be worse than none.
pub(super) fn apply(
    overrides: &[PlacedOverride],
    physical: &Uid,
    kind: &GroupVersionKind,
    copy: &mut Value,
) -> Result<(), SyncRefusal> {
    let mut budget = PatchBudget::default();
    for one in overrides.iter().filter(|one| one.on.contains(physical)) {
        let before = object::metadata(copy).clone();
        apply_override(&one.change, kind, copy, &mut budget).map_err(|error| {
            SyncRefusal::not_syncable(format!("the override of policy {}: {error}", one.policy.name))
        })?;
        let metadata = merge_metadata(before, object::metadata(copy));
        copy["metadata"] = Value::Object(metadata);
    }
    Ok(())
}

fn apply_override(
    change: &Override,
    kind: &GroupVersionKind,
    copy: &mut Value,
    budget: &mut PatchBudget,
) -> Result<(), String> {
    for (field, entries) in [("labels", &change.labels), ("annotations", &change.annotations)] {
        if !entries.is_empty() {
            let values = entries.iter().map(|(key, value)| (key.clone(), value.as_str().into()));
            object::child_mut(object::metadata_mut(copy), field).extend(values);
        }
    }
    pods::each_container(kind, copy, &mut |container| {
        if let Some(registry) = &change.image_registry {
            set_registry(container, registry);
        }
        change.env.iter().for_each(|(name, value)| set_env(container, name, value));
    });
    if change.patch.is_empty() {
        return Ok(());
    }
    *copy = apply_within(copy, &change.patch, budget).map_err(PatchFailure::into_text)?;
    Ok(())
}

/// Returns the metadata of before with the changed labels and annotations, except our own.
fn merge_metadata(mut before: Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    for field in ["labels", "annotations"] {
        let entries = |metadata: &Map<String, Value>, ours: bool| -> Map<String, Value> {
            let all = metadata.get(field).and_then(Value::as_object).into_iter().flatten();
            all.filter(|(key, _)| is_our_key(key) == ours).map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let mut merged = entries(after, false);
        merged.extend(entries(&before, true));
        if merged.is_empty() {
            drop(before.remove(field))
        } else {
            drop(before.insert(field.into(), Value::Object(merged)))
        }
    }
    before
}

/// `nginx` → `mirror.example/nginx`, `quay.io/team/app:1` → `mirror.example/team/app:1`.
fn set_registry(container: &mut Map<String, Value>, registry: &str) {
    let Some(image) = container.get("image").and_then(Value::as_str).filter(|image| !image.is_empty()) else { return };
    // The part before the first slash is a registry if it looks like a host, as container runtimes parse it.
    let is_host = |first: &str| first.contains(['.', ':']) || first == "localhost";
    let path = image.split_once('/').filter(|(first, _)| is_host(first)).map_or(image, |(_, path)| path);
    let image = format!("{}/{path}", registry.trim_end_matches('/'));
    container.insert("image".into(), image.into());
}

fn set_env(container: &mut Map<String, Value>, name: &str, value: &str) {
    let wanted = json!({"name": name, "value": value});
    let env = container.entry("env").or_insert_with(|| json!([]));
    let Some(env) = env.as_array_mut() else { return };
    match env.iter_mut().find(|known| known["name"] == name) {
        Some(known) => *known = wanted,
        None => env.push(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "shop-x", "labels": {"app": "web", "sync.portolan.dev/cluster": "root"}},
            "spec": {"paused": true, "template": {"spec": {
                "containers": [{"name": "web", "image": "nginx:1", "env": [{"name": "A", "valueFrom": {}}]}],
                "initContainers": [{"name": "init", "image": "quay.io/team/init@sha256:0"}]}}},
        })
    }

    fn overridden(change: Value) -> Result<Value, String> {
        let policy = json!({"kind": "ClusterPlacementPolicy", "workspace": "root", "name": "eu"});
        let placed = |on: &str| json!({"policy": policy, "on": [on], "change": change});
        let east = serde_json::from_value(placed("east")).unwrap();
        let west = serde_json::from_value(placed("west")).unwrap();
        let kind = GroupVersionKind::new("apps", "v1", "Deployment");
        let (mut copy, mut other) = (deployment(), deployment());
        apply(&[west], &"east".parse().unwrap(), &kind, &mut other).unwrap();
        assert_eq!(other, deployment(), "what is for others changes nothing here");
        apply(&[east], &"east".parse().unwrap(), &kind, &mut copy).map_err(|refusal| refusal.message)?;
        Ok(copy)
    }

    #[test]
    fn fields_that_an_override_changes() {
        for (case, change, at, expected) in [
            (
                "an image without registry",
                json!({"imageRegistry": "mirror.example/hub/"}),
                "/spec/template/spec/containers/0/image",
                json!("mirror.example/hub/nginx:1"),
            ),
            (
                "one with a registry, in an init container",
                json!({"imageRegistry": "mirror.example:5000"}),
                "/spec/template/spec/initContainers/0/image",
                json!("mirror.example:5000/team/init@sha256:0"),
            ),
            (
                "a variable that is there",
                json!({"env": {"A": "1"}}),
                "/spec/template/spec/containers/0/env",
                json!([{"name": "A", "value": "1"}]),
            ),
            (
                "one that is not",
                json!({"env": {"B": "2"}}),
                "/spec/template/spec/initContainers/0/env",
                json!([{"name": "B", "value": "2"}]),
            ),
            ("labels", json!({"labels": {"zone": "eu"}}), "/metadata/labels/zone", json!("eu")),
            (
                "annotations, where there are none",
                json!({"annotations": {"a": "b"}}),
                "/metadata/annotations",
                json!({"a": "b"}),
            ),
            (
                "a patch",
                json!({"patch": [{"op": "replace", "path": "/spec/paused", "value": false}]}),
                "/spec/paused",
                json!(false),
            ),
            (
                "a patch of a label",
                json!({"patch": [{"op": "remove", "path": "/metadata/labels/app"}]}),
                "/metadata/labels",
                json!({"sync.portolan.dev/cluster": "root"}),
            ),
        ] {
            assert_eq!(overridden(change).unwrap().pointer(at), Some(&expected), "{case}");
        }
    }

    #[test]
    fn the_class_of_an_object_is_stable() {
        for change in [
            json!({"labels": {"sync.portolan.dev/cluster": "other"}, "annotations": {"sync.portolan.dev/identity": "{}"}}),
            json!({"patch": [{"op": "replace", "path": "/metadata/name", "value": "other"}]}),
            json!({"patch": [{"op": "remove", "path": "/metadata/labels/sync.portolan.dev~1cluster"}]}),
            json!({"patch": [{"op": "add", "path": "/metadata/finalizers", "value": ["x"]}]}),
            json!({"patch": [{"op": "move", "from": "/metadata", "path": "/metadata2"}, {"op": "move", "from": "/metadata2", "path": "/metadata"}]}),
        ] {
            assert_eq!(overridden(change.clone()).unwrap()["metadata"], deployment()["metadata"], "{change}");
        }
    }

    #[test]
    fn patches_that_double_a_copy_are_refused_within_the_budget_of_the_api() {
        let copy = |n: usize| json!({"op": "copy", "from": "/metadata", "path": format!("/metadata/annotations/x{n}")});
        let add = json!({"op": "add", "path": "/metadata/annotations", "value": {}});
        let patch: Vec<Value> = std::iter::once(add).chain((0..40).map(copy)).collect();
        let error = overridden(json!({"patch": patch})).unwrap_err();
        assert!(error.contains("exceeding the limit 3145728") || error.contains("too deep"), "{error}");
    }

    #[test]
    fn the_patches_of_all_policies_share_one_budget() {
        let policy = |name: &str| json!({"kind": "ClusterPlacementPolicy", "workspace": "root", "name": name});
        let grow = json!({"patch": [{"op": "copy", "from": "/data", "path": "/more"}]});
        let one = |name: &str| serde_json::from_value(json!({"policy": policy(name), "on": ["east"], "change": grow}));
        let overrides: Vec<PlacedOverride> = ["a", "b", "c", "d"].map(|name| one(name).unwrap()).into();
        let mut copy = json!({"metadata": {"name": "c"}, "data": {"k": "x".repeat(1 << 20)}});
        let kind = GroupVersionKind::new("", "v1", "ConfigMap");
        let refusal = apply(&overrides, &"east".parse().unwrap(), &kind, &mut copy).unwrap_err();
        assert!(refusal.message.starts_with("the override of policy c: "), "{}", refusal.message);
    }

    #[test]
    fn a_patch_that_does_not_fit_is_reported() {
        let error = overridden(json!({"patch": [{"op": "remove", "path": "/spec/x"}]})).unwrap_err();
        assert!(error.starts_with("the override of policy eu: "), "{error}");
    }
}
