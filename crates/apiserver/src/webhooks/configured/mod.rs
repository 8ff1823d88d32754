//! Webhooks of the administrator, each in a kubeconfig file: sinks of audit events, reviews of tokens and of access.

mod kubeconfig;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use portolan_types::LogicalClusterId;
use tokio::sync::Semaphore;

use super::{
    client::{CheckedAddresses, DialTarget, MAX_DIALS, WebhookAddresses, WebhookConnector, error_text},
    resolver::TenantResolver,
    trust,
};

/// Size limit of a response, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;
const MAX_IDLE: usize = 8;
const IDLE: Duration = Duration::from_secs(90);

/// Webhook of a kubeconfig file. Connections are kept.
pub(crate) struct ConfiguredWebhook {
    server: Uri,
    authorization: Option<HeaderValue>,
    client: Client<WebhookConnector, Full<Bytes>>,
}

/// Unusable kubeconfig of a webhook.
#[derive(Debug)]
pub(crate) enum WebhookConfigError {
    /// A file cannot be read.
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file has invalid content.
    Content {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
}

/// Failure of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WebhookCallError {
    /// No answer: a later call may succeed.
    #[error("{0}")]
    Unreachable(String),
    /// Answer with a status other than 2xx.
    #[error("the webhook answered with status {0}")]
    Status(u16),
}

impl WebhookCallError {
    /// Returns true if another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Status(code) => *code == 429 || *code >= 500,
        }
    }
}

impl ConfiguredWebhook {
    /// Reads a kubeconfig.
    ///
    /// # Errors
    /// Files that cannot be read, and fields that cannot be used.
    pub(crate) fn open(path: &Path) -> Result<Self, WebhookConfigError> {
        let wrong = |what: String| WebhookConfigError::Content { path: path.to_owned(), what };
        let read = kubeconfig::read(path)?;
        let tls = match read.certificate {
            None => trust::config(&read.ca_bundle),
            Some(own) => trust::config_with_identity(&read.ca_bundle, own.chain, own.key),
        };
        let outside = CheckedAddresses {
            allowed: WebhookAddresses { allow_local: true },
            resolver: TenantResolver::with_system_resolver(),
            tenant: LogicalClusterId::ROOT,
        };
        let connector = WebhookConnector {
            target: DialTarget::Addresses(outside),
            tls: Arc::new(tls.map_err(wrong)?),
            dials: Arc::new(Semaphore::new(MAX_DIALS)),
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(connector);
        Ok(Self { server: read.server, authorization: read.authorization, client })
    }

    /// Posts JSON and returns the body of the answer, whose size is bounded. Redirects are not followed.
    ///
    /// # Errors
    /// No answer in time, or one that is not 2xx.
    pub(crate) async fn post(&self, body: Bytes, timeout: Duration) -> Result<Bytes, WebhookCallError> {
        let unreachable = |why: String| WebhookCallError::Unreachable(format!("Post {:?}: {why}", self.server));
        let exchange = async {
            let mut request = Request::post(self.server.clone())
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json")
                .header(header::USER_AGENT, "portolan");
            if let Some(value) = &self.authorization {
                request = request.header(header::AUTHORIZATION, value);
            }
            let request = request.body(Full::new(body)).map_err(|error| unreachable(error.to_string()))?;
            let response = self.client.request(request).await.map_err(|error| unreachable(error_text(&error)))?;
            if !response.status().is_success() {
                return Err(WebhookCallError::Status(response.status().as_u16()));
            }
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            body.map(http_body_util::Collected::to_bytes).map_err(|error| unreachable(error.to_string()))
        };
        let exchanged = tokio::time::timeout(timeout, exchange).await;
        exchanged.map_err(|_| unreachable("context deadline exceeded".into()))?
    }
}
