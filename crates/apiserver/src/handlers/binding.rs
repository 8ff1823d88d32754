//! `pods/binding` and `bindings`.

use std::sync::Arc;

use http::Response;
use portolan_merge::apply::Conversions;
use portolan_strategy::lifecycle::{self, WriteContext};
use portolan_types::{Status, object};
use serde_json::Value;

use crate::{
    ApiServer, Body,
    encode::StatusForm,
    hooks::Operation,
    objects::{ManagerRecording, ObjectChange, ObjectWriter},
    options::WriteOptions,
    request::{AdmittedOperation, RequestContext, ResourceTarget, method_not_allowed},
};

use super::{
    body::{self, RequestBody},
    eviction::created_status,
};

/// Binds the pod of the URL to a node.
pub(super) async fn bind(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    pods: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let kind = pods.table.resource("", "v1", "bindings").ok_or_else(Status::no_such_path)?.clone();
    let bindings = ResourceTarget { kind, ..pods.clone() };
    bind_as(api, call, &BindingTargets { bindings: &bindings, pods, pod_name: Some(&call.captures.name) }).await
}

/// Binds the pod that a Binding names: `POST` to `bindings`.
pub(super) async fn bind_named(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    bindings: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    if bindings.namespace.is_none() {
        return Err(method_not_allowed());
    }
    let kind = bindings.table.resource("", "v1", "pods").ok_or_else(Status::no_such_path)?.clone();
    let pods = ResourceTarget { kind, ..bindings.clone() };
    bind_as(api, call, &BindingTargets { bindings, pods: &pods, pod_name: None }).await
}

/// Resources of a binding.
struct BindingTargets<'a> {
    bindings: &'a ResourceTarget,
    pods: &'a ResourceTarget,
    /// Name of the pod in the URL.
    pod_name: Option<&'a str>,
}

async fn bind_as(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    targets: &BindingTargets<'_>,
) -> Result<Response<Body>, Status> {
    let BindingTargets { bindings, pods, pod_name: name } = *targets;
    let written = StatusForm::of(call)?;
    let options = WriteOptions::of(call)?;
    let mut binding = body::decode(call, bindings, options.validation, None)?;
    if name.is_none() {
        // In `pods/binding` the uid is a precondition, so only this form drops it.
        lifecycle::wipe_system_fields(&mut binding);
    }
    lifecycle::match_namespace(&bindings.kind, &mut binding, bindings.namespace.as_deref())?;
    let called = name.unwrap_or_else(|| object::name(&binding)).to_owned();
    // `pods/binding` is a subresource of the pod, `bindings` a resource.
    let (asked, subresource) = if name.is_some() { (pods, "binding") } else { (bindings, "") };
    let operation = Operation::Create;
    let admitted = AdmittedOperation { operation, name: &called, subresource, dry_run: options.dry_run };
    let request = call.admission_request(asked, admitted);
    api.writes.admission.mutate_unstored(&request, &mut binding).await?;
    if name.is_some_and(|name| object::name(&binding) != name) {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    lifecycle::check_binding(&binding)?;
    api.writes.admission.validate_unstored(&request, &binding).await?;
    let key = pods.key(call, object::name(&binding))?;
    let found = api.reads.find_object(call, pods, &key).await?;
    let found = found.ok_or_else(|| Status::not_found(&pods.resource(), &key.name))?;
    let writer = ObjectWriter {
        context: &api.writes,
        call,
        target: pods,
        options: &options,
        recording: ManagerRecording::Unchanged,
        body: &RequestBody { call, target: pods },
        conversions: Conversions::default(),
    };
    let context = WriteContext::new(&pods.table, api.seams());
    let bind = |pod: &Value| lifecycle::bind(&context, pod, &binding);
    writer.change(&ObjectChange { key: &key, subresource: Some("binding"), make: &bind }, found).await?;
    Ok(created_status(written))
}
