//! Client of a workspace of a control plane in this process.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::{ApiServer, User};
use portolan_kinds::KindTable;
use portolan_types::{GroupVersionKind, LogicalClusterPath, object};
use serde_json::Value;
use tower::ServiceExt as _;

/// Client of one workspace of a control plane in this process. It acts as an administrator named `portolan-demo`.
#[derive(Clone)]
pub struct WorkspaceClient {
    api: Arc<ApiServer>,
    path: LogicalClusterPath,
}

impl WorkspaceClient {
    /// Makes a client of the workspace at `path`.
    pub fn new(api: &Arc<ApiServer>, path: &LogicalClusterPath) -> Self {
        Self { api: api.clone(), path: path.clone() }
    }

    /// Applies every document of a YAML text, as `kubectl apply --server-side --force-conflicts` does, and returns the
    /// objects as they are stored.
    ///
    /// # Errors
    /// Fails if a document is not an object of a known kind, or the API refuses it. Earlier documents stay applied.
    pub async fn apply(&self, manifests: &str) -> anyhow::Result<Vec<Value>> {
        let mut applied = Vec::new();
        for document in manifests.split("\n---\n").filter(|text| !text.trim().is_empty()) {
            let object: Value = serde_saphyr::from_str(document).context("a manifest is not YAML")?;
            let url = self.url(&object)?;
            let query = "?fieldManager=portolan-demo&force=true";
            let body = Bytes::from(serde_json::to_vec(&object)?);
            applied.push(self.send(Method::PATCH, &format!("{url}{query}"), body).await?);
        }
        Ok(applied)
    }

    /// Reads one object or list by its path in the workspace, such as `/api/v1/namespaces/default/pods`.
    ///
    /// # Errors
    /// Fails if the API refuses it.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(Method::GET, &format!("/clusters/{}{path}", self.path), Bytes::new()).await
    }

    /// Deletes one object by its path in the workspace.
    ///
    /// # Errors
    /// Fails if the API refuses it.
    pub async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.send(Method::DELETE, &format!("/clusters/{}{path}", self.path), Bytes::new()).await
    }

    /// Creates an object, or a subresource such as an eviction, by a path in the workspace.
    ///
    /// # Errors
    /// Fails if the API refuses it.
    pub async fn post(&self, path: &str, object: &Value) -> anyhow::Result<Value> {
        let body = Bytes::from(serde_json::to_vec(object)?);
        self.send(Method::POST, &format!("/clusters/{}{path}", self.path), body).await
    }

    fn url(&self, object: &Value) -> anyhow::Result<String> {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
        let gvk = GroupVersionKind::parse(text("apiVersion"), text("kind"))?;
        let kind = KindTable::builtin().kind(&gvk).with_context(|| format!("no kind {gvk}"))?;
        let base = match &*gvk.group {
            "" => format!("/api/{}", gvk.version),
            group => format!("/apis/{group}/{}", gvk.version),
        };
        let namespace = match (kind.namespaced, object::namespace(object)) {
            (false, _) => String::new(),
            (true, "") => "/namespaces/default".into(),
            (true, namespace) => format!("/namespaces/{namespace}"),
        };
        Ok(format!("/clusters/{}{base}{namespace}/{}/{}", self.path, kind.resource, object::name(object)))
    }

    async fn send(&self, method: Method, url: &str, body: Bytes) -> anyhow::Result<Value> {
        let user = User {
            name: "portolan-demo".into(),
            groups: vec![portolan_strategy::rbac::MASTERS.into()],
            ..User::default()
        };
        let media = if method == Method::PATCH { "application/apply-patch+yaml" } else { "application/json" };
        let request = Request::builder().method(method).uri(url).header(CONTENT_TYPE, media).body(Full::new(body))?;
        let answer = self.api.service_as(user).oneshot(request).await?;
        let status = answer.status();
        let bytes = answer.into_body().collect().await.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
        let value: Value = serde_json::from_slice(&bytes).context("the response is not JSON")?;
        if !status.is_success() {
            bail!("{url}: {}", value.get("message").and_then(Value::as_str).unwrap_or("no message"));
        }
        Ok(value)
    }
}
