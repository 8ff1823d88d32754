//! Aggregated API servers.

use portolan_apiserver::webhooks::WebhookAddresses;
use serde_json::{Value, json};

use crate::common::{Plane, Reply, WebhookServer};

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const GROUP: &str = "/apis/wardle.example.com/v1alpha1";
const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";
const DISCOVERY: [(&str, &str); 1] =
    [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];

fn answer(path: &str) -> Reply {
    let json =
        |body: Value| Reply::Raw(200, vec![("content-type", "application/json".into())], body.to_string().into());
    match path {
        GROUP => {
            json(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "wardle.example.com/v1alpha1",
            "resources": [{"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder",
                "verbs": ["get", "list", "create"]}]}))
        }
        "/openapi/v3/apis/wardle.example.com/v1alpha1" => json(json!({"openapi": "3.0.0"})),
        FLUNDERS => json(json!({"kind": "FlunderList", "apiVersion": "wardle.example.com/v1alpha1", "items": []})),
        "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders/page" => Reply::Raw(
            200,
            vec![("content-type", "text/html".into()), ("set-cookie", "session=mine".into())],
            b"<script>alert(1)</script>".to_vec(),
        ),
        "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders/away" => {
            Reply::Raw(302, vec![("location", "https://evil.example".into())], Vec::new())
        }
        _ => Reply::Raw(404, Vec::new(), b"{}".to_vec()),
    }
}

async fn plane(allow_local: bool) -> Plane {
    Plane::with(move |config| config.webhooks = WebhookAddresses { allow_local }).await
}

fn api_service(server: &WebhookServer, url: Option<String>) -> Value {
    let mut service = json!({"metadata": {"name": "v1alpha1.wardle.example.com"}, "spec": {
        "group": "wardle.example.com", "version": "v1alpha1", "groupPriorityMinimum": 1000, "versionPriority": 15,
        "caBundle": server.ca_bundle(),
        "service": {"namespace": "default", "name": "wardle", "port": server.address.port()}}});
    if let Some(url) = url {
        service["metadata"]["annotations"] = json!({"portolan.dev/url": url});
    }
    service
}

#[tokio::test]
async fn a_group_of_another_api_server_is_served_as_if_it_were_here() {
    let server = WebhookServer::start(|path, _| answer(path)).await;
    let plane = plane(true).await;
    let admin = plane.admin();
    admin.get(FLUNDERS).await.expect(404);
    admin.post(SERVICES, api_service(&server, Some(format!("https://{}", server.address)))).await.expect(201);
    assert_eq!(admin.get(FLUNDERS).await.expect(200).json()["kind"], "FlunderList");
    let seen = server.last();
    // Of several values of a header the server shows the last.
    assert_eq!((&seen["x-remote-user"], &seen["x-remote-group"]), (&json!("admin"), &json!("system:authenticated")));
    assert_eq!(seen.get("authorization"), None);
    let made = json!({"kind": "Flunder", "metadata": {"name": "a"}});
    admin.post(FLUNDERS, made.clone()).await.expect(200);
    assert_eq!(server.last(), made);
    let groups = admin.get("/apis").await.expect(200).json();
    let last = groups["groups"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&last["name"], &last["preferredVersion"]["version"]),
        (&json!("wardle.example.com"), &json!("v1alpha1"))
    );
    assert_eq!(admin.get("/apis/wardle.example.com").await.expect(200).json()["kind"], "APIGroup");
    assert_eq!(admin.get(GROUP).await.expect(200).json()["resources"][0]["name"], "flunders");
    let all = admin.send("GET", "/apis", &DISCOVERY, "").await.expect(200).json();
    let own = all["items"].as_array().unwrap().iter().find(|item| item["metadata"]["name"] == "wardle.example.com");
    let version = &own.unwrap()["versions"][0];
    assert_eq!((&version["freshness"], &version["resources"][0]["resource"]), (&json!("Current"), &json!("flunders")));
    let index = admin.get("/openapi/v3").await.expect(200).json();
    let url = &index["paths"]["apis/wardle.example.com/v1alpha1"]["serverRelativeURL"];
    assert_eq!(admin.get(url.as_str().unwrap()).await.expect(200).json()["openapi"], "3.0.0");
    admin.delete(&format!("{SERVICES}/v1alpha1.wardle.example.com")).await.expect(200);
    admin.get(FLUNDERS).await.expect(404);
}

#[tokio::test]
async fn an_external_name_is_asked_at_its_host() {
    let server = WebhookServer::start(|path, _| answer(path)).await;
    let plane = plane(true).await;
    let admin = plane.admin();
    let service =
        json!({"metadata": {"name": "wardle"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    admin.post("/api/v1/namespaces/default/services", service).await.expect(201);
    admin.post(SERVICES, api_service(&server, None)).await.expect(201);
    admin.get(FLUNDERS).await.expect(200);
}

#[tokio::test]
async fn an_answer_does_nothing_to_this_origin_and_leads_nowhere() {
    let server = WebhookServer::start(|path, _| answer(path)).await;
    let plane = plane(true).await;
    let admin = plane.admin();
    admin.post(SERVICES, api_service(&server, Some(format!("https://{}", server.address)))).await.expect(201);
    let page = admin.get(&format!("{FLUNDERS}/page")).await.expect(200);
    assert_eq!(page.headers["content-security-policy"], "sandbox");
    assert!(!page.headers.contains_key("set-cookie"));
    admin.get(&format!("{FLUNDERS}/away")).await.expect(502);
}

#[tokio::test]
async fn rights_and_addresses_are_checked_here() {
    let server = WebhookServer::start(|path, _| answer(path)).await;
    let (open, closed) = (plane(true).await, plane(false).await);
    for plane in [&open, &closed] {
        let service = api_service(&server, Some(format!("https://{}", server.address)));
        plane.admin().post(SERVICES, service).await.expect(201);
    }
    open.as_user("ann").get(FLUNDERS).await.expect(403);
    let refused = closed.admin().get(FLUNDERS).await.expect(503);
    assert!(refused.message().contains("--allow-local-webhooks"), "{}", refused.message());
    assert_eq!(*server.connections.lock(), 0);
    let admin = open.admin();
    for (url, why) in [
        ("http://127.0.0.1:1", "is not an https URL"),
        ("https://user@127.0.0.1:1", "has a user"),
        ("https://169.254.169.254", "169.254.169.254"),
    ] {
        let patch = json!({"metadata": {"annotations": {"portolan.dev/url": url}}});
        admin.merge(&format!("{SERVICES}/v1alpha1.wardle.example.com"), patch).await.expect(200);
        let refused = admin.get(FLUNDERS).await.expect(503);
        assert!(refused.message().contains(why), "{}", refused.message());
    }
    let groups = admin.send("GET", "/apis", &DISCOVERY, "").await.expect(200).json();
    let own = groups["items"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(own["versions"][0]["freshness"], "Stale", "it is listed without resources");
}
