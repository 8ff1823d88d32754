//! `authorizer` in an expression: questions of who may do what, put together step by step.

use std::fmt;
use std::sync::Arc;

/// Answers an expression's questions of rights. Must not wait: an evaluation holds a thread.
pub trait Authorizer: Send + Sync {
    /// Whether the user, or `service_account` in its stead, may do this to a resource.
    fn resource(&self, service_account: Option<&(String, String)>, check: &ResourceCheck, verb: &str) -> Decision;
    /// The same for a path that is no resource.
    fn path(&self, service_account: Option<&(String, String)>, check: &PathCheck, verb: &str) -> Decision;
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is allowed.
    pub allowed: bool,
    /// Why.
    pub reason: String,
    /// What went wrong in finding out.
    pub error: Option<String>,
}

/// A resource that is asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceCheck {
    /// API group
    pub group: String,
    /// Resource, plural
    pub resource: String,
    /// Subresource, or nothing
    pub subresource: String,
    /// Namespace, or nothing
    pub namespace: String,
    /// Name, or nothing
    pub name: String,
    /// Field and label selectors, as they were written.
    pub selectors: Selector,
}

/// Selectors of a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// A field selector, or nothing
    pub fields: String,
    /// A label selector, or nothing
    pub labels: String,
}

/// A path that is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathCheck {
    /// The path, like `/healthz`.
    pub path: String,
}

/// A question as far as it has been put together.
#[derive(Clone)]
pub(crate) struct Check<'a> {
    pub(crate) authorizer: &'a dyn Authorizer,
    pub(crate) service_account: Option<Arc<(String, String)>>,
    pub(crate) step: Step,
}

/// How far a question is.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Authorizer,
    Path(Arc<PathCheck>),
    Group(Arc<str>),
    Resource(Arc<ResourceCheck>),
    Decision(Arc<Decision>),
}

impl fmt::Debug for Check<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Check")
            .field("service_account", &self.service_account)
            .field("step", &self.step)
            .finish()
    }
}

impl<'a> Check<'a> {
    /// `authorizer`
    pub(crate) fn new(authorizer: &'a dyn Authorizer) -> Self {
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

    /// Asks.
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
