//! Handlers of the routes. Each receives a request that the pipeline has authorized.

mod agent_token;
mod aggregation;
mod apply;
mod binding;
mod body;
mod create;
mod credentials;
mod delete;
mod delete_collection;
mod discovery;
mod eviction;
mod home_workspace;
mod logical_clusters;
mod one_pane;
mod openapi;
mod patch;
mod proxy;
mod read;
mod resolve;
mod resource_metrics;
mod reviews;
mod scale;
mod selectors;
mod snapshot;
mod streams;
mod subresource;
mod token;
mod token_request;
mod update;

use std::sync::Arc;

use http::Response;
use portolan_types::{Status, StatusCause};

use crate::{
    ApiServer, Body,
    limits::Permit,
    objects,
    request::{RequestContext, method_not_allowed},
    routing::routes::RouteEndpoint,
    watch,
};

/// Returns the cause of a 422 for an invalid field; `value` is printed as Go prints it.
fn invalid(field: impl Into<String>, value: &str, why: &str) -> StatusCause {
    StatusCause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {value}: {why}"),
        field: field.into(),
    }
}

/// Dispatches a request to its handler. Each large future is boxed on its own, so that small requests do not reserve
/// and move the memory of the largest one.
pub(crate) async fn handle(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    mut permit: Option<Permit>,
) -> Result<Response<Body>, Status> {
    if let Some(source) = resource_metrics::source(api, call) {
        return Box::pin(resource_metrics::answer(api, call, source)).await;
    }
    if let Some(view) = call.waiting().filter(|_| call.attributes.is_resource()) {
        return Box::pin(logical_clusters::answer(api, call, view, permit)).await;
    }
    if aggregation::is_possible(call)
        && let Some(answered) = Box::pin(aggregation::answer(api, call, &mut permit)).await?
    {
        return Ok(answered);
    }
    if one_pane::is_asked(call) {
        return Box::pin(one_pane::answer(api, call, permit)).await;
    }
    match call.endpoint {
        // The outer router has its own handlers for its routes.
        RouteEndpoint::Livez
        | RouteEndpoint::Readyz
        | RouteEndpoint::Healthz
        | RouteEndpoint::Version
        | RouteEndpoint::Metrics
        | RouteEndpoint::HealthMetrics
        | RouteEndpoint::Jwks
        | RouteEndpoint::OpenIdConfiguration
        | RouteEndpoint::AgentCertificate
        | RouteEndpoint::AgentTunnel
        | RouteEndpoint::ConsolePage
        | RouteEndpoint::ConsoleSettings
        | RouteEndpoint::ConsoleSession
        | RouteEndpoint::ConsoleLink
        | RouteEndpoint::ConsoleSignIn => Err(Status::no_such_path()),
        RouteEndpoint::Snapshot => Box::pin(snapshot::answer(api, call, permit)).await,
        RouteEndpoint::Index => Box::pin(discovery::index(api, call)).await,
        RouteEndpoint::Groups => Box::pin(discovery::groups(api, call)).await,
        RouteEndpoint::Group => Box::pin(discovery::group(api, call)).await,
        RouteEndpoint::GroupVersion => Box::pin(discovery::group_version(api, call)).await,
        RouteEndpoint::OpenApiIndex => Box::pin(openapi::index(api, call)).await,
        RouteEndpoint::OpenApiDocument => Box::pin(openapi::document(api, call)).await,
        RouteEndpoint::OpenApiV2 => Box::pin(openapi::swagger(api, call)).await,
        RouteEndpoint::Collection => collection(api, call, permit).await,
        RouteEndpoint::Object => object(api, call).await,
        RouteEndpoint::Subresource => Box::pin(subresource::handle(api, call, permit)).await,
    }
}

async fn collection(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    permit: Option<Permit>,
) -> Result<Response<Body>, Status> {
    let target = resolve::resolve_target(&api.kinds, call).await?;
    target.check_verb(&call.attributes.verb)?;
    match call.attributes.verb.as_str() {
        "list" => Box::pin(read::list(api, call, &target)).await,
        "watch" => match permit {
            Some(permit) => Box::pin(watch::answer(&api.watches, call, &target, permit)).await,
            None => Err(Status::internal("a watch without a place")),
        },
        "create" => Box::pin(create::create(api, call, &target)).await,
        "deletecollection" => Box::pin(delete_collection::collection(api, call, &target)).await,
        _ => Err(method_not_allowed()),
    }
}

async fn object(api: &Arc<ApiServer>, call: &Arc<RequestContext>) -> Result<Response<Body>, Status> {
    let target = resolve::resolve_target(&api.kinds, call).await?;
    if target.kind.is_only_created() {
        return Err(Status::no_such_path());
    }
    target.check_verb(&call.attributes.verb)?;
    if let Some(view) = &call.view {
        Box::pin(objects::check_visible(&api.reads, call, (&target, view))).await?;
    }
    match call.attributes.verb.as_str() {
        "get" => read::get(api, call, &target).await,
        "update" => Box::pin(update::replace(api, call, &target, None)).await,
        "patch" => Box::pin(patch::patch(api, call, &target, None)).await,
        "delete" => Box::pin(delete::one(api, call, &target)).await,
        _ => Err(method_not_allowed()),
    }
}
