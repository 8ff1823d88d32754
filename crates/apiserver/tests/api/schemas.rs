//! Custom resources with a schema: pruning, defaults and validation of their objects.

use crate::common::{Answer, Client, Plane};
use serde_json::{Value, json};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BOATS: &str = "/apis/example.dev/v1/namespaces/default/boats";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn boats() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "boats.example.dev"},
        "spec": {
            "group": "example.dev", "scope": "Namespaced", "names": {"plural": "boats", "kind": "Boat"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.crew", "statusReplicasPath": ".status.aboard"},
                },
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "additionalPrinterColumns": [
                    {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
                    {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
                ],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {
                        "type": "object",
                        "x-kubernetes-validations": [
                            {"rule": "self.color == oldSelf.color", "message": "paint is expensive", "fieldPath": ".color"},
                        ],
                        "properties": {
                            "color": {"type": "string", "default": "red"},
                            "crew": {"type": "integer", "maximum": 9},
                            "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
                                "items": {"type": "object", "required": ["id"],
                                    "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}},
                        },
                    },
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
            }],
        },
    })
}

async fn write(client: &Client, crd: Value) {
    let path = format!("{CRDS}/boats.example.dev");
    client.put(&path, crd).await.expect(200);
}

/// A plane where boats are served.
async fn harbour() -> Client {
    let admin = Plane::new().await.admin();
    let mut made = admin.post(CRDS, boats()).await.expect(201).json();
    made["status"]["acceptedNames"] = made["spec"]["names"].clone();
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    made["status"]["conditions"] = json!([condition("NamesAccepted"), condition("Established")]);
    admin.put(&format!("{CRDS}/boats.example.dev/status"), made).await.expect(200);
    admin
}

fn boat(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Boat", "metadata": {"name": name}, "spec": spec})
}

fn refused(answer: Answer, expected: &str) {
    let message = answer.expect(422).message();
    assert!(message.contains(expected), "{message}");
}

#[tokio::test]
async fn objects_are_pruned_completed_and_checked() {
    let admin = harbour().await;
    let made = admin.post(BOATS, boat("a", json!({"crew": 2, "sails": 3}))).await.expect(201);
    assert_eq!(made.json()["spec"], json!({"color": "red", "crew": 2}));
    let strict = format!("{BOATS}?fieldValidation=Strict");
    let message = admin.post(&strict, boat("b", json!({"sails": 3}))).await.expect(400).message();
    let expected =
        r#"Boat in version "v1" cannot be handled as a Boat: strict decoding error: unknown field "spec.sails""#;
    assert_eq!(message, expected);
    refused(
        admin.post(BOATS, boat("b", json!({"crew": "two"}))).await,
        r#"spec.crew: Invalid value: "string": spec.crew in body must be of type integer: "string""#,
    );
    refused(
        admin.patch(&format!("{BOATS}/a"), MERGE, json!({"spec": {"color": "blue"}})).await,
        "spec.color: Invalid value: paint is expensive",
    );
    let strategic = admin.patch(&format!("{BOATS}/a"), "application/strategic-merge-patch+json", json!({})).await;
    assert!(strategic.expect(415).message().contains("accepted media types include: application/json-patch+json"));
}

#[tokio::test]
async fn metrics_tell_how_long_rules_took() {
    let admin = harbour().await;
    admin.post(BOATS, boat("a", json!({"crew": 2}))).await.expect(201);
    admin.patch(&format!("{BOATS}/a"), MERGE, json!({"spec": {"crew": 3}})).await.expect(200);
    let text = admin.get("/metrics").await.expect(200).text();
    for (name, count) in [("compilation", 1), ("evaluation", 2)] {
        let line = format!("apiserver_cel_{name}_duration_seconds_count {count}");
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_changed_definition_applies_to_stored_objects_immediately() {
    let admin = harbour().await;
    admin.post(BOATS, boat("a", json!({"crew": 12}))).await.expect(422);
    admin.post(BOATS, boat("a", json!({"crew": 8}))).await.expect(201);
    let mut crd = admin.get(&format!("{CRDS}/boats.example.dev")).await.expect(200).json();
    let spec = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["properties"]["crew"]["maximum"] = 4.into();
    spec["properties"]["flag"] = json!({"type": "string", "default": "white"});
    spec["properties"].as_object_mut().unwrap().remove("parts");
    write(&admin, crd).await;
    let seen = admin.get(&format!("{BOATS}/a")).await.expect(200).json();
    assert_eq!(seen["spec"], json!({"color": "red", "crew": 8, "flag": "white"}));
    let listed = admin.get(BOATS).await.expect(200).json();
    assert_eq!(listed["items"][0]["spec"]["flag"], "white");
    // What was good before and does not change stays good.
    admin.patch(&format!("{BOATS}/a"), MERGE, json!({"spec": {"flag": "black"}})).await.expect(200);
    refused(
        admin.patch(&format!("{BOATS}/a"), MERGE, json!({"spec": {"crew": 7}})).await,
        "should be less than or equal to 4",
    );
}

#[tokio::test]
async fn an_unchanged_violation_is_a_warning() {
    let admin = harbour().await;
    let path = format!("{BOATS}/a");
    let made = admin.post(BOATS, boat("a", json!({"crew": 8}))).await.expect(201).json();
    let mut crd = admin.get(&format!("{CRDS}/boats.example.dev")).await.expect(200).json();
    let spec = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["properties"]["crew"]["x-kubernetes-validations"] = json!([{"rule": "self < 5", "message": "too many"}]);
    write(&admin, crd).await;
    let warned = r#"299 - "spec.crew: Invalid value: 8: too many""#;
    let label = admin.patch(&path, MERGE, json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    assert_eq!(label.headers["warning"], warned);
    let again = admin.put(&path, label.json()).await.expect(200);
    assert_eq!(again.headers["warning"], warned, "also where nothing changes");
    assert_eq!(again.json()["metadata"]["resourceVersion"], label.json()["metadata"]["resourceVersion"]);
    assert_ne!(made["metadata"]["resourceVersion"], label.json()["metadata"]["resourceVersion"]);
    refused(admin.patch(&path, MERGE, json!({"spec": {"crew": 7}})).await, "spec.crew: Invalid value: 7: too many");
    let mended = admin.patch(&path, MERGE, json!({"spec": {"crew": 4}})).await.expect(200);
    assert!(!mended.headers.contains_key("warning"), "{:?}", mended.headers);
}

#[tokio::test]
async fn lists_with_keys_are_owned_element_by_element() {
    let admin = harbour().await;
    let apply = async |manager: &str, parts: Value| {
        let path = format!("{BOATS}/a?fieldManager={manager}");
        admin.patch(&path, APPLY, boat("a", json!({"parts": parts}))).await
    };
    apply("one", json!([{"id": "mast", "n": 1}])).await.expect(201);
    let both = apply("two", json!([{"id": "keel", "n": 2}])).await.expect(200).json();
    assert_eq!(both["spec"]["parts"], json!([{"id": "mast", "n": 1}, {"id": "keel", "n": 2}]));
    apply("two", json!([{"id": "mast", "n": 5}])).await.expect(409);
    let unknown = admin.patch(&format!("{BOATS}/a?fieldManager=one"), APPLY, boat("a", json!({"sails": 1}))).await;
    assert!(unknown.expect(500).message().contains(".spec.sails: field not declared in schema"));
}

#[tokio::test]
async fn columns_fields_and_scale_are_those_of_the_definition() {
    let admin = harbour().await;
    admin.post(BOATS, boat("a", json!({"crew": 2}))).await.expect(201);
    admin.post(BOATS, boat("b", json!({"color": "blue"}))).await.expect(201);
    let status = json!({"status": {"aboard": 1, "conditions": [{"type": "Ready", "status": "True"}]}});
    let changed = admin.patch(&format!("{BOATS}/a/status"), MERGE, status).await.expect(200).json();
    assert_eq!(changed["metadata"]["generation"], 1);
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = admin.send("GET", BOATS, &accept, "").await.expect(200).json();
    let names: Vec<&Value> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|column| &column["name"]).collect();
    assert_eq!(names, ["Name", "Color", "Ready"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", "red", "True"]));
    assert_eq!(table["rows"][1]["cells"], json!(["b", "blue", null]));

    let blue = admin.get(&format!("{BOATS}?fieldSelector=spec.color%3Dblue")).await.expect(200).json();
    assert_eq!(blue["items"].as_array().unwrap().len(), 1);
    let unknown = admin.get(&format!("{BOATS}?fieldSelector=spec.crew%3D2")).await.expect(400);
    assert_eq!(unknown.message(), "field label not supported: spec.crew");

    let mut scale = admin.get(&format!("{BOATS}/a/scale")).await.expect(200).json();
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["replicas"]), (&json!(2), &json!(1)));
    scale["spec"]["replicas"] = 5.into();
    admin.put(&format!("{BOATS}/a/scale"), scale).await.expect(200);
    assert_eq!(admin.get(&format!("{BOATS}/a")).await.json()["spec"]["crew"], 5);
    admin.get(&format!("{BOATS}/b/scale")).await.expect(500);
}

#[tokio::test]
async fn documents_show_the_schema() {
    let admin = harbour().await;
    let document = admin.get("/openapi/v3/apis/example.dev/v1").await.expect(200).json();
    let boat = &document["components"]["schemas"]["dev.example.v1.Boat"];
    assert_eq!(boat["properties"]["spec"]["properties"]["color"], json!({"type": "string", "default": "red"}));
    assert_eq!(boat["x-kubernetes-selectable-fields"], json!([{"fieldPath": "spec.color"}]));
    let old = admin.get("/openapi/v2").await.expect(200).json();
    let boat = &old["definitions"]["dev.example.v1.Boat"]["properties"];
    assert_eq!(boat["spec"]["properties"]["crew"], json!({"type": "integer", "maximum": 9}));
    assert_eq!(boat["status"], json!({"x-kubernetes-preserve-unknown-fields": true}));
}
