//! What an identity rests on, for requests that last: they end when it does not hold any more.

use std::{fmt, sync::Arc};

use portolan_machinery::rbac::User;
use portolan_types::{LogicalClusterId, Status};

use crate::{attributes::Attributes, authz::Authorizer};

use super::{Authenticator, Identity, Impersonation, authorize_impersonation};

/// A credential that can lose its force, and who has taken on another identity. Certificates are as good as their connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grounds {
    token: Option<Token>,
    acting: Option<Arc<Acting>>,
}

/// A bearer token, which is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
struct Token(Arc<str>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Somebody who acts as somebody else.
#[derive(Debug, PartialEq, Eq)]
struct Acting {
    asker: User,
    wanted: Impersonation,
}

impl Identity {
    /// This identity, which a bearer token proves.
    pub(super) fn by(mut self, token: String) -> Self {
        self.grounds.token = Some(Token(token.into()));
        self
    }

    /// This identity, which `asker` was allowed to act as.
    pub(crate) fn taken_on(mut self, asker: Self, wanted: Impersonation) -> Self {
        self.grounds =
            Grounds { token: asker.grounds.token, acting: Some(Arc::new(Acting { asker: asker.user, wanted })) };
        self
    }

    /// Whether it would still be believed in `cluster`, for a request with these attributes.
    ///
    /// # Errors
    /// 401 when the token has ended, or its account; 403 when whoever acts as somebody may not any more.
    pub(crate) async fn check_again(
        &self,
        authenticator: &Authenticator,
        authorizer: &dyn Authorizer,
        cluster: LogicalClusterId,
        request: &Attributes,
    ) -> Result<(), Status> {
        if let Some(Token(token)) = &self.grounds.token {
            authenticator.check_again(token).await?;
        }
        if let Some(acting) = &self.grounds.acting {
            let asker = (cluster, &acting.asker);
            authorize_impersonation(authorizer, asker, acting.wanted.clone(), request).await?;
        }
        Ok(())
    }
}
