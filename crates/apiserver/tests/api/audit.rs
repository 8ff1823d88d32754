//! Audit events, as a log and a webhook get them.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use portolan_apiserver::{
    Body,
    audit::{AUDIT_QUEUE, AuditConfig, AuditLogConfig, AuditWebhookConfig},
    http::answer_connection,
};
use serde_json::{Value, json};

use crate::common::{MAPS, Plane, Reply, WebhookServer, config_map};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn config(folder: &Path, rules: &str) -> AuditConfig {
    let policy = folder.join("policy.yaml");
    std::fs::write(&policy, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
    let path = folder.join("audit.log");
    let log = AuditLogConfig { path, max_age_days: 0, max_backups: 0, max_size_mib: 0 };
    AuditConfig { policy, log: Some(log), webhook: None, queue: AUDIT_QUEUE }
}

async fn plane(audit: AuditConfig) -> Plane {
    Plane::with(|config| config.audit = Some(audit)).await
}

/// Stops the server and reads its log.
async fn events(plane: &Plane, folder: &Path) -> Vec<Value> {
    plane.api.stop().await;
    let text = std::fs::read_to_string(folder.join("audit.log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn send(plane: &Plane, request: http::request::Builder) -> (u16, Body) {
    let request = request.body(Full::new(Bytes::new())).unwrap();
    let response = answer_connection(plane.api.clone(), None, request).await;
    (response.status().as_u16(), response.into_body())
}

/// Returns stages and codes of the events of one URL.
fn stages(events: &[Value], uri: &str) -> Vec<String> {
    let own = events.iter().filter(|event| event["requestURI"].as_str().unwrap().contains(uri));
    own.map(|event| {
        let code = &event["responseStatus"]["code"];
        format!(
            "{}{}",
            event["stage"].as_str().unwrap(),
            if code.is_null() { String::new() } else { format!(" {code}") }
        )
    })
    .collect()
}

#[tokio::test]
async fn events_name_user_object_workspace_and_decision() {
    let folder = tempfile::tempdir().unwrap();
    let plane = plane(config(folder.path(), "rules: [{level: Metadata}]")).await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let agent = [("user-agent", "kubectl/1.36"), ("content-type", "application/json"), ("audit-id", "a-1")];
    admin.send("POST", MAPS, &agent, config_map("web", json!({})).to_string()).await.expect(201);
    ann.send("DELETE", &format!("{MAPS}/web"), &[("audit-id", "a-2")], "").await.expect(403);
    let events = events(&plane, folder.path()).await;
    let of = |id: &str, stage: &str| {
        let found = events.iter().find(|event| event["auditID"] == id && event["stage"] == stage);
        found.unwrap_or_else(|| panic!("no {stage} of {id}")).clone()
    };
    let received = of("a-1", "RequestReceived");
    assert_eq!((&received["responseStatus"], &received["user"]["username"]), (&Value::Null, &json!("admin")));
    let mut made = of("a-1", "ResponseComplete");
    for time in ["requestReceivedTimestamp", "stageTimestamp"] {
        let text = made.as_object_mut().unwrap().remove(time).unwrap();
        assert!(text.as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{text}");
    }
    let expected = json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "a-1",
        "stage": "ResponseComplete", "requestURI": "/clusters/root/api/v1/namespaces/default/configmaps",
        "verb": "create", "user": {"username": "admin", "groups": ["system:masters", "system:authenticated"]},
        "userAgent": "kubectl/1.36",
        "objectRef": {"resource": "configmaps", "namespace": "default", "name": "web", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 201},
        "annotations": {
            "authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "",
            "tenancy.kcp.io/workspace": "root",
        },
    });
    assert_eq!(made, expected);
    let refused = of("a-2", "ResponseComplete");
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");
    let status = &refused["responseStatus"];
    assert_eq!(
        (&status["code"], &status["reason"], &status["status"]),
        (&json!(403), &json!("Forbidden"), &json!("Failure"))
    );
    assert!(status.get("kind").is_none() && status["message"].as_str().unwrap().contains("ann"), "{status}");
}

#[tokio::test]
async fn impersonators_are_named_with_the_impersonated_user() {
    let folder = tempfile::tempdir().unwrap();
    let plane =
        plane(config(folder.path(), "omitStages: [RequestReceived]\nrules: [{level: Metadata, users: [admin]}]")).await;
    plane.admin().send("GET", MAPS, &[("impersonate-user", "bob")], "").await.expect(403);
    let events = events(&plane, folder.path()).await;
    assert_eq!(events.len(), 1, "the policy looks at the client's own user: {events:?}");
    assert_eq!(events[0]["user"]["username"], "admin");
    let own = plane_of_allowed_impersonation().await;
    assert_eq!(own["impersonatedUser"]["username"], "bob");
    let reason = own["annotations"]["authorization.k8s.io/reason"].as_str().unwrap();
    assert!(reason.contains("RBAC: allowed by ClusterRoleBinding \"v\""), "{reason}");
}

async fn plane_of_allowed_impersonation() -> Value {
    let folder = tempfile::tempdir().unwrap();
    let rules = "omitStages: [RequestReceived]\nrules: [{level: Metadata, verbs: [list]}]";
    let plane = plane(config(folder.path(), rules)).await;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
    let subject = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob"});
    let binding = json!({"metadata": {"name": "v"}, "subjects": [subject], "roleRef": role});
    plane.admin().post(&format!("{RBAC}/clusterrolebindings"), binding).await.expect(201);
    plane.admin().send("GET", MAPS, &[("impersonate-user", "bob")], "").await.expect(200);
    events(&plane, folder.path()).await.pop().unwrap()
}

#[tokio::test]
async fn bodies_of_secrets_and_tokens_are_never_written() {
    let folder = tempfile::tempdir().unwrap();
    let plane = plane(config(folder.path(), "rules: [{level: RequestResponse}]")).await;
    let admin = plane.admin();
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    admin.post(SECRETS, secret).await.expect(201);
    admin.get(SECRETS).await.expect(200);
    admin.merge(&format!("{SECRETS}/s"), json!({"stringData": {"password": "hunter3"}})).await.expect(200);
    let accounts = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let token = admin.post(accounts, json!({"spec": {}})).await.expect(201).json();
    let token = token["status"]["token"].as_str().unwrap().to_owned();
    let review = json!({"spec": {"token": token}});
    admin.post("/apis/authentication.k8s.io/v1/tokenreviews", review).await.expect(201);
    send(&plane, Request::get(format!("/clusters/root{MAPS}")).header("authorization", format!("Bearer {token}")))
        .await;
    let sign_in =
        Request::post("/ui/session").header("x-portolan-console", "1").header("content-type", "application/json");
    let sign_in = sign_in.body(Full::new(Bytes::from(json!({"token": token}).to_string()))).unwrap();
    assert_eq!(answer_connection(plane.api.clone(), None, sign_in).await.status(), 201);
    send(&plane, Request::get("/ui/oidc/callback?code=hunter4&state=hunter5")).await;
    admin.post(MAPS, config_map("web", json!({"seen": "yes"}))).await.expect(201);
    let events = events(&plane, folder.path()).await;
    let log = std::fs::read_to_string(folder.path().join("audit.log")).unwrap();
    for word in ["hunter", "aHVudGVy", &token] {
        assert!(!log.contains(word), "{word} is in the log");
    }
    let levels = |resource: &str| -> Vec<_> {
        let own = events.iter().filter(|event| event["objectRef"]["resource"] == resource);
        own.map(|event| event["level"].as_str().unwrap()).collect()
    };
    assert!(levels("secrets").iter().chain(&levels("tokenreviews")).all(|level| *level == "Metadata"));
    let map = events.iter().rfind(|event| event["objectRef"]["resource"] == "configmaps" && event["verb"] == "create");
    let map = map.unwrap();
    assert_eq!(map["requestObject"]["metadata"]["labels"]["seen"], "yes");
    assert!(map["responseObject"]["metadata"]["uid"].is_string() && map["level"] == "RequestResponse");
}

#[tokio::test]
async fn stages_are_those_of_kube_apiserver() {
    let folder = tempfile::tempdir().unwrap();
    let plane = plane(config(folder.path(), "rules: [{level: Metadata}]")).await;
    let admin = plane.admin();
    let mut watch = admin.watch(&format!("{MAPS}?watch=1&resourceVersion=1"), &[]).await;
    admin.post(MAPS, config_map("web", json!({}))).await.expect(201);
    assert_eq!(watch.seen().await.1, "web");
    drop(watch);
    let (code, _) =
        send(&plane, Request::get("/clusters/root/api/v1/nodes").header("authorization", "Bearer no")).await;
    assert_eq!(code, 401);
    let (code, _) = send(&plane, Request::get("/clusters/root/version")).await;
    assert_eq!(code, 200);
    let events = events(&plane, folder.path()).await;
    for (case, uri, expected) in [
        (
            "a watch ends with its body",
            "watch=1",
            vec!["RequestReceived", "ResponseStarted 200", "ResponseComplete 200"],
        ),
        ("a client without an identity has one event", "/nodes", vec!["ResponseStarted 401"]),
        ("a path", "/version", vec!["RequestReceived", "ResponseComplete 200"]),
    ] {
        assert_eq!(stages(&events, uri), expected, "{case}");
    }
}

#[tokio::test]
async fn omitted_stages_and_managed_fields_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "omitStages: [RequestReceived]\nomitManagedFields: true\nrules: [{level: RequestResponse}]";
    let plane = plane(config(folder.path(), rules)).await;
    plane.admin().post(MAPS, config_map("web", json!({}))).await.expect(201);
    plane.admin().get(MAPS).await.expect(200);
    let events = events(&plane, folder.path()).await;
    assert_eq!(stages(&events, MAPS), ["ResponseComplete 201", "ResponseComplete 200"]);
    assert!(!std::fs::read_to_string(folder.path().join("audit.log")).unwrap().contains("managedFields"));
}

#[tokio::test]
async fn batches_reach_a_webhook_and_lost_events_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let hook = WebhookServer::start(|path, _| match path {
        "/audit" => Reply::Raw(200, Vec::new(), Vec::new()),
        _ => Reply::Raw(403, Vec::new(), Vec::new()),
    })
    .await;
    let mut audit = config(folder.path(), "rules: [{level: Metadata, verbs: [list]}]");
    audit.log = None;
    for (path, lost) in [("/audit", 0), ("/refused", 4)] {
        let client = hook.client(path);
        let kubeconfig = folder.path().join("webhook.kubeconfig");
        let cluster = json!({"server": client["url"], "certificate-authority-data": client["caBundle"]});
        let text = json!({
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}], "users": [{"name": "u", "user": {"token": "t"}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let (batch_size, batch_wait) = (3, Duration::from_millis(20));
        let initial_backoff = Duration::from_millis(1);
        audit.webhook = Some(AuditWebhookConfig { kubeconfig, batch_size, batch_wait, initial_backoff });
        let plane = plane(audit.clone()).await;
        for _ in 0..2 {
            plane.admin().get(MAPS).await.expect(200);
        }
        plane.api.stop().await;
        let asked: Vec<_> = hook.asked.lock().iter().filter(|(to, _)| to == path).cloned().collect();
        let posted: usize = asked.iter().map(|(_, list)| list["items"].as_array().unwrap().len()).sum();
        assert_eq!(posted, 4, "{path}");
        assert!(asked.iter().all(|(_, list)| list["kind"] == "EventList" && list["apiVersion"] == "audit.k8s.io/v1"));
        let metrics = plane.admin().get("/metrics").await.text();
        let line = format!("apiserver_audit_error_total{{plugin=\"webhook\"}} {lost}");
        assert_eq!(metrics.contains(&line), lost > 0, "{path}");
    }
}

#[tokio::test]
async fn a_server_without_audit_has_none_of_it() {
    let plane = Plane::new().await;
    plane.admin().get(MAPS).await.expect(200);
    assert!(!plane.admin().get("/metrics").await.text().contains("audit"));
}
