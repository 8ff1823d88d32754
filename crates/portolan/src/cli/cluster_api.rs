//! Client of a Kubernetes API, upstream or downstream, for commands that read and write a few objects.

use anyhow::{Context as _, anyhow};
use http::{
    Method, Request, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::{BodyExt as _, Limited};
use kube::{Client, client::Body};
use portolan_types::object;
use serde_json::Value;

/// Largest response, in bytes.
const MAX_RESPONSE: usize = 8 << 20;
/// Field manager of applied objects.
const MANAGER: &str = "portolan-join";

/// Attempts to change an object that others change at the same time.
const ATTEMPTS: usize = 10;

/// Answer of a server that refuses a request.
#[derive(Debug, thiserror::Error)]
#[error("{server} refuses it ({code}): {message}", code = code.as_u16())]
struct Refusal {
    server: String,
    code: StatusCode,
    message: String,
}

/// Client of a Kubernetes API.
#[derive(Clone)]
pub(crate) struct ClusterApi {
    client: Client,
    /// Address, for messages.
    server: String,
}

impl ClusterApi {
    /// Makes a client. It does not retry: the user sees the failure at once, and can repeat the command.
    ///
    /// # Errors
    /// A configuration that cannot be used.
    pub(crate) fn new(mut config: kube::Config) -> anyhow::Result<Self> {
        (config.read_timeout, config.default_retry) = (None, false);
        let server = config.cluster_url.to_string();
        Ok(Self { client: Client::try_from(config).context("the kubeconfig cannot be used")?, server })
    }

    /// Returns the address of the server.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Reads an object; `None` if it does not exist.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Option<Value>> {
        self.send(Method::GET, path, None).await
    }

    /// Creates an object, or asks a review.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn create(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let created = self.send(Method::POST, path, Some(("application/json", body))).await?;
        created.with_context(|| format!("{} has no {path}", self.server))
    }

    /// Applies an object (server-side apply). Fields of others that it names are taken over.
    ///
    /// # Errors
    /// No answer, a refusal, or a kind that no command applies.
    pub(crate) async fn apply(&self, object: &Value) -> anyhow::Result<Value> {
        let path = path_of(object)?;
        let query = format!("{path}?fieldManager={MANAGER}&force=true");
        let applied = self.send(Method::PATCH, &query, Some(("application/apply-patch+yaml", object))).await;
        applied?.with_context(|| format!("{path}: the server has no such resource or namespace"))
    }

    /// Applies a merge patch; `None` if the object does not exist.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn merge(&self, path: &str, patch: &Value) -> anyhow::Result<Option<Value>> {
        self.send(Method::PATCH, path, Some(("application/merge-patch+json", patch))).await
    }

    /// Applies the merge patch that `change` makes of the present object, and again if another client was faster. The
    /// patch names the resourceVersion that it was made for. Does nothing if the object does not exist.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn merge_present(&self, path: &str, change: impl Fn(&Value) -> Value) -> anyhow::Result<()> {
        for attempt in 1.. {
            let Some(present) = self.get(path).await? else { return Ok(()) };
            let mut patch = change(&present);
            patch["metadata"]["resourceVersion"] = object::meta_text(&present, "resourceVersion").into();
            match self.merge(path, &patch).await {
                Err(error) if attempt < ATTEMPTS && is_conflict(&error) => {}
                outcome => return outcome.map(drop),
            }
        }
        Ok(())
    }

    /// Deletes an object; false if it does not exist.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn delete(&self, path: &str) -> anyhow::Result<bool> {
        Ok(self.send(Method::DELETE, path, None).await?.is_some())
    }

    /// Watches a collection from a resourceVersion, and returns after the first event, or when the watch ends.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn first_event(&self, path: &str, from: &str) -> anyhow::Result<()> {
        let watch = format!("{path}?watch=1&resourceVersion={from}");
        let request = Request::get(watch).header(ACCEPT, "application/json").body(Body::empty())?;
        let response = self.client.send(request).await;
        let mut response = response.map_err(|error| anyhow!("{} does not answer: {}", self.server, cause(&error)))?;
        if !response.status().is_success() {
            anyhow::bail!("{} refuses the watch ({})", self.server, response.status().as_u16());
        }
        let frame = response.body_mut().frame().await;
        frame.transpose().map(drop).map_err(|error| anyhow!("the answer of {}: {error}", self.server))
    }

    async fn send(&self, method: Method, path: &str, body: Option<(&str, &Value)>) -> anyhow::Result<Option<Value>> {
        let mut request = Request::builder().method(method).uri(path).header(ACCEPT, "application/json");
        let body = match body {
            Some((media, body)) => {
                request = request.header(CONTENT_TYPE, media);
                Body::from(serde_json::to_vec(body)?)
            }
            None => Body::empty(),
        };
        let response = self.client.send(request.body(body)?).await;
        let response = response.map_err(|error| anyhow!("{} does not answer: {}", self.server, cause(&error)))?;
        let code = response.status();
        let bytes = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
        let bytes = bytes.map_err(|error| anyhow!("the answer of {}: {error}", self.server))?.to_bytes();
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        match code {
            StatusCode::NOT_FOUND => Ok(None),
            code if code.is_success() => Ok(Some(answer)),
            code => {
                let message = answer["message"].as_str().unwrap_or("it does not say why").to_owned();
                Err(Refusal { server: self.server.clone(), code, message }.into())
            }
        }
    }
}

fn is_conflict(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.code == StatusCode::CONFLICT)
}

/// Returns the last cause of an error, which gives the reason.
fn cause(error: &kube::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Plurals of the kinds that commands apply.
const PLURALS: [(&str, &str, &str); 10] = [
    ("v1", "Namespace", "namespaces"),
    ("v1", "Secret", "secrets"),
    ("v1", "Service", "services"),
    ("v1", "ServiceAccount", "serviceaccounts"),
    ("apps/v1", "Deployment", "deployments"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings"),
    ("rbac.authorization.k8s.io/v1", "Role", "roles"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    ("portolan.dev/v1alpha1", "PhysicalCluster", "physicalclusters"),
];

/// Returns the path of an object.
///
/// # Errors
/// A kind that no command applies.
pub(crate) fn path_of(object: &Value) -> anyhow::Result<String> {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let known = PLURALS.iter().find(|(own, name, _)| (*own, *name) == (version, kind));
    let (_, _, plural) = known.with_context(|| format!("{version} {kind} is no kind that this command applies"))?;
    let root = if version.contains('/') { "apis" } else { "api" };
    let (namespace, name) = (object::namespace(object), object::name(object));
    Ok(if namespace.is_empty() {
        format!("/{root}/{version}/{plural}/{name}")
    } else {
        format!("/{root}/{version}/namespaces/{namespace}/{plural}/{name}")
    })
}

/// Splits a manifest into its objects.
///
/// # Errors
/// YAML that cannot be read.
pub(crate) fn objects_of(manifest: &str) -> anyhow::Result<Vec<Value>> {
    let documents = manifest.split("\n---\n").map(|text| serde_saphyr::from_str::<Value>(text).context("the manifest"));
    documents.filter(|object| object.as_ref().map_or(true, Value::is_object)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use http::Response;
    use serde_json::json;

    use super::*;

    /// Returns a client of a server that answers the first `conflicts` writes with 409, and the number of its writes.
    fn contended(conflicts: usize) -> (ClusterApi, Arc<AtomicUsize>) {
        let writes = Arc::new(AtomicUsize::new(0));
        let counted = writes.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let counted = counted.clone();
            async move {
                let is_write = request.method() == Method::PATCH;
                let body = request.into_body().collect().await?.to_bytes();
                let version = counted.load(Ordering::SeqCst);
                let code = if is_write && counted.fetch_add(1, Ordering::SeqCst) < conflicts { 409 } else { 200 };
                if is_write {
                    let patch: Value = serde_json::from_slice(&body)?;
                    assert_eq!(patch["metadata"], json!({"finalizers": [], "resourceVersion": version.to_string()}));
                }
                let answer = json!({"metadata": {"resourceVersion": version.to_string()}, "message": "modified"});
                Response::builder().status(code).body(Body::from(serde_json::to_vec(&answer)?)).map_err(Into::into)
                    as Result<_, tower::BoxError>
            }
        });
        (ClusterApi { client: Client::new(service, "default"), server: "s".into() }, writes)
    }

    #[tokio::test]
    async fn a_change_of_the_present_object_is_repeated_after_a_conflict() {
        let change = |_: &Value| json!({"metadata": {"finalizers": []}});
        let (api, writes) = contended(3);
        api.merge_present("/a", change).await.unwrap();
        assert_eq!(writes.load(Ordering::SeqCst), 4);
        let (api, writes) = contended(usize::MAX);
        let error = api.merge_present("/a", change).await.unwrap_err();
        assert_eq!((writes.load(Ordering::SeqCst), &*error.to_string()), (ATTEMPTS, "s refuses it (409): modified"));
    }

    #[test]
    fn objects_have_paths() {
        for (object, expected) in [
            (json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}), "/api/v1/namespaces/a"),
            (
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "a"}}),
                "/apis/apps/v1/namespaces/a/deployments/d",
            ),
            (
                json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "metadata": {"name": "p"}}),
                "/apis/portolan.dev/v1alpha1/physicalclusters/p",
            ),
        ] {
            assert_eq!(path_of(&object).unwrap(), expected);
        }
        assert!(path_of(&json!({"apiVersion": "v1", "kind": "Pod"})).is_err());
    }
}
