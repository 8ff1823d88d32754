//! Write pipeline: the only order of calls from a decoded object to its commit.
//!
//! ```text
//! Received ─admit→ Admitted ─prepare→ Prepared ─validate→ Validated ─commit_as→ Committable ─commit→ stored
//! ```
//!
//! Each stage is a type that only the stage before it can build, so that no write can skip or reorder one. Creates,
//! updates, patches, bindings and the condition of an evicted pod are committed through it. A dry run ends at
//! [`Validated`], and so does a pod of a template that is about to be placed. A write that the server makes on its own
//! starts at [`Admitted::by_server`] and passes no admission.

mod admitted;
mod plan_check;
mod prepared;
mod received;
mod validated;

pub(crate) use admitted::Admitted;
pub(crate) use prepared::{Prepared, WriteEffect};
pub(crate) use received::Received;
pub(crate) use validated::Validated;

use std::sync::Arc;

use portolan_merge::apply::Conversions;
use portolan_strategy::lifecycle::Allocates;
use serde_json::Value;
use tokio_util::task::TaskTracker;

use crate::{
    admission::AdmissionChain,
    commit::CommitContext,
    hooks::{AdmissionRequest, Operation, WritePlanner},
    kinds::DefinitionCatalog,
    request::ResourceTarget,
};

use super::{ObjectConverter, ObjectLocks, ReadContext};

/// Context of the write pipeline.
pub(crate) struct PipelineContext {
    pub(crate) reads: Arc<ReadContext>,
    pub(crate) kinds: DefinitionCatalog,
    pub(crate) admission: AdmissionChain,
    pub(crate) commits: Arc<CommitContext>,
    pub(crate) object_locks: ObjectLocks,
    /// Planner of writes.
    pub(crate) planner: Option<Arc<dyn WritePlanner>>,
    /// Writes that end even if their client leaves.
    pub(crate) tasks: TaskTracker,
}

/// Request, target and options of one write, which all stages share.
pub(crate) struct WriteScope<'a> {
    pub(crate) context: &'a PipelineContext,
    pub(crate) target: &'a ResourceTarget,
    /// Request as admission sees it. Its name is that before a name is generated.
    pub(crate) request: AdmissionRequest<'a>,
    /// Name that the URL of a create has, as in `PUT`.
    pub(crate) url_name: Option<&'a str>,
    /// Path within the logical cluster, for the 404 of a resource that is no longer defined.
    pub(crate) path: &'a str,
    /// Verb of the request.
    pub(crate) verb: &'a str,
    /// Recording of field managers.
    pub(crate) fields: FieldTracking<'a>,
    /// Request body, which error messages quote.
    pub(crate) body: Option<&'a dyn QuotedBody>,
}

/// Recording of field managers in a write.
#[derive(Clone, Copy)]
pub(crate) enum FieldTracking<'a> {
    /// The manager becomes the owner of the changed fields.
    Update { manager: &'a str, conversions: &'a Conversions },
    /// Server-side apply has recorded its manager.
    Applied,
    /// The record stays unchanged: kube-apiserver does not record the manager of a binding.
    Unchanged,
    /// No record: the object is not stored.
    Nothing,
}

/// Request body that error messages quote.
pub(crate) trait QuotedBody: Sync {
    /// Decodes the body without a schema, unless it is too large; a patch is applied to `old`.
    fn decode_untyped(&self, old: Option<&Value>) -> Option<Value>;

    /// Returns true if the body contains a word.
    fn contains(&self, word: &str) -> bool;
}

impl<'a> WriteScope<'a> {
    /// Returns the subresource that is written; `None` for the whole object.
    fn subresource(&self) -> Option<&'a str> {
        Some(self.request.subresource).filter(|name| !name.is_empty())
    }

    /// Returns the subresource whose fields alone can change. A scale is a change of the whole object, owned under the
    /// name of the subresource.
    fn isolated_subresource(&self) -> Option<&'a str> {
        self.subresource().filter(|name| *name != "scale")
    }

    /// Adds texts for `Warning` headers.
    fn warn(&self, texts: Vec<String>) {
        texts.into_iter().for_each(|text| self.request.warn(text));
    }

    /// Returns the allocation of addresses and ports of a Service. One that is created through its status gets none.
    fn allocates(&self) -> Allocates {
        match (self.request.operation, self.subresource(), self.request.dry_run) {
            (Operation::Create, Some(_), _) => Allocates::Nothing,
            (_, _, true) => Allocates::Tried,
            (_, _, false) => Allocates::Given,
        }
    }

    /// Returns the converter between objects and their stored form.
    pub(crate) fn converter(&self) -> ObjectConverter<'_> {
        let context = &self.context.reads.conversion;
        ObjectConverter { context, cluster: self.request.cluster.id, target: self.target }
    }
}
