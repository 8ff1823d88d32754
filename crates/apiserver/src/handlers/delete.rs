//! DELETE of an object.

use std::sync::Arc;

use http::Response;
use portolan_codec::decode;
use portolan_store::{Expect, StoreError, StoredObject};
use portolan_strategy::lifecycle::{self, DeleteOptions, Deletion, WriteContext};
use portolan_types::{GroupKind, NamespaceName, ObjectKey, ResourceVersion, Status, object};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    ApiServer, Body,
    authz::{AuthorizationDecision, Authorizer as _, shared_objects},
    commit::{CommitError, ObjectCommit},
    encode::{self, ResponseShape, media_of},
    errors::status_for,
    hooks::{AdmissionOptions, AdmissionRequest, Operation},
    limits::in_own_slices,
    objects::{ConflictRetry, FoundObject, PipelineContext, tree},
    reach::read_only,
    request::{AdmittedOperation, RequestContext, ResourceTarget},
    routing::attributes::Attributes,
};

/// Verb that permits deleting objects that cannot be read.
const UNSAFE_VERB: &str = "unsafe-delete-ignore-read-errors";

/// Result of a deletion.
pub(super) enum DeletionResult {
    /// The object is removed: its last state, and the revision of the removal unless it was a dry run.
    Gone(Value, Option<ResourceVersion>),
    /// The object is marked and stays for now.
    Marked(Value),
}

/// Parses the options from the body, or from the query when there is no body: kube-apiserver never merges the two.
pub(super) fn options(call: &RequestContext, target: &ResourceTarget) -> Result<DeleteOptions, Status> {
    if !call.body.is_empty() {
        return from_body(call, target);
    }
    let names = [
        "gracePeriodSeconds",
        "orphanDependents",
        "propagationPolicy",
        "uid",
        "resourceVersion",
        lifecycle::UNSAFE_DELETE,
    ];
    let single = names.iter().filter_map(|name| call.query.get(name).map(|value| (*name, value)));
    DeleteOptions::from_query(single.chain(call.query.all("dryRun").map(|value| ("dryRun", value))))
}

/// Warns that dependents are left behind, for kinds where they are unless the client says otherwise.
pub(super) fn warn_of_orphans(call: &RequestContext, target: &ResourceTarget, options: &DeleteOptions) {
    if options.propagation.is_none() && options.orphan_dependents.is_none() {
        call.warn(target.hooks().orphan_warning.map(str::to_owned));
    }
}

fn from_body(call: &RequestContext, target: &ResourceTarget) -> Result<DeleteOptions, Status> {
    let options = decode::delete_options(&target.table, media_of(call)?, &call.body).map_err(Status::bad_request)?;
    DeleteOptions::from_value(&options)
}

pub(super) async fn one(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    let options = options(call, target)?;
    if options.ignores_read_errors {
        return delete_unreadable(api, call, target).await;
    }
    warn_of_orphans(call, target, &options);
    let (key, found) = api.reads.existing_object(call, target).await?;
    let task = DeletionTask { key: &key, found, options: &options, admission: DeletionAdmission::Called };
    match delete(&api.writes, call, target, task).await? {
        DeletionResult::Gone(last, Some(at)) if target.kind.returns_deleted() => {
            encode::value(&shape, 200, encode::with_revision(last, at))
        }
        DeletionResult::Gone(last, None) if target.kind.returns_deleted() => encode::value(&shape, 200, last),
        DeletionResult::Gone(last, _) => Ok(encode::status_object(shape.written(), 200, &success(target, &last))),
        // 202 is only for clients that set the old `orphanDependents` to false.
        DeletionResult::Marked(object) if options.orphan_dependents == Some(false) => {
            encode::value(&shape, 202, object)
        }
        DeletionResult::Marked(object) => encode::value(&shape, 200, object),
    }
}

/// Deletes an object that cannot be read. It skips preconditions, admission and finalizers, because they cannot be read
/// either (KEP-3926).
async fn delete_unreadable(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let key = target.key(call, &call.captures.name)?;
    let asked = Attributes { verb: UNSAFE_VERB.into(), ..(*call.attributes).clone() };
    if let AuthorizationDecision::Denied(why) =
        api.access.rbac.authorize(call.cluster.id, call.identity.acting_user(), &asked).await?
    {
        let why = format!("not permitted to do {UNSAFE_VERB:?}, reason: {why}");
        return Err(Status::forbidden(&target.resource(), &key.name, why));
    }
    match api.storage.store.get(&key).await {
        Err(StoreError::Damaged { why, .. }) => tracing::warn!(
            cluster = %key.cluster,
            resource = %key.resource,
            namespace = key.namespace().map_or("", NamespaceName::as_str),
            name = %key.name,
            user = %call.identity.user.name,
            error = %why,
            "a damaged object is deleted unread",
        ),
        Ok(_) => return Err(not_corrupt(target, &key)),
        Err(error) => return Err(status_for(&error)),
    }
    match ObjectCommit::new(key.clone(), Expect::Damaged, None).run(&api.writes.commits, None).await {
        Ok(_) => {}
        // Another request removed it first.
        Err(CommitError::Raced(failure)) if failure.code() == 404 => {}
        Err(failure) => return Err(failure.into_status()),
    }
    let details = json!({"name": &*key.name, "kind": &*target.kind.gvk.kind});
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200});
    status["details"] = details;
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    Ok(encode::status_object(shape.written(), 200, &status))
}

/// Returns the 422 for an object that can be read, and so deleted in the normal way.
fn not_corrupt(target: &ResourceTarget, key: &ObjectKey) -> Status {
    let resource = target.resource();
    let kind = GroupKind { group: resource.group, kind: resource.resource };
    let message = "is exclusively used to delete corrupt object(s), try again by removing this option";
    Status::invalid(&kind, &key.name, vec![lifecycle::unsafe_delete_refused(message)])
}

/// Returns the `Status` of a completed deletion.
pub(super) fn success(target: &ResourceTarget, last: &Value) -> Value {
    let mut details = json!({
        "name": object::name(last),
        "kind": target.kind.resource,
        "uid": object::meta_text(last, "uid"),
    });
    if !target.kind.gvk.group.is_empty() {
        details["group"] = (*target.kind.gvk.group).into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// Admission of a deletion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DeletionAdmission {
    /// Webhooks and policies for deletions are called.
    Called,
    /// No admission: kube-apiserver does not call it for the pod of an eviction
    /// (`registry/core/pod/storage/eviction.go`).
    Skipped,
}

/// Deletion of one object, as it was requested.
pub(super) struct DeletionTask<'a> {
    pub(super) key: &'a ObjectKey,
    pub(super) found: FoundObject,
    pub(super) options: &'a DeleteOptions,
    pub(super) admission: DeletionAdmission,
}

/// Deletes one object. A deletion of two writes runs in its own task: if the client left after the first one, no task
/// else would remove the marked pod.
pub(super) async fn delete(
    context: &Arc<PipelineContext>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
    task: DeletionTask<'_>,
) -> Result<DeletionResult, Status> {
    if task.options.dry_run || !target.hooks().marks_before_removal {
        return remove(context, call, target, task).await;
    }
    let DeletionTask { key, found, options, admission } = task;
    let (context, call, target) = (context.clone(), call.clone(), target.clone());
    let (key, options, tasks) = (key.clone(), options.clone(), context.tasks.clone());
    let removing = in_own_slices(async move {
        let task = DeletionTask { key: &key, found, options: &options, admission };
        remove(&context, &call, &target, task).await
    });
    tasks.spawn(removing).await.unwrap_or_else(|error| Err(Status::internal(error)))
}

async fn remove(
    context: &PipelineContext,
    call: &RequestContext,
    target: &ResourceTarget,
    task: DeletionTask<'_>,
) -> Result<DeletionResult, Status> {
    let DeletionTask { key, found, options, admission } = task;
    if found.stored.key.cluster != call.cluster.id {
        return Err(read_only(&context.reads.storage.directory, &found.stored.key));
    }
    let conflicts = ConflictRetry::new(&context.object_locks, key, call.deadline);
    let mut removal = ObjectDeletion { context, call, target, key, options, admission, conflicts };
    removal.run(found).await
}

/// Deletion of one object, with retries.
struct ObjectDeletion<'a> {
    context: &'a PipelineContext,
    call: &'a RequestContext,
    target: &'a ResourceTarget,
    key: &'a ObjectKey,
    options: &'a DeleteOptions,
    admission: DeletionAdmission,
    /// Conflicts of all its writes. One counter, so that the holder of the lock never waits for itself.
    conflicts: ConflictRetry<'a>,
}

impl ObjectDeletion<'_> {
    async fn run(&mut self, mut found: FoundObject) -> Result<DeletionResult, Status> {
        loop {
            match self.try_delete(&found).await {
                // The request has timed out.
                Err(CommitError::Raced(status)) if self.call.deadline <= Instant::now() => return Err(status),
                Err(CommitError::Raced(_)) => {
                    self.conflicts.record_conflict().await;
                    let again = self.context.reads.find_object(self.call, self.target, self.key).await?;
                    found = again.ok_or_else(|| Status::not_found(&self.target.resource(), &self.key.name))?;
                }
                other => {
                    self.conflicts.finish();
                    return other.map_err(CommitError::into_status);
                }
            }
        }
    }

    async fn try_delete(&mut self, found: &FoundObject) -> Result<DeletionResult, CommitError> {
        let Self { context, call, target, options, .. } = *self;
        let PipelineContext { admission, commits, reads, .. } = context;
        if shared_objects::is_undeletable(self.key, found.expect != Expect::Absent) {
            let why = "it belongs to every logical cluster; change it instead of deleting it";
            return Err(Status::forbidden(&target.resource(), &self.key.name, why).into());
        }
        let old = tree(target, &found.stored)?;
        let rules = WriteContext::new(&target.table, &reads.storage.seams);
        // As in kube-apiserver, admission sees the name of the URL, which is empty for a collection.
        let (operation, name) = (Operation::Delete, &*call.captures.name);
        let admitted = AdmittedOperation { operation, name, subresource: "", dry_run: options.dry_run };
        let request = call.admission_request(target, admitted);
        let request = AdmissionRequest { options: AdmissionOptions::Delete(options), ..request };
        let deletion = lifecycle::prepare_delete(&rules, &target.kind, &old, options)?;
        if self.admission == DeletionAdmission::Called && !matches!(deletion, Deletion::Pending(_)) {
            admission.admit_deletion(&request, &old).await?;
        }
        let mut commit = ObjectCommit::new(self.key.clone(), found.expect, None);
        match deletion {
            Deletion::Already(object) | Deletion::Pending(object) => Ok(DeletionResult::Marked(object)),
            Deletion::Mark(object) if options.dry_run => Ok(DeletionResult::Marked(object)),
            Deletion::Remove(last) | Deletion::MarkAndRemove(last) if options.dry_run => {
                Ok(DeletionResult::Gone(last, None))
            }
            Deletion::Mark(object) => {
                commit.record = Some(reads.conversion.stored_form(call.cluster.id, target, &object).await?);
                admission.on_deletion_marked(&request, &object, &mut commit);
                let stored = commit.run(commits, Some(&found.stored)).await?;
                Ok(DeletionResult::Marked(encode::with_revision(object, stored.revision)))
            }
            Deletion::MarkAndRemove(last) => {
                commit.record = Some(reads.conversion.stored_form(call.cluster.id, target, &last).await?);
                let marked = commit.run(commits, Some(&found.stored)).await?;
                let went = self.remove_marked(&request, &last, marked).await?;
                Ok(DeletionResult::Gone(last, Some(went)))
            }
            Deletion::Remove(last) => {
                admission.add_cleanup_writes(&request, &old, &mut commit).await?;
                let gone = commit.run(commits, Some(&found.stored)).await?;
                Ok(DeletionResult::Gone(last, Some(gone.revision)))
            }
        }
    }

    /// Removes the object that this deletion has marked and returns the revision of the removal. Concurrent changes are
    /// retried, and a concurrent removal is a success (`ignoreNotFound` in kube-apiserver).
    async fn remove_marked(
        &mut self,
        request: &AdmissionRequest<'_>,
        last: &Value,
        marked: StoredObject,
    ) -> Result<ResourceVersion, Status> {
        let PipelineContext { admission, commits, reads, .. } = self.context;
        let (uid, mut stored) = (marked.record.header.uid.clone(), marked);
        loop {
            let mut commit = ObjectCommit::new(self.key.clone(), Expect::At(stored.revision), None);
            admission.add_cleanup_writes(request, last, &mut commit).await?;
            match commit.run(commits, Some(&stored)).await {
                Err(CommitError::Raced(_)) => self.conflicts.record_conflict().await,
                done => return done.map(|gone| gone.revision).map_err(CommitError::into_status),
            }
            let again = reads.storage.store.get(self.key).await.map_err(|e| status_for(&e))?;
            match again.filter(|again| again.record.header.uid == uid) {
                Some(again) => stored = again,
                None => return Ok(stored.revision),
            }
        }
    }
}
