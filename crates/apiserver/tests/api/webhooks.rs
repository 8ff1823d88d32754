//! Mutating and validating webhooks, against a real one.

use std::{
    net::SocketAddr,
    sync::{Arc, mpsc},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use portolan_apiserver::{
    Body,
    hooks::{PodPort, PodStreamRequest, PodStreams},
    webhooks::WebhookAddresses,
};
use portolan_types::{BoxFuture, Reason, Status, object};
use serde_json::{Value, json};
use tokio::{io::DuplexStream, net::TcpStream};

use crate::common::{Client, MAPS, Plane, Reply, WebhookServer, config_map};

const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn plane() -> Plane {
    Plane::with(|config| config.webhooks = WebhookAddresses { allow_local: true }).await
}

/// A webhook for ConfigMaps, unless `more` says otherwise.
fn webhook(name: &str, client: Value, more: Value) -> Value {
    let mut webhook = json!({
        "name": format!("{name}.example.com"), "clientConfig": client, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
        "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["configmaps"], "operations": ["*"]}],
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        webhook[key] = value.clone();
    }
    webhook
}

async fn configure(admin: &Client, path: &str, name: &str, webhooks: Vec<Value>) {
    admin.post(path, json!({"metadata": {"name": name}, "webhooks": webhooks})).await.expect(201);
}

fn allowed() -> Reply {
    Reply::Response(json!({"allowed": true}))
}

fn patch(operations: Value) -> Reply {
    let patch = STANDARD.encode(operations.to_string());
    Reply::Response(json!({"allowed": true, "patch": patch, "patchType": "JSONPatch"}))
}

fn set_label(key: &str, value: &str) -> Reply {
    patch(json!([
        {"op": "add", "path": "/metadata/labels", "value": {key: value}},
    ]))
}

/// Replies of failing webhooks, by path.
fn failing(path: &str, _: &Value) -> Reply {
    let redirect = |to: &str| Reply::Raw(302, vec![("location", to.to_owned())], Vec::new());
    match path {
        "/error" => Reply::Raw(500, Vec::new(), b"a secret of the network".to_vec()),
        "/missing" => Reply::Raw(404, Vec::new(), Vec::new()),
        "/text" => Reply::Raw(200, Vec::new(), b"a secret of the network".to_vec()),
        "/redirect" => redirect("https://169.254.169.254/latest/meta-data"),
        "/other" => Reply::Response(json!({"uid": "another", "allowed": true})),
        "/patches" => patch(json!([])),
        "/endless" => Reply::Endless,
        "/drips" => Reply::Drips,
        "/silence" => Reply::Silence,
        _ => allowed(),
    }
}

#[tokio::test]
async fn a_webhook_that_fails_refuses_or_is_ignored_as_its_policy_says() {
    let (plane, server) = (plane().await, WebhookServer::start(failing).await);
    let admin = plane.admin();
    let at = |url: &str| json!({"url": url, "caBundle": server.client("/")["caBundle"]});
    let service = |name: &str| json!({"service": {"namespace": "default", "name": name, "path": "/x"}, "caBundle": server.client("/")["caBundle"]});
    let there = json!({"metadata": {"name": "there"}, "spec": {"selector": {"app": "hook"}, "ports": [{"port": 443}]}});
    admin.post("/api/v1/namespaces/default/services", there).await.expect(201);
    let mut stranger = server.client("/allow");
    stranger["caBundle"] = WebhookServer::start(failing).await.client("/")["caBundle"].clone();
    for (case, client, says) in [
        (
            "an error",
            server.client("/error"),
            r#"an error on the server ("unknown") has prevented the request from succeeding"#,
        ),
        ("nothing there", server.client("/missing"), "the server could not find the requested resource"),
        ("no review", server.client("/text"), "the response is not an AdmissionReview in JSON"),
        ("a redirect", server.client("/redirect"), "the server responded with the status code 302"),
        ("another's answer", server.client("/other"), "received invalid webhook response: expected response.uid="),
        (
            "a patch",
            server.client("/patches"),
            "received invalid webhook response: validating webhook may not return response.patch",
        ),
        ("an answer without end", server.client("/endless"), "http: response body too large"),
        ("an answer by drops", server.client("/drips"), "context deadline exceeded"),
        ("no answer", server.client("/silence"), "context deadline exceeded"),
        (
            "a closed port",
            at("https://127.0.0.1:1/x"),
            r#"Post "https://127.0.0.1:1/x?timeout=1s": dial tcp 127.0.0.1:1: connect: connection refused"#,
        ),
        ("a metadata service", at("https://169.254.169.254/x"), "169.254.169.254 is a link-local address"),
        ("a stranger", stranger, "tls: failed to verify certificate: x509: certificate signed by unknown authority"),
        (
            "a service that is not there",
            service("hook"),
            r#"Post "https://hook.default.svc:443/x?timeout=1s": service "hook" not found"#,
        ),
        (
            "a service without pods",
            service("there"),
            r#"Post "https://there.default.svc:443/x?timeout=1s": no endpoints available for service "there""#,
        ),
    ] {
        for (policy, code) in [("Fail", 500), ("Ignore", 201)] {
            let name = policy.to_lowercase();
            configure(&admin, VALIDATING, &name, vec![webhook("w", client.clone(), json!({"failurePolicy": policy}))])
                .await;
            let answer = admin.post(&format!("{MAPS}?dryRun=All"), config_map("m", json!({}))).await;
            assert_eq!(answer.code, code, "{case}, {policy}: {}", answer.text());
            assert!(!answer.text().contains("secret"), "{case}: nothing is repeated");
            if code == 500 {
                let start = r#"Internal error occurred: failed calling webhook "w.example.com": "#;
                let message = answer.message();
                assert!(message.starts_with(start) && message.contains(says), "{case}: {message}");
            }
            admin.delete(&format!("{VALIDATING}/{name}")).await.expect(200);
        }
    }
}

#[tokio::test]
async fn webhooks_are_nowhere_that_the_administrator_does_not_allow() {
    let server = WebhookServer::start(|_, _| allowed()).await;
    let admin = Plane::new().await.admin();
    configure(&admin, VALIDATING, "w", vec![webhook("w", server.client("/"), json!({}))]).await;
    let refused = admin.post(MAPS, config_map("m", json!({}))).await.expect(500);
    assert!(
        refused.message().contains("127.0.0.1 is this machine itself, which has to be allowed"),
        "{}",
        refused.message()
    );
    assert_eq!(*server.connections.lock(), 0);
}

#[tokio::test]
async fn refusals_and_warnings_reach_the_client() {
    let server = WebhookServer::start(|path, _| match path {
        "/plain" => Reply::Response(json!({"allowed": false})),
        "/why" => Reply::Response(
            json!({"allowed": false, "status": {"code": 403, "reason": "Forbidden", "message": "not on Fridays"}}),
        ),
        _ => Reply::Response(json!({"allowed": true, "warnings": ["mind the step"], "auditAnnotations": {"a": "b"}})),
    })
    .await;
    let plane = plane().await;
    let admin = plane.admin();
    for (path, code, says) in [
        ("/plain", 400, r#"admission webhook "w.example.com" denied the request without explanation"#),
        ("/why", 403, r#"admission webhook "w.example.com" denied the request: not on Fridays"#),
        ("/warn", 201, ""),
    ] {
        for kind in [MUTATING, VALIDATING] {
            configure(&admin, kind, "w", vec![webhook("w", server.client(path), json!({}))]).await;
            let answer = admin.post(&format!("{MAPS}?dryRun=All"), config_map("m", json!({}))).await.expect(code);
            match code {
                201 => assert_eq!(answer.headers["warning"], r#"299 - "mind the step""#),
                _ => assert_eq!(answer.message(), says),
            }
            admin.delete(&format!("{kind}/w")).await.expect(200);
        }
    }
    assert_eq!(*server.connections.lock(), 1, "connections are used again");
}

#[tokio::test]
async fn patches_change_objects_in_turn() {
    let server = WebhookServer::start(|path, request| match path {
        "/first" => set_label("a", "1"),
        "/second" => {
            assert_eq!(request["object"]["metadata"]["labels"]["a"], "1", "the first was here before");
            patch(json!([{"op": "add", "path": "/metadata/labels/b", "value": "2"}]))
        }
        "/own" => patch(json!([{"op": "add", "path": "/metadata/managedFields", "value": [{"manager": "x", "operation": "Other"}]}])),
        "/pod" => {
            patch(json!([{"op": "add", "path": "/spec/containers/-", "value": {"name": "side", "image": "side:1"}}]))
        }
        _ => allowed(),
    })
    .await;
    let plane = plane().await;
    let admin = plane.admin();
    configure(&admin, MUTATING, "b", vec![webhook("w", server.client("/second"), json!({}))]).await;
    configure(&admin, MUTATING, "a", vec![webhook("w", server.client("/first"), json!({}))]).await;
    let made = admin.post(MAPS, config_map("m", json!({}))).await.expect(201).json();
    assert_eq!(made["metadata"]["labels"], json!({"a": "1", "b": "2"}));
    assert!(!made["metadata"]["managedFields"].to_string().contains("f:a"), "no manager owns fields that webhooks add");
    configure(&admin, MUTATING, "c", vec![webhook("w", server.client("/own"), json!({}))]).await;
    let made = admin.post(MAPS, config_map("n", json!({}))).await.expect(201);
    let warning = made.headers["warning"].to_str().unwrap().to_owned();
    assert!(warning.contains(".metadata.managedFields was in an invalid state after admission"), "{warning}");
    assert_eq!(made.json()["metadata"]["managedFields"][0]["operation"], "Update");
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]);
    configure(&admin, MUTATING, "pods", vec![webhook("w", server.client("/pod"), json!({"rules": rules}))]).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let made = admin.post(PODS, pod).await.expect(201).json();
    let side = &made["spec"]["containers"][1];
    assert_eq!((&side["name"], &side["imagePullPolicy"]), (&json!("side"), &json!("IfNotPresent")), "it gets defaults");
    assert_eq!(side["volumeMounts"].as_array().map(Vec::len), Some(1), "Kubernetes' own steps run once more");
}

#[tokio::test]
async fn webhooks_are_called_again_when_others_change_the_object_after_them() {
    let server = WebhookServer::start(|path, request| match path {
        "/late" if request["object"]["metadata"]["labels"]["late"].is_null() => set_label("late", "1"),
        _ => allowed(),
    })
    .await;
    let plane = plane().await;
    let admin = plane.admin();
    let hooks = [("never", "Never"), ("needed", "IfNeeded"), ("late", "IfNeeded"), ("after", "IfNeeded")];
    let webhooks = hooks
        .map(|(name, policy)| webhook(name, server.client(&format!("/{name}")), json!({"reinvocationPolicy": policy})));
    configure(&admin, MUTATING, "w", webhooks.to_vec()).await;
    admin.post(MAPS, config_map("m", json!({}))).await.expect(201);
    let counts = hooks.map(|(name, _)| server.count(&format!("/{name}")));
    assert_eq!(counts, [1, 2, 1, 1], "only who was called before the change, and wants to");
}

/// Handler of the webhook `/late`. It signals each call, and answers when the test lets it.
fn late(asked: mpsc::Sender<()>, answer: mpsc::Receiver<()>) -> impl Fn(&str, &Value) -> Reply + Send + Sync {
    let answer = Mutex::new(answer);
    move |path, _| match path {
        "/late" => {
            asked.send(()).unwrap();
            tokio::task::block_in_place(|| answer.lock().recv()).unwrap();
            set_label("late", "yes")
        }
        _ => allowed(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reinvocation_calls_the_webhooks_of_the_first_round() {
    let ((asked, is_asked), (answer, answered)) = (mpsc::channel(), mpsc::channel());
    let server = WebhookServer::start(late(asked, answered)).await;
    let plane = plane().await;
    let admin = plane.admin();
    let hook = |name: &str, policy: &str| {
        let more = json!({"reinvocationPolicy": policy, "timeoutSeconds": 30});
        webhook(name, server.client(&format!("/{name}")), more)
    };
    let hooks = vec![hook("never", "Never"), hook("needed", "IfNeeded"), hook("late", "Never")];
    configure(&admin, MUTATING, "w", hooks).await;
    let writer = admin.clone();
    let write = tokio::spawn(async move { writer.post(MAPS, config_map("m", json!({}))).await.code });
    tokio::task::spawn_blocking(move || is_asked.recv()).await.unwrap().unwrap();
    configure(&admin, MUTATING, "first", vec![hook("new", "IfNeeded")]).await;
    answer.send(()).unwrap();
    assert_eq!(write.await.unwrap(), 201);
    let counts = ["new", "never", "needed", "late"].map(|name| server.count(&format!("/{name}")));
    assert_eq!(counts, [0, 1, 2, 1]);
}

#[tokio::test]
async fn rules_and_selectors_choose_whom_to_ask() {
    let server = WebhookServer::start(|_, _| allowed()).await;
    let plane = plane().await;
    let admin = plane.admin();
    let space = json!({"metadata": {"name": "marked", "labels": {"marked": "yes"}}});
    admin.post("/api/v1/namespaces", space).await.expect(201);
    let rule = |groups: &str, versions: &str, resources: &str, operations: &str, scope: &str| json!({"rules": [{"apiGroups": [groups], "apiVersions": [versions], "resources": [resources], "operations": [operations], "scope": scope}]});
    let (map, in_marked) = (MAPS, "/api/v1/namespaces/marked/configmaps");
    let selected = |key: &str, label: &str| json!({key: {"matchLabels": {label: "yes"}}});
    for (case, more, path, object, called) in [
        ("all of a kind", rule("", "v1", "configmaps", "CREATE", "*"), map, config_map("a", json!({})), true),
        ("another operation", rule("", "v1", "configmaps", "UPDATE", "*"), map, config_map("a", json!({})), false),
        ("another group", rule("apps", "v1", "configmaps", "*", "*"), map, config_map("a", json!({})), false),
        ("another version", rule("", "v2", "configmaps", "*", "*"), map, config_map("a", json!({})), false),
        ("everything", rule("*", "*", "*/*", "*", "*"), map, config_map("a", json!({})), true),
        ("subresources", rule("*", "*", "*/status", "*", "*"), map, config_map("a", json!({})), false),
        ("what is namespaced", rule("*", "*", "*", "*", "Namespaced"), map, config_map("a", json!({})), true),
        ("what is in no namespace", rule("*", "*", "*", "*", "Cluster"), map, config_map("a", json!({})), false),
        (
            "a namespace is in none",
            rule("*", "*", "*", "*", "Cluster"),
            "/api/v1/namespaces",
            json!({"metadata": {"name": "x"}}),
            true,
        ),
        (
            "a namespace with a label",
            selected("namespaceSelector", "marked"),
            in_marked,
            config_map("a", json!({})),
            true,
        ),
        ("a namespace without it", selected("namespaceSelector", "marked"), map, config_map("a", json!({})), false),
        ("an object with a label", selected("objectSelector", "l"), map, config_map("a", json!({"l": "yes"})), true),
        ("an object without it", selected("objectSelector", "l"), map, config_map("a", json!({})), false),
    ] {
        configure(&admin, VALIDATING, "w", vec![webhook("w", server.client("/"), more)]).await;
        let before = server.count("/");
        admin.post(&format!("{path}?dryRun=All"), object).await.expect(201);
        assert_eq!(server.count("/") > before, called, "{case}");
        admin.delete(&format!("{VALIDATING}/w")).await.expect(200);
    }
}

#[tokio::test]
async fn other_versions_are_converted_for_whom_they_are_equivalent() {
    let server = WebhookServer::start(|_, request| {
        assert_eq!(request["object"]["apiVersion"], "autoscaling/v2");
        patch(json!([{"op": "replace", "path": "/spec/maxReplicas", "value": 7}]))
    })
    .await;
    let plane = plane().await;
    let admin = plane.admin();
    let rules = json!([{"apiGroups": ["autoscaling"], "apiVersions": ["v2"], "resources": ["horizontalpodautoscalers"], "operations": ["*"]}]);
    let scaler = json!({"metadata": {"name": "s"}, "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}});
    let path = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers?dryRun=All";
    for (policy, replicas) in [("Exact", 3), ("Equivalent", 7)] {
        configure(
            &admin,
            MUTATING,
            "w",
            vec![webhook("w", server.client("/"), json!({"rules": rules, "matchPolicy": policy}))],
        )
        .await;
        let made = admin.post(path, scaler.clone()).await.expect(201).json();
        assert_eq!(
            (&made["apiVersion"], &made["spec"]["maxReplicas"]),
            (&json!("autoscaling/v1"), &json!(replicas)),
            "{policy}"
        );
        admin.delete(&format!("{MUTATING}/w")).await.expect(200);
    }
    let asked = server.last();
    assert_eq!((&asked["resource"]["version"], &asked["requestResource"]["version"]), (&json!("v2"), &json!("v1")));
}

#[tokio::test]
async fn webhooks_are_asked_about_everything_that_is_done() {
    let server = WebhookServer::start(|_, _| allowed()).await;
    let plane = plane().await;
    let admin = plane.admin();
    let rules = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}]);
    configure(&admin, VALIDATING, "w", vec![webhook("w", server.client("/"), json!({"rules": rules}))]).await;
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}}});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let asked = || {
        let asked = server.last();
        let text = |pointer: &str| asked.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let states = (!asked["object"].is_null(), !asked["oldObject"].is_null());
        (text("/operation"), text("/kind/kind"), text("/subResource"), text("/options/kind"), states)
    };
    let expected = |operation: &str, kind: &str, subresource: &str, options: &str, states: (bool, bool)| {
        (operation.to_owned(), kind.to_owned(), subresource.to_owned(), options.to_owned(), states)
    };
    admin.post(DEPLOYMENTS, deployment).await.expect(201);
    assert_eq!(asked(), expected("CREATE", "Deployment", "", "CreateOptions", (true, false)));
    admin.merge(&format!("{DEPLOYMENTS}/d?dryRun=All"), json!({"spec": {"replicas": 2}})).await.expect(200);
    assert_eq!(asked(), expected("UPDATE", "Deployment", "", "UpdateOptions", (true, true)));
    assert_eq!((&server.last()["dryRun"], &server.last()["name"]), (&json!(true), &json!("d")));
    admin.merge(&format!("{DEPLOYMENTS}/d"), json!({})).await.expect(200);
    assert_eq!(server.last()["dryRun"], false, "also about what changes nothing");
    admin.merge(&format!("{DEPLOYMENTS}/d/scale"), json!({"spec": {"replicas": 3}})).await.expect(200);
    assert_eq!(asked(), expected("UPDATE", "Scale", "scale", "UpdateOptions", (true, true)));
    assert_eq!(server.last()["object"]["spec"]["replicas"], 3);
    admin.merge(&format!("{DEPLOYMENTS}/d/status"), json!({"status": {"replicas": 1}})).await.expect(200);
    assert_eq!(asked(), expected("UPDATE", "Deployment", "status", "UpdateOptions", (true, true)));
    admin.delete(&format!("{DEPLOYMENTS}/d")).await.expect(200);
    assert_eq!(asked(), expected("DELETE", "Deployment", "", "DeleteOptions", (false, true)));
    admin.post(PODS, pod).await.expect(201);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    admin.post(&format!("{PODS}/p/binding"), binding).await.expect(201);
    assert_eq!(asked(), expected("CREATE", "Binding", "binding", "CreateOptions", (true, false)));
    admin.send("POST", &format!("{PODS}/p/exec?command=ls&container=a"), &[], "").await;
    assert_eq!(asked(), expected("CONNECT", "PodExecOptions", "exec", "", (true, false)));
    assert_eq!(server.last()["object"]["command"], json!(["ls"]));
    let before = server.count("/");
    for name in ["a", "b"] {
        admin.post(MAPS, config_map(name, json!({}))).await.expect(201);
    }
    admin.delete(MAPS).await.expect(200);
    assert_eq!(server.count("/"), before + 4, "of a collection about each");
    assert_eq!((&server.last()["name"], &server.last()["oldObject"]["kind"]), (&Value::Null, &json!("ConfigMap")));
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    admin.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review).await.expect(201);
    assert_eq!(asked(), expected("CREATE", "SelfSubjectAccessReview", "", "CreateOptions", (true, false)));
}

#[tokio::test]
async fn webhooks_that_refuse_everything_refuse_it_in_their_logical_cluster_only() {
    let server = WebhookServer::start(|_, _| Reply::Response(json!({"allowed": false}))).await;
    let plane = plane().await;
    let admin = plane.admin();
    for name in ["a", "b"] {
        admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", json!({"metadata": {"name": name}})).await.expect(201);
    }
    let (a, b) = (admin.at("root:a"), admin.at("root:b"));
    let rules = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}]);
    for kind in [VALIDATING, MUTATING] {
        configure(&a, kind, "w", vec![webhook("w", server.client("/"), json!({"rules": rules}))]).await;
    }
    a.post(MAPS, config_map("m", json!({}))).await.expect(400);
    let asked = server.count("/");
    b.post(MAPS, config_map("m", json!({}))).await.expect(201);
    admin.post(MAPS, config_map("m", json!({}))).await.expect(201);
    assert_eq!(server.count("/"), asked, "others are not asked about");
    for kind in [VALIDATING, MUTATING] {
        a.delete(&format!("{kind}/w")).await.expect(200);
    }
    a.post(MAPS, config_map("m", json!({}))).await.expect(201);
}

#[tokio::test]
async fn dry_runs_reach_only_webhooks_without_side_effects() {
    let server = WebhookServer::start(|_, _| allowed()).await;
    let plane = plane().await;
    let admin = plane.admin();
    // Such ones are refused at the door; they may be older than that.
    let key = portolan_types::ObjectKey::cluster_scoped(
        portolan_types::LogicalClusterId::ROOT,
        portolan_types::GroupResource::new("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        "old".parse().unwrap(),
    );
    let old = json!({"metadata": {"name": "old"}, "webhooks": [webhook("w", server.client("/"), json!({"sideEffects": "Some"}))]});
    let record = Some(portolan_types::Record::of(&old));
    plane.store.commit(portolan_store::Transaction::one(key, portolan_store::Expect::Absent, record)).await.unwrap();
    let refused = admin.post(&format!("{MAPS}?dryRun=All"), config_map("m", json!({}))).await;
    if refused.code == 201 {
        // The write of others is known a moment later.
        tokio::task::yield_now().await;
    }
    let refused = admin.post(&format!("{MAPS}?dryRun=All"), config_map("m", json!({}))).await.expect(400);
    assert_eq!(refused.message(), r#"admission webhook "w.example.com" does not support dry run"#);
    admin.post(MAPS, config_map("m", json!({}))).await.expect(201);
}

#[tokio::test]
async fn patches_cannot_move_objects_or_blow_them_up() {
    let bomb: Vec<Value> = std::iter::once(json!({"op": "add", "path": "/data", "value": {"k": "x".repeat(1000)}}))
        .chain((0..40).map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/k{n}")})))
        .collect();
    let server = WebhookServer::start(move |path, _| match path {
        "/name" => patch(json!([{"op": "replace", "path": "/metadata/name", "value": "other"}])),
        "/namespace" => patch(json!([{"op": "replace", "path": "/metadata/namespace", "value": "kube-system"}])),
        "/uid" => patch(json!([{"op": "replace", "path": "/metadata/uid", "value": "x"}])),
        "/placed" => {
            patch(json!([{"op": "add", "path": "/metadata/annotations", "value": {"portolan.dev/clusters": "east"}}]))
        }
        "/absent" => patch(json!([{"op": "remove", "path": "/data/none"}])),
        "/kind" => patch(json!([{"op": "replace", "path": "/kind", "value": "Secret"}])),
        "/other" => patch(json!([
            {"op": "replace", "path": "/kind", "value": "Secret"}, {"op": "remove", "path": "/data"},
        ])),
        "/version" => patch(json!([{"op": "replace", "path": "/apiVersion", "value": "v2"}])),
        "/owners" => patch(json!([{"op": "add", "path": "/metadata/managedFields", "value": []}])),
        "/type" => patch(json!([{"op": "replace", "path": "/data", "value": 5}])),
        "/bomb" => patch(bomb.clone().into()),
        "/many" => patch((0..20_000).map(|n| json!({"op": "test", "path": "/x", "value": n})).collect()),
        _ => patch(json!([{"op": "add", "path": "/data/k", "value": "x".repeat(4 << 20)}])),
    })
    .await;
    let plane = plane().await;
    let admin = plane.admin();
    admin.post(MAPS, config_map("m", json!({}))).await.expect(201);
    for (path, codes, says) in [
        ("/name", vec![400, 422], ""),
        ("/namespace", vec![400], ""),
        ("/uid", vec![422], "field is immutable"),
        (
            "/absent",
            vec![500],
            "error in remove for path: '/data/none': Unable to remove nonexistent key: none: missing value",
        ),
        (
            "/type",
            vec![500],
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type map[string]string",
        ),
        ("/kind", vec![500], "illegal base64 data at input byte 4"),
        ("/other", vec![500], "converting (v1.Secret) to (core.ConfigMap): unknown conversion"),
        ("/version", vec![500], "no kind \"ConfigMap\" is registered for version \"v2\" in scheme"),
        ("/bomb", vec![500], "Unable to complete the copy, the accumulated size increase of copy is "),
        ("/many", vec![500], "The allowed maximum operations in a JSON patch is 10000, got 20000"),
        ("/huge", vec![500], "failed calling webhook \"w.example.com\": failed to call webhook: "),
        ("/placed", vec![200], ""),
        ("/owners", vec![200], ""),
    ] {
        configure(&admin, MUTATING, "w", vec![webhook("w", server.client(path), json!({"timeoutSeconds": 10}))]).await;
        let answer = admin.merge(&format!("{MAPS}/m"), json!({"data": {"a": path}})).await;
        assert!(codes.contains(&answer.code), "{path}: {} {}", answer.code, answer.text());
        if answer.code != 200 {
            assert!(answer.message().contains(says), "{path}: {}", answer.message());
        }
        admin.delete(&format!("{MUTATING}/w")).await.expect(200);
    }
    let kept = admin.get(&format!("{MAPS}/m")).await.expect(200).json();
    assert!(kept["metadata"]["annotations"]["portolan.dev/clusters"].is_null(), "{kept}");
    assert_eq!(kept["metadata"].get("managedFields"), None, "an empty list of owners is not shown");
}

#[tokio::test]
async fn patches_drop_fields_that_are_never_stored() {
    let server = WebhookServer::start(|path, _| match path {
        "/text" => patch(json!([{"op": "replace", "path": "/spec", "value": "x"}])),
        "/audience" => patch(json!([{"op": "add", "path": "/spec/audiences", "value": [5]}])),
        "/seconds" => patch(json!([{"op": "add", "path": "/spec/expirationSeconds", "value": "x"}])),
        "/metadata" => patch(json!([{"op": "replace", "path": "/metadata", "value": [1]}])),
        "/status" => patch(json!([{"op": "replace", "path": "/status", "value": 5}])),
        "/all" => patch(json!([{"op": "replace", "path": "", "value": 5}])),
        "/none" => patch(json!([{"op": "remove", "path": "/spec"}])),
        "/options" => patch(json!([{"op": "add", "path": "/deleteOptions", "value": "x"}])),
        _ => patch(json!([{"op": "add", "path": "/spec/audiences", "value": ["narrow"]}])),
    })
    .await;
    let admin = plane().await.admin();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    admin.post(PODS, pod).await.expect(201);
    let token = ("/api/v1/namespaces/default/serviceaccounts/default/token", json!({"spec": {}}));
    let eviction = (&*format!("{PODS}/p/eviction"), json!({"metadata": {"name": "p"}}));
    let rules = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"],
        "resources": ["serviceaccounts/token", "pods/eviction"]}]);
    let unfit = |found: &str, at: &str| Some(format!("json: cannot unmarshal {found} into Go {at}"));
    for (path, (endpoint, body), refused) in [
        ("/text", &token, unfit("string", "struct field TokenRequest.spec of type v1.TokenRequestSpec")),
        ("/audience", &token, unfit("number", "struct field TokenRequestSpec.spec.audiences of type string")),
        ("/seconds", &token, unfit("string", "struct field TokenRequestSpec.spec.expirationSeconds of type int64")),
        ("/metadata", &token, unfit("array", "struct field TokenRequest.metadata of type v1.ObjectMeta")),
        ("/status", &token, unfit("number", "struct field TokenRequest.status of type v1.TokenRequestStatus")),
        ("/all", &token, Some("replace operation value must be object or array: %!w(<nil>)".to_owned())),
        ("/none", &token, None),
        ("/narrow", &token, None),
        ("/options", &eviction, unfit("string", "struct field Eviction.deleteOptions of type v1.DeleteOptions")),
    ] {
        let asked = webhook("w", server.client(path), json!({"rules": rules, "timeoutSeconds": 10}));
        configure(&admin, MUTATING, "w", vec![asked]).await;
        let answer = admin.post(endpoint, body.clone()).await;
        match (refused, path) {
            (Some(why), _) => {
                assert_eq!((answer.code, answer.message()), (500, format!("Internal error occurred: {why}")), "{path}")
            }
            (None, "/narrow") => assert_eq!(answer.expect(201).json()["spec"]["audiences"], json!(["narrow"])),
            (None, _) => assert!(answer.expect(201).json()["status"]["token"].is_string(), "{path}"),
        }
        admin.delete(&format!("{MUTATING}/w")).await.expect(200);
    }
    admin.get(&format!("{PODS}/p")).await.expect(200);
}

#[tokio::test]
async fn evictions_ask_no_webhook_for_deletions() {
    let server = WebhookServer::start(|_, _| Reply::Response(json!({"allowed": false}))).await;
    let admin = plane().await.admin();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    admin.post(PODS, pod).await.expect(201);
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}]);
    configure(&admin, VALIDATING, "w", vec![webhook("w", server.client("/"), json!({"rules": rules}))]).await;
    admin.delete(&format!("{PODS}/p")).await.expect(400);
    admin.post(&format!("{PODS}/p/eviction"), json!({"metadata": {"name": "p"}})).await.expect(201);
    admin.get(&format!("{PODS}/p")).await.expect(404);
    assert_eq!(server.asked.lock().len(), 1, "the eviction was not put before it");
}

#[tokio::test]
async fn a_scale_has_no_labels_to_be_selected_by_and_options_of_streams_are_never_selected() {
    let server = WebhookServer::start(|_, _| Reply::Response(json!({"allowed": false}))).await;
    let admin = plane().await.admin();
    let labels = json!({"a": "b"});
    let pods = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let deployment = json!({"metadata": {"name": "d", "labels": labels}, "spec": {"selector": {"matchLabels": labels}, "template": pods}});
    admin.post(DEPLOYMENTS, deployment).await.expect(201);
    let mut pod = pods.clone();
    pod["metadata"]["name"] = "p".into();
    admin.post(PODS, pod).await.expect(201);
    let rules = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["UPDATE", "CONNECT"],
        "resources": ["deployments/*", "pods/*"]}]);
    let labelled = json!({"matchLabels": labels});
    let unlabelled = json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]});
    for (selector, [status, scale, exec]) in [(labelled, [true, false, false]), (unlabelled, [false, true, false])] {
        let more = json!({"rules": rules, "objectSelector": selector.clone()});
        configure(&admin, VALIDATING, "w", vec![webhook("w", server.client("/"), more)]).await;
        let before = server.count("/");
        let asked = |before| server.count("/") > before;
        admin.merge(&format!("{DEPLOYMENTS}/d/status"), json!({"status": {"replicas": 1}})).await;
        assert_eq!(asked(before), status, "status, {selector}");
        let before = server.count("/");
        admin.merge(&format!("{DEPLOYMENTS}/d/scale"), json!({"spec": {"replicas": 3}})).await;
        assert_eq!(asked(before), scale, "scale, {selector}");
        let before = server.count("/");
        admin.send("POST", &format!("{PODS}/p/exec?command=ls&container=a"), &[], "").await;
        assert_eq!(asked(before), exec, "exec, {selector}");
        admin.delete(&format!("{VALIDATING}/w")).await.expect(200);
    }
}

#[tokio::test]
async fn impossible_and_running_deletions_call_no_webhook() {
    let server = WebhookServer::start(|_, _| Reply::Response(json!({"allowed": false}))).await;
    let admin = plane().await.admin();
    let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}]});
    admin.post(PODS, json!({"metadata": {"name": "p"}, "spec": spec})).await.expect(201);
    admin.delete(&format!("{PODS}/p")).await.expect(200);
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"],
        "resources": ["pods", "configmaps", "namespaces"]}]);
    for path in [MUTATING, VALIDATING] {
        configure(&admin, path, "w", vec![webhook("w", server.client("/"), json!({"rules": rules}))]).await;
    }
    let other = json!({"preconditions": {"uid": "other"}}).to_string();
    for path in [format!("{MAPS}/a"), format!("{PODS}/p")] {
        admin.send("DELETE", &path, &[], other.clone()).await.expect(409);
    }
    admin.delete("/api/v1/namespaces/default").await.expect(403);
    admin.delete(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(server.asked.lock().len(), 0);
    let sooner = json!({"gracePeriodSeconds": 1}).to_string();
    admin.send("DELETE", &format!("{PODS}/p"), &[], sooner).await.expect(400);
    assert_eq!(server.asked.lock().len(), 1, "less time is a change");
}

#[tokio::test]
async fn slow_webhooks_leave_places_for_writes_to_others() {
    let server = WebhookServer::start(|_, _| Reply::Silence).await;
    let plane = Plane::with(|config| {
        config.webhooks = WebhookAddresses { allow_local: true };
        config.limits.webhooks_per_tenant = 4;
    })
    .await;
    let admin = plane.admin();
    admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", json!({"metadata": {"name": "a"}})).await.expect(201);
    let slow = admin.at("root:a");
    configure(&slow, VALIDATING, "w", vec![webhook("w", server.client("/"), json!({}))]).await;
    let writes = (0..3).map(|n| {
        let slow = slow.clone();
        async move { slow.post(MAPS, config_map(&format!("m{n}"), json!({}))).await.code }
    });
    let mut codes = futures::future::join_all(writes).await;
    codes.sort_unstable();
    assert_eq!(codes, [429, 500, 500]);
    admin.post(MAPS, config_map("m", json!({}))).await.expect(201);
}

#[tokio::test]
async fn conditions_choose_whom_to_ask() {
    let server = WebhookServer::start(|_, _| allowed()).await;
    let plane = plane().await;
    let admin = plane.admin();
    let one = |expression: &str| vec![("c", expression.to_owned())];
    let failing = |message: &str| Some(format!(r#"configmaps "m" is forbidden: {message}"#));
    let missing = "expression 'object.data.none == \"x\"' resulted in error: no such key: none";
    for (case, conditions, policy, called, refused) in [
        ("what holds", one("object.data.k == 'v' && oldObject == null"), "Fail", true, None),
        ("what does not", one("request.operation == 'DELETE'"), "Fail", false, None),
        ("who asks", one("request.userInfo.username == 'admin' && !has(request.subResource)"), "Fail", true, None),
        ("by right", one("authorizer.group('').resource('pods').check('get').allowed()"), "Fail", true, None),
        (
            "without it",
            one("authorizer.serviceAccount('a', 'b').path('/x').check('get').allowed()"),
            "Fail",
            false,
            None,
        ),
        ("on what is asked for", one("authorizer.requestResource.check('create').reason() == ''"), "Fail", true, None),
        ("the namespace is not known here", one("namespaceObject == null"), "Fail", true, None),
        ("what fails", one("object.data.none == \"x\""), "Fail", false, failing(missing)),
        ("what fails and does not matter", one("object.data.none == \"x\""), "Ignore", false, None),
        (
            "one that does not hold decides",
            vec![("c", "object.data.none == \"x\"".to_owned()), ("d", "false".to_owned())],
            "Fail",
            false,
            None,
        ),
        (
            "all failures are reported",
            vec![
                ("c", "object.data.none == \"x\"".to_owned()),
                ("d", "object.data.none == \"x\"".to_owned()),
                ("e", "object.data.k == 1 || object.other".to_owned()),
            ],
            "Fail",
            false,
            failing(&format!(
                "[{missing}, expression 'object.data.k == 1 || object.other' resulted in error: no such key: other]"
            )),
        ),
        (
            "what costs too much",
            one(
                "[1,2,3,4,5,6,7,8,9,10,11,12].map(a, [1,2,3,4,5,6,7,8,9,10,11,12].map(b, [1,2,3,4,5,6,7,8,9,10,11,12].map(c, [1,2,3,4,5,6,7,8,9,10,11,12].map(d, [1,2,3,4,5,6,7,8,9,10,11,12].all(e, string(a) != string(e) || true))))).size() == 12",
            ),
            "Fail",
            false,
            Some("operation cancelled: actual cost limit exceeded".to_owned()),
        ),
    ] {
        let conditions: Vec<Value> =
            conditions.into_iter().map(|(name, text)| json!({"name": name, "expression": text})).collect();
        let more = json!({"matchConditions": conditions, "failurePolicy": policy});
        for kind in [MUTATING, VALIDATING] {
            configure(&admin, kind, "w", vec![webhook("w", server.client("/"), more.clone())]).await;
            let before = server.count("/");
            let answer = admin
                .post(&format!("{MAPS}?dryRun=All"), json!({"metadata": {"name": "m"}, "data": {"k": "v"}}))
                .await
                .expect(if refused.is_some() { 403 } else { 201 });
            assert_eq!(server.count("/") > before, called, "{case}");
            if let Some(message) = &refused {
                let found = answer.message();
                assert!(found.ends_with(message), "{case}: {found}");
            }
            admin.delete(&format!("{kind}/w")).await.expect(200);
        }
    }
}

#[tokio::test]
async fn conditions_must_compile_when_they_are_written() {
    let admin = plane().await.admin();
    let client = json!({"url": "https://example.com/x"});
    for (expression, says) in [
        ("1", r#"webhooks[0].matchConditions[0].expression: Invalid value: "1": must evaluate to bool but got int"#),
        (
            " object.x + ",
            r#"webhooks[0].matchConditions[0].expression: Invalid value: "object.x +": compilation failed: ERROR: <input>:1:11: Syntax error: mismatched input '<EOF>'"#,
        ),
        ("params == null", "undeclared reference to 'params' (in container '')"),
        ("variables.a", "undeclared reference to 'variables' (in container '')"),
    ] {
        let more = json!({"matchConditions": [{"name": "c", "expression": expression}]});
        let object = json!({"metadata": {"name": "w"}, "webhooks": [webhook("w", client.clone(), more)]});
        let refused = admin.post(VALIDATING, object).await.expect(422);
        assert!(refused.message().contains(says), "{expression}: {}", refused.message());
    }
}

#[tokio::test]
async fn a_write_asks_some_validating_webhooks_at_once_and_then_the_others() {
    let server = WebhookServer::start(|path, _| if path == "/silent" { Reply::Silence } else { allowed() }).await;
    let admin = plane().await.admin();
    let configured = async |path: &str| {
        let hook = |n: usize| webhook(&format!("w{n}"), server.client(path), json!({"timeoutSeconds": 30}));
        configure(&admin, VALIDATING, "w", (0..20).map(hook).collect()).await;
    };
    configured("/silent").await;
    let at_once = async {
        while server.asked.lock().len() < 16 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.asked.lock().len()
    };
    tokio::select! {
        _ = admin.post(MAPS, config_map("m", json!({}))) => panic!("it waits for all"),
        at_once = at_once => assert_eq!(at_once, 16),
    }
    admin.delete(&format!("{VALIDATING}/w")).await.expect(200);
    configured("/told").await;
    let text = "x".repeat(300_000);
    admin.post(MAPS, json!({"metadata": {"name": "m"}, "data": {"text": text}})).await.expect(201);
    assert_eq!(server.count("/told"), 20);
    let asked = server.last();
    assert_eq!((&asked["object"]["data"]["text"], &asked["oldObject"]), (&json!(text), &Value::Null));
}

#[tokio::test]
async fn webhook_mutations_of_evictions_and_bindings_apply() {
    let server = WebhookServer::start(|path, _| match path {
        "/dry" => patch(json!([{"op": "add", "path": "/deleteOptions", "value": {"dryRun": ["All"]}}])),
        "/node" => patch(json!([{"op": "replace", "path": "/target/name", "value": "other"}])),
        "/kind" => patch(json!([{"op": "replace", "path": "/target/kind", "value": "Pod"}])),
        "/name" => patch(json!([{"op": "replace", "path": "/metadata/name", "value": "q"}])),
        "/unsafe" => patch(json!([{"op": "add", "path": "/deleteOptions",
            "value": {"ignoreStoreReadErrorWithClusterBreakingPotential": true}}])),
        _ => allowed(),
    })
    .await;
    let admin = plane().await.admin();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    admin.post(PODS, pod).await.expect(201);
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["pods/eviction", "pods/binding"]}]);
    let (eviction, binding) = (format!("{PODS}/p/eviction"), format!("{PODS}/p/binding"));
    let evict = json!({"metadata": {"name": "p", "uid": "of-another"}});
    let bind = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let told = webhook("v", server.client("/told"), json!({"rules": rules}));
    for (path, at, object, code) in [
        ("/name", &eviction, &evict, 400),
        ("/unsafe", &eviction, &evict, 422),
        ("/dry", &eviction, &evict, 201),
        ("/name", &binding, &bind, 400),
        ("/kind", &binding, &bind, 500),
        ("/node", &binding, &bind, 201),
    ] {
        configure(&admin, MUTATING, "w", vec![webhook("w", server.client(path), json!({"rules": rules}))]).await;
        configure(&admin, VALIDATING, "v", vec![told.clone()]).await;
        let before = server.count("/told");
        let answer = admin.post(at, object.clone()).await;
        assert_eq!(answer.code, code, "{path}: {}", answer.text());
        assert_eq!(
            server.count("/told") - before,
            usize::from(code == 201),
            "{path}: what is refused is not validated"
        );
        for configuration in [format!("{MUTATING}/w"), format!("{VALIDATING}/v")] {
            admin.delete(&configuration).await.expect(200);
        }
    }
    let asked = server.asked.lock().clone();
    let (_, told) = asked.iter().find(|(path, _)| path == "/told").unwrap();
    assert_eq!(told["dryRun"], false, "that of the request counts");
    assert_eq!(told["object"]["deleteOptions"]["dryRun"], json!(["All"]));
    assert_eq!(told["object"]["metadata"]["namespace"], "default");
    assert_eq!(told["object"]["metadata"]["uid"], Value::Null);
    assert_eq!(admin.get(&format!("{PODS}/p")).await.expect(200).json()["spec"]["nodeName"], "other");
}

/// Port 8443 of every pod leads to a server, but for those whose names begin with `down`.
struct Ports {
    to: SocketAddr,
    connected: Arc<Mutex<Vec<(String, u16)>>>,
}

impl PodStreams for Ports {
    fn open(&self, _: PodStreamRequest) -> BoxFuture<'_, Result<http::Response<Body>, Status>> {
        Box::pin(async { Err(Status::bad_request("this is about ports")) })
    }

    fn connect(&self, to: PodPort) -> BoxFuture<'_, Result<DuplexStream, Status>> {
        Box::pin(async move {
            let name = object::name(&to.pod).to_owned();
            self.connected.lock().push((name.clone(), to.port));
            if name.starts_with("down") || to.port != 8443 {
                return Err(Status::new(Reason::ServiceUnavailable, format!("no server answers at {name}")));
            }
            let (stream, mut end) = tokio::io::duplex(1024);
            let mut server = TcpStream::connect(self.to).await.map_err(Status::internal)?;
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut end, &mut server).await });
            Ok(stream)
        })
    }
}

async fn pod(admin: &Client, name: &str, is_ready: bool) {
    let container = json!({"name": "hook", "image": "hook:1", "ports": [{"name": "https", "containerPort": 8443}]});
    let metadata = json!({"name": name, "labels": {"app": "hook", "tier": "back"}});
    admin.post(PODS, json!({"metadata": metadata, "spec": {"containers": [container]}})).await.expect(201);
    let ready = if is_ready { "True" } else { "False" };
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
    admin.merge(&format!("{PODS}/{name}/status"), status).await.expect(200);
}

#[tokio::test]
async fn a_webhook_behind_a_service_is_asked_in_a_pod_that_is_ready() {
    let server = WebhookServer::start(|_, _| allowed()).await;
    let connected = Arc::<Mutex<Vec<_>>>::default();
    let ports = Arc::new(Ports { to: server.address, connected: connected.clone() });
    let plane = Plane::with(|config| config.hooks.streams = ports).await;
    let admin = plane.admin();
    for (name, selector, ports) in [
        (
            "hook",
            json!({"app": "hook"}),
            json!([{"port": 443, "targetPort": "https", "name": "a"}, {"port": 8443, "name": "b"}]),
        ),
        ("stranger", json!({"app": "hook"}), json!([{"port": 443, "targetPort": 8443}])),
        ("nowhere", json!({"app": "other"}), json!([{"port": 443}])),
        ("open", Value::Null, json!([{"port": 443}])),
    ] {
        let service = json!({"metadata": {"name": name}, "spec": {"selector": selector, "ports": ports}});
        admin.post("/api/v1/namespaces/default/services", service).await.expect(201);
    }
    let elsewhere = json!({"type": "ExternalName", "externalName": "example.com", "selector": {"app": "hook"}, "ports": [{"port": 443}]});
    let elsewhere = json!({"metadata": {"name": "elsewhere"}, "spec": elsewhere});
    admin.post("/api/v1/namespaces/default/services", elsewhere).await.expect(201);
    let ask = async |service: &str, port: u16| {
        configure(&admin, VALIDATING, "w", vec![webhook("w", server.behind(service, port), json!({}))]).await;
        let answer = admin.post(&format!("{MAPS}?dryRun=All"), config_map("m", json!({}))).await;
        admin.delete(&format!("{VALIDATING}/w")).await.expect(200);
        match answer.code {
            201 => String::new(),
            _ => answer.message().to_owned(),
        }
    };
    for n in 0..300 {
        let name = format!("ended-{n}");
        pod(&admin, &name, false).await;
    }
    pod(&admin, "unready", false).await;
    assert!(ask("hook", 443).await.ends_with(r#"no endpoints available for service "hook""#));
    pod(&admin, "down-1", true).await;
    assert!(ask("hook", 443).await.ends_with(r#"pod down-1 of service "hook" cannot be reached"#));
    pod(&admin, "up", true).await;
    pod(&admin, "down-2", true).await;
    connected.lock().clear();
    assert_eq!((ask("hook", 443).await, ask("hook", 443).await), (String::new(), String::new()));
    let tried = connected.lock().clone();
    assert_eq!(
        tried.last(),
        Some(&("up".to_owned(), 8443)),
        "by the name of its port, after those that are down: {tried:?}"
    );
    assert!(tried.iter().filter(|(name, _)| name == "up").count() == 1, "the connection is kept: {tried:?}");
    assert_eq!(ask("hook", 8443).await, "", "by the number of the port where no target is named");
    for (service, port, says) in [
        ("hook", 9443, r#"no service port 9443 found for service "hook""#),
        ("nowhere", 443, r#"no endpoints available for service "nowhere""#),
        (
            "open",
            443,
            r#"service "open" cannot be reached: it selects no pods; say in clientConfig.url where the webhook is"#,
        ),
        (
            "elsewhere",
            443,
            r#"service "elsewhere" cannot be reached: it is of type ExternalName; say in clientConfig.url"#,
        ),
        ("stranger", 443, "tls: failed to verify certificate: x509: "),
    ] {
        let message = ask(service, port).await;
        assert!(message.contains(&format!("https://{service}.default.svc:{port}/x?timeout=1s\": {says}")), "{message}");
    }
}
