//! Lists: one state of many objects, page by page.

use std::{sync::Arc, time::Duration};

use portolan_codec::conversion;
use portolan_store::{DamagedObject, Store, StoreError, StoredObject};
use portolan_types::{GroupResource, ManagedFields, NamespaceName, ObjectKey, ReadAt, ResourceVersion, Scope, Status};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    errors::{status_for, unreadable},
    limits::MemoryCharge,
    options::{ListOptions, ObjectSelection},
    request::{RequestContext, ResourceTarget},
};

use super::{
    ObjectSlices, ReadContext,
    continue_token::{self, ListIdentity, ListPosition},
    range::{ListStart, ObjectRange},
};

/// Longest wait for a future revision.
const MAX_WAIT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// `Retry-After` for a future revision, in seconds.
const RETRY_SECONDS: u32 = 1;
/// Most bytes of a page; a page may have fewer objects than its limit.
const MAX_PAGE_BYTES: usize = 8 * 1024 * 1024;

/// Page of objects, or a whole list of which the first slice has been read.
pub(crate) struct ListResult {
    pub(crate) revision: ResourceVersion,
    pub(crate) objects: Vec<StoredObject>,
    pub(crate) rest: Option<ObjectSlices>,
    pub(crate) token: Option<String>,
    pub(crate) remaining: Option<u64>,
}

impl ListResult {
    /// Returns the metadata of the list.
    pub(crate) fn metadata(&self, target: &ResourceTarget) -> Value {
        let mut metadata =
            if target.has_no_revision() { json!({}) } else { json!({"resourceVersion": self.revision.to_string()}) };
        if let Some(token) = &self.token {
            metadata["continue"] = token.as_str().into();
        }
        if let Some(remaining) = self.remaining.filter(|_| self.token.is_some()) {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata
    }
}

/// Waits until the store has reached a revision.
///
/// # Errors
/// 504 when it does not within three seconds.
pub(crate) async fn wait_for_resource_version(
    store: &dyn Store,
    target: &ResourceTarget,
    at: ResourceVersion,
) -> Result<(), Status> {
    wait_for_revision(store, at).await.map_err(|error| read_failed(target, &error))
}

/// Returns the response for a failed read, with `Retry-After` for a future revision.
pub(crate) fn read_failed(target: &ResourceTarget, error: &StoreError) -> Status {
    // kube-apiserver has no cache of events, and its storage sends no `Retry-After`.
    let is_cached = target.hooks().is_cached;
    match error {
        StoreError::FutureRevision { .. } if is_cached => status_for(error).retry_after(RETRY_SECONDS),
        StoreError::Compacted { .. } if !is_cached => {
            Status::expired("The resourceVersion for the provided watch is too old.")
        }
        _ => status_for(error),
    }
}

/// Waits until the store has reached a revision.
///
/// # Errors
/// `FutureRevision` when it does not within three seconds.
pub(crate) async fn wait_for_revision(store: &dyn Store, at: ResourceVersion) -> Result<(), StoreError> {
    let deadline = Instant::now() + MAX_WAIT;
    while store.current() < at {
        if Instant::now() >= deadline {
            return Err(StoreError::FutureRevision { asked: at, current: store.current() });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Returns the selected objects at the latest revision.
pub(crate) async fn snapshot(
    context: &Arc<ReadContext>,
    call: &RequestContext,
    target: &ResourceTarget,
    selection: &ObjectSelection,
) -> Result<ObjectSlices, Status> {
    ObjectRange { context, call, target, selection }.open(ListStart::default()).await
}

/// Reads one page of a list, or opens a list that is read while it is sent.
pub(crate) async fn read_list(
    context: &Arc<ReadContext>,
    call: &RequestContext,
    target: &ResourceTarget,
    options: &ListOptions,
) -> Result<ListResult, Status> {
    let (identity, store) = (identity(call, target), &*context.storage.store);
    let key = &context.continue_key;
    let place = options.token.as_deref().map(|token| continue_token::decode(key, &identity, token)).transpose()?;
    let state = options.state()?;
    let at = match &place {
        Some(place) => place.revision,
        None => requested_revision(store, call, target, state).await?,
    };
    let after = place.as_ref().map(|place| key_after(call, &target.stored_as(), place)).transpose()?;
    // The count of a fixed revision does not change.
    let known = place.as_ref().filter(|place| place.revision.is_some()).and_then(|place| place.remaining);
    // With resourceVersion=0 kube-apiserver answers from its cache, without pages.
    let limit = options.limit.filter(|_| state != ReadAt::AnyCached);
    let damaged = match (limit, at) {
        (None, None) => known_damage(store, call, target),
        // The page may end before the damaged object, and an older revision may be intact.
        (Some(_), _) | (_, Some(_)) => Vec::new(),
    };
    if !damaged.is_empty() {
        return Err(unreadable(&target.resource(), &damaged));
    }
    let read = async {
        // The store counts the objects behind a limit.
        let counted = limit.filter(|_| known.is_none());
        let range = ObjectRange { context, call, target, selection: &options.selection };
        let mut slices = range.open(ListStart { at, after, limit: counted }).await?;
        match limit {
            Some(limit) => page(slices, limit, known, &call.charge).await,
            None => {
                let objects = slices.next().await?.unwrap_or_default();
                let (revision, is_over) = (slices.revision(), slices.is_finished());
                Ok(ListPage { revision, objects, rest: (!is_over).then_some(slices), more: None })
            }
        }
    };
    let read = match read.await {
        Ok(read) => read,
        // The failed read may have found the damage.
        Err(failure) if failure.code() == 500 => {
            let damaged = known_damage(store, call, target);
            return Err(if damaged.is_empty() { failure } else { unreadable(&target.resource(), &damaged) });
        }
        Err(failure) => return Err(expired_page(failure, key, &identity, place.as_ref())),
    };
    let remaining = read.more.flatten();
    let token = read.more.and(read.objects.last()).map(|last| {
        let namespace = last.key.namespace().map(|n| n.as_str().to_owned()).unwrap_or_default();
        // As in kube-apiserver's etcd3 store: after one page of an inconsistent token the rest has one revision again.
        let revision = Some(at.unwrap_or(read.revision));
        let next = ListPosition { revision, last: (namespace, last.key.name.as_str().to_owned()), remaining };
        continue_token::encode(key, &identity, &next)
    });
    Ok(ListResult { revision: read.revision, objects: read.objects, rest: read.rest, token, remaining })
}

/// Waits for the requested state of a list. Returns its revision; `None` for the latest.
///
/// # Errors
/// 504 for a future revision that is not reached in time, 410 for one before the logical cluster.
pub(super) async fn requested_revision(
    store: &dyn Store,
    call: &RequestContext,
    target: &ResourceTarget,
    state: ReadAt,
) -> Result<Option<ResourceVersion>, Status> {
    match state {
        ReadAt::Exactly(at) => {
            wait_for_resource_version(store, target, at).await?;
            call.cluster.check_existed(at).map_err(|_| too_old())?;
            Ok(Some(at))
        }
        ReadAt::NotOlderThan(at) => {
            wait_for_resource_version(store, target, at).await?;
            Ok(None)
        }
        ReadAt::Latest | ReadAt::AnyCached => Ok(None),
    }
}

/// Returns the known damaged objects in the range of a list.
fn known_damage(store: &dyn Store, call: &RequestContext, target: &ResourceTarget) -> Vec<DamagedObject> {
    let (mut known, resource) = (store.known_damage(), target.stored_as());
    known.retain(|DamagedObject { key, .. }| {
        let is_there = target.namespace.is_none() || target.namespace.as_ref() == key.namespace();
        key.cluster == call.cluster.id && key.resource == resource && is_there
    });
    known
}

pub(super) fn identity<'a>(call: &'a RequestContext, target: &'a ResourceTarget) -> ListIdentity<'a> {
    ListIdentity {
        cluster: call.cluster.id.get(),
        path: call.cluster.path.as_str(),
        resource: target.resource().to_string(),
        namespace: target.namespace.as_deref().unwrap_or_default(),
        labels: call.query.text("labelSelector"),
        fields: call.query.text("fieldSelector"),
        user: &call.identity.user.name,
    }
}

/// First page of a list, or its first slice.
struct ListPage {
    revision: ResourceVersion,
    objects: Vec<StoredObject>,
    rest: Option<ObjectSlices>,
    /// Set if another page follows, with the number of objects left if it is known.
    more: Option<Option<u64>>,
}

/// Reads the first `limit` objects, or fewer if they are large. `known` is the number of objects left, if it was
/// counted.
async fn page(
    mut slices: ObjectSlices,
    limit: usize,
    known: Option<u64>,
    charge: &MemoryCharge,
) -> Result<ListPage, Status> {
    let (mut objects, mut bytes) = (Vec::new(), 0);
    while let Some(slice) = slices.next().await? {
        let mut slice = slice.into_iter();
        while objects.len() < limit && bytes < MAX_PAGE_BYTES {
            let Some(object) = slice.next() else { break };
            bytes += object.record.body().len();
            objects.push(object);
        }
        charge.grow_to(bytes)?;
        let left = slice.len();
        if left > 0 {
            // Counting behind a page that was cut by its size would read too much; the API permits omitting the count.
            let more = match known {
                Some(known) => known.checked_sub(objects.len() as u64),
                None if objects.len() < limit => None,
                None => slices.count_from(left as u64).await?,
            };
            return Ok(ListPage { revision: slices.revision(), objects, rest: None, more: Some(more) });
        }
    }
    Ok(ListPage { revision: slices.revision(), objects, rest: None, more: slices.cut() })
}

/// Returns the 410 for a list at a compacted revision.
fn too_old() -> Status {
    Status::expired("The resourceVersion for the provided list is too old.")
}

/// Returns the 410 for a page at a compacted revision, with a token that continues at the latest revision.
fn expired_page(failure: Status, key: &[u8], identity: &ListIdentity<'_>, place: Option<&ListPosition>) -> Status {
    match (failure.code(), place) {
        (410, Some(place)) => {
            let token = continue_token::encode(
                key,
                identity,
                &ListPosition { revision: None, last: place.last.clone(), remaining: None },
            );
            let text = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
            Status::expired(text).with_continue(token)
        }
        (410, None) => too_old(),
        _ => failure,
    }
}

fn key_after(call: &RequestContext, resource: &GroupResource, place: &ListPosition) -> Result<ObjectKey, Status> {
    let bad = |_| Status::bad_request("continue key is not valid");
    let scope = match place.last.0.as_str() {
        "" => Scope::Cluster,
        namespace => Scope::Namespace(namespace.parse::<NamespaceName>().map_err(bad)?),
    };
    let name = place.last.1.parse().map_err(bad)?;
    Ok(ObjectKey { cluster: call.cluster.id, resource: resource.clone(), scope, name })
}

impl ObjectSelection {
    /// Returns true if a stored object is selected. Labels are read from the header and names from the key; only
    /// selectors of other fields decode the body.
    pub(crate) fn matches(
        &self,
        target: &ResourceTarget,
        key: &ObjectKey,
        record: &portolan_types::Record,
        revision: ResourceVersion,
    ) -> Result<bool, serde_json::Error> {
        let namespace = key.namespace().map(|namespace| namespace.as_str()).unwrap_or_default();
        let named = self.fields.matches_name(namespace, key.name.as_str());
        if named == Some(false) {
            return Ok(false);
        }
        if !self.labels.is_everything() && !self.labels.matches(|key| record.header.label(key)) {
            return Ok(false);
        }
        if named == Some(true) {
            return Ok(true);
        }
        let value = record.to_value_with(ManagedFields::LeftOut, revision)?;
        let value = if target.is_read_as_served() { value } else { conversion::from_storage(&target.kind, value) };
        Ok(self.fields.matches(&value))
    }
}
