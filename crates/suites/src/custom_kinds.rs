//! Custom resources from a workspace to real API servers: with their definition, replicas and dependents, and back with
//! their status.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::downstream::{self, count, namespace, placed_on, text};
use super::scene::{self, EAST, Scene, WEST};
use harness::kubectl::Kubectl;
use harness::poll;
use harness::report::CheckReport;

const LIMIT: Duration = Duration::from_secs(60);
/// Group of the kind, which no API server of the suite has.
const WIDGETS: &str = "widgets.e2e.example.com";

/// The administrator's permission, in root.
const TAKEN: &str = "
apiVersion: portolan.dev/v1alpha1
kind: ClusterPlacementPolicy
metadata: {name: take-widgets}
spec:
  resources: [{apiGroup: e2e.example.com, kinds: [Widget], definition: Sync}]
  enforcement: Constraint
";

/// The tenant's objects, without the definition.
const MANIFEST: &str = "
{apiVersion: v1, kind: Secret, metadata: {name: widget-key}, stringData: {a: b}}
---
apiVersion: portolan.dev/v1alpha1
kind: PlacementPolicy
metadata: {name: widgets}
spec:
  resources: [{apiGroup: e2e.example.com, kinds: [Widget]}]
  count: All
  replicas: {mode: Divide}
---
apiVersion: e2e.example.com/v1
kind: Widget
metadata: {name: wheel}
spec: {size: 5, secret: widget-key}
";

/// Runs in the workspace `custom` and in root.
pub(super) fn run(report: &mut CheckReport, scene: &Scene) {
    let made = scene.workspace("custom");
    if !report.check("custom: a workspace is made and Ready", || made.as_ref().map(drop).map_err(scene::copy)) {
        return;
    }
    let Ok(kubectl) = made else { return };
    let kubectl = kubectl.in_namespace("default");
    let steps: [(&str, &dyn Fn() -> Result<()>); 6] = [
        ("the definition is synced where the administrator says so", &|| defined(scene, &kubectl)),
        ("a custom resource is synced, divided, with what it names", &|| custom_objects_are_placed(scene, &kubectl)),
        ("the status of all copies comes back", &|| reported(scene, &kubectl)),
        ("a field that the definition there lacks is refused and reported", &|| refused(scene, &kubectl)),
        ("delete leaves neither copies nor the definition downstream", &|| removed(scene, &kubectl)),
        ("a deleted workspace leaves nothing downstream", &|| scene.delete_workspace("custom")),
    ];
    for (name, step) in steps {
        report.check(&format!("custom: {name}"), step);
    }
}

/// The definition, with further properties of `spec`.
fn definition(more: &Value) -> Value {
    let mut spec = json!({"size": {"type": "integer"}, "secret": {"type": "string"}});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    let condition = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": WIDGETS, "annotations": {"portolan.dev/references": r#"{"spec.secret": "Secret"}"#}},
        "spec": {
            "group": "e2e.example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {
                    "status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": spec},
                    "status": {"type": "object", "properties": {
                        "size": {"type": "integer"}, "observedGeneration": {"type": "integer"},
                        "conditions": {"type": "array", "items": condition}}}}}},
            }],
        },
    })
}

fn defined(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    scene.root().run_with("apply -f -", TAKEN)?;
    scene.root().run_with("apply -f -", &definition(&json!({})).to_string())?;
    kubectl.run_with("apply -f -", &definition(&json!({"color": {"type": "string"}})).to_string())?;
    kubectl.run(&format!("wait crd/{WIDGETS} --for=condition=Established --timeout=30s"))?;
    poll::until("the kind is served", LIMIT, || {
        for cluster in scene.clusters() {
            let registered = scene.root().json(&format!("get physicalcluster {}", cluster.name()))?;
            let kinds = registered.pointer("/status/customKinds").cloned().unwrap_or_default();
            ensure!(kinds[0]["versions"] == json!(["v1"]), "{}: {kinds}", cluster.name());
        }
        Ok(())
    })
}

fn custom_objects_are_placed(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    kubectl.run_with("apply -f -", MANIFEST)?;
    poll::until("copies", LIMIT, || {
        let widget = kubectl.json("get widget wheel")?;
        ensure!(placed_on(&widget) == [EAST, WEST], "placed on {:?}", placed_on(&widget));
        for (place, size) in [(EAST, 3), (WEST, 2)] {
            let copy = downstream::one(scene.cluster(place)?, WIDGETS, "wheel")?;
            ensure!(count(&copy, "/spec/size") == size, "{place} has {copy}");
            downstream::one(scene.cluster(place)?, "secret", "widget-key")?;
        }
        Ok(())
    })
}

fn reported(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    for (place, size, ready) in [(EAST, 3, "True"), (WEST, 2, "False")] {
        let cluster = scene.cluster(place)?;
        let copy = downstream::one(cluster, WIDGETS, "wheel")?;
        let condition = json!({"type": "Ready", "status": ready, "reason": "Turns", "message": "as it should",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let generation = copy["metadata"]["generation"].clone();
        let status = json!({"status": {"size": size, "observedGeneration": generation, "conditions": [condition]}});
        let patch = status.to_string();
        let args =
            ["patch", WIDGETS, "wheel", "-n", namespace(&copy), "--subresource=status", "--type=merge", "-p", &patch];
        cluster.kubectl().run_args(&args)?;
    }
    poll::until("the status", LIMIT, || {
        let widget = kubectl.json("get widget wheel")?;
        ensure!(count(&widget, "/status/size") == 5, "{}", widget["status"]);
        ensure!(widget["status"]["observedGeneration"] == widget["metadata"]["generation"], "{}", widget["status"]);
        let condition = &widget["status"]["conditions"][0];
        ensure!(condition["status"] == "False", "{condition}");
        ensure!(text(condition, "/message") == format!("{WEST}: as it should"), "{condition}");
        Ok(())
    })
}

fn refused(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    let patch = |value: &str| {
        kubectl.run_args(&[
            "patch",
            "widget",
            "wheel",
            "--type=merge",
            "-p",
            &format!(r#"{{"spec":{{"color":{value}}}}}"#),
        ])
    };
    patch("\"red\"")?;
    poll::until("a refusal", LIMIT, || {
        let placement = kubectl.json("get placement widgets.e2e.example.com-wheel")?;
        let clusters = &placement["status"]["clusters"];
        ensure!(clusters[0]["reason"] == "Invalid" && clusters[1]["reason"] == "Invalid", "{clusters}");
        Ok(())
    })?;
    let copy = downstream::one(scene.cluster(EAST)?, WIDGETS, "wheel")?;
    ensure!(count(&copy, "/spec/size") == 3, "the copy has changed: {copy}");
    patch("null")?;
    poll::until("the end of the refusal", LIMIT, || {
        let placement = kubectl.json("get placement widgets.e2e.example.com-wheel")?;
        ensure!(placement["status"]["clusters"][0].get("reason").is_none(), "{placement}");
        Ok(())
    })
}

fn removed(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    kubectl.run("delete widget wheel --timeout=60s")?;
    for cluster in scene.clusters() {
        downstream::none(cluster, WIDGETS, "wheel")?;
    }
    scene.root().run("delete clusterplacementpolicy take-widgets")?;
    poll::until("the end of the definition", LIMIT, || {
        for cluster in scene.clusters() {
            let left = cluster.kubectl().run(&format!("get crd {WIDGETS} --ignore-not-found -o name"))?;
            ensure!(left.is_empty(), "{}: {left}", cluster.name());
        }
        Ok(())
    })?;
    scene.root().run(&format!("delete crd {WIDGETS}")).map(drop)
}
