//! Connection to one server, which is reestablished after a failure.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::timeout;

use harness::client::{HttpAnswer, HttpClient};
use harness::kubeconfig::UserKubeconfig;

/// Time after which a server counts as one that does not answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
const CONNECTIONS: usize = 2;

/// Client of one server, which may be killed and restarted.
pub(super) struct ServerLink {
    config: UserKubeconfig,
    client: Mutex<Option<Arc<HttpClient>>>,
}

impl ServerLink {
    pub(super) fn new(config: UserKubeconfig) -> Self {
        Self { config, client: Mutex::new(None) }
    }

    /// Sends one request. Fails only if the server does not answer.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<HttpAnswer> {
        let attempt = async { self.client().await?.send_with(method, path, headers, body).await };
        let answer = timeout(ANSWER_LIMIT, attempt).await.context("no answer within 2 s").flatten();
        if answer.is_err() {
            *self.client.lock().await = None;
        }
        answer
    }

    /// Gets an object or a list; `None` if it does not exist.
    pub(super) async fn get(&self, path: &str) -> Result<Option<Value>> {
        let answer = self.send(Method::GET, path, &[], Bytes::new()).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&answer.success()?)?))
    }

    async fn client(&self) -> Result<Arc<HttpClient>> {
        let mut known = self.client.lock().await;
        if let Some(client) = &*known {
            return Ok(client.clone());
        }
        let client = Arc::new(HttpClient::connect(&self.config, CONNECTIONS).await?);
        *known = Some(client.clone());
        Ok(client)
    }
}
