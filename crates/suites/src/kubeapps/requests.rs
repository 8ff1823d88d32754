//! Requests of Kubeapps: the user's token, and nothing else, in the header `Authorization`.

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use harness::client::HttpClient;
use harness::kubeconfig::UserKubeconfig;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Cluster of Kubeapps' configuration (`apiServiceURL`), as a user reaches it.
pub(super) struct UserCluster(pub(super) UserKubeconfig);

/// Answer: its code, and its JSON or nothing.
#[derive(Debug)]
pub(super) struct JsonAnswer {
    pub(super) code: u16,
    pub(super) body: Value,
}

impl JsonAnswer {
    /// Returns the body, if the code is this one.
    pub(super) fn expect(self, code: u16) -> Result<Value> {
        ensure!(self.code == code, "{} instead of {code}: {}", self.code, self.body);
        Ok(self.body)
    }
}

impl UserCluster {
    /// Sends a request with the credential of the user.
    pub(super) fn send(&self, method: Method, path: &str, body: &Value) -> Result<JsonAnswer> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let answer = runtime
            .block_on(async { HttpClient::connect(&self.0, 1).await?.send(method.clone(), path, body).await })
            .with_context(|| format!("{method} {path}"))?;
        let body = serde_json::from_slice(&answer.body).unwrap_or_default();
        Ok(JsonAnswer { code: answer.status.as_u16(), body })
    }

    /// Gets a path.
    pub(super) fn get(&self, path: &str) -> Result<JsonAnswer> {
        self.send(Method::GET, path, &Value::Null)
    }

    /// Returns true if the user may get Secrets in the namespace `default`: Kubeapps asks so for each namespace, if the
    /// user may not list namespaces.
    pub(super) fn may_get_secrets(&self) -> Result<bool> {
        let asked = json!({"namespace": "default", "verb": "get", "resource": "secrets"});
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked}});
        let answer = self.send(Method::POST, REVIEWS, &review)?.expect(201)?;
        answer["status"]["allowed"].as_bool().context("the review has no answer")
    }

    /// Installs, upgrades, lists and removes a release, as Helm keeps it.
    pub(super) fn manage_release(&self) -> Result<()> {
        self.get("/version")?.expect(200)?;
        self.get("/openapi/v2")?.expect(200)?;
        self.get("/apis")?.expect(200)?;
        let release = json!({"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
            "metadata": {"name": "sh.helm.release.v1.web.v1", "labels": {"owner": "helm", "name": "web"}},
            "stringData": {"release": "H4sI"}});
        let mut made = self.send(Method::POST, SECRETS, &release)?.expect(201)?;
        made["metadata"]["labels"]["status"] = "deployed".into();
        let one = format!("{SECRETS}/sh.helm.release.v1.web.v1");
        self.send(Method::PUT, &one, &made)?.expect(200)?;
        let listed = self.get("/api/v1/secrets?labelSelector=owner%3Dhelm%2Cstatus%3Ddeployed")?.expect(200)?;
        ensure!(listed["items"].as_array().is_some_and(|items| items.len() == 1), "{listed}");
        self.send(Method::DELETE, &one, &Value::Null)?.expect(200).map(drop)
    }

    /// Checks that everything that Kubeapps does for a user is refused, and that its questions are answered.
    pub(super) fn refuses_all(&self) -> Result<()> {
        self.get("/api/v1/namespaces")?.expect(403)?;
        self.get("/api/v1/secrets?labelSelector=owner%3Dhelm")?.expect(403)?;
        self.get(SECRETS)?.expect(403)?;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "intruder"}});
        self.send(Method::POST, SECRETS, &secret)?.expect(403).map(drop)
    }

    /// Asks the server who the user is (`SelfSubjectReview`).
    pub(super) fn user(&self) -> Result<JsonAnswer> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        self.send(Method::POST, "/apis/authentication.k8s.io/v1/selfsubjectreviews", &review)
    }

    /// Checks that the server knows the user by this name.
    pub(super) fn is_user(&self, name: &str) -> Result<()> {
        let answer = self.user()?.expect(201)?;
        ensure!(answer["status"]["userInfo"]["username"] == name, "{answer}");
        Ok(())
    }
}
