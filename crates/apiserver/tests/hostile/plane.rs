//! The server under attack: a tenant with a workspace, and another whose requests must continue.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Request};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use portolan_apiserver::{ApiServer, ApiServerConfig, User, http::answer_connection, webhooks::WebhookAddresses};
use portolan_types::Seams;
use serde_json::{Value, json};

use crate::{hooks, neighbour::Neighbour, row::Step, webhook_server::WebhookServer};

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub struct Plane {
    api: Arc<ApiServer>,
    kept: BTreeMap<String, String>,
    /// Answer as long as they are here.
    _hooks: Option<WebhookServer>,
}

pub struct Answer {
    pub code: u16,
    pub text: String,
    headers: HeaderMap,
    json: Value,
}

impl Answer {
    /// A header's value; empty for none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The text at a JSON pointer; `null` for nothing.
    pub fn at(&self, pointer: &str) -> String {
        match self.json.pointer(pointer).unwrap_or(&Value::Null) {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

pub fn user(name: &str, groups: &[&str]) -> Arc<User> {
    let groups = groups.iter().chain(&["system:authenticated"]).map(|group| (*group).to_owned()).collect();
    Arc::new(User { name: name.into(), groups, ..User::default() })
}

type Sent = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// The whole answer.
pub async fn ask(api: &Arc<ApiServer>, who: Option<Arc<User>>, request: Request<Sent>) -> Answer {
    let (parts, body) = answer_connection(api.clone(), who, request).await.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let json = serde_json::from_slice(&bytes).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Answer { code: parts.status.as_u16(), text, headers: parts.headers, json }
}

impl Plane {
    /// `root:t` of the tenant and `root:v` of another one, each with the ConfigMap `there`.
    pub async fn new() -> Self {
        Self::of(ApiServerConfig::in_memory(Seams::system())).await
    }

    /// The same, where webhooks may be on this machine, and with some.
    pub async fn with_hooks() -> Self {
        let mut config = ApiServerConfig::in_memory(Seams::system());
        config.webhooks = WebhookAddresses { allow_local: true };
        let (plane, hooks) = (Self::of(config).await, WebhookServer::start(hooks::answer).await);
        let text = |key: &str| hooks.client("")[key].as_str().unwrap_or_default().to_owned();
        let kept = [("hooks".to_owned(), text("url")), ("bundle".to_owned(), text("caBundle"))].into();
        Self { kept, _hooks: Some(hooks), ..plane }
    }

    async fn of(config: ApiServerConfig) -> Self {
        let api = ApiServer::new(portolan_store::memory(), config).await.unwrap();
        let plane = Self { api, kept: BTreeMap::new(), _hooks: None };
        for (workspace, owner) in [("t", "tenant"), ("v", "victim")] {
            plane
                .make(
                    "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces",
                    json!({"metadata": {"name": workspace}}),
                )
                .await;
            let binding = json!({
                "metadata": {"name": "owner"},
                "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": owner}],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            });
            let inside = format!("/clusters/root:{workspace}");
            plane.make(&format!("{inside}/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"), binding).await;
            plane.make(&format!("{inside}{MAPS}"), json!({"metadata": {"name": "there"}, "data": {"k": "v"}})).await;
            // No controllers run here, and pods need a service account that exists.
            let account = json!({"metadata": {"name": "default"}});
            plane.make(&format!("{inside}/api/v1/namespaces/default/serviceaccounts"), account).await;
        }
        plane
    }

    async fn make(&self, path: &str, object: Value) {
        let request = Request::post(path).header("content-type", "application/json");
        let body = Full::new(Bytes::from(object.to_string())).boxed_unsync();
        let answer = self.ask(Some(user("admin", &["system:masters"])), request.body(body).unwrap()).await;
        assert_eq!(answer.code, 201, "{}", answer.text);
    }

    async fn ask(&self, who: Option<Arc<User>>, request: Request<Sent>) -> Answer {
        ask(&self.api, who, request).await
    }

    /// Another tenant, who asks from now on.
    pub fn neighbour(&self) -> Neighbour {
        Neighbour::of(self.api.clone())
    }

    pub async fn send(&self, step: &Step, body: Bytes) -> Answer {
        let (method, target) = step.send.split_once(' ').unwrap();
        if method == "FINISH-DELETION" {
            return self.finish_deletion(target).await;
        }
        let mut request = Request::builder().method(method).uri(self.filled(target));
        for (name, value) in &step.headers {
            request = request.header(name, self.filled(&value.to_string()));
        }
        let who = match step.who.as_str() {
            "admin" => Some(user("admin", &["system:masters"])),
            "tenant" => Some(user("tenant", &[])),
            "nobody" => None,
            token => {
                request = request.header("authorization", self.filled(token));
                None
            }
        };
        let body = if step.chunked {
            let pieces =
                (0..body.len().div_ceil(4096)).map(move |n| body.slice(n * 4096..body.len().min((n + 1) * 4096)));
            StreamBody::new(futures::stream::iter(pieces).map(|piece| Ok(Frame::data(piece)))).boxed_unsync()
        } else {
            Full::new(body).boxed_unsync()
        };
        self.ask(who, request.body(body).unwrap()).await
    }

    /// Does the work of the workspace controller once the content is gone.
    async fn finish_deletion(&self, path: &str) -> Answer {
        let cluster = self.api.directory().by_path(&path.parse().unwrap()).unwrap();
        self.api.directory().remove(cluster.id).await.unwrap();
        let (parent, name) = path.rsplit_once(':').unwrap();
        let request = Request::patch(format!("/clusters/{parent}/apis/tenancy.kcp.io/v1alpha1/workspaces/{name}"))
            .header("content-type", "application/merge-patch+json")
            .body(Full::new(Bytes::from(r#"{"metadata":{"finalizers":null}}"#)).boxed_unsync());
        self.ask(Some(user("admin", &["system:masters"])), request.unwrap()).await
    }

    /// The body of a step with its places filled in.
    pub fn body(&self, step: &Step) -> Bytes {
        let body = step.body();
        match std::str::from_utf8(&body) {
            Ok(text) if !step.gzip && text.contains("${") => self.filled(text).into(),
            _ => body,
        }
    }

    fn filled(&self, text: &str) -> String {
        self.kept.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("${{{name}}}"), value))
    }

    pub fn keep(&mut self, step: &Step, answer: &Answer) {
        for (name, pointer) in &step.keep {
            self.kept.insert(name.clone(), answer.at(pointer));
        }
    }
}
