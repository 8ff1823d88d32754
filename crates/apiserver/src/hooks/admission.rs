//! Request as admission sees it, and the plugins of the embedding program.

use portolan_kinds::{Kind, KindTable};
use portolan_strategy::{lifecycle::DeleteOptions, rbac::User};
use portolan_types::{BoxFuture, Status};
use serde_json::Value;

use crate::{directory::LogicalCluster, requester::Requester, views::ApiView};

use super::{
    InlineBudget,
    annotations::{AnnotatedRequest, AuditAnnotations},
    warnings::Warnings,
};

/// Operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Create.
    Create,
    /// Update.
    Update,
    /// Delete, or mark as deleted.
    Delete,
    /// Open a stream.
    Connect,
}

impl Operation {
    /// Returns the word in AdmissionReviews.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// Request under admission.
#[derive(Clone, Copy)]
pub struct AdmissionRequest<'a> {
    /// Logical cluster.
    pub cluster: &'a LogicalCluster,
    /// Kind of the object.
    pub kind: &'a Kind,
    /// Namespace, empty at cluster scope.
    pub namespace: &'a str,
    /// Name, empty before it has been made up.
    pub name: &'a str,
    /// Name in the URL; empty if it has none, as for a create.
    pub(crate) url_name: &'a str,
    /// Operation.
    pub operation: Operation,
    /// Subresource; empty for the object itself.
    pub subresource: &'a str,
    /// Requesting user, as the logical cluster knows it.
    pub user: &'a User,
    /// Client, for checks in other logical clusters. Through a view its user is not [`Self::user`], the stranger that
    /// the logical cluster of the request knows.
    pub(crate) requester: Requester<'a>,
    /// True if nothing will be stored.
    pub dry_run: bool,
    /// Texts for `Warning` headers.
    pub(crate) warnings: &'a Warnings,
    /// Notes for the audit log.
    pub(crate) notes: &'a AuditAnnotations,
    /// Budget for inline evaluations of expressions.
    pub(crate) inline_budget: &'a InlineBudget,
    /// View that the request goes through.
    pub(crate) view: Option<&'a ApiView>,
    /// Kind table of the logical cluster.
    pub(crate) table: &'a KindTable,
    /// Options that the client sent.
    pub(crate) options: AdmissionOptions<'a>,
}

/// Options of a write, as a client sends them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AdmissionOptions<'a> {
    /// No options.
    Nothing,
    /// Field manager and field validation of a create or an update; empty if unset.
    Write { manager: &'a str, validation: &'a str },
    /// Options of a deletion.
    Delete(&'a DeleteOptions),
}

impl AdmissionRequest<'_> {
    /// Returns true for the resource itself, and false for its subresources.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.subresource.is_empty() && *self.kind.gvk.group == *group && *self.kind.resource == *resource
    }

    /// Adds a text for a `Warning` header, unless it was added before.
    pub(crate) fn warn(&self, text: String) {
        self.warnings.add(text);
    }

    /// Adds a note to the audit log.
    pub(crate) fn annotate(&self, key: &str, text: &str) {
        self.notes.add(key, text, || {
            AnnotatedRequest::new(&self.cluster.path, &self.kind.resource, (self.namespace, self.name), &self.user.name)
        });
    }
}

/// Admission plugin. Both halves admit everything by default.
pub trait AdmissionPlugin: Send + Sync {
    /// Mutates the object before it is completed and validated.
    ///
    /// # Errors
    /// The refusal of the write.
    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: &'a mut Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        let _ = (request, object, old);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Validates the object as it would be stored; `None` for deletions.
    ///
    /// # Errors
    /// The refusal of the write.
    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        let _ = (request, object, old);
        Box::pin(std::future::ready(Ok(())))
    }
}
