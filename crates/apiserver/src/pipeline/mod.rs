//! The request pipeline: limits → authenticate → resolve the logical cluster → authorize → decode → admit → act →
//! encode. No handler can be reached in another way: neither a handler of a Kubernetes route nor one of the outer
//! router, which is passed along with the request as a [`RouteHandler`].

mod agents;
mod all_clusters;
mod authorization;
mod body;
mod console;
mod flattened;
mod head;
mod lifecycle;
mod missing_workspace;
mod proxied_paths;
mod record;
mod view;

#[cfg(test)]
mod tests;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::{Method, Request, Response, request::Parts};
use http_body::Body as _;
use portolan_types::{Reason, Status};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::{
    ApiServer, Body,
    authn::{Peer, strip_proxy_headers},
    encode, handlers,
    limits::{AuthenticatedMark, FlowKey, MemoryCharge, Permit, RequestLimiter, RunningRequest},
    metrics::GaugeGuard,
    request::{RequestContext, hooks_of_kind},
};

use authorization::{AuthorizationContext, AuthorizedRequest, ReceivedRequest};
pub(crate) use body::{RequestBody, StreamedBody, boxed_body};
use record::RequestRecord;

/// Fraction of the request timeout that a request may wait in a queue, as in kube-apiserver.
const QUEUE_FRACTION: u32 = 4;
/// Timeout of the authentication and authorization of a health check, which may need the store: probes have a second or
/// more.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(1);

/// Handler of a route of the outer router. The router attaches it to the request as an extension, and it is the last
/// stage of the pipeline in place of the Kubernetes handlers.
#[derive(Clone)]
pub(crate) struct RouteHandler(Arc<dyn Fn(Arc<ApiServer>, Arc<RequestContext>) -> HandlerFuture + Send + Sync>);

type HandlerFuture = BoxFuture<'static, Result<Response<Body>, Status>>;

impl RouteHandler {
    pub(crate) fn new(
        handler: impl Fn(Arc<ApiServer>, Arc<RequestContext>) -> HandlerFuture + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(handler))
    }
}

/// Answers a request; every failure is a `Status`.
pub(crate) async fn answer(api: Arc<ApiServer>, peer: Peer, request: Request<RequestBody>) -> Response<Body> {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let is_head = parts.method == Method::HEAD;
    let mut record = RequestRecord::new(api.seams(), &parts.headers);
    let span = record.span();
    let way = AssertUnwindSafe(run_stages(&api, &peer, parts, body, &mut record)).catch_unwind();
    let answered = way.instrument(span.clone()).await.unwrap_or_else(|_| {
        span.in_scope(|| tracing::error!("a handler panicked"));
        let failure = Status::internal("the request could not be handled");
        record.audit_panic(&failure);
        Err(failure)
    });
    let response = record.finish(&api.metrics, answered, started);
    if is_head { response.map(|_| encode::empty()) } else { response }
}

async fn run_stages(
    api: &Arc<ApiServer>,
    peer: &Peer,
    mut parts: Parts,
    body: RequestBody,
    record: &mut RequestRecord,
) -> Result<Response<Body>, Status> {
    strip_proxy_headers(&mut parts.headers);
    let head = head::parse_head(&parts)?;
    record.record_head(&head, &parts.headers);
    let is_health = head.is_health();
    // Boxed, so that a request that waits for a seat or a body does not keep the state of these stages.
    let admitting = Box::pin(async {
        let identity = authorization::authenticate(&api.access, peer, &mut parts.headers, &head.named).await;
        if let Some(auditor) = &api.auditor {
            record.audit_received(auditor, &parts, &head, identity.as_ref().ok());
        }
        let identity = identity?;
        if let Some(mark) = parts.extensions.get::<AuthenticatedMark>().filter(|_| !identity.is_anonymous()) {
            mark.set();
        }
        let context = AuthorizationContext { access: &api.access, kinds: &api.kinds };
        authorization::authorize_request(context, head, identity, &mut parts.headers)
            .await
            .inspect_err(|why| record.record_refusal(why))
    });
    let mut admitted = if is_health {
        tokio::time::timeout(HEALTH_TIMEOUT, admitting).await.map_err(|_| timed_out())??
    } else {
        admitting.await?
    };
    record.record_cluster(&admitted);
    let limit = admitted.time_limit(&api.config.limits)?;
    let deadline = Instant::now() + limit;
    let flow_key = admitted.flow_key(api.directory());
    if let Some(mark) = parts.extensions.get::<AuthenticatedMark>() {
        mark.charge_to(flow_key.tenant);
    }
    RequestLimiter::belongs_to(&flow_key);
    let (charge, writes) = (api.limiter.charge(&flow_key), admitted.is_write());
    let time = limit.min(api.config.limits.body_timeout);
    let bounds = BodyBounds { flow_key: &flow_key, charge: &charge, patience: limit / QUEUE_FRACTION, time };
    let body = if admitted.is_tunnel() {
        // It has no end while the agent is connected.
        parts.extensions.insert(StreamedBody::new(body));
        Bytes::new()
    } else {
        receive_body(&api.limiter, &parts, body, bounds).await?
    };
    record.audit_body(&parts.headers, &body);
    if admitted.is_flattened() {
        let context = AuthorizationContext { access: &api.access, kinds: &api.kinds };
        let named = Box::pin(flattened::after_body(context, admitted, (&mut parts.headers, &body)));
        admitted = named.await.inspect_err(|why| record.record_refusal(why))?;
        record.record_cluster(&admitted);
    }
    let flow_key = admitted.flow_key(api.directory());
    api.metrics.body(record.labels(), admitted.verb(), body.len());
    let RequestPermits { permit, short } = acquire_permits(api, &admitted, &flow_key, limit / QUEUE_FRACTION).await?;
    // A backup has no deadline; any other body must be read in time.
    let read_by = (!admitted.is_backup()).then_some(deadline);
    let (labels, held) = (record.labels().clone(), charge.clone());
    let call = admitted.into_call(ReceivedRequest { parts, body, deadline, charge: held, labels });
    let (long, is_resource) = (call.is_long_running(), call.attributes.is_resource());
    let handled = call_handler(api, call, permit, record);
    if long {
        return handled.await;
    }
    let late = || if writes { write_timed_out() } else { timed_out() };
    let answered = tokio::time::timeout_at(deadline, handled).await.map_err(|_| late())??;
    let Some(bytes) = answered.body().size_hint().exact() else {
        // A body that is read from the store while it is sent is part of the request.
        let size = || api.metrics.size(record.labels());
        return Ok(answered.map(|body| encode::with_guard(body, (short, charge), read_by, size)));
    };
    // Documents are in memory anyway, and the result of a write must be delivered.
    if is_resource && !writes {
        charge.grow_to(usize::try_from(bytes).unwrap_or(usize::MAX))?;
    }
    Ok(answered.map(|body| encode::with_charge(body, charge)))
}

/// Bounds on receiving a body.
struct BodyBounds<'a> {
    flow_key: &'a FlowKey<'a>,
    charge: &'a MemoryCharge,
    /// Longest wait in the queue.
    patience: Duration,
    /// Time for receiving it.
    time: Duration,
}

/// Reads the body before the request takes a permit, so that a slow client does not hold one.
async fn receive_body(
    limiter: &RequestLimiter,
    parts: &Parts,
    body: RequestBody,
    bounds: BodyBounds<'_>,
) -> Result<Bytes, Status> {
    let BodyBounds { flow_key, charge, patience, time } = bounds;
    if body.is_end_stream() {
        return body::read(&parts.headers, body, charge).await;
    }
    let _seat = limiter.send(flow_key, patience).await?;
    tokio::time::timeout(time, body::read(&parts.headers, body, charge)).await.map_err(|_| timed_out())?
}

/// Permits that a request holds.
struct RequestPermits {
    /// Permit of a watch or stream.
    permit: Option<Permit>,
    /// Permit of a short request. A health check has neither, because it must be answered even if the server is full.
    short: Option<(RunningRequest, GaugeGuard)>,
}

async fn acquire_permits(
    api: &ApiServer,
    admitted: &AuthorizedRequest,
    flow_key: &FlowKey<'_>,
    patience: Duration,
) -> Result<RequestPermits, Status> {
    let ApiServer { limiter, metrics, .. } = api;
    Ok(match (admitted.is_long_running(), admitted.is_watch()) {
        // The gateway has one per agent, and bounds their number.
        (true, _) if admitted.is_tunnel() => RequestPermits { permit: None, short: None },
        (true, true) => RequestPermits { permit: Some(limiter.watch(flow_key)?), short: None },
        (true, false) => RequestPermits { permit: Some(limiter.stream(flow_key)?), short: None },
        (false, _) if admitted.is_health() => RequestPermits { permit: None, short: None },
        (false, _) => {
            let seat = limiter.enter(flow_key, admitted.is_write(), patience).await?;
            let counted = GaugeGuard::new(metrics.inflight(admitted.is_write()));
            RequestPermits { permit: None, short: Some((seat, counted)) }
        }
    })
}

async fn call_handler(
    api: &Arc<ApiServer>,
    call: RequestContext,
    permit: Option<Permit>,
    record: &mut RequestRecord,
) -> Result<Response<Body>, Status> {
    let call = Arc::new(call);
    if let Some(text) = record.labels().kind.as_deref().and_then(|kind| hooks_of_kind(kind).deprecation) {
        api.metrics.deprecated(&call.attributes);
        call.warn([text.to_owned()]);
    }
    call.warn(call.identity.warning.map(str::to_owned));
    let answered = if call.endpoint.is_outer() {
        call_route(api, &call).await
    } else {
        handlers::handle(api, &call, permit).await
    };
    if answered.as_ref().is_err_and(is_router_refusal) {
        drop(call.warnings.take());
    }
    record.record_handled(&call);
    answered
}

async fn call_route(api: &Arc<ApiServer>, call: &Arc<RequestContext>) -> Result<Response<Body>, Status> {
    let handler = call.extensions.lock().remove::<RouteHandler>();
    let RouteHandler(handler) = handler.ok_or_else(Status::no_such_path)?;
    handler(api.clone(), call.clone()).await
}

/// Returns true for a refusal by kube-apiserver's router: no handler ran, so there are no warnings.
fn is_router_refusal(failure: &Status) -> bool {
    match failure.code() {
        // The handler's 405 for an unsupported watch has details.
        405 => failure.details().kind.is_empty(),
        404 => failure.is_plain() || failure.message() == Status::no_such_path().message(),
        406 | 415 => failure.message().starts_with("406:") || failure.message().starts_with("415:"),
        _ => false,
    }
}

fn timed_out() -> Status {
    Status::generic(Reason::Timeout, "Timeout: request did not complete within the allotted timeout")
}

/// Returns the failure of a write that timed out; kube-apiserver's handlers word it in their own way.
fn write_timed_out() -> Status {
    let why = "request did not complete within requested timeout - context deadline exceeded";
    Status::generic(Reason::Timeout, format!("Timeout: {why}"))
}
