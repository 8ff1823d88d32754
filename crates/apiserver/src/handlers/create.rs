//! POST to a resource.

use std::sync::Arc;

use http::Response;
use portolan_merge::apply::Conversions;
use portolan_types::Status;

use crate::{
    ApiServer, Body,
    encode::ResponseShape,
    objects::{ManagerRecording, ObjectWriter},
    options::WriteOptions,
    request::{CreateOnly, RequestContext, ResourceTarget, method_not_allowed},
};

use super::{
    binding,
    body::{self, AnsweredWrite, RequestBody},
    reviews,
};

pub(super) async fn create(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    if target.kind.is_only_created() {
        return match target.hooks().create_only {
            CreateOnly::Binding => binding::bind_named(api, call, target).await,
            review => reviews::answer(api, call, target, review).await,
        };
    }
    if target.kind.namespaced && target.namespace.is_none() {
        return Err(method_not_allowed());
    }
    let options = WriteOptions::of(call)?;
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    let writer = ObjectWriter {
        context: &api.writes,
        call,
        target,
        options: &options,
        recording: ManagerRecording::Tracked,
        body: &RequestBody { call, target },
        conversions: Conversions::default(),
    };
    let created = writer.create(&|| body::decode(call, target, options.validation, None)).await?;
    body::write_response(&api.config.hooks, call, &shape, AnsweredWrite { code: 201, result: created })
}
