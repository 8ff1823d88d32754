//! What every write must pass, in order: guards, mutating steps, validating steps, quotas, and what must be written with it.

mod aggregation;
mod builtin;
mod chain;
mod configured;
mod defined_names;
mod definitions;
mod escalation;
mod expressions;
mod lines;
mod lookup;
mod matching;
mod namespaces;
mod physical_clusters;
mod pod_security;
mod policies;
pub(crate) mod quota;
mod reread;
mod reservations;
mod review;
mod room;
mod rounds;
mod services;
mod webhooks;
mod workspaces;
mod would_be;

pub use builtin::add_default_tolerations;
pub(crate) use chain::Chain;
pub(crate) use configured::Configured;
pub(crate) use expressions::{Brief, Expressions};
pub(crate) use lines::{Lines, Turn};
pub use workspaces::FINALIZER as WORKSPACE_FINALIZER;
pub use would_be::{MadeAsk, PodCharges, PodsTurn};

use portolan_machinery::{
    kinds::{Kind, KindTable},
    lifecycle::DeleteOptions,
    rbac::User,
};
use portolan_types::{BoxFuture, Status, object};
use serde_json::Value;

use crate::{
    directory::LogicalCluster,
    notes::{About, Notes},
    warnings::Warnings,
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
    /// A stream into it is opened.
    Connect,
}

impl Operation {
    /// The word in admission reviews.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
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
    /// Name, empty before it has been made up.
    pub name: &'a str,
    /// The name that the URL says, empty where it says none, as in one that objects are posted to.
    pub(crate) url_name: &'a str,
    /// What is done.
    pub operation: Operation,
    /// The subresource by its name, empty for the object itself.
    pub subresource: &'a str,
    /// By whom.
    pub user: &'a User,
    /// Nothing will be stored.
    pub dry_run: bool,
    /// Texts for `Warning` headers.
    pub(crate) warnings: &'a Warnings,
    /// What is noted for the log.
    pub(crate) notes: &'a Notes,
    /// Time that is left for brief evaluations.
    pub(crate) brief: &'a Brief,
    /// The kinds of the logical cluster.
    pub(crate) table: &'a KindTable,
    /// What the client said about how to do it.
    pub(crate) sent: Sent<'a>,
}

/// Options of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent<'a> {
    /// None.
    Nothing,
    /// Of a create or an update: who writes, and how strictly fields are checked. Empty where nothing was said.
    Write { manager: &'a str, validation: &'a str },
    /// Of a deletion.
    Delete(&'a DeleteOptions),
}

impl Request<'_> {
    /// Whether it is about this resource itself, and not one of its subresources.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.subresource.is_empty() && *self.kind.gvk.group == *group && *self.kind.resource == *resource
    }

    /// Adds a text for a `Warning` header, once.
    pub(crate) fn warn(&self, text: String) {
        self.warnings.add(text);
    }

    /// Notes something for who reads the log of what was done.
    pub(crate) fn annotate(&self, key: &str, text: &str) {
        self.notes.add(key, text, || {
            About::new(&self.cluster.path, &self.kind.resource, (self.namespace, self.name), &self.user.name)
        });
    }
}

/// 403 in the words of upstream's steps. An object without a name is called by what its name will begin with.
fn forbidden(request: &Request<'_>, object: Option<&Value>, why: impl std::fmt::Display) -> Status {
    let of_object = |key| object.map(|object| object::meta_text(object, key)).filter(|text| !text.is_empty());
    let own = Some(request.name).filter(|name| !name.is_empty());
    let name = own.or_else(|| of_object("name")).or_else(|| of_object("generateName")).unwrap_or("Unknown");
    Status::forbidden(&request.kind.group_resource(), name, why)
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
