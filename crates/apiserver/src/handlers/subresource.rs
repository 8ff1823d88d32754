//! Subresources: parts of objects and actions on objects.

use std::sync::Arc;

use http::Response;
use portolan_types::Status;

use crate::{
    ApiServer, Body,
    limits::Permit,
    objects,
    reach::physical_clusters,
    request::{RequestContext, ResourceTarget, method_not_allowed},
};

use super::{agent_token, binding, eviction, patch, proxy, read, resolve, scale, streams, token, update};

pub(super) async fn handle(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    permit: Option<Permit>,
) -> Result<Response<Body>, Status> {
    let target = resolve::resolve_target(&api.kinds, call).await?;
    let name = call.captures.subresource.as_str();
    let subresource = target.kind.subresource(name).ok_or_else(|| missing(call, &target))?;
    let verb = call.attributes.verb.as_str();
    // OPTIONS has no verb: only a right to all of them covers it.
    let has_verb = subresource.verbs.iter().any(|own| **own == *verb) || (verb.is_empty() && resolve::is_proxied(call));
    if !has_verb || (target.list_is_computed() && verb != "get") {
        return Err(method_not_allowed());
    }
    if let Some(view) = &call.view {
        Box::pin(objects::check_visible(&api.reads, call, (&target, view))).await?;
    }
    match (name, verb) {
        ("scale", _) => scale::handle(api, call, &target).await,
        ("eviction", _) => eviction::evict(api, call, &target).await,
        ("binding", _) => binding::bind(api, call, &target).await,
        ("token", _) if target.resource() == physical_clusters() => {
            Box::pin(agent_token::request(api, call, &target)).await
        }
        ("token", _) => token::request(api, call, &target).await,
        ("log" | "exec" | "attach" | "portforward", _) => streams::open(api, call, &target, permit).await,
        ("proxy", _) => Box::pin(proxy::forward(api, call, &target, permit)).await,
        (_, "get") => read::get(api, call, &target).await,
        (name, "update") => update::replace(api, call, &target, Some(name)).await,
        (name, "patch") => patch::patch(api, call, &target, Some(name)).await,
        _ => Err(method_not_allowed()),
    }
}

/// Returns the 404 for an unknown subresource: the router's for a built-in kind, the object's for a custom resource, as
/// in kube-apiserver.
fn missing(call: &RequestContext, target: &ResourceTarget) -> Status {
    if target.is_custom() { Status::not_found(&target.resource(), &call.captures.name) } else { Status::no_such_path() }
}
