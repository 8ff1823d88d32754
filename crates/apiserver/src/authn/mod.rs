//! Who asks: client certificates, bearer tokens, nobody; and impersonation.

mod certificate;
mod grounds;
mod impersonation;
mod service_accounts;
mod static_tokens;
pub(crate) mod websocket;

use std::sync::Arc;

use http::{HeaderMap, header::AUTHORIZATION};
use portolan_machinery::rbac::User;
use portolan_types::{LogicalClusterId, Status};

pub(crate) use certificate::end_of_certificate;
pub use certificate::user_of_certificate;
use grounds::Grounds;
pub(crate) use impersonation::{Impersonation, authorize as authorize_impersonation};
pub use service_accounts::{
    Bound, IssuedToken, Reference, SecretClaims, ServiceAccountTokens, TokenError, TokenKeys, TokenRequest,
};
pub use static_tokens::{StaticToken, StaticTokens, parse_token_file};

/// Everybody who is somebody.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of the anonymous user.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Longest bearer token that is looked at, in bytes.
const MAX_TOKEN: usize = 16 * 1024;

/// A user, and where the user is at home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who it is.
    pub user: User,
    /// The one logical cluster that this identity is good for; `None` for identities of the whole plane.
    pub home: Option<LogicalClusterId>,
    /// Somebody who may do so acts as this user: whoever asks has a right to be in the logical cluster.
    pub impersonated: bool,
    /// What to tell whoever comes with such credentials.
    pub warning: Option<&'static str>,
    /// What it rests on.
    pub(crate) grounds: Grounds,
}

impl Identity {
    /// An identity of the whole plane.
    pub fn global(user: User) -> Self {
        Self { user, home: None, impersonated: false, warning: None, grounds: Grounds::default() }
    }

    /// An identity of one logical cluster.
    pub fn local(user: User, home: LogicalClusterId) -> Self {
        Self { home: Some(home), ..Self::global(user) }
    }

    /// Nobody in particular.
    pub fn anonymous() -> Self {
        let groups = vec![UNAUTHENTICATED.to_owned()];
        Self::global(User { name: "system:anonymous".into(), groups, ..User::default() })
    }

    /// Returns true for a request without credentials.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.user.groups.iter().any(|group| group == UNAUTHENTICATED)
    }
}

/// How the request came in, before any header is believed.
#[derive(Clone, Debug)]
pub enum Peer {
    /// Over a connection; with the verified client certificate's user, if it showed one.
    Connection(Option<Arc<User>>),
    /// Over a connection whose client showed a certificate that is revoked.
    Revoked,
    /// From within the process: the caller is who it says it is, and credentials in headers are not looked at.
    InProcess(Arc<Identity>),
}

/// Verifies credentials.
pub struct Authenticator {
    static_tokens: StaticTokens,
    service_accounts: Arc<ServiceAccountTokens>,
}

impl Authenticator {
    /// From its parts.
    pub fn new(static_tokens: Vec<StaticToken>, service_accounts: Arc<ServiceAccountTokens>) -> Self {
        Self { static_tokens: StaticTokens::new(static_tokens), service_accounts }
    }

    /// Who sent these headers over this connection. A certificate counts before a token. The token of a WebSocket is taken off,
    /// whatever comes of it.
    ///
    /// # Errors
    /// 401 for credentials that are wrong; none at all are anonymous.
    pub async fn authenticate(&self, peer: &Peer, headers: &mut HeaderMap) -> Result<Identity, Status> {
        let of_socket = websocket::take_token(headers);
        let certified = match peer {
            Peer::InProcess(identity) => return Ok(Identity::clone(identity)),
            Peer::Connection(user) => user,
            Peer::Revoked => return Err(Status::unauthorized()),
        };
        if let Some(user) = certified {
            return Ok(Identity::global(User::clone(user)));
        }
        let mut refused = None;
        for token in [Ok(bearer(headers)), of_socket].map(Result::transpose).into_iter().flatten() {
            let found = match token {
                Ok(token) => self.token(&token, &[]).await.map(|(identity, _)| identity.by(token)),
                Err(failure) => Err(failure),
            };
            match found {
                Ok(identity) => return Ok(identity),
                Err(failure) => refused = Some(failure),
            }
        }
        refused.map_or_else(|| Ok(Identity::anonymous()), Err)
    }

    /// Whose bearer token this is, and for which of `audiences` it is good (of the server's own, when none are asked for).
    ///
    /// # Errors
    /// 401, without a hint why.
    pub async fn token(&self, token: &str, audiences: &[String]) -> Result<(Identity, Vec<String>), Status> {
        if token.is_empty() || token.len() > MAX_TOKEN {
            return Err(Status::unauthorized());
        }
        if let Some(user) = self.static_tokens.user(token) {
            // As upstream: it names nobody whom it is meant for, and so is meant for this server.
            let good = self.service_accounts.own_audience(audiences).map_err(refused)?;
            return Ok((Identity::global(user), good));
        }
        self.service_accounts.verify(token, audiences).await.map_err(refused)
    }

    /// Whether a token is still good that was. While the store does not answer, it is.
    ///
    /// # Errors
    /// 401, without a hint why.
    async fn check_again(&self, token: &str) -> Result<(), Status> {
        if self.static_tokens.user(token).is_some() {
            return Ok(());
        }
        match self.service_accounts.verify(token, &[]).await {
            Ok(_) | Err(TokenError::Store(_)) => Ok(()),
            Err(error) => Err(refused(error)),
        }
    }
}

fn refused(error: TokenError) -> Status {
    tracing::debug!(%error, "a bearer token is refused");
    Status::unauthorized()
}

/// The bearer token in the headers. Credentials of other kinds are none.
fn bearer(headers: &HeaderMap) -> Option<String> {
    let text = String::from_utf8_lossy(headers.get(AUTHORIZATION)?.as_bytes()).into_owned();
    let mut parts = text.trim().split(' ');
    parts.next().filter(|scheme| scheme.eq_ignore_ascii_case("bearer"))?;
    parts.next().filter(|token| !token.is_empty()).map(str::to_owned)
}

/// `groups` with the one that everybody authenticated is in.
pub(crate) fn with_authenticated(mut groups: Vec<String>) -> Vec<String> {
    if !groups.iter().any(|g| g == AUTHENTICATED) {
        groups.push(AUTHENTICATED.into());
    }
    groups
}

/// Takes off what clients must not be able to say: identity headers of front proxies, in any spelling.
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
    fn credentials_that_are_no_bearer_are_none() {
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
