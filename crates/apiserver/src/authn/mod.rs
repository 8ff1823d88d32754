//! Authentication: client certificates, bearer tokens, anonymous users; and impersonation.

mod agents;
mod certificate;
mod client_trust;
pub(crate) mod console;
mod credential;
mod impersonation;
pub(crate) mod jwt;
mod service_accounts;
mod static_tokens;
mod token_webhook;
mod user_info;
pub(crate) mod websocket;
mod workspace_issuers;

use std::{borrow::Cow, sync::Arc};

use http::{HeaderMap, header::AUTHORIZATION};
use portolan_store::DynStore;
use portolan_strategy::rbac::User;
use portolan_types::{LogicalClusterId, Status, agent::BootstrapToken};

use crate::{
    authz::{AuthorizationSubject, RbacAuthorizer},
    config::ConfigError,
    directory::Directory,
    metrics::Metrics,
    requester::{self, CLUSTER_NAME_EXTRA, Requester},
    routing::path::RequestedCluster,
};

pub use crate::config::{
    AnonymousCondition, AnonymousConfiguration, AuthenticationConfiguration, AuthenticationSource, ClaimConfiguration,
    ClaimMappingsConfiguration, ClaimRuleConfiguration, ExtraConfiguration, IssuerConfiguration, JwtConfiguration,
    PrefixedClaimConfiguration, StaticToken, UserRuleConfiguration,
};
pub use crate::requester::{AUTHENTICATED, UNAUTHENTICATED};
pub(crate) use agents::AgentAccess;
pub use agents::BootstrapTokens;
pub(crate) use certificate::end_of_certificate;
pub use certificate::user_of_certificate;
pub(crate) use client_trust::{CertifiedClient, ClientTrust};
use console::ConsoleSessions;
use credential::Credential;
pub(crate) use impersonation::{AskingUser, Impersonation, authorize as authorize_impersonation};
/// Algorithm that signs a token.
pub use jsonwebtoken::Algorithm as SignatureAlgorithm;
pub(crate) use jwt::JwtAuthenticators;
pub use service_accounts::{
    CopyClaim, IssuedToken, SecretClaims, ServiceAccountTokens, TokenBinding, TokenError, TokenKeys, TokenObjectRef,
    TokenRequest,
};
pub use static_tokens::{StaticTokens, parse_token_file};
pub(crate) use token_webhook::TokenWebhook;
pub(crate) use user_info::user_info;
pub(crate) use workspace_issuers::WorkspaceIssuers;

/// Length limit of bearer tokens, in bytes.
const MAX_TOKEN: usize = 16 * 1024;

/// User and the scope in which it is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub user: User,
    /// Logical cluster that it is valid in; `None` for identities of the whole control plane.
    pub home: Option<LogicalClusterId>,
    /// True if another user with rights in the logical cluster impersonates it.
    pub impersonated: bool,
    /// Warning for clients with such credentials.
    pub warning: Option<&'static str>,
    /// Credential behind it.
    pub(crate) credential: Credential,
    /// User as the logical cluster of the request knows it, if another logical cluster vouches for the user.
    pub(crate) foreign: Option<Arc<User>>,
}

impl AuthorizationSubject for Identity {
    fn user(&self) -> &User {
        &self.user
    }

    fn is_impersonated(&self) -> bool {
        self.impersonated
    }
}

impl Identity {
    /// Returns an identity of the whole control plane.
    pub fn global(user: User) -> Self {
        Self { user, home: None, impersonated: false, warning: None, credential: Credential::default(), foreign: None }
    }

    /// Returns an identity of one logical cluster.
    pub fn local(user: User, home: LogicalClusterId) -> Self {
        Self { home: Some(home), ..Self::global(user) }
    }

    /// Returns the anonymous identity.
    pub fn anonymous() -> Self {
        Self::global(requester::anonymous())
    }

    /// Returns the client, for checks in other logical clusters.
    pub(crate) fn requester(&self) -> Requester<'_> {
        Requester { user: &self.user, home: self.home }
    }

    /// Returns the identity for a request in a logical cluster that may not be its own.
    pub(crate) fn acting_in(mut self, cluster: LogicalClusterId) -> Self {
        self.foreign = match self.requester().known_in(cluster) {
            Cow::Borrowed(_) => None,
            Cow::Owned(stranger) => Some(Arc::new(stranger)),
        };
        self
    }

    /// Returns the user as the logical cluster of the request knows it. Audit events and refusals name
    /// [`Identity::user`].
    pub(crate) fn acting_user(&self) -> &User {
        self.foreign.as_deref().unwrap_or(&self.user)
    }

    /// Returns true for a request without credentials.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.user.groups.iter().any(|group| group == UNAUTHENTICATED)
    }
}

/// Origin of a request, known before any header is read.
#[derive(Clone, Debug)]
pub enum Peer {
    /// Network connection, with the user of the verified client certificate.
    Connection(Option<Arc<User>>),
    /// Network connection whose client certificate is revoked.
    Revoked,
    /// Page of the console, known by the cookies of its session and by no other credential.
    Console,
    /// In-process caller, which is trusted; credentials in headers are ignored.
    InProcess(Arc<Identity>),
}

/// Context of checks of who a client is and what it may do.
pub(crate) struct AccessContext {
    pub(crate) authenticator: Authenticator,
    pub(crate) rbac: Arc<RbacAuthorizer>,
    pub(crate) directory: Arc<Directory>,
    /// Store, for workspaces without a logical cluster.
    pub(crate) store: DynStore,
    pub(crate) metrics: Arc<Metrics>,
}

/// Verifier of credentials.
pub struct Authenticator {
    static_tokens: StaticTokens,
    service_accounts: Arc<ServiceAccountTokens>,
    bootstrap: Arc<BootstrapTokens>,
    jwt: JwtAuthenticators,
    console: ConsoleSessions,
    webhook: Option<TokenWebhook>,
    workspaces: WorkspaceIssuers,
}

/// Verifiers of the kinds of bearer tokens.
pub(crate) struct TokenVerifiers {
    pub(crate) static_tokens: StaticTokens,
    pub(crate) service_accounts: Arc<ServiceAccountTokens>,
    pub(crate) bootstrap: Arc<BootstrapTokens>,
    pub(crate) jwt: JwtAuthenticators,
    pub(crate) console: ConsoleSessions,
    pub(crate) webhook: Option<TokenWebhook>,
    pub(crate) workspaces: WorkspaceIssuers,
}

impl Authenticator {
    /// Creates an authenticator.
    pub(crate) fn new(tokens: TokenVerifiers) -> Self {
        let TokenVerifiers { static_tokens, service_accounts, bootstrap, jwt, console, webhook, workspaces } = tokens;
        Self { static_tokens, service_accounts, bootstrap, jwt, console, webhook, workspaces }
    }

    /// Returns true if requests without credentials may reach a path within a logical cluster.
    pub(crate) fn allows_anonymous(&self, path: &str) -> bool {
        self.jwt.allows_anonymous(path)
    }

    /// Rereads the configuration of issuers if its file has changed. Returns true if it was replaced.
    ///
    /// # Errors
    /// A file that cannot be read or is invalid; the configuration stays as it is.
    pub(crate) fn reread(&self) -> Result<bool, ConfigError> {
        self.jwt.reread()
    }

    /// Authenticates a request to a logical cluster. A certificate takes precedence over a token. The token of a
    /// WebSocket is removed in any case.
    ///
    /// # Errors
    /// 401 for wrong credentials; missing ones are anonymous.
    pub(crate) async fn authenticate(
        &self,
        peer: &Peer,
        headers: &mut HeaderMap,
        named: &RequestedCluster,
    ) -> Result<Identity, Status> {
        let of_socket = websocket::take_token(headers);
        let certified = match peer {
            Peer::InProcess(identity) => return Ok(Identity::clone(identity)),
            Peer::Connection(user) => user,
            Peer::Revoked => return Err(Status::unauthorized()),
            Peer::Console => return Box::pin(self.console_identity(headers)).await,
        };
        if let Some(user) = certified {
            return Ok(Identity::global(User::clone(user)));
        }
        if let Some(token) = bearer(headers).filter(|token| BootstrapToken::is_meant(token)) {
            return Box::pin(self.bootstrap.verify(&token)).await;
        }
        let mut refused = None;
        for token in [Ok(bearer(headers)), of_socket].map(Result::transpose).into_iter().flatten() {
            let found = match token {
                Ok(token) => Box::pin(self.identity_at(&token, named)).await.map(|identity| identity.with_token(token)),
                Err(failure) => Err(failure),
            };
            match found {
                Ok(identity) => return Ok(identity),
                Err(failure) => refused = Some(failure),
            }
        }
        refused.map_or_else(|| Ok(Identity::anonymous()), Err)
    }

    /// Verifies a bearer token of a request to a logical cluster, whose workspace may have issuers of its own.
    async fn identity_at(&self, token: &str, named: &RequestedCluster) -> Result<Identity, Status> {
        match self.token(token, &[]).await {
            Ok((identity, _)) => Ok(identity),
            Err(refused) => Box::pin(self.workspaces.identity(named, token)).await?.ok_or(refused),
        }
    }

    /// Returns the user of a token of an issuer of the workspace itself; `None` for other tokens, and for refused ones.
    pub(crate) async fn user_of_workspace(&self, cluster: LogicalClusterId, token: &str) -> Option<User> {
        Box::pin(self.workspaces.user_in(cluster, token)).await.ok().flatten()
    }

    /// Returns the identity of a token of an issuer of a workspace, and the covered ones of `audiences`, for a review.
    pub(crate) async fn reviewed_in(
        &self,
        cluster: LogicalClusterId,
        token: &str,
        audiences: &[String],
    ) -> Option<(Identity, Vec<String>)> {
        let good = self.service_accounts.own_audience(audiences).ok()?;
        Some((Identity::local(self.user_of_workspace(cluster, token).await?, cluster), good))
    }

    /// Verifies a bearer token. Returns its identity and those of `audiences` that it covers (the server's own if none
    /// are given).
    ///
    /// # Errors
    /// 401 without a reason.
    pub async fn token(&self, token: &str, audiences: &[String]) -> Result<(Identity, Vec<String>), Status> {
        if token.is_empty() || token.len() > MAX_TOKEN {
            return Err(Status::unauthorized());
        }
        if let Some(user) = self.static_tokens.user(token) {
            // As in kube-apiserver: without an audience, it is meant for this server.
            let good = self.service_accounts.own_audience(audiences).map_err(refused)?;
            return Ok((Identity::global(user), good));
        }
        if let Some(user) = self.user_of_issuer(token).await? {
            let good = self.service_accounts.own_audience(audiences).map_err(refused)?;
            return Ok((Identity::global(user), good));
        }
        match self.service_accounts.verify(token, audiences).await {
            Ok(found) => Ok(found),
            Err(error) => {
                let user = Box::pin(self.reviewed_user(token)).await?.ok_or_else(|| refused(error))?;
                let good = self.service_accounts.own_audience(audiences).map_err(refused)?;
                Ok((Identity::global(user), good))
            }
        }
    }

    /// Returns the user of a token that a webhook knows; `None` for other ones, and for tokens of the own issuer, which
    /// no webhook gets to see.
    async fn reviewed_user(&self, token: &str) -> Result<Option<User>, Status> {
        let own = self.service_accounts.issuer();
        let Some(webhook) = self.webhook.as_ref().filter(|_| jwt::issuer_of(token).as_deref() != Some(own)) else {
            return Ok(None);
        };
        webhook.review(token, own).await.map_err(|why| {
            tracing::warn!(why, "the webhook for tokens failed");
            Status::unauthorized()
        })
    }

    /// Returns the user of a token of a configured issuer; `None` for other tokens.
    async fn user_of_issuer(&self, token: &str) -> Result<Option<User>, Status> {
        self.jwt.verify(token).await.map_err(|why| {
            tracing::debug!(why, "token of an issuer refused");
            Status::unauthorized()
        })
    }

    /// Verifies again a token that was valid for `user`. While the store fails, it stays valid.
    ///
    /// # Errors
    /// 401 without a reason; also if an issuer's token means another user now, or the same one in other groups.
    async fn check_again(&self, token: &str, user: &User, cluster: LogicalClusterId) -> Result<(), Status> {
        if self.static_tokens.user(token).is_some() {
            return Ok(());
        }
        if let Some(now) = self.user_of_issuer(token).await? {
            return if now == *user { Ok(()) } else { Err(Status::unauthorized()) };
        }
        match self.service_accounts.verify(token, &[]).await {
            Ok(_) | Err(TokenError::Store(_)) => Ok(()),
            Err(error) => {
                let now = match Box::pin(self.user_of_workspace(cluster, token)).await {
                    Some(now) => Some(now),
                    None => Box::pin(self.reviewed_user(token)).await?,
                };
                if now.as_ref() == Some(user) { Ok(()) } else { Err(refused(error)) }
            }
        }
    }
}

fn refused(error: TokenError) -> Status {
    tracing::debug!(%error, "bearer token refused");
    Status::unauthorized()
}

/// Returns the bearer token of the headers. Other authorization schemes are ignored.
fn bearer(headers: &HeaderMap) -> Option<String> {
    let text = String::from_utf8_lossy(headers.get(AUTHORIZATION)?.as_bytes()).into_owned();
    let mut parts = text.trim().split(' ');
    parts.next().filter(|scheme| scheme.eq_ignore_ascii_case("bearer"))?;
    parts.next().filter(|token| !token.is_empty()).map(str::to_owned)
}

/// Adds the group of authenticated users to `groups`.
pub(crate) fn with_authenticated(mut groups: Vec<String>) -> Vec<String> {
    if !groups.iter().any(|g| g == AUTHENTICATED) {
        groups.push(AUTHENTICATED.into());
    }
    groups
}

/// Removes identity headers of front proxies, in any spelling: clients must not set them.
pub(crate) fn strip_proxy_headers(headers: &mut HeaderMap) {
    let forged: Vec<http::HeaderName> =
        headers.keys().filter(|name| name.as_str().replace('_', "-").starts_with("x-remote-")).cloned().collect();
    for name in forged {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_authorization_schemes_are_ignored() {
        for (text, expected) in [
            ("Bearer t", Some("t")),
            ("bEARER t and more", Some("t")),
            ("  Bearer t ", Some("t")),
            ("Bearer  t", None),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic YTpi", None),
            ("t", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, text.parse().unwrap());
            assert_eq!(bearer(&headers).as_deref(), expected, "{text}");
        }
    }
}
