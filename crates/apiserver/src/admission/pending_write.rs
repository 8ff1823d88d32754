//! Write under admission, to which plugins add writes of other objects.

use portolan_types::{Status, object};
use serde_json::Value;

use crate::{commit::ObjectCommit, hooks::AdmissionRequest};

/// Write of an object, with the commit that it becomes part of.
pub(super) struct PendingWrite<'a> {
    pub(super) request: &'a AdmissionRequest<'a>,
    pub(super) object: &'a mut Value,
    /// Stored state; `None` for a create.
    pub(super) old: Option<&'a Value>,
    pub(super) commit: &'a mut ObjectCommit,
}

impl PendingWrite<'_> {
    /// Returns the 403 that refuses the write.
    pub(super) fn forbidden(&self, why: impl std::fmt::Display) -> Status {
        Status::forbidden(&self.request.kind.group_resource(), object::name(self.object), why)
    }
}
