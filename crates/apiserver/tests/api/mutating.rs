//! Mutating admission policies.

use serde_json::{Value, json};

use crate::common::{Client, MAPS, Plane, config_map};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn rules(resource: &str) -> Value {
    json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource], "operations": ["CREATE", "UPDATE"]}]})
}

/// A mutation by an object that is laid over, or by a patch.
fn mutation(expression: &str) -> Value {
    if expression.starts_with('[') {
        json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
    } else {
        json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
    }
}

/// A policy and its binding, for ConfigMaps unless `more` says otherwise.
async fn bind(admin: &Client, name: &str, mutations: &[&str], more: Value, binding: Value) {
    let mutations: Vec<Value> = mutations.iter().map(|expression| mutation(expression)).collect();
    let mut spec =
        json!({"matchConstraints": rules("configmaps"), "reinvocationPolicy": "Never", "mutations": mutations});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let policy = json!({"metadata": {"name": name}, "spec": spec});
    admin.post(&format!("{GROUP}/mutatingadmissionpolicies"), policy).await.expect(201);
    let mut spec = json!({"policyName": name});
    for (key, value) in binding.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let binding = json!({"metadata": {"name": name}, "spec": spec});
    admin.post(&format!("{GROUP}/mutatingadmissionpolicybindings"), binding).await.expect(201);
}

async fn unbind(admin: &Client, name: &str) {
    admin.delete(&format!("{GROUP}/mutatingadmissionpolicybindings/{name}")).await.expect(200);
    admin.delete(&format!("{GROUP}/mutatingadmissionpolicies/{name}")).await.expect(200);
}

fn denied(why: &str) -> String {
    format!("policy 'p' with binding 'p' denied request: {why}")
}

#[tokio::test]
async fn a_policy_lays_objects_over_and_patches() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, json!({"metadata": {"name": "params"}, "data": {"label": "c"}})).await.expect(201);
    let by_map = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}});
    let to_params = json!({"paramRef": {"name": "params", "parameterNotFoundAction": "Deny"}});
    for (case, mutations, more, binding, expected) in [
        (
            "an object",
            vec![r#"Object{metadata: Object.metadata{labels: {"l": object.data.k}}}"#],
            json!({}),
            json!({}),
            Ok(json!({"a": "b", "l": "v"})),
        ),
        (
            "a patch",
            vec![
                r#"[JSONPatch{op: "test", path: "/data/k", value: "v"}, JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("x/y"), value: "1"}]"#,
            ],
            json!({}),
            json!({}),
            Ok(json!({"a": "b", "x/y": "1"})),
        ),
        (
            "a patch whose test does not hold",
            vec![
                r#"[JSONPatch{op: "test", path: "/data/k", value: "w"}, JSONPatch{op: "remove", path: "/metadata/labels"}]"#,
            ],
            json!({}),
            json!({}),
            Ok(json!({"a": "b"})),
        ),
        (
            "one after the other",
            vec![
                r#"Object{metadata: Object.metadata{labels: {"l": "1"}}}"#,
                r#"[JSONPatch{op: "replace", path: "/metadata/labels/l", value: object.metadata.labels.l + "2"}]"#,
            ],
            json!({}),
            json!({}),
            Ok(json!({"a": "b", "l": "12"})),
        ),
        (
            "variables and parameters",
            vec![r#"Object{metadata: Object.metadata{labels: {variables.label: request.operation.lowerAscii()}}}"#],
            json!({"paramKind": by_map["paramKind"], "variables": [{"name": "label", "expression": "string(params.data.label)"}]}),
            to_params.clone(),
            Ok(json!({"a": "b", "c": "create"})),
        ),
        (
            "conditions that do not match",
            vec![r#"Object{metadata: Object.metadata{labels: {"l": "1"}}}"#],
            json!({"matchConditions": [{"name": "c", "expression": "object.data.k == 'w'"}]}),
            json!({}),
            Ok(json!({"a": "b"})),
        ),
        (
            "what fails",
            vec![r#"Object{metadata: Object.metadata{labels: {"l": object.data.x}}}"#],
            json!({}),
            json!({}),
            Err(denied(
                r#"expression 'Object{metadata: Object.metadata{labels: {"l": object.data.x}}}' resulted in error: no such key: x"#,
            )),
        ),
        (
            "what fails and does not matter",
            vec![r#"Object{metadata: Object.metadata{labels: {"l": object.data.x}}}"#],
            json!({"failurePolicy": "Ignore"}),
            json!({}),
            Ok(json!({"a": "b"})),
        ),
        (
            "an unknown field",
            vec!["Object{none: 1}"],
            json!({}),
            json!({}),
            Err(denied(
                "error applying patch: failed to convert patch object to typed object: .none: field not declared in schema",
            )),
        ),
        (
            "what is not there",
            vec![r#"[JSONPatch{op: "remove", path: "/data/x"}]"#],
            json!({}),
            json!({}),
            Err(denied(
                "JSON Patch: error in remove for path: '/data/x': Unable to remove nonexistent key: x: missing value",
            )),
        ),
        (
            "no parameters",
            vec!["Object{}"],
            by_map.clone(),
            json!({"paramRef": {"name": "none", "parameterNotFoundAction": "Deny"}}),
            Err(denied(
                "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction",
            )),
        ),
    ] {
        bind(&admin, "p", &mutations, more, binding).await;
        let map = json!({"metadata": {"name": "m", "labels": {"a": "b"}}, "data": {"k": "v"}});
        let answer = admin.post(&format!("{MAPS}?dryRun=All"), map).await;
        match expected {
            Ok(labels) => {
                let made = answer.expect(201).json();
                assert_eq!(made["metadata"]["labels"], labels, "{case}");
                assert!(
                    !made["metadata"]["managedFields"].to_string().contains(r#""f:l""#),
                    "no manager owns fields that policies add"
                );
            }
            Err(message) => assert_eq!(answer.expect(403).message(), message, "{case}"),
        }
        unbind(&admin, "p").await;
    }
}

#[tokio::test]
async fn fields_added_by_a_policy_are_defaulted_and_validated() {
    let admin = Plane::new().await.admin();
    let side = r#"Object{spec: Object.spec{containers: [Object.spec.containers{name: "side", image: "side:1"}]}}"#;
    bind(&admin, "p", &[side], json!({"matchConstraints": rules("pods")}), json!({})).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let made = admin.post(PODS, pod.clone()).await.expect(201).json();
    let containers = made["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 2);
    let side = containers.iter().find(|container| container["name"] == "side").unwrap();
    assert_eq!(side["imagePullPolicy"], "IfNotPresent", "it gets defaults");
    assert_eq!(side["volumeMounts"].as_array().map(Vec::len), Some(1), "Kubernetes' own steps run once more");
    unbind(&admin, "p").await;
    let wrong = r#"[JSONPatch{op: "add", path: "/spec/restartPolicy", value: "Sometimes"}]"#;
    bind(&admin, "p", &[wrong], json!({"matchConstraints": rules("pods")}), json!({})).await;
    let refused = admin.post(PODS, json!({"metadata": {"name": "q"}, "spec": pod["spec"]})).await.expect(422);
    assert!(refused.message().contains("spec.restartPolicy: Unsupported value"), "{}", refused.message());
}

#[tokio::test]
async fn policies_are_evaluated_again_when_others_change_the_object_after_them() {
    let admin = Plane::new().await.admin();
    let count = |label: &str| {
        format!(
            r#"Object{{metadata: Object.metadata{{labels: {{"{label}": has(object.metadata.labels) && "{label}" in object.metadata.labels ? object.metadata.labels["{label}"] + "I" : "I"}}}}}}"#
        )
    };
    for (name, again) in [("a", "IfNeeded"), ("b", "Never"), ("c", "IfNeeded")] {
        bind(&admin, name, &[&count(name)], json!({"reinvocationPolicy": again}), json!({})).await;
    }
    let made = admin.post(MAPS, config_map("m", json!({}))).await.expect(201).json();
    // In the second round, policies that allow it run again on the changed object. There is no third round.
    assert_eq!(made["metadata"]["labels"], json!({"a": "II", "b": "I", "c": "II"}));
}

#[tokio::test]
async fn a_policy_that_cannot_compile_is_refused() {
    let admin = Plane::new().await.admin();
    for (expression, says) in [
        (
            "{'a': 1}",
            "spec.mutations[0].applyConfiguration.expression: Invalid value: \"{'a': 1}\": must evaluate to Object but got map(string, int)",
        ),
        (
            "[1]",
            "spec.mutations[0].jsonPatch.expression: Invalid value: \"[1]\": must evaluate to list(JSONPatch) but got list(int)",
        ),
        ("Object{spec: None{}}", "undeclared reference to 'None' (in container '')"),
    ] {
        let spec = json!({"matchConstraints": rules("configmaps"), "reinvocationPolicy": "Never", "mutations": [mutation(expression)]});
        let policy = json!({"metadata": {"name": "p"}, "spec": spec});
        let refused = admin.post(&format!("{GROUP}/mutatingadmissionpolicies"), policy).await.expect(422);
        assert!(refused.message().contains(says), "{}", refused.message());
    }
}

#[tokio::test]
async fn mutations_are_counted_with_their_errors() {
    let admin = Plane::new().await.admin();
    let good = "Object{metadata: Object.metadata{labels: {'l': 'm'}}}";
    bind(
        &admin,
        "p",
        &[good, "Object{metadata: Object.metadata{labels: {'l': object.data.none}}}"],
        json!({}),
        json!({}),
    )
    .await;
    admin.post(MAPS, config_map("m", json!({}))).await.expect(403);
    let text = admin.get("/metrics").await.expect(200).text();
    for error in ["no_error", "invalid_error"] {
        let labels = format!(r#"{{error_type="{error}",policy="p",policy_binding="p"}} 1"#);
        let line = format!("apiserver_mutating_admission_policy_check_total{labels}");
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn mutations_together_cannot_grow_an_object_beyond_what_a_request_may_be() {
    let admin = Plane::new().await.admin();
    // Each of them stays within the budget of one patch.
    let copies = |mutation: usize| -> String {
        let copy = |n: usize| format!(r#"JSONPatch{{op: "copy", from: "/data/k", path: "/data/k{mutation}-{n}"}}"#);
        format!("[{}]", [copy(0), copy(1), copy(2)].join(", "))
    };
    let mutations: Vec<String> = (0..8).map(copies).collect();
    let mutations: Vec<&str> = mutations.iter().map(String::as_str).collect();
    bind(&admin, "p", &mutations, json!({}), json!({})).await;
    let answer = admin.post(MAPS, json!({"metadata": {"name": "a"}, "data": {"k": "x".repeat(700 * 1024)}})).await;
    assert_eq!(answer.expect(413).message(), "Request entity too large: limit is 3145728");
}
