//! Authorization.

mod providers;
mod rbac;
pub(crate) mod shared_objects;
mod snapshot;
mod usage;
mod webhook;

use portolan_strategy::rbac::{PolicyRule, User};
use portolan_types::{BoxFuture, LogicalClusterId, Status};

pub(crate) use providers::authorize_provider;
pub use rbac::RbacAuthorizer;
pub(crate) use rbac::{RESOURCES, SCOPES};
pub(crate) use shared_objects::SharedObjects;
pub use snapshot::{ClusterRoles, OwnObjects};
pub(crate) use usage::UsableClusters;
pub use usage::{UseGrants, identity_of};
pub(crate) use webhook::{AuthorizedSubject, AuthorizerChain};

use crate::routing::attributes::Attributes;

/// Decision of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizationDecision {
    /// Allowed, with the reason for people.
    Allowed(String),
    /// Denied, with the reason for people; may be empty.
    Denied(String),
}

impl AuthorizationDecision {
    /// Returns true if it allows the request.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }
}

/// Subject of an authorization.
pub(crate) trait AuthorizationSubject: Sync {
    /// Returns the user.
    fn user(&self) -> &User;

    /// Returns true if another user with rights in the logical cluster impersonates it.
    fn is_impersonated(&self) -> bool;
}

/// Authorizer. An error counts as a denial.
pub trait Authorizer: Send + Sync {
    /// Decides on a request of `user` in this logical cluster.
    ///
    /// # Errors
    /// Failure to read the rules.
    fn authorize<'a>(
        &'a self,
        cluster: LogicalClusterId,
        user: &'a User,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<AuthorizationDecision, Status>>;

    /// Returns the rules of `user` in a namespace, or cluster-wide if it is empty.
    ///
    /// # Errors
    /// Failure to read the rules.
    fn rules<'a>(
        &'a self,
        cluster: LogicalClusterId,
        user: &'a User,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Vec<PolicyRule>, Status>>;
}

/// Authorizer of logical clusters that do not exist: denies everything.
pub(crate) struct DenyAll;

impl Authorizer for DenyAll {
    fn authorize<'a>(
        &'a self,
        _: LogicalClusterId,
        _: &'a User,
        _: &'a Attributes,
    ) -> BoxFuture<'a, Result<AuthorizationDecision, Status>> {
        Box::pin(std::future::ready(Ok(AuthorizationDecision::Denied(String::new()))))
    }

    fn rules<'a>(
        &'a self,
        _: LogicalClusterId,
        _: &'a User,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Vec<PolicyRule>, Status>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
