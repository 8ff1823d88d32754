//! POST to a resource.

use std::sync::Arc;

use http::Response;
use portolan_machinery::apply::Conversions;
use portolan_types::Status;

use crate::{
    ApiServer, Body,
    call::{Call, Target, method_not_allowed},
    encode::Shape,
    objects::Writer,
    options::WriteOptions,
};

use super::{binding, body, reviews};

pub(super) async fn create(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    if target.kind.gvk.group.is_empty() && &*target.kind.resource == "bindings" {
        return binding::bind_named(api, call, target).await;
    }
    if target.kind.is_only_created() {
        return reviews::answer(api, call, target).await;
    }
    if target.kind.namespaced && target.namespace.is_none() {
        return Err(method_not_allowed());
    }
    let options = WriteOptions::of(call)?;
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let writer = Writer { api, call, target, options: &options, applied: false, conversions: Conversions::default() };
    let created = writer.create(&|| body::decode(call, target, options.validation, None), None).await?;
    body::changed(api, call, &shape, 201, created)
}
