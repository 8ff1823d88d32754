//! GET of an object and of a list.

use std::sync::Arc;

use http::Response;
use portolan_types::Status;

use crate::{
    ApiServer, Body,
    encode::{self, ResponseShape},
    objects::{marked_for, read_all_clusters, read_list, read_view, wait_for_resource_version},
    options::{ListOptions, parse_cached, parse_version},
    request::{RequestContext, ResourceTarget},
};

use super::home_workspace;

pub(super) async fn get(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    if call.query.flag("export") {
        return Err(Status::bad_request("the export parameter, deprecated since v1.14, is no longer supported"));
    }
    let version = call.query.text("resourceVersion");
    let parse = if target.hooks().is_cached { parse_cached } else { parse_version };
    let at = if version.is_empty() { None } else { parse(version)? };
    if let Some(at) = at {
        wait_for_resource_version(&*api.storage.store, target, at).await?;
    }
    if home_workspace::is_asked(call, target) {
        let home = Box::pin(home_workspace::read(api, call, target)).await?;
        return encode::object(&shape, 200, &home);
    }
    let (_, found) = api.reads.existing_object(call, target).await?;
    let stored = marked_for(&api.storage.directory, call, found.stored)?;
    encode::object(&shape, 200, &stored)
}

pub(super) async fn list(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    let options = ListOptions::of(target, &call.query)?;
    let read = match &call.view {
        None if call.spans_all => Box::pin(read_all_clusters(&api.reads, call, target, &options)).await?,
        None => read_list(&api.reads, call, target, &options).await?,
        Some(view) => Box::pin(read_view(&api.reads, call, (target, view), &options)).await?,
    };
    encode::list(shape, read, &call.charge).await
}
