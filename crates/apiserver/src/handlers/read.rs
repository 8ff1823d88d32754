//! GET of an object and of a list.

use std::sync::Arc;

use http::Response;
use portolan_types::Status;

use crate::{
    ApiServer, Body,
    call::{Call, Target},
    encode::{self, Shape},
    objects::{read_list, wait_until},
    options::{ListOptions, parse_cached, parse_version},
};

pub(super) async fn get(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    if call.query.flag("export") {
        return Err(Status::bad_request("the export parameter, deprecated since v1.14, is no longer supported"));
    }
    let version = call.query.text("resourceVersion");
    let at = match &*target.kind.resource {
        _ if version.is_empty() => None,
        // Upstream keeps no cache of them.
        "events" => parse_version(version)?,
        _ => parse_cached(version)?,
    };
    if let Some(at) = at {
        wait_until(api, target, at).await?;
    }
    let (_, found) = api.found(call, target).await?;
    encode::object(&shape, 200, &found.stored)
}

pub(super) async fn list(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let options = ListOptions::of(target, &call.query)?;
    encode::list(shape, read_list(api, call, target, &options).await?, &call.charge).await
}
