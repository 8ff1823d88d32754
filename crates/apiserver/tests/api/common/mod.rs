//! The server in process, on a memory store.

mod clock;
mod damage;
mod faulty;
mod webhook_server;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::{ApiServer, ApiServerConfig, Body, InProcess, User, authn::StaticToken};
use portolan_types::Seams;
use serde_json::Value;
use tower::ServiceExt as _;

pub use clock::Hands;
pub use damage::damaged;
pub use faulty::Faulty;
pub use webhook_server::{Reply, WebhookServer};

/// A server with clients of several users.
pub struct Plane {
    pub api: Arc<ApiServer>,
    pub store: portolan_store::DynStore,
}

/// Response of the server.
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub bytes: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    pub fn expect(self, code: u16) -> Self {
        assert_eq!(self.code, code, "{}", self.text());
        self
    }
}

pub fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..User::default() }
}

impl Plane {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut ApiServerConfig)) -> Self {
        let mut config = ApiServerConfig::in_memory(Seams::system());
        config.static_tokens = vec![StaticToken { token: "t-ann".into(), user: user("ann", &["dev"]) }];
        change(&mut config);
        Self::on(portolan_store::memory(), config).await
    }

    pub async fn on(store: portolan_store::DynStore, config: ApiServerConfig) -> Self {
        let plane = Self { api: ApiServer::new(store.clone(), config).await.unwrap(), store };
        // No controllers run here, and pods need a service account that exists.
        let account = serde_json::json!({"metadata": {"name": "default"}});
        let path = "/api/v1/namespaces/default/serviceaccounts";
        let service = plane.api.service_as(user("controller", &["system:masters"]));
        let made = Client { service, base: "/clusters/root".into() }.post(path, account).await;
        assert!(matches!(made.code, 201 | 409), "{}", made.text());
        plane
    }

    pub fn admin(&self) -> Client {
        Client { service: self.api.service_as(user("admin", &["system:masters"])), base: "/clusters/root".into() }
    }

    pub fn as_user(&self, name: &str) -> Client {
        Client { service: self.api.service_as(user(name, &[])), base: "/clusters/root".into() }
    }
}

/// A client of one user in one logical cluster.
#[derive(Clone)]
pub struct Client {
    pub service: InProcess,
    pub base: String,
}

impl Client {
    pub fn at(&self, path: &str) -> Self {
        Self { service: self.service.clone(), base: format!("/clusters/{path}") }
    }

    pub async fn raw(&self, request: Request<Full<Bytes>>) -> http::Response<Body> {
        self.service.clone().oneshot(request).await.unwrap()
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.raw(request.body(Full::new(body.into())).unwrap()).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer { code: parts.status.as_u16(), headers: parts.headers, bytes }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    pub async fn post(&self, path: &str, object: Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], object.to_string()).await
    }

    pub async fn put(&self, path: &str, object: Value) -> Answer {
        self.send("PUT", path, &[("content-type", "application/json")], object.to_string()).await
    }

    pub async fn patch(&self, path: &str, media: &str, patch: Value) -> Answer {
        self.send("PATCH", path, &[("content-type", media)], patch.to_string()).await
    }

    pub async fn merge(&self, path: &str, patch: Value) -> Answer {
        self.patch(path, "application/merge-patch+json", patch).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], "").await
    }

    /// Opens a watch.
    pub async fn watch(&self, path: &str, headers: &[(&str, &str)]) -> Watch {
        let mut request = Request::builder().method("GET").uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Watch::of(self.raw(request.body(Full::new(Bytes::new())).unwrap()).await)
    }
}

/// A running watch.
pub struct Watch {
    body: Body,
    buffer: Vec<u8>,
}

impl Watch {
    /// Wraps the response of a watch.
    pub fn of(response: http::Response<Body>) -> Self {
        assert_eq!(response.status().as_u16(), 200);
        Self { body: response.into_body(), buffer: Vec::new() }
    }

    /// The next event; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(at) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=at).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.unwrap();
            self.buffer.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// Returns type and name of the next event.
    pub async fn seen(&mut self) -> (String, String) {
        let event = self.next().await.expect("the watch continues");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}

pub fn config_map(name: &str, labels: Value) -> Value {
    serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"k": "v"}})
}

/// Stores many objects at once, each of `size` bytes.
pub async fn fill(store: &portolan_store::DynStore, count: usize, size: usize) {
    let text = "x".repeat(size);
    let names: Vec<String> = (0..count).map(|n| format!("m{n:05}")).collect();
    for names in names.chunks(50) {
        let mut transaction = portolan_store::Transaction::default();
        for name in names {
            let mut object = config_map(name, serde_json::json!({}));
            object["metadata"]["namespace"] = "default".into();
            object["data"]["k"] = text.as_str().into();
            let key = portolan_types::ObjectKey::namespaced(
                portolan_types::LogicalClusterId::ROOT,
                portolan_types::GroupResource::new("", "configmaps"),
                "default".parse().unwrap(),
                name.parse().unwrap(),
            );
            let record = portolan_types::Record::of(&object);
            transaction = transaction.and(key, portolan_store::Expect::Absent, Some(record));
        }
        store.commit(transaction).await.unwrap();
    }
}

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
