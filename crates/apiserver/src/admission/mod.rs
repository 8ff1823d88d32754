//! What every write must pass, in order: guards, mutating steps, validating steps, and what must be written with it.

mod escalation;
mod namespaces;
mod reservations;
mod service_accounts;
mod services;
mod workspaces;

pub use workspaces::FINALIZER as WORKSPACE_FINALIZER;

use std::sync::Arc;

use portolan_machinery::{kinds::Kind, rbac::User};
use portolan_store::Expect;
use portolan_types::{BoxFuture, ObjectKey, Status};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    ApiServer,
    directory::LogicalCluster,
    objects::{Commit, CommitError},
};

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is made.
    Create,
    /// It is changed.
    Update,
    /// It is deleted, or marked to be.
    Delete,
}

impl Operation {
    /// The word in admission reviews.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// A write that asks to be admitted.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Where.
    pub cluster: &'a LogicalCluster,
    /// Of which kind.
    pub kind: &'a Kind,
    /// Namespace, empty at cluster scope.
    pub namespace: &'a str,
    /// What is done.
    pub operation: Operation,
    /// `status`, `scale`, `finalize`; `other` for the rest; empty for the object itself.
    pub subresource: &'a str,
    /// By whom.
    pub user: &'a User,
    /// Nothing will be stored.
    pub dry_run: bool,
}

impl Request<'_> {
    /// Whether it is about this resource itself, and not one of its subresources.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.subresource.is_empty() && *self.kind.gvk.group == *group && *self.kind.resource == *resource
    }
}

/// A step of admission. Both halves pass everything unless they say otherwise.
pub trait Admission: Send + Sync {
    /// May change the object before it is completed and validated.
    ///
    /// # Errors
    /// What is wrong with the write.
    fn mutate<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a mut Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        let _ = (request, object, old);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Looks at the object as it would be stored; `None` for deletions.
    ///
    /// # Errors
    /// What is wrong with the write.
    fn validate<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        let _ = (request, object, old);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The built-in steps and the binary's, in order.
pub(crate) struct Chain {
    steps: Vec<Arc<dyn Admission>>,
}

impl Chain {
    pub(crate) fn new(further: &[Arc<dyn Admission>]) -> Self {
        let mut steps: Vec<Arc<dyn Admission>> = vec![Arc::new(service_accounts::Defaults)];
        steps.extend(further.iter().cloned());
        Self { steps }
    }

    /// What must hold of the place where an object is made, and must still hold when it is committed.
    pub(crate) async fn guard(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
    ) -> Result<Vec<(ObjectKey, Expect)>, Status> {
        namespaces::guard(api, request).await
    }

    pub(crate) async fn mutate(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let mut outcome = Ok(());
        for step in &self.steps {
            outcome = step.mutate(request, object, old).await;
            if outcome.is_err() {
                break;
            }
        }
        api.metrics.admitted("admit", request.operation.word(), outcome.is_err(), started.elapsed().as_secs_f64());
        outcome?;
        if let Some(old) = old.filter(|_| request.is("tenancy.kcp.io", "workspaces")) {
            workspaces::keep(object, old);
        }
        Ok(())
    }

    pub(crate) async fn validate(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let outcome = self.validated(api, request, object, old).await;
        api.metrics.admitted("validate", request.operation.word(), outcome.is_err(), started.elapsed().as_secs_f64());
        outcome
    }

    async fn validated(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        for step in &self.steps {
            step.validate(request, object, old).await?;
        }
        let is_workspace = *request.kind.gvk.group == *"tenancy.kcp.io" && *request.kind.resource == *"workspaces";
        if let (true, Some(object), Some(old)) = (is_workspace, object, old) {
            workspaces::check_held(api, request, object, old)?;
        }
        escalation::check(api, request, object, old).await
    }

    /// Adds to the commit what must be written with the object, and to the object what follows from that.
    pub(crate) async fn furnish(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
        commit: &mut Commit,
    ) -> Result<(), CommitError> {
        if request.is("", "services") {
            services::furnish(api, request, object, old, commit).await?;
        }
        if request.is("tenancy.kcp.io", "workspaces") && request.operation == Operation::Create {
            workspaces::furnish(api, request, object, commit).await?;
        }
        Ok(())
    }

    /// Adds to the commit what follows from the mark that the object is being deleted.
    pub(crate) fn doom(&self, api: &ApiServer, request: &Request<'_>, object: &Value, commit: &mut Commit) {
        if request.is("tenancy.kcp.io", "workspaces") {
            workspaces::doom(api, object, commit);
        }
    }

    /// Adds to the commit what goes with the object.
    pub(crate) async fn clear(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        old: &Value,
        commit: &mut Commit,
    ) -> Result<(), Status> {
        if *request.kind.gvk.group == *"" && *request.kind.resource == *"services" {
            services::clear(api, request, old, commit).await?;
        }
        Ok(())
    }
}
