//! Session with the API server of a kubeconfig's context, in its workspace.

mod errors;
mod warnings;

use std::{sync::Mutex, time::Duration};

use anyhow::{Context as _, bail};
use futures::Stream;
use http::{
    Method, Request,
    header::{ACCEPT, CONTENT_TYPE, WARNING},
};
use http_body_util::{BodyExt as _, Limited};
use kube::{Client, client::Body, config::KubeConfigOptions, core::WatchEvent};
use portolan_types::LogicalClusterPath;
use serde_json::{Value, json};

pub(crate) use self::errors::{RefusedRequest, RequestError};

use super::{flags::KubectlFlags, kubeconfig_files::KubeconfigFiles};

/// Most bytes of one response.
const RESPONSE_BYTES: usize = 256 << 20;
/// Media types.
pub(crate) const JSON: &str = "application/json";
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";
pub(crate) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
/// Name that field ownership records for the plugin's writes.
pub(crate) const FIELD_MANAGER: &str = "kubectl-portolan";

/// Path of the URL of an API server: what stands before `/clusters/`, and the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkspaceUrl {
    /// Scheme, host, port, and the path before `/clusters/`; without a slash at its end.
    pub(crate) base: String,
    /// Workspace; `None` if the URL names none.
    pub(crate) workspace: Option<LogicalClusterPath>,
}

impl WorkspaceUrl {
    /// Splits a URL.
    ///
    /// # Errors
    /// Fails if the URL has a path behind the workspace, or names no valid one.
    pub(crate) fn parse(url: &str) -> anyhow::Result<Self> {
        let url = url.trim_end_matches('/');
        let Some((base, workspace)) = url.split_once("/clusters/") else {
            return Ok(Self { base: url.to_owned(), workspace: None });
        };
        let parsed = workspace.parse();
        let workspace = parsed.with_context(|| format!("the URL {url} of the server does not point to a workspace"))?;
        Ok(Self { base: base.to_owned(), workspace: Some(workspace) })
    }

    /// Returns the URL of another workspace of the same server.
    pub(crate) fn of(&self, workspace: &LogicalClusterPath) -> String {
        format!("{}/clusters/{workspace}", self.base)
    }
}

/// Client of one API server.
pub(crate) struct ApiSession {
    client: Client,
    url: WorkspaceUrl,
    /// Path before `/clusters/`, without host.
    prefix: String,
    /// Host and port.
    server: String,
    /// Namespace of the flags, else of the context, else `default`.
    pub(crate) namespace: String,
    request_timeout: Option<Duration>,
    warnings: Mutex<Vec<String>>,
}

/// A request: its path behind the workspace, and its body.
pub(crate) struct ApiRequest<'a> {
    pub(crate) method: Method,
    /// Workspace; `None` for that of the session.
    pub(crate) workspace: Option<&'a LogicalClusterPath>,
    /// True for a path of the server itself, outside of every workspace.
    pub(crate) is_outside: bool,
    pub(crate) path: &'a str,
    pub(crate) body: Option<&'a Value>,
    pub(crate) content_type: &'a str,
    pub(crate) accept: &'a str,
}

impl<'a> ApiRequest<'a> {
    /// Makes a request without a body, in the workspace of the session.
    pub(crate) fn new(method: Method, path: &'a str) -> Self {
        Self { method, workspace: None, is_outside: false, path, body: None, content_type: JSON, accept: JSON }
    }

    /// Sends it to a path of the server itself, outside of every workspace.
    pub(crate) fn outside(mut self) -> Self {
        self.is_outside = true;
        self
    }

    /// Sends it to another workspace.
    pub(crate) fn to(mut self, workspace: Option<&'a LogicalClusterPath>) -> Self {
        self.workspace = workspace;
        self
    }

    fn with_body(mut self, body: &'a Value, content_type: &'a str) -> Self {
        (self.body, self.content_type) = (Some(body), content_type);
        self
    }
}

impl ApiSession {
    /// Makes a client of the context that the flags select. No request is sent.
    ///
    /// # Errors
    /// Fails if the kubeconfig or its credentials cannot be used.
    pub(crate) async fn open(files: &KubeconfigFiles, flags: &KubectlFlags) -> anyhow::Result<Self> {
        let mut config = config_of(files, flags).await?;
        let url = WorkspaceUrl::parse(&config.cluster_url.to_string())?;
        let authority = config.cluster_url.authority().context("the server of the context has no host")?.to_string();
        let scheme = config.cluster_url.scheme_str().unwrap_or("https").to_owned();
        let prefix = url.base.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| rest[at..].to_owned()));
        config.cluster_url =
            format!("{scheme}://{authority}").parse().context("the server of the context is no URL")?;
        let namespace = flags.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("the kubeconfig cannot be used")?;
        let request_timeout = Some(flags.request_timeout).filter(|time| !time.is_zero());
        let prefix = prefix.unwrap_or_default();
        let warnings = Mutex::default();
        Ok(Self { client, url, prefix, server: authority, namespace, request_timeout, warnings })
    }

    /// Returns the URL of the server and the workspace.
    pub(crate) fn url(&self) -> &WorkspaceUrl {
        &self.url
    }

    /// Returns the workspace of the context.
    ///
    /// # Errors
    /// Fails if the server's URL names none, as that of a physical cluster.
    pub(crate) fn workspace(&self) -> anyhow::Result<&LogicalClusterPath> {
        match &self.url.workspace {
            Some(workspace) => Ok(workspace),
            None => bail!("current config context URL \"{}\" does not point to a workspace", self.url.base),
        }
    }

    /// Returns the warnings of the server since the last call, without repetitions.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().expect("no code panics under this lock"))
    }

    /// Reads an object or a list.
    ///
    /// # Errors
    /// A refusal, or no answer.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, RequestError> {
        self.send(ApiRequest::new(Method::GET, path)).await
    }

    /// Creates an object, or asks a create-only review, in a workspace or in that of the session.
    ///
    /// # Errors
    /// A refusal, or no answer.
    pub(crate) async fn create(
        &self,
        workspace: Option<&LogicalClusterPath>,
        path: &str,
        object: &Value,
    ) -> Result<Value, RequestError> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        self.send(ApiRequest::new(Method::POST, &path).to(workspace).with_body(object, JSON)).await
    }

    /// Creates an object in the workspace of the session; as a dry run, nothing is stored.
    ///
    /// # Errors
    /// A refusal, or no answer.
    pub(crate) async fn create_object(&self, path: &str, object: &Value, is_dry: bool) -> Result<Value, RequestError> {
        let dry_run = if is_dry { "&dryRun=All" } else { "" };
        let path = format!("{path}?fieldManager={FIELD_MANAGER}{dry_run}");
        self.send(ApiRequest::new(Method::POST, &path).with_body(object, JSON)).await
    }

    /// Applies a merge patch to an object, in a workspace or in that of the session.
    ///
    /// # Errors
    /// A refusal, or no answer.
    pub(crate) async fn patch(
        &self,
        workspace: Option<&LogicalClusterPath>,
        path: &str,
        patch: &Value,
    ) -> Result<Value, RequestError> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        self.send(ApiRequest::new(Method::PATCH, &path).to(workspace).with_body(patch, MERGE_PATCH)).await
    }

    /// Sends a request, and reads its answer.
    ///
    /// # Errors
    /// A refusal, or no answer within the time of the flags.
    pub(crate) async fn send(&self, request: ApiRequest<'_>) -> Result<Value, RequestError> {
        let answered = self.exchange(request);
        let Some(limit) = self.request_timeout else { return answered.await };
        let late = || RequestError::Unreachable {
            server: self.server.clone(),
            is_refused: false,
            cause: "net/http: request canceled (Client.Timeout exceeded while awaiting headers)".to_owned(),
        };
        tokio::time::timeout(limit, answered).await.unwrap_or_else(|_| Err(late()))
    }

    async fn exchange(&self, request: ApiRequest<'_>) -> Result<Value, RequestError> {
        let failed = |error: kube::Error| RequestError::unreachable(&self.server, &error);
        let body = request.body.map(Value::to_string).unwrap_or_default();
        let built = Request::builder()
            .method(request.method.clone())
            .uri(if request.is_outside {
                format!("{}{}", self.prefix, request.path)
            } else {
                self.path(request.workspace, request.path)
            })
            .header(ACCEPT, request.accept)
            .header(CONTENT_TYPE, request.content_type)
            .body(Body::from(body.into_bytes()));
        let answer = self.client.send(built.map_err(|error| failed(kube::Error::HttpError(error)))?).await;
        let answer = answer.map_err(failed)?;
        let code = answer.status();
        self.note_warnings(answer.headers().get_all(WARNING).iter().filter_map(|line| line.to_str().ok()));
        let unreadable =
            |cause: String| RequestError::Unreachable { server: self.server.clone(), is_refused: false, cause };
        let body = Limited::new(answer.into_body(), RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| unreadable(error.to_string()))?.to_bytes();
        if !code.is_success() {
            return Err(RequestError::Refused(RefusedRequest::read(code.as_u16(), &body)));
        }
        serde_json::from_slice(&body).map_err(|error| unreadable(format!("the answer is no JSON: {error}")))
    }

    /// Opens a watch, and returns its events.
    ///
    /// # Errors
    /// A refusal, or no answer.
    pub(crate) async fn watch(
        &self,
        path: &str,
        accept: &str,
    ) -> Result<impl Stream<Item = kube::Result<WatchEvent<Value>>> + use<>, RequestError> {
        let failed = |error: &kube::Error| RequestError::unreachable(&self.server, error);
        let request = Request::get(self.path(None, path)).header(ACCEPT, accept).body(Vec::new());
        let request = request.map_err(|error| failed(&kube::Error::HttpError(error)))?;
        self.client.request_events(request).await.map_err(|error| match error {
            kube::Error::Api(status) => {
                let body = json!({"kind": "Status", "reason": status.reason, "message": status.message}).to_string();
                RequestError::Refused(RefusedRequest::read(status.code, body.as_bytes()))
            }
            other => failed(&other),
        })
    }

    /// Returns the path of a request: `/clusters/<workspace>` and the rest.
    fn path(&self, workspace: Option<&LogicalClusterPath>, rest: &str) -> String {
        match workspace.or(self.url.workspace.as_ref()) {
            Some(workspace) => format!("{}/clusters/{workspace}{rest}", self.prefix),
            None => format!("{}{rest}", self.prefix),
        }
    }

    fn note_warnings<'h>(&self, headers: impl Iterator<Item = &'h str>) {
        let mut noted = self.warnings.lock().expect("no code panics under this lock");
        for text in headers.filter_map(warnings::text) {
            if noted.len() < warnings::MAX && !noted.contains(&text) {
                noted.push(text);
            }
        }
    }
}

/// Returns the configuration of the context that the flags select, with their server, user and token.
///
/// # Errors
/// Fails if the kubeconfig or its credentials cannot be used.
pub(crate) async fn config_of(files: &KubeconfigFiles, flags: &KubectlFlags) -> anyhow::Result<kube::Config> {
    let mut merged = files.merged()?;
    let name = files.context_name(flags)?;
    if let Some(server) = &flags.server {
        let context = merged.contexts.iter().find(|context| context.name == name).and_then(|c| c.context.clone());
        let cluster = context.map(|context| context.cluster).unwrap_or_default();
        let entries = merged.clusters.iter_mut().filter(|entry| entry.name == cluster);
        entries.filter_map(|entry| entry.cluster.as_mut()).for_each(|entry| entry.server = Some(server.clone()));
    }
    let options = KubeConfigOptions { context: Some(name), cluster: None, user: flags.user.clone() };
    let config = kube::Config::from_custom_kubeconfig(merged, &options).await;
    let mut config = config.context("the kubeconfig cannot be used")?;
    (config.read_timeout, config.default_retry) = (None, false);
    identify(&mut config, flags)?;
    Ok(config)
}

/// Sets the token and the impersonated user of the flags.
fn identify(config: &mut kube::Config, flags: &KubectlFlags) -> anyhow::Result<()> {
    if let Some(token) = &flags.token {
        config.auth_info = serde_json::from_value(json!({"token": token}))?;
    }
    let user = &mut config.auth_info;
    if let Some(name) = &flags.impersonate {
        user.impersonate = Some(name.clone());
        user.impersonate_groups = None;
        user.impersonate_uid = None;
    }
    if !flags.impersonate_groups.is_empty() {
        user.impersonate_groups = Some(flags.impersonate_groups.clone());
    }
    user.impersonate_uid = flags.impersonate_uid.clone().or_else(|| user.impersonate_uid.take());
    let has_details = user.impersonate_groups.is_some() || user.impersonate_uid.is_some();
    if has_details && user.impersonate.is_none() {
        bail!("requesting uid or groups without impersonating a user");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_what_follows_clusters() {
        for (url, expected) in [
            ("https://a:6443/clusters/root", Some(("https://a:6443", Some("root")))),
            ("https://a:6443/clusters/root:shop/", Some(("https://a:6443", Some("root:shop")))),
            ("https://a/services/x/clusters/root:shop", Some(("https://a/services/x", Some("root:shop")))),
            ("https://a:6443", Some(("https://a:6443", None))),
            ("https://a:6443/", Some(("https://a:6443", None))),
            ("https://a:6443/clusters/", Some(("https://a:6443/clusters", None))),
            ("https://a:6443/clusters/root:shop/api", None),
            ("https://a:6443/clusters/*", None),
        ] {
            let parsed = WorkspaceUrl::parse(url).ok();
            let found =
                parsed.as_ref().map(|url| (url.base.as_str(), url.workspace.as_ref().map(|path| path.as_str())));
            assert_eq!(found, expected, "{url}");
        }
        let other = WorkspaceUrl::parse("https://a/x/clusters/root:shop").unwrap().of(&LogicalClusterPath::root());
        assert_eq!(other, "https://a/x/clusters/root");
    }
}
