//! Status of custom resources: stands for the operators that a real cluster would run, so that objects become ready
//! and can move.

use std::sync::Arc;

use portolan_controllers::{Controller, Plane, PlaneError, WorkOutcome};
use portolan_store::Event;
use portolan_types::{BoxFuture, GroupResource, ObjectKey, object};
use serde_json::{Value, json};

use crate::fields::number;

/// Annotation with the generation for which the status was simulated. A status without it is somebody else's.
const SIMULATED: &str = "simulator.portolan.dev/generation";

/// Loop of the custom resources of all definitions with the subresource `status`.
pub(crate) struct CustomResourceOperator {
    pub(crate) plane: Arc<Plane>,
}

impl Controller for CustomResourceOperator {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-custom-resources"
    }

    fn resources(&self) -> Vec<GroupResource> {
        Vec::new()
    }

    fn follows_defined(&self) -> bool {
        true
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        vec![event.key.clone()]
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let name = format!("{}.{}", key.resource.resource, key.resource.group);
            let Ok(name) = name.parse() else { return Ok(WorkOutcome::Done) };
            let resource = GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions");
            let definition = self.plane.get(&ObjectKey::cluster_scoped(key.cluster, resource, name)).await?;
            let version = definition.as_ref().and_then(|found| storage_version(&found.object));
            if let Some(version) = version.filter(|version| !version["subresources"]["status"].is_null()) {
                let now = self.plane.seams().now_text();
                self.plane.force(key, |found| report(found, version, &now)).await?;
            }
            Ok(WorkOutcome::Done)
        })
    }
}

/// Returns the version of a definition in which its objects are stored.
fn storage_version(definition: &Value) -> Option<&Value> {
    definition["spec"]["versions"].as_array()?.iter().find(|version| version["storage"] == true)
}

/// Reports an object ready at its generation, with the fields that its schema has. Returns true if it changed.
fn report(found: &mut Value, version: &Value, now: &str) -> bool {
    let generation = number(found, "/metadata/generation").unwrap_or(1);
    let reported = object::annotation(found, SIMULATED).map(str::to_owned);
    let is_foreign = reported.is_none() && found["status"].as_object().is_some_and(|status| !status.is_empty());
    if is_foreign || object::is_deleting(found) || reported == Some(generation.to_string()) {
        return false;
    }
    let schema = &version["schema"]["openAPIV3Schema"]["properties"]["status"];
    let allows =
        |field: &str| schema["x-kubernetes-preserve-unknown-fields"] == true || !schema["properties"][field].is_null();
    let mut status = json!({});
    if let Some((at, replicas)) = replicas(found, &version["subresources"]["scale"]) {
        set(&mut status, &at, replicas);
        for field in ["readyReplicas", "availableReplicas"].into_iter().filter(|field| allows(field)) {
            status[field] = replicas.into();
        }
    }
    if allows("observedGeneration") {
        status["observedGeneration"] = generation.into();
    }
    if allows("conditions") {
        status["conditions"] = json!([{
            "type": "Ready", "status": "True", "reason": "Simulated", "message": "no operator runs here",
            "observedGeneration": generation, "lastTransitionTime": now,
        }]);
    }
    found["status"] = status;
    object::set_annotation(found, SIMULATED, Some(generation.to_string()));
    true
}

/// Returns the path of the status' replicas, and the wanted number.
fn replicas(found: &Value, scale: &Value) -> Option<(Vec<String>, i64)> {
    let path = |field: &str| -> Option<Vec<String>> {
        Some(scale[field].as_str()?.trim_start_matches('.').split('.').map(str::to_owned).collect())
    };
    let wanted = path("specReplicasPath")?.join("/");
    let at = path("statusReplicasPath")?;
    (at.first()? == "status").then(|| (at[1..].to_vec(), number(found, &format!("/{wanted}")).unwrap_or(1)))
}

/// Sets a number at a path of fields.
fn set(status: &mut Value, path: &[String], to: i64) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut at = status;
    for field in parents {
        at = &mut at[field.as_str()];
    }
    at[last.as_str()] = to.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(status: &Value) -> Value {
        json!({
            "name": "v1", "storage": true,
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.pods.total"}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"status": status}}},
        })
    }

    #[test]
    fn statuses() {
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let narrow = json!({"type": "object", "properties": {"pods": {}, "observedGeneration": {}}});
        let widget = |more: Value| {
            let mut widget = json!({"metadata": {"generation": 2}, "spec": {"size": 3}});
            widget.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            widget
        };
        let ours = |generation: &str| {
            widget(json!({"metadata": {"generation": 2, "annotations": {SIMULATED: generation}}, "status": {"a": 1}}))
        };
        for (case, schema, found, expected) in [
            (
                "a new object is ready",
                &open,
                widget(json!({})),
                Some(json!({"ready": true, "total": 3, "observed": 2})),
            ),
            (
                "fields that the schema lacks are left out",
                &narrow,
                widget(json!({})),
                Some(json!({"ready": false, "total": 3, "observed": 2})),
            ),
            ("a status of others stays", &open, widget(json!({"status": {"phase": "Failed"}})), None),
            (
                "a changed object is reported again",
                &open,
                ours("1"),
                Some(json!({"ready": true, "total": 3, "observed": 2})),
            ),
            ("an unchanged one is not", &open, ours("2"), None),
        ] {
            let mut found = found;
            let is_changed = report(&mut found, &version(schema), "T");
            let status = &found["status"];
            let seen = json!({
                "ready": status["conditions"][0]["status"] == "True",
                "total": status["pods"]["total"],
                "observed": status["observedGeneration"],
            });
            assert_eq!((is_changed, is_changed.then_some(seen)), (expected.is_some(), expected), "{case}");
        }
    }
}
