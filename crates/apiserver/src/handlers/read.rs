//! GET of an object and of a list.

use std::sync::Arc;

use http::Response;
use portolan_types::{Reason, Status};

use crate::{
    ApiServer, Body,
    call::{Call, Target},
    encode::{self, Shape},
    objects::{read_list, wait_until},
    options::{ListOptions, no_number},
};

pub(super) async fn get(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let version = call.query.text("resourceVersion");
    if !matches!(version, "" | "0") {
        let none = |_| {
            let why = format!("resourceVersion: Invalid value: {version:?}: {}", no_number(version));
            Status::new(Reason::Unknown, why)
        };
        wait_until(api, version.parse().map_err(none)?).await?;
    }
    let (_, found) = api.found(call, target).await?;
    encode::object(&shape, 200, &found.stored)
}

pub(super) async fn list(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let options = ListOptions::of(target, &call.query)?;
    encode::list(shape, read_list(api, call, target, &options).await?).await
}
