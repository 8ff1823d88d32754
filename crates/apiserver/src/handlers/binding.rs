//! `pods/binding` and `bindings`.

use std::sync::Arc;

use http::Response;
use portolan_machinery::{
    apply::Conversions,
    lifecycle::{self, WriteContext},
};
use portolan_types::{Status, object};

use crate::{
    ApiServer, Body,
    admission::Operation,
    call::{Call, Target, method_not_allowed},
    encode::Written,
    objects::Writer,
    options::WriteOptions,
};

use super::{body, eviction::made};

/// Gives the pod of the URL its node.
pub(super) async fn bind(api: &Arc<ApiServer>, call: &Arc<Call>, pods: &Target) -> Result<Response<Body>, Status> {
    let kind = pods.table.resource("", "v1", "bindings").ok_or_else(Status::no_such_path)?.clone();
    let bindings = Target { kind, ..pods.clone() };
    bind_as(api, call, (&bindings, pods), Some(&call.captures.name)).await
}

/// Gives the pod that a Binding names its node: `POST` to `bindings`.
pub(super) async fn bind_named(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    bindings: &Target,
) -> Result<Response<Body>, Status> {
    if bindings.namespace.is_none() {
        return Err(method_not_allowed());
    }
    let kind = bindings.table.resource("", "v1", "pods").ok_or_else(Status::no_such_path)?.clone();
    let pods = Target { kind, ..bindings.clone() };
    bind_as(api, call, (bindings, &pods), None).await
}

async fn bind_as(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    (bindings, pods): (&Target, &Target),
    name: Option<&str>,
) -> Result<Response<Body>, Status> {
    let written = Written::of(call)?;
    let options = WriteOptions::of(call)?;
    let mut binding = body::decode(call, bindings, options.validation, None)?;
    if name.is_none() {
        // Through the pod, its uid is a precondition.
        lifecycle::wipe_system_fields(&mut binding);
    }
    lifecycle::match_namespace(&bindings.kind, &mut binding, bindings.namespace.as_deref())?;
    let called = name.unwrap_or_else(|| object::name(&binding)).to_owned();
    // Through the pod it is the pod's subresource, by itself a resource.
    let (asked, subresource) = if name.is_some() { (pods, "binding") } else { (bindings, "") };
    let request = call.asks(asked, Operation::Create, (&called, subresource), options.dry_run);
    api.admission.mutate_passing(api, &request, &mut binding).await?;
    if name.is_some_and(|name| object::name(&binding) != name) {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    lifecycle::check_binding(&binding)?;
    api.admission.validate_passing(api, &request, &binding).await?;
    let key = pods.key(call, object::name(&binding))?;
    let found = api.find(call, pods, &key).await?;
    let found = found.ok_or_else(|| Status::not_found(&pods.resource(), &key.name))?;
    let writer =
        Writer { api, call, target: pods, options: &options, applied: false, conversions: Conversions::default() };
    let context = WriteContext::new(&pods.table, &api.seams);
    writer.change(&key, found, Some("binding"), &|pod| lifecycle::bind(&context, pod, &binding)).await?;
    Ok(made(written))
}
