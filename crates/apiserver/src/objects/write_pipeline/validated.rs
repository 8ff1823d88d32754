//! Last stages: the object that admission accepts, and its commit.

use portolan_store::StoredObject;
use portolan_types::{Record, Status, object};
use serde_json::Value;

use crate::{
    admission::quota::{self, QuotaWrite},
    commit::{CommitError, ObjectCommit},
};

use super::{PipelineContext, Prepared, WriteEffect};

/// Object of a write that admission has accepted.
pub(crate) struct Validated<'a> {
    pub(super) prepared: Prepared<'a>,
    pub(super) commit: ObjectCommit,
}

impl<'a> Validated<'a> {
    /// Returns the effect of the write.
    pub(crate) fn effect(&self) -> WriteEffect {
        self.prepared.effect
    }

    /// Returns the object as it would be stored.
    pub(crate) fn object(&self) -> &Value {
        &self.prepared.object
    }

    /// Returns the object as it would be stored, without the parts that do not fit into the store.
    pub(crate) fn object_mut(&mut self) -> &mut Value {
        &mut self.prepared.object
    }

    /// Returns the object as it would be stored.
    pub(crate) fn into_object(self) -> Value {
        self.prepared.object
    }

    /// Ends a dry run: checks quotas and the storage limits of workspaces, and returns the object as it would be
    /// stored. `record` is that of the commit; `None` removes the object.
    ///
    /// # Errors
    /// 403 when a quota or limit would be exceeded.
    pub(crate) async fn dry_run(mut self, record: Option<Record>) -> Result<Value, Status> {
        let sent = self.prepared.stage.sent_revision.take();
        let metadata = object::metadata_mut(&mut self.prepared.object);
        metadata.extend(sent.map(|revision| ("resourceVersion".to_owned(), revision)));
        let (request, old) = (self.prepared.request(), self.prepared.stage.old);
        let PipelineContext { admission, commits, .. } = self.prepared.stage.scope.context;
        quota::check(admission.quotas(), QuotaWrite { request: &request, object: &self.prepared.object, old }).await?;
        let is_removed = record.is_none();
        let commit = ObjectCommit { record, ..self.commit };
        if !is_removed {
            commit.check_limits(commits).await.map_err(CommitError::into_status)?;
        }
        Ok(self.prepared.object)
    }

    /// Returns the last stage, with the record to store; `None` removes the object.
    pub(crate) fn commit_as(self, record: Option<Record>) -> Committable<'a> {
        Committable { prepared: self.prepared, commit: ObjectCommit { record, ..self.commit } }
    }
}

/// Write with its record, preconditions and companion writes.
pub(crate) struct Committable<'a> {
    prepared: Prepared<'a>,
    commit: ObjectCommit,
}

impl Committable<'_> {
    /// Commits the write and charges quotas in the same transaction. `last` is the stored state before. Returns the
    /// object as it is stored, as bytes and as a tree without the new resourceVersion.
    ///
    /// # Errors
    /// The errors of quotas and of the commit.
    pub(crate) async fn commit(self, last: Option<&StoredObject>) -> Result<(StoredObject, Value), CommitError> {
        let Self { prepared, commit } = self;
        let PipelineContext { admission, commits, .. } = prepared.stage.scope.context;
        let is_charged = !prepared.stage.is_exempt && prepared.effect != WriteEffect::Remove;
        let stored = if is_charged {
            let request = &prepared.request();
            let write = QuotaWrite { request, object: &prepared.object, old: prepared.stage.old };
            quota::commit(admission.quotas(), write, commit, last).await?
        } else {
            commit.run(commits, last).await?
        };
        Ok((stored, prepared.object))
    }
}
