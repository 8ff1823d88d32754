//! Sessions of the web console: a sealed credential in cookies, which every server with the same keys opens, and none
//! remembers.
//!
//! A session holds the bearer token that the user pasted or that an issuer gave, or the user of a client certificate.
//! It is verified again with every request, so it ends with its credential, and after [`LONGEST`] in any case. The
//! cookies count only under `/ui/api/` and only with the header [`CONSOLE_HEADER`]: a page of another origin cannot
//! send that header, and a sandboxed page of this one sends no cookies.

mod cookies;
mod links;
mod sealed;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use http::{
    HeaderMap,
    header::{AUTHORIZATION, ORIGIN},
};
use jiff::{SignedDuration, Timestamp};
use portolan_store::DynStore;
use portolan_strategy::rbac::User;
use portolan_types::{Reason, Seams, Status};
use serde_json::Value;

use crate::pki::revoked::{CertificateId, RevokedCertificates};

use super::{Authenticator, Identity, JwtAuthenticators, jwt::PendingSignIn};
pub(crate) use cookies::{expired_cookies, session_cookies, sign_in_cookie, take_sign_in};
pub(crate) use links::{LINK_SECONDS, MAX_LINK_SECONDS};
use sealed::{Purpose, SealKey};

/// Header that every request of the console has.
pub(crate) const CONSOLE_HEADER: &str = "x-portolan-console";
/// Longest session.
const LONGEST: SignedDuration = SignedDuration::from_hours(12);
/// Longest token that a session holds, in bytes.
const MAX_TOKEN: usize = 8 * 1024;

/// Session of a user of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConsoleSession {
    /// Credential that the session stands for.
    pub(crate) credential: SessionCredential,
    /// End of the session.
    pub(crate) until: Timestamp,
}

/// Credential behind a session.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum SessionCredential {
    /// Bearer token, verified with every request.
    Token(String),
    /// User of a client certificate, or of a caller in this process.
    User(Arc<SessionUser>),
}

impl std::fmt::Debug for SessionCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token"),
            Self::User(user) => user.fmt(f),
        }
    }
}

/// User of a session without a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionUser {
    pub(crate) user: User,
    /// Client certificate that proved it.
    pub(crate) certificate: Option<CertificateId>,
    /// End of the certificate.
    pub(crate) until: Option<Timestamp>,
}

/// Sealer and verifier of sessions, and of the one-time links that lead to them.
pub(crate) struct ConsoleSessions {
    key: SealKey,
    seams: Seams,
    store: DynStore,
    revoked: Arc<RevokedCertificates>,
}

impl ConsoleSessions {
    /// Creates the sessions of servers that share `secret`.
    pub(crate) fn new(secret: &[u8], seams: Seams, store: DynStore, revoked: Arc<RevokedCertificates>) -> Self {
        Self { key: SealKey::derive(secret), seams, store, revoked }
    }

    /// Starts a session of a credential: until the credential's end, at most [`LONGEST`].
    ///
    /// # Errors
    /// 413 for a token that fits no cookie.
    pub(crate) fn start(&self, credential: SessionCredential) -> Result<ConsoleSession, Status> {
        if matches!(&credential, SessionCredential::Token(token) if token.len() > MAX_TOKEN) {
            return Err(Status::too_large(format!("the token is longer than the {MAX_TOKEN} bytes of a session")));
        }
        let longest = self.seams.clock.now().saturating_add(LONGEST).map_err(Status::internal)?;
        let until = match &credential {
            SessionCredential::User(user) => user.until.map_or(longest, |end| end.min(longest)),
            SessionCredential::Token(_) => longest,
        };
        Ok(ConsoleSession { credential, until })
    }

    /// Seals a session into the text of its cookies.
    ///
    /// # Errors
    /// 413 for a user with so many groups that it fits no cookie.
    pub(crate) fn seal(&self, session: &ConsoleSession) -> Result<String, Status> {
        self.key.seal(Purpose::Session, session.to_value().to_string().as_bytes(), &self.seams)
    }

    /// Opens a sealed session that has not ended.
    ///
    /// # Errors
    /// 401 for anything else.
    pub(super) fn open(&self, sealed: &str) -> Result<ConsoleSession, Status> {
        let bytes = self.key.open(Purpose::Session, sealed).ok_or_else(Status::unauthorized)?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| Status::unauthorized())?;
        let session = ConsoleSession::of(&value).ok_or_else(Status::unauthorized)?;
        if session.until <= self.seams.clock.now() {
            return Err(Status::unauthorized());
        }
        Ok(session)
    }

    /// Seals the secrets of a sign-in that is under way.
    ///
    /// # Errors
    /// 500 for secrets that cannot be sealed.
    pub(crate) fn seal_sign_in(&self, pending: &PendingSignIn) -> Result<String, Status> {
        let bytes = serde_json::to_vec(pending).map_err(Status::internal)?;
        self.key.seal(Purpose::SignIn, &bytes, &self.seams)
    }

    /// Opens the secrets of a sign-in that has not expired; `None` for anything else.
    pub(crate) fn open_sign_in(&self, sealed: &str) -> Option<PendingSignIn> {
        let bytes = self.key.open(Purpose::SignIn, sealed)?;
        let pending: PendingSignIn = serde_json::from_slice(&bytes).ok()?;
        (pending.until > self.seams.clock.now().as_second()).then_some(pending)
    }

    /// Checks that the certificate of a session's user is still good.
    ///
    /// # Errors
    /// 401 if it has expired or is revoked.
    pub(super) fn check(&self, user: &SessionUser) -> Result<(), Status> {
        let has_ended = user.until.is_some_and(|end| end <= self.seams.clock.now());
        let is_revoked = user.certificate.as_ref().is_some_and(|id| self.revoked.contains(id));
        if has_ended || is_revoked { Err(Status::unauthorized()) } else { Ok(()) }
    }
}

/// Checks that the console itself sends a request.
///
/// # Errors
/// 403 without the console's header, and for requests that a browser marks as requests of another origin.
pub(crate) fn check_origin(headers: &HeaderMap) -> Result<(), Status> {
    let refused = |why: &str| Err(Status::new(Reason::Forbidden, format!("this path is the console's: {why}")));
    if headers.get(CONSOLE_HEADER).is_none_or(|value| value != "1") {
        return refused("the request has no header X-Portolan-Console: 1");
    }
    if headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin") {
        return refused("the request comes from another origin");
    }
    if headers.get(ORIGIN).is_some_and(|origin| origin == "null") {
        return refused("the request comes from a sandboxed page");
    }
    Ok(())
}

impl Authenticator {
    /// Returns the sessions of the console.
    pub(crate) fn console(&self) -> &ConsoleSessions {
        &self.console
    }

    /// Returns the issuers of tokens.
    pub(crate) fn issuers(&self) -> &JwtAuthenticators {
        &self.jwt
    }

    /// Returns the identity of a session of the console. No other credential of the request counts, nor does any
    /// handler see the cookies.
    ///
    /// # Errors
    /// 403 for requests of other pages, 401 without a session.
    pub(super) async fn console_identity(&self, headers: &mut HeaderMap) -> Result<Identity, Status> {
        headers.remove(AUTHORIZATION);
        let sealed = cookies::take(headers);
        check_origin(headers)?;
        let session = self.console.open(&sealed.ok_or_else(Status::unauthorized)?)?;
        self.identity_of(&session.credential).await
    }

    /// Verifies the credential of a session.
    ///
    /// # Errors
    /// 401 if it is not valid any more.
    pub(crate) async fn identity_of(&self, credential: &SessionCredential) -> Result<Identity, Status> {
        match credential {
            SessionCredential::Token(token) => {
                self.token(token, &[]).await.map(|(identity, _)| identity.with_token(token.clone()))
            }
            SessionCredential::User(user) => {
                self.console.check(user)?;
                Ok(Identity::global(user.user.clone()).with_session(user.clone()))
            }
        }
    }
}
