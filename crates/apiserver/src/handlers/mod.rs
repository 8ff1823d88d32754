//! What answers a route. A handler sees an authorized call only.

mod binding;
mod body;
mod create;
mod delete;
mod discovery;
mod eviction;
mod health;
mod openapi;
mod patch;
mod read;
mod reviews;
pub(crate) use body::{sent_again, sent_names};
pub(crate) use reviews::user_info;
mod scale;
mod selectors;
mod snapshot;
mod streams;
mod subresource;
mod token;
mod update;

use std::sync::Arc;

use http::Response;
use portolan_types::{Status, StatusCause};

use crate::{
    ApiServer, Body,
    call::{Call, Target, method_not_allowed},
    limits::Place,
    routes::Endpoint,
    watch,
};

pub(crate) use health::Failing;
pub(crate) use openapi::ApiDocuments;

/// What is wrong with the value of a field; `value` is as Go shows it.
fn invalid(field: impl Into<String>, value: &str, why: &str) -> StatusCause {
    StatusCause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {value}: {why}"),
        field: field.into(),
    }
}

/// Answers a call. What handlers keep while they wait is boxed one by one: every request would have to carry room for the
/// largest of them, and move it about.
pub(crate) async fn handle(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    place: Option<Place>,
) -> Result<Response<Body>, Status> {
    match call.endpoint {
        Endpoint::Livez | Endpoint::Readyz | Endpoint::Healthz => health::answer(api, call),
        Endpoint::Version => health::version(api, call),
        Endpoint::Metrics => health::metrics(api),
        Endpoint::HealthMetrics => Ok(health::numbers(api.metrics.health.text()?)),
        Endpoint::Snapshot => Box::pin(snapshot::answer(api, call, place)).await,
        Endpoint::Index => Box::pin(discovery::index(api, call)).await,
        Endpoint::Groups => Box::pin(discovery::groups(api, call)).await,
        Endpoint::Group => Box::pin(discovery::group(api, call)).await,
        Endpoint::GroupVersion => Box::pin(discovery::group_version(api, call)).await,
        Endpoint::OpenApiIndex => Box::pin(openapi::index(api, call)).await,
        Endpoint::OpenApiDocument => Box::pin(openapi::document(api, call)).await,
        Endpoint::OpenApiV2 => Box::pin(openapi::swagger(api, call)).await,
        Endpoint::Jwks => token::jwks(api, call),
        Endpoint::OpenIdConfiguration => token::configuration(api, call),
        Endpoint::Collection => collection(api, call, place).await,
        Endpoint::Object => object(api, call).await,
        Endpoint::Subresource => Box::pin(subresource::handle(api, call, place)).await,
    }
}

async fn collection(api: &Arc<ApiServer>, call: &Arc<Call>, place: Option<Place>) -> Result<Response<Body>, Status> {
    let target = Target::of(api, call).await?;
    target.check_verb(&call.attributes.verb)?;
    match call.attributes.verb.as_str() {
        "list" => Box::pin(read::list(api, call, &target)).await,
        "watch" => match place {
            Some(place) => Box::pin(watch::answer(api, call, &target, place)).await,
            None => Err(Status::internal("a watch without a place")),
        },
        "create" => Box::pin(create::create(api, call, &target)).await,
        "deletecollection" => Box::pin(delete::collection(api, call, &target)).await,
        _ => Err(method_not_allowed()),
    }
}

async fn object(api: &Arc<ApiServer>, call: &Arc<Call>) -> Result<Response<Body>, Status> {
    let target = Target::of(api, call).await?;
    if target.kind.is_only_created() {
        return Err(Status::no_such_path());
    }
    target.check_verb(&call.attributes.verb)?;
    match call.attributes.verb.as_str() {
        "get" => read::get(api, call, &target).await,
        "update" => Box::pin(update::replace(api, call, &target, None)).await,
        "patch" => Box::pin(patch::patch(api, call, &target, None)).await,
        "delete" => Box::pin(delete::one(api, call, &target)).await,
        _ => Err(method_not_allowed()),
    }
}
