//! Versions of custom resources, and the webhooks that convert them.

use std::time::Duration;

use portolan_apiserver::webhooks::WebhookAddresses;
use serde_json::{Value, json};

use crate::{
    common::{Client, Plane, Reply, Watch, WebhookServer},
    custom::{CRDS, WIDGETS, define, widgets},
};

const OLD: &str = "/apis/example.dev/v1beta1/namespaces/default/widgets";
const MERGE: &str = "application/merge-patch+json";

async fn plane() -> Plane {
    Plane::with(|config| config.webhooks = WebhookAddresses { allow_local: true }).await
}

/// `spec.size` of v1 is the length of `spec.line` in v1beta1.
fn converted(mut object: Value, to: &str) -> Value {
    let spec = match to {
        "example.dev/v1" => json!({"size": object["spec"]["line"].as_str().map_or(0, str::len)}),
        _ => json!({"line": "-".repeat(object["spec"]["size"].as_u64().unwrap_or_default() as usize)}),
    };
    object["spec"] = spec;
    object["apiVersion"] = to.into();
    object
}

fn convert(_: &str, request: &Value) -> Reply {
    let to = request["desiredAPIVersion"].as_str().unwrap();
    let objects = request["objects"].as_array().unwrap().iter().map(|object| converted(object.clone(), to));
    Reply::Response(json!({"result": {"status": "Success"}, "convertedObjects": objects.collect::<Vec<_>>()}))
}

fn definition(client: Value) -> Value {
    let mut crd = widgets();
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        version["subresources"] = json!({"status": {}});
        version["schema"] =
            json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    }
    crd["spec"]["conversion"] = json!({"strategy": "Webhook",
        "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}});
    crd
}

fn new(name: &str, size: u32) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}})
}

fn old(name: &str, line: &str) -> Value {
    json!({"apiVersion": "example.dev/v1beta1", "kind": "Widget", "metadata": {"name": name}, "spec": {"line": line}})
}

/// Version and spec of the objects of a list.
fn versions_and_specs(list: &Value) -> Vec<(&Value, &Value)> {
    list["items"].as_array().unwrap().iter().map(|item| (&item["apiVersion"], &item["spec"])).collect()
}

async fn store_as(admin: &Client, storage: &str) {
    let path = format!("{CRDS}/widgets.example.dev");
    let mut crd = admin.get(&path).await.expect(200).json();
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        version["storage"] = (version["name"] == storage).into();
    }
    admin.put(&path, crd).await.expect(200);
}

#[tokio::test]
async fn objects_are_shown_in_the_version_that_is_asked_for() {
    let (plane, server) = (plane().await, WebhookServer::start(convert).await);
    let admin = plane.admin();
    define(&admin, definition(server.client("/convert"))).await;
    let made = admin.post(OLD, old("a", "---")).await.expect(201).json();
    assert_eq!((&made["apiVersion"], &made["spec"]), (&json!("example.dev/v1beta1"), &json!({"line": "---"})));
    assert_eq!(server.count("/convert"), 2, "there, and back again");
    let read = admin.get(&format!("{WIDGETS}/a")).await.expect(200).json();
    assert_eq!((&read["apiVersion"], &read["spec"]), (&json!("example.dev/v1"), &json!({"size": 3})));
    assert_eq!(server.count("/convert"), 2, "it is stored like this");
    assert_eq!(read["metadata"]["uid"], made["metadata"]["uid"]);

    for n in 0..4 {
        admin.post(WIDGETS, new(&format!("b{n}"), n)).await.expect(201);
    }
    let before = server.count("/convert");
    let list = admin.get(OLD).await.expect(200).json();
    assert_eq!(list["apiVersion"], "example.dev/v1beta1");
    assert_eq!(versions_and_specs(&list)[3], (&json!("example.dev/v1beta1"), &json!({"line": "--"})));
    assert_eq!(server.count("/convert"), before + 1, "one review for a list");
    assert_eq!(server.last()["objects"].as_array().unwrap().len(), 5);

    let merged = admin.patch(&format!("{OLD}/a"), MERGE, json!({"spec": {"line": "-----"}})).await.expect(200).json();
    assert_eq!((&merged["spec"], &merged["metadata"]["generation"]), (&json!({"line": "-----"}), &json!(2)));
    let apply = format!("{OLD}/c?fieldManager=me");
    let applied = admin.patch(&apply, "application/apply-patch+yaml", old("c", "--")).await.expect(201).json();
    assert_eq!(applied["spec"], json!({"line": "--"}));
    let mut status = applied.clone();
    status["status"] = json!({"ready": true});
    let status = admin.put(&format!("{OLD}/c/status"), status).await.expect(200).json();
    assert_eq!((&status["spec"], &status["status"]), (&json!({"line": "--"}), &json!({"ready": true})));
    let all = admin.get(WIDGETS).await.expect(200).json();
    assert!(versions_and_specs(&all).iter().all(|(version, _)| *version == "example.dev/v1"));
    let gone = admin.send("DELETE", OLD, &[], "").await.expect(200).json();
    assert_eq!(versions_and_specs(&gone)[0], (&json!("example.dev/v1beta1"), &json!({"line": "-----"})));
    assert!(versions_and_specs(&admin.get(WIDGETS).await.expect(200).json()).is_empty());
}

#[tokio::test]
async fn a_dry_run_is_converted_in_both_directions() {
    let (plane, server) = (plane().await, WebhookServer::start(convert).await);
    let admin = plane.admin();
    define(&admin, definition(server.client("/convert"))).await;
    let tried = admin.post(&format!("{OLD}?dryRun=All"), old("a", "xx")).await.expect(201).json();
    assert_eq!((&tried["spec"], &tried["metadata"]["resourceVersion"]), (&json!({"line": "--"}), &Value::Null));
    assert_eq!(server.count("/convert"), 2);
    admin.get(&format!("{WIDGETS}/a")).await.expect(404);
    let made = admin.post(WIDGETS, new("a", 1)).await.expect(201).json();
    let path = format!("{OLD}/a?dryRun=All");
    let tried = admin.patch(&path, MERGE, json!({"spec": {"line": "xxx"}})).await.expect(200).json();
    assert_eq!((&tried["apiVersion"], &tried["spec"]), (&json!("example.dev/v1beta1"), &json!({"line": "---"})));
    assert_eq!(tried["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    assert_eq!(admin.get(&format!("{WIDGETS}/a")).await.expect(200).json()["spec"], json!({"size": 1}));
}

#[tokio::test]
async fn an_apply_that_changes_nothing_fills_nothing_in() {
    let admin = plane().await.admin();
    define(&admin, defaulted(None)).await;
    admin.post(WIDGETS, new("a", 1)).await.expect(201);
    let live = admin.get(&format!("{OLD}/a")).await.expect(200).json();
    let config = json!({"apiVersion": "example.dev/v1beta1", "kind": "Widget", "metadata": {"name": "a"},
        "spec": {"both": live["spec"]["both"]}});
    let path = format!("{OLD}/a?fieldManager=m");
    let applied = admin.patch(&path, "application/apply-patch+yaml", config).await.expect(200).json();
    assert_eq!((&applied["spec"], &applied["metadata"]["generation"]), (&live["spec"], &json!(1)));
}

#[tokio::test]
async fn fields_are_owned_in_the_version_that_they_were_written_in() {
    let (plane, server) = (plane().await, WebhookServer::start(convert).await);
    let admin = plane.admin();
    define(&admin, definition(server.client("/convert"))).await;
    let apply = async |path: &str, manager: &str, object: Value| {
        admin.patch(&format!("{path}/a?fieldManager={manager}"), "application/apply-patch+yaml", object).await
    };
    apply(WIDGETS, "m", new("a", 3)).await.expect(201);
    let before = server.count("/convert");
    let refused = apply(OLD, "n", old("a", "-----")).await.expect(409);
    assert_eq!(refused.message(), r#"Apply failed with 1 conflict: conflict with "m": .spec.size"#);
    assert!(server.count("/convert") > before + 1, "the object, and what would become of it, were converted");
    let asked = server.last();
    assert!(asked["objects"][0]["metadata"].get("managedFields").is_none(), "{asked}");

    let owners = |object: &Value| {
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        let mut all: Vec<(String, Value)> =
            entries.iter().map(|own| (own["manager"].to_string(), own["fieldsV1"].clone())).collect();
        all.sort_by_key(|own| own.0.clone());
        all
    };
    let shared = apply(OLD, "n", old("a", "---")).await.expect(200).json();
    let both =
        [("\"m\"", json!({"f:spec": {".": {}, "f:size": {}}})), ("\"n\"", json!({"f:spec": {".": {}, "f:line": {}}}))];
    assert_eq!(owners(&shared), both.map(|(manager, fields)| (manager.to_owned(), fields)));
    let given_up = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "a"}});
    let left = apply(WIDGETS, "m", given_up).await.expect(200).json();
    assert_eq!(left["spec"], json!({"size": 3}), "the other one has it still");

    let path = format!("{WIDGETS}/a?fieldManager=u");
    let taken = admin.patch(&path, MERGE, json!({"spec": {"size": 4}})).await.expect(200).json();
    let after = [("\"n\"", json!({"f:spec": {}})), ("\"u\"", json!({"f:spec": {"f:size": {}}}))];
    assert_eq!(owners(&taken), after.map(|(manager, fields)| (manager.to_owned(), fields)));
}

#[tokio::test]
async fn events_are_converted_once_per_version() {
    let (plane, server) = (plane().await, WebhookServer::start(convert).await);
    let admin = plane.admin();
    define(&admin, definition(server.client("/convert"))).await;
    admin.post(WIDGETS, new("a", 1)).await.expect(201);
    let mut watches = Vec::new();
    for _ in 0..3 {
        let mut watch = admin.watch(&format!("{OLD}?watch=1"), &[]).await;
        let first = watch.next().await.unwrap();
        assert_eq!((&first["type"], &first["object"]["spec"]), (&json!("ADDED"), &json!({"line": "-"})));
        watches.push(watch);
    }
    let before = server.count("/convert");
    admin.merge(&format!("{WIDGETS}/a"), json!({"spec": {"size": 2}})).await.expect(200);
    for watch in &mut watches {
        let event = watch.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["spec"]), (&json!("MODIFIED"), &json!({"line": "--"})));
        assert_eq!(event["object"]["apiVersion"], "example.dev/v1beta1");
    }
    assert_eq!(server.count("/convert"), before + 1);
}

#[tokio::test]
async fn objects_stay_in_their_version_until_they_are_written() {
    let (plane, server) = (plane().await, WebhookServer::start(convert).await);
    let admin = plane.admin();
    define(&admin, definition(server.client("/convert"))).await;
    admin.post(WIDGETS, new("a", 1)).await.expect(201);
    store_as(&admin, "v1beta1").await;
    let crd = admin.get(&format!("{CRDS}/widgets.example.dev")).await.expect(200).json();
    assert_eq!(crd["status"]["storedVersions"], json!(["v1", "v1beta1"]));
    admin.post(OLD, old("b", "--")).await.expect(201);

    let before = server.count("/convert");
    let list = admin.get(WIDGETS).await.expect(200).json();
    let version = json!("example.dev/v1");
    assert_eq!(versions_and_specs(&list), [(&version, &json!({"size": 1})), (&version, &json!({"size": 2}))]);
    assert_eq!(server.count("/convert"), before + 1);
    assert_eq!(server.last()["objects"].as_array().unwrap().len(), 1, "what is in the version is not asked about");

    let read = admin.get(&format!("{OLD}/a")).await.expect(200).json();
    let written = admin.put(&format!("{OLD}/a"), read.clone()).await.expect(200).json();
    assert_ne!(written["metadata"]["resourceVersion"], read["metadata"]["resourceVersion"], "it is stored anew");
    assert_eq!(written["metadata"]["generation"], read["metadata"]["generation"]);
    let again = admin.put(&format!("{OLD}/a"), written.clone()).await.expect(200).json();
    assert_eq!(again["metadata"]["resourceVersion"], written["metadata"]["resourceVersion"], "once");
    let before = server.count("/convert");
    admin.get(&format!("{OLD}/a")).await.expect(200);
    assert_eq!(server.count("/convert"), before);
}

#[tokio::test]
async fn without_a_webhook_only_the_version_changes() {
    let admin = plane().await.admin();
    let mut crd = definition(Value::Null);
    crd["spec"]["conversion"] = json!({"strategy": "None"});
    define(&admin, crd).await;
    admin.post(WIDGETS, new("a", 1)).await.expect(201);
    let mut watch = admin.watch(&format!("{WIDGETS}?watch=1"), &[]).await;
    assert_eq!(watch.next().await.unwrap()["object"]["apiVersion"], "example.dev/v1");
    store_as(&admin, "v1beta1").await;
    admin.post(WIDGETS, new("b", 2)).await.expect(201);
    assert_eq!(watch.next().await, None, "it is begun again by what holds now");
    let mut watch = admin.watch(&format!("{WIDGETS}?watch=1"), &[]).await;
    for _ in ["a", "b"] {
        assert_eq!(watch.next().await.unwrap()["object"]["apiVersion"], "example.dev/v1");
    }
    for (path, version) in [(WIDGETS, json!("example.dev/v1")), (OLD, json!("example.dev/v1beta1"))] {
        let list = admin.get(path).await.expect(200).json();
        assert_eq!(versions_and_specs(&list), [(&version, &json!({"size": 1})), (&version, &json!({"size": 2}))]);
        assert_eq!(admin.get(&format!("{path}/a")).await.expect(200).json()["apiVersion"], version);
    }
}

/// A definition whose versions have different defaults, with a webhook if one is given.
fn defaulted(webhook: Option<Value>) -> Value {
    let mut crd = definition(webhook.clone().unwrap_or_default());
    if webhook.is_none() {
        crd["spec"]["conversion"] = json!({"strategy": "None"});
    }
    let text = |default: &str| json!({"type": "string", "default": default});
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        let own = match version["name"].as_str() {
            Some("v1") => json!({"size": {"type": "integer"}, "both": text("v1"), "stored": text("v1")}),
            _ => {
                json!({"line": {"type": "string"}, "both": text("v1beta1"), "shown": text("v1beta1"), "stored": {"type": "string"}})
            }
        };
        version["schema"]["openAPIV3Schema"] =
            json!({"type": "object", "properties": {"spec": {"type": "object", "properties": own}}});
    }
    crd
}

#[tokio::test]
async fn stored_objects_get_the_defaults_of_their_stored_version() {
    let plane = plane().await;
    let admin = plane.admin();
    define(&admin, defaulted(None)).await;
    let made = admin.post(OLD, old("a", "-")).await.expect(201).json();
    let stored = json!({"both": "v1beta1", "stored": "v1"});
    assert_eq!(made["spec"], stored, "of the version that was written, and then of the one that is stored");
    for read in [format!("{OLD}/a"), format!("{WIDGETS}/a")] {
        assert_eq!(admin.get(&read).await.expect(200).json()["spec"], stored, "{read}");
    }
    assert_eq!(admin.get(OLD).await.expect(200).json()["items"][0]["spec"], stored);
    admin
        .post(WIDGETS, json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "b"}, "spec": {}}))
        .await
        .expect(201);
    let read = admin.get(&format!("{OLD}/b")).await.expect(200).json();
    assert_eq!(read["spec"], json!({"both": "v1", "stored": "v1"}), "what is shown has no defaults of its own");
}

#[tokio::test]
async fn webhooks_are_given_objects_with_the_defaults_of_their_version() {
    let (plane, server) = (plane().await, WebhookServer::start(convert).await);
    let admin = plane.admin();
    define(&admin, definition(server.client("/convert"))).await;
    admin.post(WIDGETS, new("a", 1)).await.expect(201);
    // Defaults that were added after the object was created.
    let mut crd = admin.get(&format!("{CRDS}/widgets.example.dev")).await.expect(200).json();
    crd["spec"]["versions"] = defaulted(None)["spec"]["versions"].clone();
    admin.put(&format!("{CRDS}/widgets.example.dev"), crd).await.expect(200);
    let read = admin.get(&format!("{OLD}/a")).await.expect(200).json();
    assert_eq!(server.last()["objects"][0]["spec"], json!({"size": 1, "both": "v1", "stored": "v1"}));
    assert_eq!(read["spec"], json!({"line": "-"}), "the webhook decides on all of it");
}

/// Replies of failing webhooks, by path.
fn failing(path: &str, request: &Value) -> Reply {
    let to = request["desiredAPIVersion"].as_str().unwrap();
    let answer = |change: &dyn Fn(&mut Value)| {
        let mut object = converted(request["objects"][0].clone(), to);
        change(&mut object);
        Reply::Response(json!({"result": {"status": "Success"}, "convertedObjects": [object]}))
    };
    match path {
        "/error" => Reply::Raw(500, Vec::new(), b"a secret of the network".to_vec()),
        "/text" => Reply::Raw(200, Vec::new(), b"a secret of the network".to_vec()),
        "/redirect" => Reply::Raw(302, vec![("location", "https://169.254.169.254/".to_owned())], Vec::new()),
        "/refuses" => Reply::Response(json!({"result": {"status": "Failure", "message": "no such thing"}})),
        "/nothing" => Reply::Response(json!({"result": {"status": "Success"}})),
        "/renames" => answer(&|object| object["metadata"]["name"] = "other".into()),
        "/steals" => answer(&|object| object["metadata"]["uid"] = "other".into()),
        "/keeps" => answer(&|object| object["apiVersion"] = request["objects"][0]["apiVersion"].clone()),
        "/labels" => answer(&|object| object["metadata"]["labels"] = json!({"a": "b c"})),
        "/endless" => Reply::Endless,
        "/drips" => Reply::Drips,
        "/silence" => Reply::Silence,
        _ => convert(path, request),
    }
}

/// Checks that reads and writes in another version than the stored one fail with this webhook, and nothing else does.
async fn fails(admin: &Client, client: Value, says: &str) {
    let conversion = json!({"spec": {"conversion": {"webhook": {"clientConfig": client}}}});
    admin.merge(&format!("{CRDS}/widgets.example.dev"), conversion).await.expect(200);
    for read in [format!("{OLD}/a"), OLD.to_owned()] {
        let message = admin.get(&read).await.expect(500).message();
        assert!(
            message.starts_with(&format!("conversion webhook for example.dev/v1, Kind=Widget {says}")),
            "{message}"
        );
        assert!(!message.contains("secret"), "nothing is repeated: {message}");
    }
    admin.merge(&format!("{WIDGETS}/a"), json!({"spec": {"size": 1}})).await.expect(200);
    let written = admin.post(OLD, old("b", "-")).await.expect(500).message();
    assert!(written.starts_with("conversion webhook for example.dev/v1beta1, Kind=Widget "), "{written}");
    assert_eq!(admin.get(&format!("{WIDGETS}/b")).await.code, 404, "what cannot be converted is not stored");
    admin.get(&format!("{OLD}?watch=1")).await.expect(500);
}

#[tokio::test]
async fn a_failing_conversion_webhook_affects_only_its_own_objects() {
    let (plane, server) = (plane().await, WebhookServer::start(failing).await);
    let admin = plane.admin();
    define(&admin, definition(server.client("/convert"))).await;
    admin.post(WIDGETS, new("a", 1)).await.expect(201);
    let there = json!({"metadata": {"name": "there"}, "spec": {"selector": {"app": "hook"}, "ports": [{"port": 443}]}});
    admin.post("/api/v1/namespaces/default/services", there).await.expect(201);
    let at = |url: &str| json!({"url": url, "caBundle": server.client("/")["caBundle"]});
    for (client, says) in [
        (
            server.client("/error"),
            r#"failed: an error on the server ("unknown") has prevented the request from succeeding"#,
        ),
        (
            server.client("/text"),
            "failed: couldn't get version/kind; json parse error: json: cannot unmarshal string into Go value of type struct {",
        ),
        (server.client("/redirect"), "failed: the server responded with the status code 302"),
        (server.client("/refuses"), "failed: no such thing"),
        (server.client("/nothing"), "returned 0 objects, expected 1"),
        (server.client("/renames"), "returned invalid object: must have the same name: a != other"),
        (server.client("/steals"), "returned invalid object: must have the same UID: "),
        (
            server.client("/keeps"),
            "returned invalid object at index 0: invalid groupVersion (expected example.dev/v1beta1, received example.dev/v1)",
        ),
        (server.client("/labels"), r#"returned invalid metadata: metadata.labels: Invalid value: "b c": "#),
        (server.client("/endless"), "failed: Post "),
        (
            at("https://127.0.0.1:1/x"),
            r#"failed: Post "https://127.0.0.1:1/x?timeout=30s": dial tcp 127.0.0.1:1: connect: "#,
        ),
        (at("https://169.254.169.254/x"), "failed: Post "),
        (
            json!({"url": null, "service": {"namespace": "default", "name": "there", "path": "/x"}}),
            r#"failed: Post "https://there.default.svc:443/x?timeout=30s": no endpoints available for service "there""#,
        ),
    ] {
        fails(&admin, client, says).await;
    }
    let now = admin.get(WIDGETS).await.expect(200).json()["metadata"]["resourceVersion"].clone();
    let mut watch = admin.watch(&format!("{OLD}?watch=1&resourceVersion={}", now.as_str().unwrap()), &[]).await;
    admin.merge(&format!("{WIDGETS}/a"), json!({"spec": {"size": 2}})).await.expect(200);
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(500)));
    assert!(watch.next().await.is_none(), "a watch that missed something ends");
}

/// Only calls that must time out have a short limit: others succeed even on a busy machine.
#[tokio::test]
async fn a_webhook_that_does_not_end_runs_out_of_time() {
    let server = WebhookServer::start(failing).await;
    let plane = Plane::with(|config| {
        config.webhooks = WebhookAddresses { allow_local: true };
        config.limits.conversion = Duration::from_millis(100);
    })
    .await;
    let admin = plane.admin();
    define(&admin, definition(server.client("/drips"))).await;
    admin.post(WIDGETS, new("a", 1)).await.expect(201);
    for path in ["/drips", "/silence"] {
        fails(&admin, server.client(path), "failed: Post ").await;
        let message = admin.get(&format!("{OLD}/a")).await.expect(500).message();
        assert!(message.ends_with(": context deadline exceeded"), "{message}");
    }
}

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// Returns a webhook configuration for widgets of v1beta1 that matches all versions.
fn old_widgets(rules: &str) -> Value {
    json!({"matchPolicy": "Equivalent", rules: [{"apiGroups": ["example.dev"], "apiVersions": ["v1beta1"],
        "resources": ["widgets"], "operations": ["CREATE"]}]})
}

async fn create_definition(admin: &Client, sort: &str, failure_policy: &str) {
    let (kind, mut spec) = match sort {
        "validating" => ("validatingadmissionpolic", json!({"validations": [{"expression": "true"}]})),
        _ => {
            let labels = r#"[JSONPatch{op: "add", path: "/metadata/labels", value: {"a": "b"}}]"#;
            let patch = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": labels}});
            ("mutatingadmissionpolic", json!({"reinvocationPolicy": "Never", "mutations": [patch]}))
        }
    };
    spec["failurePolicy"] = failure_policy.into();
    spec["matchConstraints"] = old_widgets("resourceRules");
    admin.delete(&format!("{ADMISSION}/{kind}ies/p")).await;
    admin.post(&format!("{ADMISSION}/{kind}ies"), json!({"metadata": {"name": "p"}, "spec": spec})).await.expect(201);
    let mut spec = json!({"policyName": "p"});
    if sort == "validating" {
        spec["validationActions"] = json!(["Deny"]);
    }
    admin.post(&format!("{ADMISSION}/{kind}ybindings"), json!({"metadata": {"name": "b"}, "spec": spec})).await;
}

#[tokio::test]
async fn a_failed_conversion_follows_the_policys_failure_policy() {
    let (plane, server) = (plane().await, WebhookServer::start(failing).await);
    let admin = plane.admin();
    define(&admin, definition(server.client("/refuses"))).await;
    let why = "conversion webhook for example.dev/v1, Kind=Widget failed: no such thing";
    for (sort, code, says) in [
        (
            "validating",
            422,
            "with binding 'b' denied request: failed to configure binding: failed to convert object version: ",
        ),
        ("mutating", 403, r#"policy "p" denied request: failed to configure policy: "#),
    ] {
        create_definition(&admin, sort, "Fail").await;
        let message = admin.post(WIDGETS, new("a", 1)).await.expect(code).message();
        assert!(message.contains(&format!("{says}{why}")), "{sort}: {message}");
        create_definition(&admin, sort, "Ignore").await;
        admin.post(WIDGETS, new(sort, 1)).await.expect(201);
    }
}

#[tokio::test]
async fn a_failed_conversion_for_a_webhook_is_refused_as_in_kubernetes() {
    let (plane, server) = (plane().await, WebhookServer::start(failing).await);
    let admin = plane.admin();
    define(&admin, definition(server.client("/refuses"))).await;
    let why = "Internal error occurred: conversion webhook for example.dev/v1, Kind=Widget failed: no such thing";
    for (resource, says) in [
        ("validatingwebhookconfigurations", why.to_owned()),
        ("mutatingwebhookconfigurations", format!("Internal error occurred: {why}")),
    ] {
        let mut hook = json!({"name": "a.example.com", "clientConfig": server.client("/never"), "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore"});
        for (key, value) in old_widgets("rules").as_object().unwrap() {
            hook[key] = value.clone();
        }
        let path = format!("{ADMISSION}/{resource}");
        admin.post(&path, json!({"metadata": {"name": "w"}, "webhooks": [hook]})).await.expect(201);
        assert_eq!(admin.post(WIDGETS, new("a", 1)).await.expect(500).message(), says);
        admin.delete(&format!("{path}/w")).await.expect(200);
    }
    assert_eq!(server.count("/never"), 0);
}

/// Returns a watch that waits for a conversion webhook that never answers.
async fn stuck(plane: &Plane, server: &WebhookServer, query: &str) -> Watch {
    let admin = plane.admin();
    define(&admin, definition(server.client("/silence"))).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rule = json!({"apiGroups": ["example.dev"], "resources": ["widgets"], "verbs": ["watch"]});
    let role = json!({"metadata": {"name": "watcher"}, "rules": [rule]});
    admin.post(&format!("{rbac}/clusterroles"), role).await.expect(201);
    let binding = json!({"metadata": {"name": "watcher"}, "subjects": [{"kind": "User", "name": "ann",
        "apiGroup": "rbac.authorization.k8s.io"}], "roleRef": {"kind": "ClusterRole", "name": "watcher",
        "apiGroup": "rbac.authorization.k8s.io"}});
    admin.post(&format!("{rbac}/clusterrolebindings"), binding).await.expect(201);
    let now = admin.get(WIDGETS).await.expect(200).json()["metadata"]["resourceVersion"].clone();
    let path = format!("{OLD}?watch=1&resourceVersion={}{query}", now.as_str().unwrap());
    let watch = plane.as_user("ann").watch(&path, &[]).await;
    admin.post(WIDGETS, new("a", 1)).await.expect(201);
    watch
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_waits_for_a_webhook_ends_in_time() {
    let server = WebhookServer::start(failing).await;
    let mut watch = stuck(&patient().await, &server, "&timeoutSeconds=300").await;
    let begun = tokio::time::Instant::now();
    assert_eq!(watch.next().await, None);
    assert!(begun.elapsed() <= Duration::from_secs(300), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_waits_for_a_webhook_ends_with_the_right_to_it() {
    let (plane, server) = (patient().await, WebhookServer::start(failing).await);
    let mut watch = stuck(&plane, &server, "").await;
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/watcher";
    plane.admin().delete(binding).await.expect(200);
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(403)));
    assert_eq!(watch.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_the_definition_changes() {
    let plane = plane().await;
    let admin = plane.admin();
    let mut crd = definition(Value::Null);
    crd["spec"]["conversion"] = json!({"strategy": "None"});
    define(&admin, crd).await;
    let path = format!("{CRDS}/widgets.example.dev");
    let mut watch = admin.watch(&format!("{WIDGETS}?watch=1&timeoutSeconds=300"), &[]).await;
    admin.merge(&path, json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    tokio::time::sleep(Duration::from_secs(60)).await;
    admin.post(WIDGETS, new("a", 1)).await.expect(201);
    assert_eq!(watch.seen().await, ("ADDED".into(), "a".into()), "labels are no matter of what is served");
    admin.merge(&path, json!({"spec": {"names": {"shortNames": ["wdg"]}}})).await.expect(200);
    let begun = tokio::time::Instant::now();
    assert_eq!(watch.next().await, None);
    assert!(begun.elapsed() <= Duration::from_secs(10), "{:?}", begun.elapsed());

    let mut watch = admin.watch(&format!("{WIDGETS}?watch=1&timeoutSeconds=300"), &[]).await;
    assert_eq!(watch.seen().await.1, "a");
    admin.delete(&path).await.expect(200);
    tokio::time::sleep(Duration::from_secs(60)).await;
    admin.delete(&format!("{WIDGETS}/a")).await.expect(200);
    assert_eq!(watch.seen().await, ("DELETED".into(), "a".into()), "the end of its objects is told");
}

/// Returns a server whose conversion timeout is longer than any watch.
async fn patient() -> Plane {
    Plane::with(|config| {
        config.webhooks = WebhookAddresses { allow_local: true };
        config.limits.conversion = Duration::from_secs(1_000_000);
    })
    .await
}

#[tokio::test]
async fn mutating_webhooks_share_a_conversion_until_the_object_changes() {
    let reply = |path: &str, request: &Value| match path {
        "/convert" => convert(path, request),
        _ => Reply::Response(json!({"allowed": true})),
    };
    let (plane, server) = (plane().await, WebhookServer::start(reply).await);
    let admin = plane.admin();
    define(&admin, definition(server.client("/convert"))).await;
    let made = admin.post(WIDGETS, new("a", 1)).await.expect(201).json();
    let hook = |name: &str| {
        json!({"name": format!("{name}.example.com"), "clientConfig": server.client("/ask"), "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "matchPolicy": "Equivalent",
            "matchConditions": [{"name": "line", "expression": "object.spec.line != ''"}],
            "rules": [{"apiGroups": ["example.dev"], "apiVersions": ["v1beta1"], "resources": ["widgets"],
                "operations": ["UPDATE"]}]})
    };
    let configuration = json!({"metadata": {"name": "w"}, "webhooks": [hook("a"), hook("b"), hook("c")]});
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    admin.post(path, configuration).await.expect(201);
    let before = server.count("/convert");
    let mut changed = made;
    changed["spec"]["size"] = 2.into();
    admin.put(&format!("{WIDGETS}/a"), changed).await.expect(200);
    assert_eq!(server.count("/ask"), 3);
    assert_eq!(server.count("/convert") - before, 2, "the object and the old one, for conditions and questions");
}
