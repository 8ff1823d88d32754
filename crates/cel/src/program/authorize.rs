//! `authorizer` in an expression: authorization checks, built step by step.

use std::fmt;
use std::sync::Arc;

/// Authorizer of an expression's checks. It must not block: an evaluation holds a thread.
pub trait ExpressionAuthorizer: Send + Sync {
    /// Checks whether the user, or `service_account` instead of it, may act on a resource.
    fn resource(
        &self,
        service_account: Option<&(String, String)>,
        check: &ResourceCheck,
        verb: &str,
    ) -> AuthorizerDecision;
    /// Checks whether the user, or `service_account` instead of it, may access a path that is not a resource.
    fn path(&self, service_account: Option<&(String, String)>, check: &PathCheck, verb: &str) -> AuthorizerDecision;
}

/// Decision of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizerDecision {
    /// True if it is allowed.
    pub allowed: bool,
    /// Reason.
    pub reason: String,
    /// Error of the check.
    pub error: Option<String>,
}

/// Resource of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceCheck {
    /// API group
    pub group: String,
    /// Resource, plural
    pub resource: String,
    /// Subresource; empty if there is none
    pub subresource: String,
    /// Namespace; empty if there is none
    pub namespace: String,
    /// Name; empty if there is none
    pub name: String,
    /// Field and label selectors, as written.
    pub selectors: AuthorizerSelector,
}

/// Selectors of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizerSelector {
    /// Field selector; empty if there is none
    pub fields: String,
    /// Label selector; empty if there is none
    pub labels: String,
}

/// Path of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathCheck {
    /// The path, like `/healthz`.
    pub path: String,
}

/// Check under construction.
#[derive(Clone)]
pub(crate) struct AuthorizerCheck<'a> {
    pub(crate) authorizer: &'a dyn ExpressionAuthorizer,
    pub(crate) service_account: Option<Arc<(String, String)>>,
    pub(crate) step: Step,
}

/// Stage of a check.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Authorizer,
    Path(Arc<PathCheck>),
    Group(Arc<str>),
    Resource(Arc<ResourceCheck>),
    Decision(Arc<AuthorizerDecision>),
}

impl fmt::Debug for AuthorizerCheck<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Check")
            .field("service_account", &self.service_account)
            .field("step", &self.step)
            .finish()
    }
}

impl<'a> AuthorizerCheck<'a> {
    /// `authorizer`
    pub(crate) fn new(authorizer: &'a dyn ExpressionAuthorizer) -> Self {
        Self { authorizer, service_account: None, step: Step::Authorizer }
    }

    pub(crate) fn at(&self, step: Step) -> Self {
        Self { step, ..self.clone() }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self.step {
            Step::Authorizer => "kubernetes.authorization.Authorizer",
            Step::Path(_) => "kubernetes.authorization.PathCheck",
            Step::Group(_) => "kubernetes.authorization.GroupCheck",
            Step::Resource(_) => "kubernetes.authorization.ResourceCheck",
            Step::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    /// Runs the check.
    pub(crate) fn ask(&self, verb: &str) -> Option<Self> {
        let account = self.service_account.as_deref();
        let decision = match &self.step {
            Step::Resource(check) => self.authorizer.resource(account, check, verb),
            Step::Path(check) => self.authorizer.path(account, check, verb),
            Step::Authorizer | Step::Group(_) | Step::Decision(_) => return None,
        };
        Some(self.at(Step::Decision(Arc::new(decision))))
    }
}
