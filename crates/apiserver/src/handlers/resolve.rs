//! Resolution of the resource in a URL.

use http::Method;
use portolan_kinds::{Kind, KindTable, Served};
use portolan_types::{GroupResource, NamespaceName, Status};

use crate::{
    kinds::{DefinitionCatalog, waiting_kind},
    reach,
    request::{DefinitionIdentity, RequestContext, ResourceTarget, hooks_of_resource, method_not_allowed},
    routing::routes::{self, Captures, RouteEndpoint},
};

/// Resolves the kind and checks that the namespace in the URL fits its scope.
///
/// # Errors
/// 404 for unknown resources and wrong scopes, 400 for malformed namespaces, 405 for methods that no resource has.
pub(super) async fn resolve_target(kinds: &DefinitionCatalog, call: &RequestContext) -> Result<ResourceTarget, Status> {
    let Captures { group, resource, namespace, .. } = &call.captures;
    let found = find_kind(kinds, call).await?.filter(|(found, _)| found.kind.served);
    let (Served { table, mut kind }, definition) = found.ok_or_else(|| routes::not_found_at(&call.path))?;
    if kinds.computes_nodes() && reach::is_node(&kind) {
        kind = reach::computed_node().clone();
    }
    if let Some(text) = kind.content.as_ref().and_then(|content| content.deprecation()) {
        call.warn([text.to_owned()]);
    }
    let is_namespace = hooks_of_resource(group, resource).is_namespace;
    let namespace = match namespace.as_str() {
        "" => None,
        _ if is_namespace => None,
        text => Some(text.parse::<NamespaceName>().map_err(|e| Status::bad_request(e.to_string()))?),
    };
    match (kind.namespaced, &namespace, call.endpoint) {
        (false, Some(_), _) => Err(routes::not_found_at(&call.path)),
        (true, None, RouteEndpoint::Object | RouteEndpoint::Subresource) => Err(routes::not_found_at(&call.path)),
        // kube-apiserver's router answers 405 here for built-in kinds, and 404 for custom resources.
        (true, None, _) if table.conversion().is_some() && !matches!(&*call.attributes.verb, "list" | "watch") => {
            Err(routes::not_found_at(&call.path))
        }
        // The router finds the resource before it checks the method. A proxy passes any method on.
        _ if (call.method == Method::HEAD || call.attributes.verb.is_empty()) && !is_proxied(call) => {
            Err(method_not_allowed())
        }
        _ => Ok(ResourceTarget { table, kind, namespace, definition }),
    }
}

/// Returns true for a request that is passed on whole.
pub(super) fn is_proxied(call: &RequestContext) -> bool {
    call.endpoint == RouteEndpoint::Subresource && call.captures.subresource == "proxy"
}

async fn find_kind(
    kinds: &DefinitionCatalog,
    call: &RequestContext,
) -> Result<Option<(Served, Option<DefinitionIdentity>)>, Status> {
    let Captures { group, version, resource, .. } = &call.captures;
    if call.waiting().is_some() {
        let kind = waiting_kind();
        let is_asked = *kind.gvk.version == **version && *kind.resource == **resource && *kind.gvk.group == **group;
        return Ok(is_asked.then(|| (Served { table: KindTable::shared(), kind: kind.clone() }, None)));
    }
    if call.spans_all {
        // Definitions differ between logical clusters.
        let kind = KindTable::builtin().resource(group, version, resource).filter(|kind| !is_computed(kind));
        return Ok(kind.map(|kind| (Served { table: KindTable::shared(), kind: kind.clone() }, None)));
    }
    if let Some(view) = call.view.as_ref().filter(|view| view.target.is_none()) {
        // Schemas are those that the export has now, whatever bindings serve.
        let is_shown = view.resources().contains(&GroupResource::new(group.as_str(), resource.as_str()));
        let found = Box::pin(kinds.viewed(view)).await?.surface.resource(group, version, resource);
        return Ok(found.filter(|found| is_shown && !is_computed(&found.kind)).map(|found| (found, None)));
    }
    if let Some(kind) = KindTable::builtin().resource(group, version, resource) {
        return Ok(Some((Served { table: KindTable::shared(), kind: kind.clone() }, None)));
    }
    let found = find_custom_kind(kinds, call).await?;
    if found.is_some() || group.is_empty() {
        return Ok(found);
    }
    // Another server may have established it, and the client may know before this server.
    kinds.mark_stale(call.cluster.id, &format!("{resource}.{group}"));
    find_custom_kind(kinds, call).await
}

/// Returns true for kinds whose objects are not stored under their logical cluster: no view has them.
fn is_computed(kind: &Kind) -> bool {
    hooks_of_resource(&kind.storage.group, &kind.storage.resource).computed.is_some()
}

/// Resolves a custom resource and its definition. The definition is read first, so it is not newer than the served
/// kind.
async fn find_custom_kind(
    kinds: &DefinitionCatalog,
    call: &RequestContext,
) -> Result<Option<(Served, Option<DefinitionIdentity>)>, Status> {
    let Captures { group, version, resource, .. } = &call.captures;
    let definition = kinds.definition(call.cluster.id, &format!("{resource}.{group}")).await?;
    let found = kinds.served(call.cluster.id).await?.surface.resource(group, version, resource);
    Ok(found.zip(definition).map(|(found, definition)| (found, Some(definition))))
}
