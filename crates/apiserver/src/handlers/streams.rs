//! Logs, exec, attach and port-forward: handed to whoever reaches the pod.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, header};
use portolan_types::{Reason, Status};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    admission::{Operation, Request, Sent},
    attributes::Attributes,
    authz::{Authorizer as _, Verdict},
    call::{Call, Target},
    encode::{self, tree},
    hooks::{PodStream, PodStreamRequest, StreamPlace},
    limits::Place,
    pipeline::Counted,
};

pub(super) async fn open(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    target: &Target,
    place: Option<Place>,
) -> Result<Response<Body>, Status> {
    let place = place.ok_or_else(|| Status::internal("a stream without a place"))?;
    let stream = match call.captures.subresource.as_str() {
        "log" => PodStream::Log,
        "exec" => PodStream::Exec,
        "attach" => PodStream::Attach,
        _ => PodStream::PortForward,
    };
    if stream != PodStream::Log {
        may_enter(api, call).await?;
        let request = call.asks(target, Operation::Connect, (&call.captures.name, stream.subresource()), false);
        let request = Request { sent: Sent::Nothing, ..request };
        api.admission.admit_passing(api, &request, &mut stream_options(stream, call)).await?;
    }
    let (_, found) = api.found(call, target).await?;
    let counted = Counted::new(api.metrics.longrunning(&call.labels));
    let place = StreamPlace::new(place, counted);
    let request = PodStreamRequest {
        cluster: call.cluster.clone(),
        stream,
        pod: tree(target, &found.stored)?,
        user: call.identity.user.clone(),
        request: forwarded(call)?,
        place: place.clone(),
    };
    let mut answered = api.config.hooks.streams.open(request).await?;
    if answered.status() != StatusCode::SWITCHING_PROTOCOLS {
        let kept = answered.headers_mut().entry(header::CACHE_CONTROL);
        kept.or_insert(HeaderValue::from_static("no-cache, private"));
    }
    Ok(answered.map(|body| encode::held(body, place, None, || api.metrics.size(&call.labels))))
}

/// What is asked of the stream, as the object that webhooks see.
fn stream_options(stream: PodStream, call: &Call) -> Value {
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

/// A WebSocket is opened with GET, but entering a pod is no read: it needs the right to create.
async fn may_enter(api: &ApiServer, call: &Call) -> Result<(), Status> {
    let asked = Attributes { verb: "create".into(), ..Attributes::clone(&call.attributes) };
    match api.rbac.authorize(call.cluster.id, &call.identity.user, &asked).await? {
        Verdict::Allowed(_) => Ok(()),
        Verdict::Denied(why) => Err(asked.denial(&call.identity.user, &why)),
    }
}

/// The request without the client's credentials.
fn forwarded(call: &Call) -> Result<http::Request<bytes::Bytes>, Status> {
    let built = http::Request::builder().method(call.method.clone()).uri(call.uri.clone()).body(call.body.clone());
    let mut request = built.map_err(Status::internal)?;
    *request.headers_mut() = call.headers.clone();
    for name in [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION] {
        request.headers_mut().remove(name);
    }
    *request.extensions_mut() = std::mem::take(&mut *call.extensions.lock());
    Ok(request)
}

/// Proxying into physical clusters is off.
pub(super) fn no_proxy(target: &Target, call: &Call) -> Status {
    let message = format!("{}/proxy of {:?} is not served", target.resource(), call.captures.name);
    Status::new(Reason::Forbidden, message).about(&target.resource(), &call.captures.name)
}
