//! DELETE of a collection.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use http::Response;
use portolan_store::{Expect, StoredObject};
use portolan_strategy::lifecycle::{self, DeleteOptions};
use portolan_types::{ReadAt, ResourceVersion, Status};
use serde_json::Value;

use crate::{
    ApiServer, Body,
    authz::shared_objects,
    encode::{DeletedList, ResponseShape},
    objects::{FoundObject, PipelineContext, read_list, tree},
    options::ListOptions,
    request::{RequestContext, ResourceTarget, method_not_allowed},
};

use super::delete::{DeletionAdmission, DeletionResult, DeletionTask, delete, options, warn_of_orphans};

/// Objects of a collection that are deleted concurrently, so that their writes share a sync to disk.
const CONCURRENT_DELETES: usize = 16;

/// Deletes the selected objects and returns them.
pub(super) async fn collection(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    if target.kind.namespaced && target.namespace.is_none() {
        return Err(method_not_allowed());
    }
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    let mut list = ListOptions::of(target, &call.query)?;
    let options = options(call, target)?;
    if options.ignores_read_errors {
        let message = "is not allowed with DELETECOLLECTION, try again after removing the option";
        return Err(Status::invalid(&lifecycle::delete_options(), "", vec![lifecycle::unsafe_delete_refused(message)]));
    }
    warn_of_orphans(call, target, &options);
    // kube-apiserver lists a collection in pages to delete it.
    list.in_pages = true;
    let collection = CollectionDeletion {
        context: &api.writes,
        call,
        target,
        options: &options,
        is_past: matches!(list.state()?, ReadAt::Exactly(_)),
    };
    let mut listing = read_list(&api.reads, call, target, &list).await?;
    // Only the encoded bytes of deleted objects are kept for the response.
    let mut writer = DeletedList::new(shape, &listing, call.charge.clone())?;
    let mut next = Some(std::mem::take(&mut listing.objects));
    while let Some(objects) = next {
        let deleting = objects.into_iter().map(|stored| collection.delete_listed(stored));
        let mut deleting = futures::stream::iter(deleting).buffered(CONCURRENT_DELETES);
        while let Some(last) = deleting.try_next().await? {
            last.map(|last| writer.add(last)).transpose()?;
        }
        next = match &mut listing.rest {
            Some(rest) => rest.next().await?,
            None => None,
        };
    }
    writer.answer()
}

/// Deletion of the objects of a list.
struct CollectionDeletion<'a> {
    context: &'a Arc<PipelineContext>,
    call: &'a Arc<RequestContext>,
    target: &'a ResourceTarget,
    options: &'a DeleteOptions,
    /// True if the list shows a past state.
    is_past: bool,
}

impl CollectionDeletion<'_> {
    /// Deletes one listed object. An object that is already gone is reported as deleted; shared objects stay. If the
    /// list shows a past state, the current object is deleted.
    async fn delete_listed(&self, stored: StoredObject) -> Result<Option<Value>, Status> {
        let Self { context, call, target, options, is_past } = *self;
        // A shared object that is not stored has the first revision.
        let is_stored = stored.revision != ResourceVersion::FIRST;
        if shared_objects::is_undeletable(&stored.key, is_stored) || stored.key.cluster != call.cluster.id {
            return Ok(None);
        }
        let key = stored.key.clone();
        let own = ResourceTarget { namespace: key.namespace().cloned(), ..target.clone() };
        // The response shows the objects as they were listed, as in kube-apiserver.
        let listed = tree(&own, &stored)?;
        let found = if is_past {
            context.reads.find_object(call, &own, &key).await?
        } else {
            let expect = Expect::At(stored.revision);
            Some(FoundObject::current(stored, expect))
        };
        let Some(found) = found else { return Ok(Some(listed)) };
        let task = DeletionTask { key: &key, found, options, admission: DeletionAdmission::Called };
        match delete(context, call, &own, task).await {
            Ok(DeletionResult::Gone(..) | DeletionResult::Marked(_)) => Ok(Some(listed)),
            Err(failure) if failure.code() == 404 => Ok(Some(listed)),
            Err(failure) => Err(failure),
        }
    }
}
