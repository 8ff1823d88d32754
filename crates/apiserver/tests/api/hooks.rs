//! Hooks of the embedding program.

use std::sync::Arc;

use crate::common::{MAPS, Plane, config_map};
use portolan_apiserver::{
    LogicalCluster,
    admission::{AdmissionPlugin, AdmissionRequest},
    hooks::{PodStream, PodStreamRequest, PodStreams, ReadyCheck, Requester, ReviewHandler, WriteAdvisor},
};
use portolan_kinds::Kind;
use portolan_types::{BoxFuture, Status, object};
use serde_json::{Value, json};

struct Plugged;

impl AdmissionPlugin for Plugged {
    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        new: &'a mut Value,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            match object::name(new) {
                "panics" => panic!("as tested"),
                "refused" => Err(Status::forbidden(&request.kind.group_resource(), "refused", "because")),
                _ => {
                    object::set_annotation(new, "seen", Some(request.user.name.clone()));
                    Ok(())
                }
            }
        })
    }
}

impl WriteAdvisor for Plugged {
    fn advise(&self, cluster: &LogicalCluster, kind: &Kind, new: &Value) -> Vec<String> {
        vec![format!("{} {} in {}", kind.gvk.kind, object::name(new), cluster.path)]
    }
}

impl ReviewHandler for Plugged {
    fn review<'a>(
        &'a self,
        _cluster: &'a LogicalCluster,
        kind: &'a Kind,
        mut asked: Value,
        _caller: Requester<'a>,
    ) -> Option<BoxFuture<'a, Result<Value, Status>>> {
        asked["status"] = json!({"clusters": []});
        (*kind.resource == *"placementexplanations").then(|| Box::pin(async move { Ok(asked) }) as _)
    }
}

impl PodStreams for Plugged {
    fn open(
        &self,
        request: PodStreamRequest,
    ) -> BoxFuture<'_, Result<http::Response<portolan_apiserver::Body>, Status>> {
        assert!(!request.request.headers().contains_key("authorization"));
        let text = match request.stream {
            PodStream::Log => "a line\n",
            _ => "",
        };
        let body = portolan_apiserver::full(text);
        Box::pin(async move { Ok(http::Response::new(body)) })
    }
}

impl ReadyCheck for Plugged {
    fn name(&self) -> &str {
        "tested"
    }

    fn check(&self) -> Result<(), String> {
        Err("not yet".into())
    }
}

async fn plane() -> Plane {
    Plane::with(|config| {
        config.hooks.admission.push(Arc::new(Plugged));
        config.hooks.advisor = Some(Arc::new(Plugged));
        config.hooks.reviews.push(Arc::new(Plugged));
        config.hooks.streams = Arc::new(Plugged);
        config.hooks.ready.push(Arc::new(Plugged));
    })
    .await
}

#[tokio::test]
async fn admission_changes_refuses_and_may_even_panic() {
    let admin = plane().await.admin();
    let made = admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    assert_eq!(made.headers["warning"], "299 - \"ConfigMap a in root\"");
    assert_eq!(made.json()["metadata"]["annotations"]["seen"], "admin");
    admin.post(MAPS, config_map("refused", json!({}))).await.expect(403);
    let broken = admin.post(MAPS, config_map("panics", json!({}))).await.expect(500);
    assert_eq!(broken.json()["reason"], "InternalError");
    admin.post(MAPS, config_map("b", json!({}))).await.expect(201);
}

#[tokio::test]
async fn reviews_streams_and_readiness_have_their_own_handlers() {
    let admin = plane().await.admin();
    let path = "/apis/portolan.dev/v1alpha1/namespaces/default/placementexplanations";
    let asked = json!({"metadata": {"name": "x"}, "spec": {"object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    let answer = admin.post(path, asked).await.expect(201).json();
    assert_eq!(answer["status"]["clusters"], json!([]));
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    admin.post("/api/v1/namespaces/default/pods", pod).await.expect(201);
    let log = [("authorization", "Bearer secret")];
    assert_eq!(
        admin.send("GET", "/api/v1/namespaces/default/pods/p/log", &log, "").await.expect(200).text(),
        "a line\n"
    );
    let ready = admin.get("/readyz").await.expect(500);
    assert!(ready.text().contains("[-]tested failed: not yet"), "{}", ready.text());
    admin.get("/readyz?exclude=tested").await.expect(200);
    admin.get("/livez").await.expect(200);
}

/// Logs without an end.
struct Endless;

impl PodStreams for Endless {
    fn open(&self, _: PodStreamRequest) -> BoxFuture<'_, Result<http::Response<portolan_apiserver::Body>, Status>> {
        let lines = futures::stream::pending::<Result<http_body::Frame<bytes::Bytes>, portolan_apiserver::BodyError>>();
        let body = http_body_util::BodyExt::boxed_unsync(http_body_util::StreamBody::new(lines));
        Box::pin(async move { Ok(http::Response::new(body)) })
    }
}

#[tokio::test]
async fn long_requests_have_their_own_bound_and_health_always_answers() {
    let plane = Plane::with(|config| {
        config.hooks.streams = Arc::new(Endless);
        config.limits.streams_per_cluster = 1;
        config.limits.watches_per_cluster = 1;
        config.limits.reads = 1;
    })
    .await;
    let admin = plane.admin();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    admin.post("/api/v1/namespaces/default/pods", pod).await.expect(201);
    let open = || {
        let request = http::Request::get("/clusters/root/api/v1/namespaces/default/pods/p/log");
        admin.raw(request.body(http_body_util::Full::default()).unwrap())
    };
    let first = open().await;
    let watch = admin.watch(&format!("{MAPS}?watch=true&resourceVersion=1"), &[]).await;
    for full in [
        open().await,
        admin
            .raw(
                http::Request::get(format!("/clusters/root{MAPS}?watch=1"))
                    .body(http_body_util::Full::default())
                    .unwrap(),
            )
            .await,
    ] {
        assert_eq!((full.status().as_u16(), &full.headers()["retry-after"]), (429, &http::HeaderValue::from(1)));
    }
    admin.get(MAPS).await.expect(200);
    for path in ["/livez", "/readyz", "/healthz"] {
        admin.get(path).await.expect(200);
    }
    drop((first, watch));
    assert_eq!(open().await.status().as_u16(), 200, "the place is given back with the stream");
    admin.watch(&format!("{MAPS}?watch=true&resourceVersion=1"), &[]).await;
}
