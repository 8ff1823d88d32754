//! Requests through a flattened view. The names in a request tell its logical cluster: that of a consumer, that of the
//! export, or all of them. Each is authorized as without the view: by the consent of the consumer's binding and the
//! provider's right, or by the caller's own rights.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::BoxFuture;
use http::HeaderMap;
use portolan_codec::decode;
use portolan_types::{GroupResource, LogicalClusterId, Status, apis::ExportAddress, object};

use crate::{
    authn::Identity,
    authz::{AuthorizationDecision, authorize_provider},
    encode::media_in,
    request::method_not_allowed,
    routing::{
        path::RequestedCluster,
        routes::{RouteEndpoint, RoutePolicy},
    },
    views::{
        ApiView,
        flattened::{self, FlatName, FlattenedNames, NameLookup},
    },
};

use super::{
    authorization::{self, AuthorizationContext, AuthorizedRequest},
    head::RequestHead,
    view,
};

/// Logical clusters that a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestedPlace {
    /// Logical cluster of the export.
    Own,
    /// Logical cluster of a consumer.
    Consumer(LogicalClusterId),
    /// All of the view.
    All,
    /// The one that the name in the body tells.
    OfBody,
}

/// Authorizes a request through the flattened view of an export.
///
/// # Errors
/// As of the view of an export and of its logical cluster; 403 for a write to a kind that is shown once, 404 for a
/// namespace or name that no object has.
pub(super) async fn authorize(
    context: AuthorizationContext<'_>,
    export: ExportAddress,
    head: RequestHead,
    (identity, headers): (Identity, &mut HeaderMap),
) -> Result<AuthorizedRequest, Status> {
    if identity.home.is_some_and(|home| home != export.cluster) {
        return Err(Status::unauthorized());
    }
    let denial = || head.attributes.denial(&identity.user, "");
    let opened = ApiView::open(&context.access.store, &export, None).await?.ok_or_else(denial)?;
    let place = place_of(&head, &opened)?;
    let request = FlattenedRequest { context, export, head };
    match place {
        RequestedPlace::Own => request.authorize_own(identity, headers).await,
        RequestedPlace::Consumer(cluster) => request.authorize_consumer(cluster, identity, headers).await,
        RequestedPlace::All => request.authorize_all(identity, headers).await,
        RequestedPlace::OfBody => request.await_body(identity, opened).await,
    }
}

/// Returns the logical clusters that a request is about, by its names.
///
/// # Errors
/// 403 for a write to a kind that is shown once; 405 for a deletion of a collection in all logical clusters.
fn place_of(head: &RequestHead, view: &ApiView) -> Result<RequestedPlace, Status> {
    let (captures, verb) = (&head.captures, head.attributes.verb.as_str());
    match head.route.map(|route| (route.policy, route.endpoint)) {
        Some((RoutePolicy::Resource, _)) => {}
        Some((RoutePolicy::Path, RouteEndpoint::Index | RouteEndpoint::Jwks | RouteEndpoint::OpenIdConfiguration)) => {
            return Ok(RequestedPlace::Own);
        }
        Some((RoutePolicy::Path, _)) => return Ok(RequestedPlace::All),
        _ => return Ok(RequestedPlace::Own),
    }
    let resource = GroupResource::new(captures.group.as_str(), captures.resource.as_str());
    if flattened::is_shown_once(&resource) {
        let reads = matches!(verb, "get" | "list" | "watch");
        let why = "it is shown once for all workspaces, and read-only in a flattened view";
        return if reads { Ok(RequestedPlace::Own) } else { Err(Status::forbidden(&resource, &captures.name, why)) };
    }
    let named = if captures.namespace.is_empty() { &captures.name } else { &captures.namespace };
    let has_consumers = flattened::has_consumers(view, &resource);
    if !named.is_empty() && (has_consumers || !captures.namespace.is_empty()) {
        return Ok(FlatName::parse(named).cluster().map_or(RequestedPlace::Own, RequestedPlace::Consumer));
    }
    match verb {
        _ if !has_consumers || !named.is_empty() => Ok(RequestedPlace::Own),
        "list" | "watch" => Ok(RequestedPlace::All),
        "create" => Ok(RequestedPlace::OfBody),
        _ => Err(method_not_allowed()),
    }
}

/// Request through a flattened view.
struct FlattenedRequest<'a> {
    context: AuthorizationContext<'a>,
    export: ExportAddress,
    head: RequestHead,
}

impl FlattenedRequest<'_> {
    /// Authorizes a request to the logical cluster of the export, like one without a view.
    fn authorize_own<'f>(
        self,
        identity: Identity,
        headers: &'f mut HeaderMap,
    ) -> BoxFuture<'f, Result<AuthorizedRequest, Status>>
    where
        Self: 'f,
    {
        let named = RequestedCluster::Id(self.export.cluster);
        let head = RequestHead { named, view: None, is_flattened: false, ..self.head };
        Box::pin(authorization::authorize_request(self.context, head, identity, headers))
    }

    /// Authorizes a request to the logical cluster of a consumer, and replaces the names in its path by those there.
    async fn authorize_consumer(
        self,
        cluster: LogicalClusterId,
        identity: Identity,
        headers: &mut HeaderMap,
    ) -> Result<AuthorizedRequest, Status> {
        let Self { context, export, head } = self;
        if cluster == export.cluster {
            // Its objects have no prefix.
            return Err(head.attributes.denial(&identity.user, "no APIBinding consents"));
        }
        let head = RequestHead { named: RequestedCluster::Id(cluster), ..head };
        let own = export.cluster;
        let request = Box::pin(view::authorize(context.access, export, head, (identity, headers))).await?;
        let head = stored_names(&NameLookup { store: &context.access.store, cluster }, request.head).await?;
        with_names(context, own, AuthorizedRequest { head, ..request }, false).await
    }

    /// Authorizes a list or watch of all logical clusters, or a request for documents about them.
    async fn authorize_all(self, identity: Identity, headers: &mut HeaderMap) -> Result<AuthorizedRequest, Status> {
        let Self { context, export, head } = self;
        let own = export.cluster;
        let head = RequestHead { named: RequestedCluster::All, ..head };
        let request = Box::pin(view::authorize(context.access, export, head, (identity, headers))).await?;
        let attributes = &request.head.attributes;
        let verdict = context.access.rbac.authorize_identity(own, &request.identity, attributes).await?;
        let shows_own = verdict.is_allowed();
        with_names(context, own, request, shows_own).await
    }

    /// Lets a create of a cluster-scoped object wait for its body: see [`after_body`]. Nobody without a right to create
    /// anything here may send one.
    async fn await_body(self, identity: Identity, view: ApiView) -> Result<AuthorizedRequest, Status> {
        let Self { context, export, head } = self;
        let access = context.access;
        let attributes = &head.attributes;
        if let Err(denied) = authorize_provider(&access.rbac, &export, identity.requester(), attributes).await {
            let verdict = access.rbac.authorize_identity(export.cluster, &identity, attributes).await?;
            if let AuthorizationDecision::Denied(_) = verdict {
                return Err(denied);
            }
        }
        let endpoint = RouteEndpoint::Collection;
        let cluster = access.directory.by_id(export.cluster);
        let cluster = cluster.ok_or_else(|| attributes.denial(&identity.user, ""))?;
        let view = Some(Arc::new(view));
        let request = AuthorizedRequest { head, endpoint, identity, view, charged: cluster.clone(), cluster };
        with_names(context, export.cluster, request, false).await
    }
}

/// Adds the names of the flattened view to an authorized request.
async fn with_names(
    context: AuthorizationContext<'_>,
    own: LogicalClusterId,
    request: AuthorizedRequest,
    shows_own: bool,
) -> Result<AuthorizedRequest, Status> {
    let Some(view) = request.view else { return Err(Status::internal("a flattened view is a view")) };
    let surface = Box::pin(context.kinds.viewed(&view)).await?.surface.clone();
    let names = Arc::new(FlattenedNames::new(own, surface, shows_own));
    let view = Some(Arc::new(ApiView { flattened: Some(names), ..ApiView::clone(&view) }));
    Ok(AuthorizedRequest { view, ..request })
}

/// Replaces the names in a path by those in the logical cluster.
///
/// # Errors
/// 404 for a name that no object has.
async fn stored_names(lookup: &NameLookup<'_>, mut head: RequestHead) -> Result<RequestHead, Status> {
    let captures = &mut head.captures;
    let resource = GroupResource::new(captures.group.as_str(), captures.resource.as_str());
    if captures.namespace.is_empty() && captures.name.is_empty() {
        return Ok(head);
    }
    if captures.namespace.is_empty() {
        let name = lookup.name(&resource, &captures.name).await?;
        captures.name = name.ok_or_else(|| Status::not_found(&resource, &captures.name))?;
        return Ok(head.with_attributes());
    }
    let namespaces = GroupResource::new("", "namespaces");
    let namespace = lookup.name(&namespaces, &captures.namespace).await?;
    let namespace = namespace.ok_or_else(|| Status::not_found(&namespaces, &captures.namespace))?;
    if resource == namespaces {
        captures.name.clone_from(&namespace);
    }
    captures.namespace = namespace;
    Ok(head.with_attributes())
}

/// Completes the authorization of a request whose names are in its body.
///
/// # Errors
/// As [`authorize`]; 413 for too many shortened names.
pub(super) async fn after_body(
    context: AuthorizationContext<'_>,
    request: AuthorizedRequest,
    (headers, body): (&mut HeaderMap, &[u8]),
) -> Result<AuthorizedRequest, Status> {
    let Some(view) = request.view.clone().filter(|view| view.flattened.is_some()) else { return Ok(request) };
    if view.target.is_some() {
        return with_hashed_names(context, request, &view, body).await;
    }
    if request.verb() != "create" {
        return Ok(request);
    }
    // Only now it is known whose rights decide.
    let export = view.export.address.clone();
    let named = if body.is_empty() { String::new() } else { name_in(headers, body)? };
    let AuthorizedRequest { head, identity, .. } = request;
    let whole = FlattenedRequest { context, export, head };
    let request = match FlatName::parse(&named).cluster() {
        None => return whole.authorize_own(identity, headers).await,
        Some(cluster) => whole.authorize_consumer(cluster, identity, headers).await?,
    };
    match request.view.clone() {
        Some(view) => with_hashed_names(context, request, &view, body).await,
        None => Ok(request),
    }
}

/// Returns the name, or the beginning of the name, of the object in a body.
///
/// # Errors
/// 400 for a body that cannot be read, 415 for one of an unknown type.
fn name_in(headers: &HeaderMap, body: &[u8]) -> Result<String, Status> {
    let read = decode::decode_any(media_in(headers)?, body).map_err(Status::bad_request)?;
    let name = object::name(&read);
    Ok(if name.is_empty() { object::meta_text(&read, "generateName") } else { name }.to_owned())
}

/// Reads the names of the hashes in a body.
async fn with_hashed_names(
    context: AuthorizationContext<'_>,
    request: AuthorizedRequest,
    view: &ApiView,
    body: &[u8],
) -> Result<AuthorizedRequest, Status> {
    let cluster = request.cluster.id;
    let texts = flattened::hashed_names(cluster, body)?;
    let Some(names) = view.flattened.as_ref().filter(|_| !texts.is_empty()) else { return Ok(request) };
    let lookup = NameLookup { store: &context.access.store, cluster };
    let captures = &request.head.captures;
    let resources = [
        GroupResource::new("", "namespaces"),
        GroupResource::new(captures.group.as_str(), captures.resource.as_str()),
        GroupResource::new("rbac.authorization.k8s.io", "clusterroles"),
        GroupResource::new("", "persistentvolumes"),
    ];
    let mut hashed = BTreeMap::new();
    for text in texts {
        for resource in &resources {
            if let Some(name) = lookup.name(resource, &text).await? {
                hashed.insert(text, name);
                break;
            }
        }
    }
    let names = Arc::new(names.with_hashes(hashed));
    let view = Some(Arc::new(ApiView { flattened: Some(names), ..ApiView::clone(view) }));
    Ok(AuthorizedRequest { view, ..request })
}
