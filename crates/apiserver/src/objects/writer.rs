//! Creates and changes of one object, with retries after conflicts.

use portolan_merge::apply::Conversions;
use portolan_store::{Expect, StoredObject};
use portolan_types::{BoxFuture, ObjectKey, Reason, Record, Status, object};
use serde_json::Value;

use crate::{
    hooks::Operation,
    objects::tree,
    options::WriteOptions,
    reach::read_only,
    request::{AdmittedOperation, RequestContext, ResourceTarget},
};

use super::{
    ConflictRetry, FoundObject, ObjectConverter, PipelineContext,
    write_pipeline::{FieldTracking, QuotedBody, Received, WriteEffect, WriteScope},
};
use crate::commit::CommitError;

/// Most attempts with a generated name.
const NAME_ATTEMPTS: usize = 8;
/// Most attempts of a write that depends on other objects.
pub(crate) const WRITE_ATTEMPTS: usize = 5;

/// Result of a write.
pub(crate) enum WriteResult {
    /// Stored: the bytes, and the tree without the new resourceVersion.
    Stored(StoredObject, Value),
    /// Result of a dry run.
    DryRun(Value),
    /// Removed: the last state.
    Removed(Value),
}

/// Treatment of `managedFields` in storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ManagedFieldsMode {
    Stored,
    /// Omitted, as in kube-apiserver for an object that would be too large with them.
    Omitted,
}

/// Recording of field managers by a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManagerRecording {
    /// By the pipeline, for the manager of the request.
    Tracked,
    /// By server-side apply, before the pipeline.
    Applied,
    /// `None`: the record stays unchanged.
    Unchanged,
}

/// Writer of objects of one kind for one request.
pub(crate) struct ObjectWriter<'a> {
    pub(crate) context: &'a PipelineContext,
    pub(crate) call: &'a RequestContext,
    pub(crate) target: &'a ResourceTarget,
    pub(crate) options: &'a WriteOptions,
    pub(crate) recording: ManagerRecording,
    pub(crate) body: &'a dyn QuotedBody,
    /// Converted forms of the object for the versions of its field managers.
    pub(crate) conversions: Conversions,
}

/// Name and subresource in the URL of a create.
#[derive(Clone, Copy, Default)]
pub(crate) struct CreateUrl<'u> {
    /// Name in the URL, as in `PUT`.
    pub(crate) name: Option<&'u str>,
    pub(crate) subresource: Option<&'u str>,
}

/// Change of an existing object.
pub(crate) struct ObjectChange<'m> {
    pub(crate) key: &'m ObjectKey,
    pub(crate) subresource: Option<&'m str>,
    /// Returns the new state; called again after a conflict.
    pub(crate) make: &'m (dyn Fn(&Value) -> Result<Value, Status> + Sync),
}

/// Create-or-update of an object that others create and delete concurrently.
pub(crate) struct CreateOrUpdate<'m> {
    /// Checks if the object may be created; called before every attempt.
    pub(crate) authorize_create: &'m (dyn Fn() -> BoxFuture<'m, Result<(), Status>> + Sync),
    /// Returns the object to create.
    pub(crate) fresh: &'m (dyn Fn() -> Result<Value, Status> + Sync),
    /// Change of an existing object.
    pub(crate) change: ObjectChange<'m>,
}

impl<'a> ObjectWriter<'a> {
    /// Creates the object that `make` returns; `make` is called again after a conflict.
    ///
    /// # Errors
    /// The errors of `make`, admission, the life cycle and the store.
    pub(crate) async fn create(
        &self,
        make: &(dyn Fn() -> Result<Value, Status> + Sync),
    ) -> Result<WriteResult, Status> {
        self.create_with_retry(make, CreateUrl::default()).await.map_err(CommitError::into_status)
    }

    /// Changes an object.
    ///
    /// # Errors
    /// The errors of `make`, admission, the life cycle and the store.
    pub(crate) async fn change(&self, change: &ObjectChange<'_>, found: FoundObject) -> Result<WriteResult, Status> {
        let mut conflicts = ConflictRetry::new(&self.context.object_locks, change.key, self.call.deadline);
        let changed = self.change_with_retry(change, found, &mut conflicts).await;
        conflicts.finish();
        changed?.ok_or_else(|| Status::not_found(&self.target.resource(), &change.key.name))
    }

    /// Updates the object of the URL or creates it. As in `GuaranteedUpdate` with `ignoreNotFound` of kube-apiserver,
    /// neither a concurrent creation nor a concurrent deletion is an error. Returns the status code and the result.
    ///
    /// # Errors
    /// As [`ObjectWriter::create`] and [`ObjectWriter::change`], except for a taken name and a missing object.
    pub(crate) async fn create_or_update(&self, put: &CreateOrUpdate<'_>) -> Result<(u16, WriteResult), Status> {
        let mut conflicts = ConflictRetry::new(&self.context.object_locks, put.change.key, self.call.deadline);
        let done = self.create_or_update_with_retry(put, &mut conflicts).await;
        conflicts.finish();
        done
    }

    async fn create_or_update_with_retry(
        &self,
        put: &CreateOrUpdate<'_>,
        conflicts: &mut ConflictRetry<'_>,
    ) -> Result<(u16, WriteResult), Status> {
        let url = CreateUrl { name: Some(&self.call.captures.name), subresource: put.change.subresource };
        loop {
            if let Some(found) = self.context.reads.find_object(self.call, self.target, put.change.key).await? {
                if let Some(changed) = self.change_with_retry(&put.change, found, conflicts).await? {
                    return Ok((200, changed));
                }
            } else {
                (put.authorize_create)().await?;
                match self.create_with_retry(put.fresh, url).await {
                    Err(CommitError::Exists(_)) => {}
                    done => return done.map(|made| (201, made)).map_err(CommitError::into_status),
                }
            }
            conflicts.record_conflict().await;
        }
    }

    /// Creates an object with retries; the error tells if the name is taken.
    async fn create_with_retry(
        &self,
        make: &(dyn Fn() -> Result<Value, Status> + Sync),
        url: CreateUrl<'_>,
    ) -> Result<WriteResult, CommitError> {
        let mut managed_fields = ManagedFieldsMode::Stored;
        for attempt in 1.. {
            self.conversions.clear();
            let object = self.converter().with_conversions(&self.conversions, make).await?;
            // kube-apiserver reports this even if the object has a name too.
            let has_prefix = !object::meta_text(&object, "generateName").is_empty();
            let generated = has_prefix && object::name(&object).is_empty();
            let more = if generated { NAME_ATTEMPTS } else { WRITE_ATTEMPTS };
            match self.try_create(object, url, managed_fields).await {
                Err(CommitError::TooLarge(_)) if self.may_omit(managed_fields) => {
                    managed_fields = ManagedFieldsMode::Omitted;
                }
                Err(CommitError::Exists(_)) if generated && attempt < NAME_ATTEMPTS => {}
                Err(CommitError::Exists(status)) if has_prefix && url.name.is_none() => {
                    return Err(no_unique_name(self.target, &status).into());
                }
                Err(CommitError::Raced(_)) if attempt < more => self.mark_definition_stale(),
                other => return other,
            }
        }
        Err(Status::internal("a write was tried too often").into())
    }

    /// Changes an object with retries; `None` when it is deleted in between.
    async fn change_with_retry(
        &self,
        change: &ObjectChange<'_>,
        mut found: FoundObject,
        conflicts: &mut ConflictRetry<'_>,
    ) -> Result<Option<WriteResult>, Status> {
        let mut managed_fields = ManagedFieldsMode::Stored;
        loop {
            match self.try_change(change, &found, managed_fields).await {
                // A name can be taken when a shared object becomes an own one.
                Err(CommitError::Raced(_) | CommitError::Exists(_)) => {
                    conflicts.record_conflict().await;
                    let again = self.context.reads.find_object(self.call, self.target, change.key).await?;
                    let Some(again) = again else { return Ok(None) };
                    found = again;
                }
                Err(CommitError::TooLarge(_)) if self.may_omit(managed_fields) => {
                    managed_fields = ManagedFieldsMode::Omitted;
                }
                other => return other.map(Some).map_err(CommitError::into_status),
            }
        }
    }

    async fn try_create(
        &self,
        object: Value,
        url: CreateUrl<'_>,
        managed_fields: ManagedFieldsMode,
    ) -> Result<WriteResult, CommitError> {
        let name = url.name.unwrap_or_else(|| object::name(&object)).to_owned();
        let scope = WriteScope { url_name: url.name, ..self.scope(Operation::Create, &name, url.subresource) };
        let prepared = Received::new(&scope, object, None).admit().await?.prepare(false).await?;
        let key = self.target.key(self.call, prepared.name())?;
        let mut validated = prepared.validate(key.clone(), Expect::Absent).await?;
        if self.options.dry_run {
            let record = self.converter().record(validated.object()).await?;
            let object = validated.dry_run(Some(record.clone())).await?;
            return self.would_create(&key, object, record).await;
        }
        managed_fields.settle(validated.object_mut());
        let record = self.converter().record(validated.object()).await?;
        match validated.commit_as(Some(record)).commit(None).await {
            Ok((stored, object)) => {
                let (stored, object) = self.converter().result_of_write(stored, object).await?;
                Ok(WriteResult::Stored(stored, object))
            }
            Err(CommitError::Exists(_)) => Err(self.name_taken(&key).await),
            Err(other) => Err(other),
        }
    }

    async fn try_change(
        &self,
        change: &ObjectChange<'_>,
        found: &FoundObject,
        managed_fields: ManagedFieldsMode,
    ) -> Result<WriteResult, CommitError> {
        if found.stored.key.cluster != self.call.cluster.id {
            return Err(read_only(&self.context.reads.storage.directory, &found.stored.key).into());
        }
        let old = tree(self.target, &found.stored)?;
        self.conversions.clear();
        let new = self.converter().with_conversions(&self.conversions, || (change.make)(&old)).await?;
        let scope = self.scope(Operation::Update, &change.key.name, change.subresource);
        let admitted = Received::new(&scope, new, Some(&old)).admit().await?;
        let prepared = admitted.prepare(found.is_outdated).await?;
        let mut validated = prepared.validate(change.key.clone(), found.expect).await?;
        let (effect, dry_run) = (validated.effect(), self.options.dry_run);
        match (effect, dry_run) {
            (WriteEffect::Nothing, _) => {
                drop(validated);
                Ok(if dry_run { WriteResult::DryRun(old) } else { WriteResult::Stored(found.stored.clone(), old) })
            }
            (WriteEffect::Remove, true) => Ok(WriteResult::DryRun(validated.dry_run(None).await?)),
            (WriteEffect::Create | WriteEffect::Update, true) => {
                let record = self.converter().record(validated.object()).await?;
                let object = validated.dry_run(Some(record.clone())).await?;
                Ok(WriteResult::DryRun(self.converter().result_of_dry_run(change.key, object, record).await?))
            }
            (WriteEffect::Remove, false) => {
                let (_, object) = validated.commit_as(None).commit(Some(&found.stored)).await?;
                Ok(WriteResult::Removed(object))
            }
            (WriteEffect::Create | WriteEffect::Update, false) => {
                managed_fields.settle(validated.object_mut());
                let record = match change.subresource {
                    Some("status") => self.converter().record_of_status(validated.object(), &found.stored).await?,
                    _ => self.converter().record(validated.object()).await?,
                };
                let (stored, object) = validated.commit_as(Some(record)).commit(Some(&found.stored)).await?;
                let (stored, object) = self.converter().result_of_write(stored, object).await?;
                Ok(WriteResult::Stored(stored, object))
            }
        }
    }

    fn scope<'s>(&'s self, operation: Operation, name: &'s str, subresource: Option<&'s str>) -> WriteScope<'s> {
        let subresource = subresource.unwrap_or_default();
        let admitted = AdmittedOperation { operation, name, subresource, dry_run: self.options.dry_run };
        WriteScope {
            context: self.context,
            target: self.target,
            request: self.call.admission_request(self.target, admitted),
            url_name: None,
            path: &self.call.path,
            verb: &self.call.attributes.verb,
            fields: match self.recording {
                ManagerRecording::Tracked => {
                    FieldTracking::Update { manager: &self.options.manager, conversions: &self.conversions }
                }
                ManagerRecording::Applied => FieldTracking::Applied,
                ManagerRecording::Unchanged => FieldTracking::Unchanged,
            },
            body: Some(self.body),
        }
    }

    fn converter(&self) -> ObjectConverter<'_> {
        ObjectConverter { context: &self.context.reads.conversion, cluster: self.call.cluster.id, target: self.target }
    }

    /// Returns true if an object that is too large may be stored without `managedFields`. Appliers would lose their
    /// fields.
    fn may_omit(&self, managed_fields: ManagedFieldsMode) -> bool {
        managed_fields == ManagedFieldsMode::Stored && self.recording != ManagerRecording::Applied
    }

    async fn would_create(&self, key: &ObjectKey, object: Value, record: Record) -> Result<WriteResult, CommitError> {
        match self.context.reads.find_object(self.call, self.target, key).await? {
            Some(_) => Err(self.name_taken(key).await),
            None => Ok(WriteResult::DryRun(self.converter().result_of_dry_run(key, object, record).await?)),
        }
    }

    /// Returns the error for a taken name. It names the requested resource, which may differ from the stored one, and
    /// says if the object is being deleted, as in kube-apiserver.
    async fn name_taken(&self, key: &ObjectKey) -> CommitError {
        let resource = self.target.resource();
        let status = Status::already_exists(&resource, &key.name);
        let found = self.context.reads.find_object(self.call, self.target, key).await.ok().flatten();
        if !found.is_some_and(|found| found.stored.record.header.is_deleting) {
            return CommitError::Exists(status);
        }
        let message = format!("object is being deleted: {}", status.message());
        CommitError::Exists(Status::new(Reason::AlreadyExists, message).about(&resource, &key.name))
    }

    /// Marks the cached definition as stale: another server may have changed it.
    fn mark_definition_stale(&self) {
        if let Some(found) = &self.target.definition {
            self.context.kinds.mark_stale(found.key.cluster, &found.name);
        }
    }
}

impl ManagedFieldsMode {
    /// Removes `managedFields` if they are omitted.
    fn settle(self, object: &mut Value) {
        if self == Self::Omitted {
            object::metadata_mut(object).remove("managedFields");
        }
    }
}

fn no_unique_name(target: &ResourceTarget, cause: &Status) -> Status {
    let message = format!("{}, the server was not able to generate a unique name for the object", cause.message());
    Status::new(Reason::AlreadyExists, message).about(&target.resource(), &cause.details().name).retry_after(1)
}
