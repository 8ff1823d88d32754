//! Who may do what.

mod rbac;
mod snapshot;
mod usage;

use portolan_machinery::rbac::{PolicyRule, User};
use portolan_types::{BoxFuture, LogicalClusterId, Status};

pub(crate) use rbac::RESOURCES;
pub use rbac::RbacAuthorizer;
pub use snapshot::{ClusterRoles, OwnObjects};
pub use usage::{UseGrants, identity_of};

use crate::attributes::Attributes;

/// The answer to a question for permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes; and by what, for people.
    Allowed(String),
    /// No; and why, for people. May be empty.
    Denied(String),
}

impl Verdict {
    /// Whether it is a yes.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }
}

/// Decides. An error is a no.
pub trait Authorizer: Send + Sync {
    /// Whether `user` may do it in this logical cluster.
    ///
    /// # Errors
    /// When the rules cannot be read.
    fn authorize<'a>(
        &'a self,
        cluster: LogicalClusterId,
        user: &'a User,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Verdict, Status>>;

    /// The rules that `user` holds in a namespace, or cluster-wide where it is empty.
    ///
    /// # Errors
    /// When the rules cannot be read.
    fn rules<'a>(
        &'a self,
        cluster: LogicalClusterId,
        user: &'a User,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Vec<PolicyRule>, Status>>;
}

/// Allows nobody anything: of logical clusters that are not there.
pub(crate) struct Nothing;

impl Authorizer for Nothing {
    fn authorize<'a>(
        &'a self,
        _: LogicalClusterId,
        _: &'a User,
        _: &'a Attributes,
    ) -> BoxFuture<'a, Result<Verdict, Status>> {
        Box::pin(std::future::ready(Ok(Verdict::Denied(String::new()))))
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
