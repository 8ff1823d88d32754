//! Requests through the view of an export: the provider's right, then the consent of bindings.

use std::sync::Arc;

use http::{HeaderMap, Method};
use portolan_types::{GroupResource, Status, apis::ExportAddress};

use crate::{
    authn::{AccessContext, AskingUser, Identity, Impersonation, authorize_impersonation},
    authz::authorize_provider,
    errors::status_for,
    request::method_not_allowed,
    routing::{
        path::RequestedCluster,
        routes::{self, RouteEndpoint, RoutePolicy},
    },
    views::{Answer, ApiView, Grant},
};

use super::{authorization::AuthorizedRequest, head::RequestHead};

/// Authorizes a request through a view. For missing exports and logical clusters, the answer is the same as without
/// rights.
///
/// # Errors
/// 401 for an identity of another logical cluster than the export's, 403 without the right or the consent, 404 for what
/// is not in the view.
pub(super) async fn authorize(
    access: &AccessContext,
    export: ExportAddress,
    head: RequestHead,
    (identity, headers): (Identity, &mut HeaderMap),
) -> Result<AuthorizedRequest, Status> {
    let provider = access.directory.by_id(export.cluster);
    if identity.home.is_some_and(|home| home != export.cluster) {
        return Err(Status::unauthorized());
    }
    let identity = match (Impersonation::take(headers)?, &provider) {
        (None, _) => identity,
        (Some(_), None) => return Err(head.attributes.denial(&identity.user, "")),
        (Some(wanted), Some(provider)) => {
            let asker = AskingUser { cluster: provider.id, user: &identity.user };
            let acting = authorize_impersonation(&*access.rbac, asker, wanted.clone(), &head.attributes).await?;
            acting.impersonated_by(identity, wanted)
        }
    };
    let denial = |why: &str| head.attributes.denial(&identity.user, why);
    let provider = provider.ok_or_else(|| denial(""))?;
    let reason = authorize_provider(&access.rbac, &export, identity.requester(), &head.attributes).await?;
    let (target, cluster) = match &head.named {
        RequestedCluster::All => (None, provider.clone()),
        named => {
            let found = access.directory.resolve(named, None).ok_or_else(|| denial("no APIBinding consents"))?;
            (Some(found.id), found)
        }
    };
    let view = ApiView::open(&access.store, &export, target).await?.ok_or_else(|| denial(""))?;
    let route = head.route.ok_or_else(|| routes::not_found_at(&head.path))?;
    check_route(&head, route.policy, route.endpoint, target.is_none())?;
    let grant = granted(access, &view, &head, &identity).await?;
    if target.is_some() {
        cluster.check_active(&head.path)?;
    }
    let view = Some(Arc::new(ApiView { grant, ..view }));
    let head = RequestHead { reason, ..head };
    // The provider's service accounts and impersonated users are strangers to the consumer.
    let identity = identity.acting_in(cluster.id);
    Ok(AuthorizedRequest { endpoint: route.endpoint, head, identity, view, charged: provider, cluster })
}

/// Returns the objects that a request may see in its logical cluster; `None` if it is about all, or about no resource.
/// Lists and watches of all read the consents themselves, at their revision.
///
/// # Errors
/// 403 if no binding consents, 404 if the resource is not part of the view.
async fn granted(
    access: &AccessContext,
    view: &ApiView,
    head: &RequestHead,
    identity: &Identity,
) -> Result<Option<Grant>, Status> {
    let attributes = &head.attributes;
    if view.target.is_none() {
        return Ok(None);
    }
    let denial = |why: &str| Err(attributes.denial(&identity.user, why));
    let resource = GroupResource::new(&*attributes.group, &*attributes.resource);
    let asked = attributes.is_resource().then_some((&resource, attributes.verb.as_str()));
    let answer = view.answer(&access.store, asked).await.map_err(|e| status_for(&e))?;
    // Streams and tokens would reach further than the objects.
    let is_served = matches!(&*attributes.subresource, "" | "status" | "scale");
    match answer {
        None => denial("no APIBinding consents"),
        Some(_) if asked.is_none() => Ok(None),
        Some(Answer::Granted(Grant::Labelled(_))) if attributes.verb == "deletecollection" => {
            denial("the claim covers a part of the objects")
        }
        Some(Answer::Granted(grant)) if is_served => Ok(Some(grant)),
        Some(Answer::WithoutVerb) => denial("no APIBinding consents to the verb"),
        Some(Answer::Granted(_) | Answer::Unknown) => Err(routes::not_found_at(&head.path)),
    }
}

/// Checks that a route can be taken through a view, and that only lists and watches are about all logical clusters.
fn check_route(
    head: &RequestHead,
    policy: RoutePolicy,
    endpoint: RouteEndpoint,
    is_about_all: bool,
) -> Result<(), Status> {
    let is_described = endpoint.describes_kinds();
    match policy {
        RoutePolicy::Resource if is_about_all && !matches!(&*head.attributes.verb, "list" | "watch") => {
            Err(method_not_allowed())
        }
        RoutePolicy::Resource => Ok(()),
        RoutePolicy::Path if is_described && head.method == Method::GET => Ok(()),
        RoutePolicy::Path if is_described => Err(method_not_allowed()),
        RoutePolicy::Path | RoutePolicy::Server | RoutePolicy::Agent | RoutePolicy::Console => {
            Err(routes::not_found_at(&head.path))
        }
    }
}
