//! Many objects: one state of them, page by page.

use std::time::Duration;

use portolan_machinery::conversion;
use portolan_store::{RangePage, RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{GroupResource, NamespaceName, ObjectKey, ReadAt, ResourceVersion, Scope, Status};
use tokio::time::Instant;

use crate::{
    ApiServer, bootstrap,
    call::{Call, Target},
    continue_token::{self, ListIdentity, Place},
    encode::Listing,
    errors::status_for,
    options::{ListOptions, Selection},
};

/// How long a read waits for a state that has not been reached.
const PATIENCE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(50);
/// Objects read at once while a field selector sifts them.
const SIFTED_AT_ONCE: usize = 500;

/// What a list, watch or deletecollection is of.
#[derive(Clone)]
pub(crate) struct ListScope {
    pub(crate) target: Target,
}

impl ListScope {
    fn range(&self, call: &Call) -> RangeScope {
        let (cluster, resource) = (call.cluster.id, self.target.stored_as());
        match &self.target.namespace {
            None => RangeScope::Cluster(cluster, resource),
            Some(namespace) => RangeScope::Namespace(cluster, resource, namespace.clone()),
        }
    }
}

/// Waits until the store has reached a revision.
///
/// # Errors
/// 504 when it does not within three seconds.
pub(crate) async fn wait_until(api: &ApiServer, at: ResourceVersion) -> Result<(), Status> {
    let deadline = Instant::now() + PATIENCE;
    while api.store.current() < at {
        if Instant::now() >= deadline {
            return Err(status_for(&StoreError::FutureRevision { asked: at, current: api.store.current() }));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// All selected objects at the latest state, and the revision of that state.
pub(crate) async fn snapshot(
    api: &ApiServer,
    call: &Call,
    scope: &ListScope,
    selection: &Selection,
) -> Result<(Vec<StoredObject>, ResourceVersion), Status> {
    let page = page(api, call, scope, selection, None, None, None).await?;
    Ok((page.objects, page.revision))
}

/// A page of a list.
pub(crate) async fn read_list(
    api: &ApiServer,
    call: &Call,
    target: &Target,
    options: &ListOptions,
) -> Result<Listing, Status> {
    let scope = ListScope { target: target.clone() };
    let (labels, fields) = (call.query.text("labelSelector"), call.query.text("fieldSelector"));
    let identity = ListIdentity {
        cluster: call.cluster.id.get(),
        resource: target.resource().to_string(),
        namespace: target.namespace.as_deref().unwrap_or_default(),
        labels,
        fields,
        user: &call.identity.user.name,
    };
    let key = &api.pki.continue_key;
    let place = options.token.as_deref().map(|token| continue_token::decode(key, &identity, token)).transpose()?;
    let at = match (&place, options.at) {
        (Some(place), _) => place.revision,
        (None, ReadAt::Exactly(at)) => {
            wait_until(api, at).await?;
            Some(at)
        }
        (None, ReadAt::NotOlderThan(at)) => {
            wait_until(api, at).await?;
            None
        }
        (None, ReadAt::Latest | ReadAt::AnyCached) => None,
    };
    let after = place.as_ref().map(|place| key_after(call, &target.stored_as(), place)).transpose()?;
    // With resourceVersion=0 upstream answers from a cache and does not page.
    let limit = options.limit.filter(|_| options.at != ReadAt::AnyCached || options.token.is_some());
    let read = page(api, call, &scope, &options.selection, at, after, limit).await;
    let read = read.map_err(|failure| expired_page(failure, key, &identity, place.as_ref()))?;
    let token = match (read.more, read.objects.last()) {
        (true, Some(last)) => {
            let namespace = last.key.namespace().map(|n| n.as_str().to_owned()).unwrap_or_default();
            let revision =
                Some(at.unwrap_or(read.revision)).filter(|_| place.as_ref().is_none_or(|p| p.revision.is_some()));
            let next = Place { revision, last: (namespace, last.key.name.as_str().to_owned()) };
            Some(continue_token::encode(key, &identity, &next))
        }
        _ => None,
    };
    let remaining = read.remaining.filter(|_| options.selection.is_everything());
    Ok(Listing { revision: read.revision, objects: read.objects, token, remaining })
}

/// A page whose state is gone can be gone on with in the latest state, knowingly.
fn expired_page(failure: Status, key: &[u8], identity: &ListIdentity<'_>, place: Option<&Place>) -> Status {
    match (failure.code(), place) {
        (410, Some(place)) => {
            let token = continue_token::encode(key, identity, &Place { revision: None, last: place.last.clone() });
            let text = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
            Status::expired(text).with_continue(token)
        }
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

async fn page(
    api: &ApiServer,
    call: &Call,
    scope: &ListScope,
    selection: &Selection,
    at: Option<ResourceVersion>,
    after: Option<ObjectKey>,
    limit: Option<usize>,
) -> Result<RangePage, Status> {
    let resource = scope.target.stored_as();
    if let Some(objects) = super::own::face(&call.cluster, &scope.target, None) {
        return Ok(RangePage { revision: api.store.current(), objects, more: false, remaining: Some(0) });
    }
    if let Some(name) = selection.fields.exact_name().filter(|_| at.is_none() && after.is_none())
        && let Some(page) = only_one(api, call, scope, selection, name).await?
    {
        return Ok(page);
    }
    let is_shared = bootstrap::has_shared(&resource);
    let request = RangeRequest {
        scope: scope.range(call),
        at,
        after: after.clone().filter(|_| !is_shared),
        limit: limit.filter(|_| !is_shared),
        labels: selection.labels.clone(),
    };
    if is_shared {
        let labels = portolan_types::LabelSelector::everything();
        let stored = range(api, RangeRequest { labels, ..request }).await?;
        return merged(api, call, &scope.target, selection, stored, after, limit).await;
    }
    match selection.fields.is_everything() {
        true => range(api, request).await,
        false => sifted(api, &scope.target, selection, request).await,
    }
}

async fn range(api: &ApiServer, request: RangeRequest) -> Result<RangePage, Status> {
    api.store.range(request).await.map_err(|e| status_for(&e))
}

/// A selector for one name in one scope reads one key. `None` when it cannot be told at which state that was.
async fn only_one(
    api: &ApiServer,
    call: &Call,
    scope: &ListScope,
    selection: &Selection,
    name: &str,
) -> Result<Option<RangePage>, Status> {
    let target = &scope.target;
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
    let mut objects: Vec<StoredObject> = found.into_iter().collect();
    retain(target, selection, &mut objects)?;
    Ok(Some(RangePage { revision, objects, more: false, remaining: None }))
}

/// Keeps what both selectors match.
fn retain(target: &Target, selection: &Selection, objects: &mut Vec<StoredObject>) -> Result<(), Status> {
    let mut failure = None;
    objects.retain(|o| match selection.matches(target, &o.key, &o.record, o.revision) {
        Ok(fits) => fits,
        Err(error) => {
            failure = Some(crate::errors::damaged(&o.key, &error));
            false
        }
    });
    failure.map_or(Ok(()), Err)
}

/// Reads page after page until enough objects match the field selector.
async fn sifted(
    api: &ApiServer,
    target: &Target,
    selection: &Selection,
    mut request: RangeRequest,
) -> Result<RangePage, Status> {
    let limit = request.limit;
    let mut kept: Vec<StoredObject> = Vec::new();
    request.limit = limit.map(|limit| limit.max(SIFTED_AT_ONCE));
    loop {
        let mut page = range(api, request.clone()).await?;
        request.at = Some(page.revision);
        request.after = page.objects.last().map(|o| o.key.clone());
        retain(target, selection, &mut page.objects)?;
        kept.append(&mut page.objects);
        let enough = limit.is_some_and(|limit| kept.len() > limit || (kept.len() == limit && !page.more));
        if enough || !page.more {
            let more = limit.is_some_and(|limit| kept.len() > limit) || (page.more && enough);
            kept.truncate(limit.unwrap_or(usize::MAX));
            return Ok(RangePage { revision: page.revision, objects: kept, more, remaining: None });
        }
    }
}

/// Stored objects and the shared ones that they do not replace, in key order. There are few of them, so pages are cut here.
async fn merged(
    api: &ApiServer,
    call: &Call,
    target: &Target,
    selection: &Selection,
    stored: RangePage,
    after: Option<ObjectKey>,
    limit: Option<usize>,
) -> Result<RangePage, Status> {
    let roles = api.rbac.roles(call.cluster.id).await?;
    let mut objects = bootstrap::all(&call.cluster, &target.stored_as(), &roles);
    objects.retain(|shared| !stored.objects.iter().any(|own| own.key == shared.key));
    objects.extend(stored.objects);
    objects.sort_by(|a, b| a.key.cmp(&b.key));
    objects.retain(|o| after.as_ref().is_none_or(|after| o.key > *after));
    retain(target, selection, &mut objects)?;
    let total = objects.len();
    objects.truncate(limit.unwrap_or(usize::MAX));
    let left = total - objects.len();
    Ok(RangePage { revision: stored.revision, more: left > 0, remaining: u64::try_from(left).ok(), objects })
}

impl Selection {
    /// Whether a stored object is selected. Labels are read from the header; only field selectors look into the body.
    pub(crate) fn matches(
        &self,
        target: &Target,
        key: &ObjectKey,
        record: &portolan_types::Record,
        revision: ResourceVersion,
    ) -> Result<bool, serde_json::Error> {
        if self.fields.exact_name().is_some_and(|name| *key.name != *name) {
            return Ok(false);
        }
        if !self.labels.is_everything() && !self.labels.matches(|key| record.header.label(key)) {
            return Ok(false);
        }
        if self.fields.is_everything() {
            return Ok(true);
        }
        let value = record.to_value(revision)?;
        let value = if target.is_storage_version() { value } else { conversion::from_storage(&target.kind, value) };
        Ok(self.fields.matches(&value))
    }
}
