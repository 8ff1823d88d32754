//! Parts of objects, and what is done to them by a subresource.

use std::sync::Arc;

use http::Response;
use portolan_types::Status;

use crate::{
    ApiServer, Body,
    call::{Call, Target, method_not_allowed},
    limits::Place,
};

use super::{binding, eviction, patch, read, scale, streams, token, update};

pub(super) async fn handle(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    place: Option<Place>,
) -> Result<Response<Body>, Status> {
    let target = Target::of(api, call).await?;
    let name = call.captures.subresource.as_str();
    let subresource = target.kind.subresource(name).ok_or_else(|| missing(call, &target))?;
    let verb = call.attributes.verb.as_str();
    if !subresource.verbs.iter().any(|own| **own == *verb) || (target.list_is_computed() && verb != "get") {
        return Err(method_not_allowed());
    }
    match (name, verb) {
        ("scale", _) => scale::handle(api, call, &target).await,
        ("eviction", _) => eviction::evict(api, call, &target).await,
        ("binding", _) => binding::bind(api, call, &target).await,
        ("token", _) => token::request(api, call, &target).await,
        ("log" | "exec" | "attach" | "portforward", _) => streams::open(api, call, &target, place).await,
        ("proxy", _) => Err(streams::no_proxy(&target, call)),
        (_, "get") => read::get(api, call, &target).await,
        (name, "update") => update::replace(api, call, &target, Some(name)).await,
        (name, "patch") => patch::patch(api, call, &target, Some(name)).await,
        _ => Err(method_not_allowed()),
    }
}

/// What upstream's router says of a subresource that there is none of; of a custom resource its handler says it of the object.
fn missing(call: &Call, target: &Target) -> Status {
    match target.is_custom() {
        true => Status::not_found(&target.resource(), &call.captures.name),
        false => Status::no_such_path(),
    }
}
