//! Many objects: one state of them, page by page.

use std::{sync::Arc, time::Duration};

use portolan_machinery::conversion;
use portolan_store::{Damaged, RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{GroupResource, ManagedFields, NamespaceName, ObjectKey, ReadAt, ResourceVersion, Scope, Status};
use tokio::time::Instant;

use crate::{
    ApiServer,
    call::{Call, Target},
    continue_token::{self, ListIdentity, Place},
    encode::Listing,
    errors::{status_for, unreadable},
    limits::Charge,
    options::{ListOptions, Selection},
    reach::Reach,
};

use super::Slices;

/// How long a read waits for a state that has not been reached.
const PATIENCE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(50);
/// Seconds after which who asked for such a state may ask again.
const RETRY: u32 = 1;
/// Bytes of a page, whatever limit is asked for: a page may be shorter than its limit.
const MAX_PAGE: usize = 8 * 1024 * 1024;

/// Waits until the store has reached a revision.
///
/// # Errors
/// 504 when it does not within three seconds.
pub(crate) async fn wait_until(api: &ApiServer, target: &Target, at: ResourceVersion) -> Result<(), Status> {
    reached(api, at).await.map_err(|error| read_failed(target, &error))
}

/// The answer when objects cannot be read: it says when to ask again for a state that has not been reached.
pub(crate) fn read_failed(target: &Target, error: &StoreError) -> Status {
    // Upstream keeps no cache of events, and its storage does not say when.
    let is_cached = *target.stored_as().resource != *"events";
    match error {
        StoreError::FutureRevision { .. } if is_cached => status_for(error).retry_after(RETRY),
        StoreError::Compacted { .. } if !is_cached => {
            Status::expired("The resourceVersion for the provided watch is too old.")
        }
        _ => status_for(error),
    }
}

/// Waits until the store has reached a revision.
///
/// # Errors
/// When it does not within three seconds.
pub(crate) async fn reached(api: &ApiServer, at: ResourceVersion) -> Result<(), StoreError> {
    let deadline = Instant::now() + PATIENCE;
    while api.store.current() < at {
        if Instant::now() >= deadline {
            return Err(StoreError::FutureRevision { asked: at, current: api.store.current() });
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// The selected objects at the latest state.
pub(crate) async fn snapshot(
    api: &Arc<ApiServer>,
    call: &Call,
    target: &Target,
    selection: &Selection,
) -> Result<Slices, Status> {
    open(api, call, target, selection, (None, None, None)).await
}

/// A list: a page of it, or all of it to be read while it is sent.
pub(crate) async fn read_list(
    api: &Arc<ApiServer>,
    call: &Call,
    target: &Target,
    options: &ListOptions,
) -> Result<Listing, Status> {
    let identity = identity(call, target);
    let key = &api.pki.continue_key;
    let place = options.token.as_deref().map(|token| continue_token::decode(key, &identity, token)).transpose()?;
    let state = options.state()?;
    let at = match (&place, state) {
        (Some(place), _) => place.revision,
        (None, ReadAt::Exactly(at)) => {
            wait_until(api, target, at).await?;
            call.cluster.was_there(at).map_err(|_| too_old())?;
            Some(at)
        }
        (None, ReadAt::NotOlderThan(at)) => {
            wait_until(api, target, at).await?;
            None
        }
        (None, ReadAt::Latest | ReadAt::AnyCached) => None,
    };
    let after = place.as_ref().map(|place| key_after(call, &target.stored_as(), place)).transpose()?;
    // In a state that does not change, what was counted once is known.
    let known = place.as_ref().filter(|place| place.revision.is_some()).and_then(|place| place.remaining);
    // With resourceVersion=0 upstream answers from a cache and does not page.
    let limit = options.limit.filter(|_| state != ReadAt::AnyCached);
    let damaged = match (limit, at) {
        (None, None) => known_damage(api, call, target),
        // A page may lie before it, and an older state may be whole.
        (Some(_), _) | (_, Some(_)) => Vec::new(),
    };
    if !damaged.is_empty() {
        return Err(unreadable(&target.resource(), &damaged));
    }
    let read = async {
        // The store counts what lies behind a limit.
        let counted = limit.filter(|_| known.is_none());
        let mut slices = open(api, call, target, &options.selection, (at, after, counted)).await?;
        match limit {
            Some(limit) => page(slices, limit, (known, &call.charge)).await,
            None => {
                let objects = slices.next().await?.unwrap_or_default();
                let (revision, is_over) = (slices.revision(), slices.is_over());
                Ok(Page { revision, objects, rest: (!is_over).then_some(slices), more: None })
            }
        }
    };
    let read = match read.await {
        Ok(read) => read,
        // What was found damaged just now is known now.
        Err(failure) if failure.code() == 500 => {
            let damaged = known_damage(api, call, target);
            return Err(if damaged.is_empty() { failure } else { unreadable(&target.resource(), &damaged) });
        }
        Err(failure) => return Err(expired_page(failure, key, &identity, place.as_ref())),
    };
    let remaining = read.more.flatten();
    let token = read.more.and(read.objects.last()).map(|last| {
        let namespace = last.key.namespace().map(|n| n.as_str().to_owned()).unwrap_or_default();
        // As etcd3's store in kube-apiserver does: after one page of an inconsistent token the rest is of one revision again.
        let revision = Some(at.unwrap_or(read.revision));
        let next = Place { revision, last: (namespace, last.key.name.as_str().to_owned()), remaining };
        continue_token::encode(key, &identity, &next)
    });
    Ok(Listing { revision: read.revision, objects: read.objects, rest: read.rest, token, remaining })
}

/// The objects that are known to be damaged where a list looks.
fn known_damage(api: &ApiServer, call: &Call, target: &Target) -> Vec<Damaged> {
    let (mut known, resource) = (api.store.known_damage(), target.stored_as());
    known.retain(|Damaged { key, .. }| {
        let is_there = target.namespace.is_none() || target.namespace.as_ref() == key.namespace();
        key.cluster == call.cluster.id && key.resource == resource && is_there
    });
    known
}

fn identity<'a>(call: &'a Call, target: &'a Target) -> ListIdentity<'a> {
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

/// What was read of a list so far.
struct Page {
    revision: ResourceVersion,
    objects: Vec<StoredObject>,
    rest: Option<Slices>,
    /// Whether more is left for another page, and how many if that is known.
    more: Option<Option<u64>>,
}

/// The first `limit` objects, or fewer when they are large. `known` is how many there are.
async fn page(mut slices: Slices, limit: usize, (known, charge): (Option<u64>, &Charge)) -> Result<Page, Status> {
    let (mut objects, mut bytes) = (Vec::new(), 0);
    while let Some(slice) = slices.next().await? {
        let mut slice = slice.into_iter();
        while objects.len() < limit && bytes < MAX_PAGE {
            let Some(object) = slice.next() else { break };
            bytes += object.record.body().len();
            objects.push(object);
        }
        charge.grow_to(bytes)?;
        let left = slice.len();
        if left > 0 {
            // Behind a page that its bytes cut lies too much to be read only to be counted, and upstream may leave the count out.
            let more = match known {
                Some(known) => known.checked_sub(objects.len() as u64),
                None if objects.len() < limit => None,
                None => slices.count_from(left as u64).await?,
            };
            return Ok(Page { revision: slices.revision(), objects, rest: None, more: Some(more) });
        }
    }
    Ok(Page { revision: slices.revision(), objects, rest: None, more: slices.cut() })
}

/// 410 of a list at a state that is gone.
fn too_old() -> Status {
    Status::expired("The resourceVersion for the provided list is too old.")
}

/// What is said of a state that is gone. A page of it can be gone on with in the latest state, knowingly.
fn expired_page(failure: Status, key: &[u8], identity: &ListIdentity<'_>, place: Option<&Place>) -> Status {
    match (failure.code(), place) {
        (410, Some(place)) => {
            let token = continue_token::encode(
                key,
                identity,
                &Place { revision: None, last: place.last.clone(), remaining: None },
            );
            let text = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
            Status::expired(text).with_continue(token)
        }
        (410, None) => too_old(),
        _ => failure,
    }
}

fn key_after(call: &Call, resource: &GroupResource, place: &Place) -> Result<ObjectKey, Status> {
    let bad = |_| Status::bad_request("continue key is not valid");
    let scope = match place.last.0.as_str() {
        "" => Scope::Cluster,
        namespace => Scope::Namespace(namespace.parse::<NamespaceName>().map_err(bad)?),
    };
    let name = place.last.1.parse().map_err(bad)?;
    Ok(ObjectKey { cluster: call.cluster.id, resource: resource.clone(), scope, name })
}

async fn open(
    api: &Arc<ApiServer>,
    call: &Call,
    target: &Target,
    selection: &Selection,
    (at, after, limit): (Option<ResourceVersion>, Option<ObjectKey>, Option<usize>),
) -> Result<Slices, Status> {
    if let Some(objects) = super::own::objects(&call.cluster, target, None) {
        return Ok(Slices::of(api, target, selection, api.store.current(), objects));
    }
    if let Some(name) = selection.fields.exact_name().filter(|_| at.is_none() && after.is_none())
        && let Some(slices) = only_one(api, call, target, selection, name).await?
    {
        return Ok(slices);
    }
    if let Some(reach) = Reach::of(api, &call.cluster, target).await? {
        let (revision, mut objects) = reach.list(api, at).await?;
        objects.retain(|object| after.as_ref().is_none_or(|after| object.key.name > after.name));
        return Ok(Slices::of(api, target, selection, revision, objects));
    }
    let (cluster, resource) = (call.cluster.id, target.stored_as());
    let scope = match &target.namespace {
        None => RangeScope::Cluster(cluster, resource),
        Some(namespace) => RangeScope::Namespace(cluster, resource, namespace.clone()),
    };
    let request = RangeRequest { at, after, limit, ..RangeRequest::slices(scope) };
    Slices::open(api, call, target, selection, request).await
}

/// A selector for one name in one scope reads one key. `None` when it cannot be told at which state that was.
async fn only_one(
    api: &Arc<ApiServer>,
    call: &Call,
    target: &Target,
    selection: &Selection,
    name: &str,
) -> Result<Option<Slices>, Status> {
    if target.kind.namespaced && target.namespace.is_none() {
        return Ok(None);
    }
    let Ok(key) = target.key(call, name) else { return Ok(None) };
    let revision = api.store.current();
    let found = api.find(call, target, &key).await?.map(|found| found.stored);
    // What was written after `revision` may have been written twice: only the range tells.
    if found.as_ref().is_some_and(|stored| stored.revision > revision) {
        return Ok(None);
    }
    Ok(Some(Slices::of(api, target, selection, revision, found.into_iter().collect())))
}

impl Selection {
    /// Whether a stored object is selected. Labels are read from the header, names from the key; only selectors over other
    /// fields look into the body.
    pub(crate) fn matches(
        &self,
        target: &Target,
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
