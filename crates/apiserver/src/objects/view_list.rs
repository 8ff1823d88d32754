//! Lists of the objects of a view, page by page.

use std::sync::Arc;

use portolan_types::{NamespaceName, ObjectKey, ReadAt, Scope, Status};

use crate::{
    errors::status_for,
    options::{ListOptions, ObjectSelection},
    request::{RequestContext, ResourceTarget},
    views::{ApiView, Grant},
};

use super::{
    ListResult, ObjectSlices, ReadContext,
    continue_token::{self, ListPosition},
    list::{identity, requested_revision},
    range::{ListStart, ObjectRange},
    view_items::{ViewItems, ViewPart},
};

/// Target of a list, in a view.
pub(crate) type ViewedTarget<'a> = (&'a ResourceTarget, &'a ApiView);

/// Reads one page of a list.
///
/// # Errors
/// The errors of a list of one logical cluster.
pub(crate) async fn read_view(
    context: &Arc<ReadContext>,
    call: &RequestContext,
    (target, view): ViewedTarget<'_>,
    options: &ListOptions,
) -> Result<ListResult, Status> {
    let ListStart { at, after, limit } = page_start(context, call, target, options).await?;
    let part = ViewPart { view, target, selection: &options.selection, at, after, limit };
    Ok(page_of(context, call, target, part.read(context, &call.charge).await?))
}

/// Returns the start of a page of a list across logical clusters.
///
/// # Errors
/// The errors of a list of one logical cluster.
pub(super) async fn page_start(
    context: &ReadContext,
    call: &RequestContext,
    target: &ResourceTarget,
    options: &ListOptions,
) -> Result<ListStart, Status> {
    let (key, identity) = (&context.continue_key, identity(call, target));
    let place = options.token.as_deref().map(|token| continue_token::decode(key, &identity, token)).transpose()?;
    let state = options.state()?;
    let at = match &place {
        Some(place) => place.revision,
        None => requested_revision(&*context.storage.store, call, target, state).await?,
    };
    let after = place.as_ref().map(|place| key_after(target, place)).transpose()?;
    Ok(ListStart { at, after, limit: options.limit.filter(|_| state != ReadAt::AnyCached) })
}

/// Returns a page of a list across logical clusters, with a token if the limit left objects out.
pub(super) fn page_of(
    context: &ReadContext,
    call: &RequestContext,
    target: &ResourceTarget,
    read: ViewItems,
) -> ListResult {
    let token = read.objects.last().filter(|_| read.more).map(|last| {
        let next = ListPosition { revision: Some(read.revision), last: position(&last.key), remaining: None };
        continue_token::encode(&context.continue_key, &identity(call, target), &next)
    });
    ListResult { revision: read.revision, objects: read.objects, rest: None, token, remaining: None }
}

/// Returns the objects of a view at the latest revision.
///
/// # Errors
/// The errors of [`ViewPart::read`].
pub(crate) async fn view_slices(
    context: &Arc<ReadContext>,
    call: &RequestContext,
    (target, view): ViewedTarget<'_>,
    selection: &ObjectSelection,
) -> Result<ObjectSlices, Status> {
    let part = ViewPart { view, target, selection, at: None, after: None, limit: None };
    let read = part.read(context, &call.charge).await?;
    // The objects are already selected. In a flattened view, names are selected that their keys do not contain.
    let selection = &ObjectSelection::everything();
    Ok(ObjectSlices::of(ObjectRange { context, call, target, selection }, read.revision, read.objects))
}

/// Checks that a request for one object may see it.
///
/// # Errors
/// 404 for an object outside of the view.
pub(crate) async fn check_visible(
    context: &ReadContext,
    call: &RequestContext,
    (target, view): ViewedTarget<'_>,
) -> Result<(), Status> {
    if matches!(view.grant, None | Some(Grant::All)) {
        return Ok(());
    }
    let key = target.key(call, &call.captures.name)?;
    let Some(found) = context.find_object(call, target, &key).await? else { return Ok(()) };
    let value = found.stored.to_value().map_err(|e| status_for(&e))?;
    if view.admits(&value) { Ok(()) } else { Err(Status::not_found(&target.resource(), &key.name)) }
}

/// Returns the place of an object in a list: its logical cluster and namespace, and its name.
fn position(key: &ObjectKey) -> (String, String) {
    let namespace = key.namespace().map(|namespace| namespace.as_str()).unwrap_or_default();
    (format!("{}/{namespace}", key.cluster), key.name.as_str().to_owned())
}

fn key_after(target: &ResourceTarget, place: &ListPosition) -> Result<ObjectKey, Status> {
    let bad = || Status::bad_request("continue key is not valid");
    let (cluster, namespace) = place.last.0.split_once('/').ok_or_else(bad)?;
    let scope = match namespace {
        "" => Scope::Cluster,
        namespace => Scope::Namespace(namespace.parse::<NamespaceName>().map_err(|_| bad())?),
    };
    let (cluster, name) = (cluster.parse().map_err(|_| bad())?, place.last.1.parse().map_err(|_| bad())?);
    Ok(ObjectKey { cluster, resource: target.stored_as(), scope, name })
}

#[cfg(test)]
mod tests {
    use portolan_types::LogicalClusterId;

    use super::*;

    #[test]
    fn a_position_names_the_logical_cluster() {
        let key = |scope| ObjectKey {
            cluster: LogicalClusterId::new(9),
            resource: portolan_types::GroupResource::new("", "configmaps"),
            scope,
            name: "a".parse().unwrap(),
        };
        let (cluster, namespace) =
            position(&key(Scope::Cluster)).0.split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        assert_eq!((cluster.parse(), namespace.as_str()), (Ok(LogicalClusterId::new(9)), ""));
        let spaced = position(&key(Scope::Namespace("shop".parse().unwrap())));
        assert!(spaced.0.ends_with("/shop"), "{spaced:?}");
    }
}
