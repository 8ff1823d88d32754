//! Credential behind an identity. Long-running requests check it again, and end when it is no longer valid.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use portolan_strategy::rbac::User;
use portolan_types::{LogicalClusterId, Status};

use crate::{authz::Authorizer, pki::revoked::CertificateId, requester::UserToken, routing::attributes::Attributes};

use super::{
    AskingUser, Authenticator, Identity, Impersonation, authorize_impersonation,
    console::{SessionCredential, SessionUser},
    jwt,
};

/// Credential that can be revoked, and the impersonating user. Certificates hold for their connection, or for a session
/// of the console.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credential {
    token: Option<BearerToken>,
    session: Option<Arc<SessionUser>>,
    impersonator: Option<Arc<Impersonator>>,
}

/// Bearer token, hidden from debug output.
#[derive(Clone, PartialEq, Eq)]
struct BearerToken(Arc<str>);

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Impersonating identity, and the identity that it requested.
#[derive(Debug, PartialEq, Eq)]
struct Impersonator {
    asker: User,
    wanted: Impersonation,
}

impl Identity {
    /// Returns the credential of a bearer token.
    pub(super) fn with_token(mut self, token: String) -> Self {
        self.credential.token = Some(BearerToken(token.into()));
        self
    }

    /// Returns the credential of a session of the console.
    pub(super) fn with_session(mut self, user: Arc<SessionUser>) -> Self {
        self.credential.session = Some(user);
        self
    }

    /// Returns the credential that a session of the console can hold: the token, if the client has one. `certificate`
    /// is that of the connection, with its end.
    pub(crate) fn session_credential(&self, certificate: Option<(CertificateId, Timestamp)>) -> SessionCredential {
        if let Some(BearerToken(token)) = &self.credential.token {
            return SessionCredential::Token(token.to_string());
        }
        let (certificate, until) = certificate.unzip();
        SessionCredential::User(Arc::new(SessionUser { user: self.user.clone(), certificate, until }))
    }

    /// Returns the token of a user of the whole control plane, if it states audiences and no other user acts as it.
    pub(crate) fn forwardable_token(&self) -> Option<UserToken> {
        let BearerToken(token) = self.credential.token.as_ref()?;
        if self.home.is_some() || self.credential.impersonator.is_some() {
            return None;
        }
        let audiences = jwt::audiences_of(token);
        (!audiences.is_empty()).then(|| UserToken { token: token.clone(), audiences })
    }

    /// Returns the user, if another one acts as it.
    pub(crate) fn acts_as(&self) -> Option<&User> {
        self.credential.impersonator.is_some().then_some(&self.user)
    }

    /// Returns the credential of an identity that `asker` impersonates.
    pub(crate) fn impersonated_by(mut self, asker: Self, wanted: Impersonation) -> Self {
        self.credential = Credential {
            token: asker.credential.token,
            session: asker.credential.session,
            impersonator: Some(Arc::new(Impersonator { asker: asker.user, wanted })),
        };
        self
    }

    /// Checks that it would still be accepted in `cluster` for a request with these attributes.
    ///
    /// # Errors
    /// 401 if the token has expired, its account is gone, or it means another user now; 403 if impersonation is no
    /// longer allowed.
    pub(crate) async fn check_again(
        &self,
        authenticator: &Authenticator,
        authorizer: &dyn Authorizer,
        cluster: LogicalClusterId,
        request: &Attributes,
    ) -> Result<(), Status> {
        if let Some(BearerToken(token)) = &self.credential.token {
            let user = self.credential.impersonator.as_ref().map_or(&self.user, |impersonator| &impersonator.asker);
            authenticator.check_again(token, user, cluster).await?;
        }
        if let Some(session) = &self.credential.session {
            authenticator.console().check(session)?;
        }
        if let Some(impersonator) = &self.credential.impersonator {
            let asker = AskingUser { cluster, user: &impersonator.asker };
            authorize_impersonation(authorizer, asker, impersonator.wanted.clone(), request).await?;
        }
        Ok(())
    }
}
