//! Patches that change the version, kind or name of an object, and other checks that precede a patch.

use serde_json::{Value, json};

use crate::common::{Answer, MAPS, Plane, config_map};

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn warnings(answer: &Answer) -> Vec<String> {
    let all = answer.headers.get_all("warning").iter();
    all.map(|text| text.to_str().unwrap().trim_start_matches("299 - ").replace('\\', "")).collect()
}

#[tokio::test]
async fn a_patch_of_the_identity_is_refused_in_kubernetes_order() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("there", json!({}))).await.expect(201);
    let none = "the name of the object (there based on URL) was undeterminable: name must be provided";
    let other = "the name of the object (z) does not match the name on the URL (there)";
    let moved = "the namespace of the provided object does not match the namespace sent on the request";
    let versions = |patch: &Value| json!([{"op": "replace", "path": "", "value": patch}]);
    for (case, media, patch, code, says) in [
        ("no version", MERGE, json!({"apiVersion": null}), 400, none),
        ("a group of the core without a version", MERGE, json!({"apiVersion": "/"}), 400, none),
        (
            "a group without a version",
            MERGE,
            json!({"apiVersion": "example.com/"}),
            422,
            "Object 'apiVersion' is missing in '{",
        ),
        (
            "another kind of no version",
            JSON,
            versions(&json!({"kind": "A"})),
            422,
            "no kind \"A\" is registered for the internal version of group \"\"",
        ),
        (
            "another kind that does not match the type",
            JSON,
            versions(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": []})),
            422,
            "json: cannot unmarshal array into Go struct field Secret.metadata of type v1.ObjectMeta",
        ),
        ("another name and uid", MERGE, json!({"metadata": {"name": "z", "uid": "u"}}), 400, other),
        ("another name and uid, by strategy", STRATEGIC, json!({"metadata": {"name": "z", "uid": "u"}}), 400, other),
        ("another namespace and name", STRATEGIC, json!({"metadata": {"name": "z", "namespace": "y"}}), 400, moved),
    ] {
        let answer = admin.patch(&format!("{MAPS}/there"), media, patch).await.expect(code);
        assert!(answer.message().contains(says), "{case}: {}", answer.text());
    }
    let core = admin.patch(&format!("{MAPS}/there"), MERGE, json!({"apiVersion": "/v1"})).await.expect(200).json();
    assert_eq!(core["apiVersion"], "v1");
}

#[tokio::test]
async fn fatal_decoding_errors_precede_strict_ones() {
    let admin = Plane::new().await.admin();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    admin.post(leases, json!({"metadata": {"name": "there"}})).await.expect(201);
    let spec = json!({"leaseDurationSeconds": "x", "renewTime": "2026-11-21"});
    let refused = admin.merge(&format!("{leases}/there"), json!({"spec": spec})).await.expect(422);
    assert!(refused.message().contains("parsing time \"2026-11-21\""), "{}", refused.text());
    let spec = json!({"leaseDurationSeconds": "x", "leaseTransitions": []});
    let refused = admin.merge(&format!("{leases}/there"), json!({"spec": spec})).await.expect(422);
    assert!(refused.message().contains("leaseDurationSeconds of type int32"), "{}", refused.text());
}

#[tokio::test]
async fn fields_of_no_version_are_warned_of() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, json!({"metadata": {"name": "there"}, "data": {"a": "b"}})).await.expect(201);
    let patched = |query: &str| {
        let path = format!("{MAPS}/there{query}");
        let admin = admin.clone();
        async move { admin.patch(&path, MERGE, json!({"apiVersion": null})).await }
    };
    let warned = patched("").await.expect(400);
    assert_eq!(warnings(&warned), [r#""unknown field "data"""#, r#""unknown field "metadata"""#]);
    assert!(warnings(&patched("?fieldValidation=Ignore").await.expect(400)).is_empty());
    let strict = patched("?fieldValidation=Strict").await.expect(422);
    assert!(
        strict.message().ends_with(r#"strict decoding error: unknown field "data", unknown field "metadata""#),
        "{}",
        strict.text()
    );
}

#[tokio::test]
async fn an_apply_names_its_kind() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("there", json!({}))).await.expect(201);
    for (name, metadata, says) in [
        ("there", json!({"name": ""}), "the name of the object (there based on URL) was undeterminable"),
        ("none", json!({}), "the name of the object (none based on URL) was undeterminable"),
        ("there", json!({"name": "z", "uid": "u"}), "the name of the object (z) does not match the name on the URL"),
        ("there", json!({"name": "z", "namespace": "y"}), "the namespace of the provided object does not match"),
    ] {
        let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "1"}});
        let path = format!("{MAPS}/{name}?fieldManager=a&force=true");
        let refused = admin.patch(&path, APPLY, applied).await.expect(400);
        assert!(refused.message().contains(says), "{name} {metadata}: {}", refused.text());
    }
    admin.get(&format!("{MAPS}/none")).await.expect(404);
}

#[tokio::test]
async fn directives_that_meet_nothing_are_unknown_fields() {
    let admin = Plane::new().await.admin();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({"metadata": {"name": "there"}, "imagePullSecrets": [{"name": "a"}]});
    admin.post(accounts, account).await.expect(201);
    let patch = json!({"imagePullSecrets": [{"name": "a"}, {"$patch": "delete"}]});
    let patched = admin.patch(&format!("{accounts}/there"), STRATEGIC, patch).await.expect(200);
    assert_eq!(warnings(&patched), [r#""unknown field "imagePullSecrets[1].$patch"""#]);
    assert_eq!(patched.json()["imagePullSecrets"], json!([{"name": "a"}, {}]));
}

#[tokio::test]
async fn an_update_with_a_self_link_keeps_it() {
    let admin = Plane::new().await.admin();
    let linked = json!({"metadata": {"name": "there", "selfLink": "/x"}});
    let made = admin.post(MAPS, linked.clone()).await.expect(201).json();
    assert_eq!(made["metadata"]["selfLink"], Value::Null);
    let put = admin.put(&format!("{MAPS}/there"), linked).await.expect(200).json();
    assert_eq!(put["metadata"]["selfLink"], "/x");
}
