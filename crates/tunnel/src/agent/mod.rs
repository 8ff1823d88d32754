//! Agent beside a physical cluster: it dials out to the server, and passes the requests of the server on to the API
//! server of its physical cluster with a credential of its own.
//!
//! It stores no objects. While it is cut off, the workloads of the physical cluster keep running. Its own credential
//! for the server is bound to the name of the physical cluster: a bootstrap token leads to a certificate, which the
//! agent renews after two thirds of its life. A certificate that has ended needs a new token.

mod backoff;
mod credential;
mod dial;
mod pod_listener;
mod proxy;
mod server_url;
mod sessions;
#[cfg(test)]
mod tests;
mod tls;

use std::{path::PathBuf, sync::Arc, time::Duration};

use portolan_types::{Seams, agent::BootstrapToken};
use tokio_util::sync::CancellationToken;

pub use credential::{AgentCredential, CredentialFile, CredentialStore, Validity};
pub use pod_listener::PodListener;
pub use proxy::{MemberBody, MemberService, MemberServices, boxed};
pub use server_url::{InvalidServerUrl, ServerUrl};

use crate::session::Keepalive;

use backoff::Backoff;
use dial::ServerConnection;
use sessions::SessionSet;
use tls::{ServerTrust, client_config};

/// Pause after the server refused the credential. It is long, since only a person can help.
const REFUSED_PAUSE: Duration = Duration::from_secs(20);

/// Failure of an agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The server cannot be reached.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The server refuses the request.
    #[error("the server refuses it ({code}): {message}")]
    Refused {
        /// HTTP status.
        code: u16,
        /// Message of the server.
        message: String,
    },
    /// The bootstrap token cannot be used.
    #[error("the bootstrap token cannot be used: {0}")]
    Token(String),
    /// A key, certificate or header cannot be made or read.
    #[error("the credential cannot be used: {0}")]
    Credential(String),
    /// The credential cannot be stored.
    #[error("the credential cannot be kept: {0}")]
    Store(String),
}

impl AgentError {
    pub(crate) fn credential(error: impl std::fmt::Display) -> Self {
        Self::Credential(error.to_string())
    }

    /// Returns true if only a person can help.
    fn is_final(&self) -> bool {
        match self {
            Self::Refused { code, .. } => matches!(code, 400 | 401 | 403 | 404),
            Self::Token(_) | Self::Credential(_) => true,
            Self::Unreachable(_) | Self::Store(_) => false,
        }
    }
}

/// Configuration of an agent.
pub struct AgentConfig {
    /// Server.
    pub server: ServerUrl,
    /// File of the bootstrap token. It is read whenever there is no valid certificate, so that a new token can be put
    /// there at any time.
    pub token_file: PathBuf,
    /// Place of the credential.
    pub credentials: Arc<dyn CredentialStore>,
    /// Services that reach the physical cluster.
    pub member: MemberServices,
    /// Check that a server answers.
    pub keepalive: Keepalive,
    /// Version of the agent.
    pub version: String,
    /// Time and randomness.
    pub seams: Seams,
}

/// Agent.
pub struct Agent {
    config: AgentConfig,
}

impl Agent {
    /// Creates an agent.
    pub fn new(config: AgentConfig) -> Self {
        Self { config }
    }

    /// Runs until `shutdown`. Failures are logged and tried again.
    pub async fn run(&self, shutdown: CancellationToken) {
        let mut backoff = Backoff::new(self.config.seams.clone());
        let (mut last_error, mut is_refused) = (String::new(), false);
        while !shutdown.is_cancelled() {
            let attempt = async {
                let credential = shutdown.run_until_cancelled(self.credential(is_refused)).await;
                let Some(credential) = credential.transpose()? else { return Ok(()) };
                // Returns when the certificate has ended.
                SessionSet::new(&self.config, credential).run(&shutdown).await
            };
            // Sessions say goodbye at the shutdown themselves.
            let Err(error) = attempt.await else {
                (is_refused, last_error) = (false, String::new());
                backoff.reset();
                continue;
            };
            let text = error.to_string();
            if text != last_error {
                tracing::warn!(server = %self.config.server, error = text, "the agent has no access to the server");
                last_error = text;
            }
            // After the refusal of a certificate, the token is tried, and then the certificate again.
            is_refused = !is_refused && matches!(error, AgentError::Refused { .. });
            let shortest = if error.is_final() && !is_refused { REFUSED_PAUSE } else { Duration::ZERO };
            shutdown.run_until_cancelled(tokio::time::sleep(backoff.pause().max(shortest))).await;
        }
    }

    /// Returns a credential that is valid and, if possible, not due for renewal. If the server has refused the
    /// certificate, only the bootstrap token leads to another.
    async fn credential(&self, is_refused: bool) -> Result<AgentCredential, AgentError> {
        let saved = self.config.credentials.load().await.map_err(AgentError::Store)?.unwrap_or_default();
        let now = self.config.seams.clock.now();
        let Some(validity) = saved.validity()?.filter(|validity| !validity.is_over(now) && !is_refused) else {
            return self.bootstrap(saved).await;
        };
        if now < validity.renewal() {
            return Ok(saved);
        }
        match renew(&self.config, &saved).await {
            Ok(renewed) => Ok(renewed),
            // It is valid for a while yet.
            Err(error) => {
                tracing::warn!(%error, until = %validity.until, "the certificate is not renewed yet");
                Ok(saved)
            }
        }
    }

    /// Gets a certificate by the bootstrap token. The key is kept before the token is used: if the answer is lost, the
    /// server accepts the token again for the same key.
    async fn bootstrap(&self, mut saved: AgentCredential) -> Result<AgentCredential, AgentError> {
        let token = self.token().await?;
        let pin = token.pin.ok_or_else(|| AgentError::Token("it has no hash of the server's authority".into()))?;
        if saved.next_key.is_empty() {
            saved.next_key = AgentCredential::generate()?.key;
            self.config.credentials.save(&saved).await.map_err(AgentError::Store)?;
        }
        let new = AgentCredential { key: saved.next_key, ..AgentCredential::default() };
        let mut connection = connect(&self.config, &ServerTrust::Pin(pin), None).await?;
        let issued = connection.certificate(new, None, Some(&token.bearer())).await?;
        self.config.credentials.save(&issued).await.map_err(AgentError::Store)?;
        tracing::info!(server = %self.config.server, "the server issued a certificate");
        Ok(issued)
    }

    async fn token(&self) -> Result<BootstrapToken, AgentError> {
        let path = &self.config.token_file;
        let text = tokio::fs::read_to_string(path).await;
        let text = text.map_err(|error| AgentError::Token(format!("{}: {error}", path.display())))?;
        BootstrapToken::parse(text.trim()).map_err(|error| AgentError::Token(error.to_string()))
    }
}

/// Gets a new certificate by the current one, and keeps it.
async fn renew(config: &AgentConfig, current: &AgentCredential) -> Result<AgentCredential, AgentError> {
    let trust = ServerTrust::Authority(current.authority.clone());
    let mut connection = connect(config, &trust, Some(current)).await?;
    let issued = connection.certificate(AgentCredential::generate()?, Some(current), None).await?;
    config.credentials.save(&issued).await.map_err(AgentError::Store)?;
    tracing::info!(server = %config.server, "the certificate is renewed");
    Ok(issued)
}

async fn connect(
    config: &AgentConfig,
    trust: &ServerTrust,
    credential: Option<&AgentCredential>,
) -> Result<ServerConnection, AgentError> {
    ServerConnection::open(&config.server, client_config(trust, credential)?).await
}
