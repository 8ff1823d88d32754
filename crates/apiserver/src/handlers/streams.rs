//! Logs, exec, attach and port-forward, which are passed to the connector of the pod.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, header};
use portolan_types::Status;
use serde_json::{Value, json};

use super::update::authorize_create;
use crate::{
    ApiServer, Body, encode,
    hooks::{AdmissionOptions, AdmissionRequest, Operation, PodStream, PodStreamRequest, StreamPermit},
    limits::Permit,
    metrics::GaugeGuard,
    objects::tree,
    request::{AdmittedOperation, RequestContext, ResourceTarget},
};

pub(super) async fn open(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
    permit: Option<Permit>,
) -> Result<Response<Body>, Status> {
    let permit = permit.ok_or_else(|| Status::internal("a stream without a place"))?;
    let stream = match call.captures.subresource.as_str() {
        "log" => PodStream::Log,
        "exec" => PodStream::Exec,
        "attach" => PodStream::Attach,
        _ => PodStream::PortForward,
    };
    if stream != PodStream::Log {
        // A WebSocket is opened with GET, but entering a pod is not a read.
        authorize_create(&api.access.rbac, &api.storage.store, call).await?;
        let (operation, name) = (Operation::Connect, &*call.captures.name);
        let admitted = AdmittedOperation { operation, name, subresource: stream.subresource(), dry_run: false };
        let request = call.admission_request(target, admitted);
        let request = AdmissionRequest { options: AdmissionOptions::Nothing, ..request };
        api.writes.admission.admit_unstored(&request, &mut stream_options(stream, call)).await?;
    }
    let (_, found) = api.reads.existing_object(call, target).await?;
    let counted = GaugeGuard::new(api.metrics.longrunning(&call.labels));
    let permit = StreamPermit::new(permit, counted);
    let request = PodStreamRequest {
        cluster: call.cluster.clone(),
        stream,
        pod: tree(target, &found.stored)?,
        user: call.identity.user.clone(),
        request: forwarded(call)?,
        permit: permit.clone(),
    };
    let mut answered = api.config.hooks.streams.open(request).await?;
    if answered.status() != StatusCode::SWITCHING_PROTOCOLS {
        let kept = answered.headers_mut().entry(header::CACHE_CONTROL);
        kept.or_insert(HeaderValue::from_static("no-cache, private"));
    }
    Ok(answered.map(|body| encode::with_guard(body, permit, None, || api.metrics.size(&call.labels))))
}

/// Returns the options of a stream as the object that webhooks see.
fn stream_options(stream: PodStream, call: &RequestContext) -> Value {
    let kind = match stream {
        PodStream::Log => "PodLogOptions",
        PodStream::Exec => "PodExecOptions",
        PodStream::Attach => "PodAttachOptions",
        PodStream::PortForward => "PodPortForwardOptions",
    };
    let mut options = json!({"kind": kind, "apiVersion": "v1"});
    for key in ["stdin", "stdout", "stderr", "tty"].into_iter().filter(|key| call.query.flag(key)) {
        options[key] = true.into();
    }
    if let Some(container) = call.query.get("container") {
        options["container"] = container.into();
    }
    let (command, ports): (Vec<&str>, Vec<&str>) =
        (call.query.all("command").collect(), call.query.all("ports").collect());
    if !command.is_empty() {
        options["command"] = command.into();
    }
    let ports: Vec<u16> = ports.iter().flat_map(|list| list.split(',')).filter_map(|port| port.parse().ok()).collect();
    if !ports.is_empty() {
        options["ports"] = ports.into();
    }
    options
}

/// Returns the request without the client's credentials.
pub(super) fn forwarded(call: &RequestContext) -> Result<http::Request<bytes::Bytes>, Status> {
    let built = http::Request::builder().method(call.method.clone()).uri(call.uri.clone()).body(call.body.clone());
    let mut request = built.map_err(Status::internal)?;
    *request.headers_mut() = call.headers.clone();
    for name in [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION] {
        request.headers_mut().remove(name);
    }
    *request.extensions_mut() = std::mem::take(&mut *call.extensions.lock());
    Ok(request)
}
