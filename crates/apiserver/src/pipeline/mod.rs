//! The one way from a request to an answer: limits → authenticate → resolve the logical cluster → authorize → decode → admit →
//! act → encode. Nothing reaches a handler but through here.

mod door;
mod missing;
mod outcome;
mod read;

#[cfg(test)]
mod tests;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::FutureExt as _;
use http::{Method, Request, Response, request::Parts};
use http_body::Body as _;
use portolan_types::{Reason, Status};
use tokio::time::Instant;

use crate::{
    ApiServer, Body,
    attributes::Attributes,
    authn::{Peer, strip_proxy_headers},
    call::Call,
    encode, handlers,
    limits::{Admittance, Charge, Place, Running, Whose},
    serve::AuthenticatedMark,
};

pub(crate) use door::is_long_running;
pub(crate) use outcome::Counted;

use door::Admitted;
use outcome::Outcome;

/// Of the time of a request, the part that it may wait for its turn (as kube-apiserver's queues have it).
const WAITING_PART: u32 = 4;
/// How long may take who asks for health, and whether they may, where the store has to be asked: probes have a second or more.
const HEALTH_PATIENCE: Duration = Duration::from_secs(1);

/// Answers a request; every failure is a `Status`.
pub(crate) async fn answer<B>(api: Arc<ApiServer>, peer: Peer, request: Request<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let is_head = parts.method == Method::HEAD;
    let mut outcome = Outcome::new(&api, &parts.headers);
    let way = AssertUnwindSafe(through(&api, &peer, parts, body, &mut outcome)).catch_unwind();
    let answered = way.await.unwrap_or_else(|_| {
        tracing::error!("a handler panicked");
        Err(Status::internal("the request could not be handled"))
    });
    let response = outcome.finish(&api, answered, started);
    if is_head { response.map(|_| encode::empty()) } else { response }
}

async fn through<B>(
    api: &Arc<ApiServer>,
    peer: &Peer,
    mut parts: Parts,
    body: B,
    outcome: &mut Outcome,
) -> Result<Response<Body>, Status>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    strip_proxy_headers(&mut parts.headers);
    let entry = door::read(&parts)?;
    outcome.seen(&entry, &parts.headers);
    let is_health = entry.is_health();
    let admitting = async {
        let identity = door::authenticate(api, peer, &mut parts.headers).await?;
        if let Some(mark) = parts.extensions.get::<AuthenticatedMark>().filter(|_| !identity.is_anonymous()) {
            mark.set();
        }
        door::admit(api, entry, identity, &mut parts.headers).await.inspect_err(|why| outcome.refused(why))
    };
    let admitted = match is_health {
        true => tokio::time::timeout(HEALTH_PATIENCE, admitting).await.map_err(|_| timed_out())??,
        false => admitting.await?,
    };
    outcome.admitted(&admitted);
    let limit = admitted.time_limit(api)?;
    let deadline = Instant::now() + limit;
    let whose = admitted.whose(api);
    if let Some(mark) = parts.extensions.get::<AuthenticatedMark>() {
        mark.charge_to(whose.tenant);
    }
    Admittance::belongs_to(&whose);
    let (charge, writes) = (api.admittance.charge(&whose), admitted.is_write());
    let body = sent(api, &parts, body, (&whose, &charge), limit).await?;
    api.metrics.body(outcome.labels(), admitted.verb(), body.len());
    let Room { place, short } = room(api, &admitted, &whose, limit / WAITING_PART).await?;
    // A backup takes as long as it takes; all else that is sent must be read in time.
    let read_by = (!admitted.is_backup()).then_some(deadline);
    let call = admitted.into_call((parts, body), deadline, charge.clone(), outcome.labels().clone());
    let (long, is_resource) = (call.is_long_running(), call.attributes.is_resource());
    let handled = act(api, call, place, outcome);
    if long {
        return handled.await;
    }
    let late = || if writes { unfinished() } else { timed_out() };
    let answered = tokio::time::timeout_at(deadline, handled).await.map_err(|_| late())??;
    let Some(bytes) = answered.body().size_hint().exact() else {
        // What is still to be read from the store while it is sent is part of the request.
        let size = || api.metrics.size(outcome.labels());
        return Ok(answered.map(|body| encode::held(body, (short, charge), read_by, size)));
    };
    // Documents are kept anyhow, for all who ask; and what has been done is told.
    if is_resource && !writes {
        charge.grow_to(usize::try_from(bytes).unwrap_or(usize::MAX))?;
    }
    Ok(answered.map(|body| encode::kept(body, charge)))
}

/// The body, which must be sent before the request takes a seat: who sends it slowly would hold one for nothing.
async fn sent<B>(
    api: &ApiServer,
    parts: &Parts,
    body: B,
    (whose, charge): (&Whose<'_>, &Charge),
    limit: Duration,
) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if body.is_end_stream() {
        return read::body(&parts.headers, body, charge).await;
    }
    let _seat = api.admittance.send(whose, limit / WAITING_PART).await?;
    let limit = limit.min(api.config.limits.body_timeout);
    tokio::time::timeout(limit, read::body(&parts.headers, body, charge)).await.map_err(|_| timed_out())?
}

/// What a request takes up while it is under way.
struct Room {
    /// A place among what may last.
    place: Option<Place>,
    /// A place among what is answered at once. Health has neither: it is asked for when all else is full.
    short: Option<(Running, Counted)>,
}

async fn room(api: &ApiServer, admitted: &Admitted, whose: &Whose<'_>, patience: Duration) -> Result<Room, Status> {
    Ok(match (admitted.is_long_running(), admitted.is_watch()) {
        (true, true) => Room { place: Some(api.admittance.watch(whose)?), short: None },
        (true, false) => Room { place: Some(api.admittance.stream(whose)?), short: None },
        (false, _) if admitted.is_health() => Room { place: None, short: None },
        (false, _) => {
            let seat = api.admittance.enter(whose, admitted.is_write(), patience).await?;
            let counted = Counted::new(api.metrics.inflight(admitted.is_write()));
            Room { place: None, short: Some((seat, counted)) }
        }
    })
}

async fn act(
    api: &Arc<ApiServer>,
    call: Call,
    place: Option<Place>,
    outcome: &mut Outcome,
) -> Result<Response<Body>, Status> {
    let call = Arc::new(call);
    if let Some(text) = deprecation(&call.attributes) {
        api.metrics.deprecated(&call.attributes);
        call.warn([text.to_owned()]);
    }
    call.warn(call.identity.warning.map(str::to_owned));
    let answered = handlers::handle(api, &call, place).await;
    if answered.as_ref().is_err_and(finds_no_way) {
        drop(call.warnings.take());
    }
    outcome.handled(&call);
    answered
}

/// Whether upstream's router has refused the request: no handler has seen it then, and there is nothing to be warned of.
fn finds_no_way(failure: &Status) -> bool {
    match failure.code() {
        // Of a watch that there is none of, a handler says so, with details.
        405 => failure.details().kind.is_empty(),
        404 => failure.is_plain() || failure.message() == Status::no_such_path().message(),
        406 | 415 => failure.message().starts_with("406:") || failure.message().starts_with("415:"),
        _ => false,
    }
}

/// What is said about resources that are on their way out.
fn deprecation(of: &Attributes) -> Option<&'static str> {
    match (of.group.as_str(), of.version.as_str(), of.resource.as_str()) {
        ("", "v1", "componentstatuses") => Some("v1 ComponentStatus is deprecated in v1.19+"),
        ("", "v1", "endpoints") => Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
        _ => None,
    }
}

fn timed_out() -> Status {
    Status::generic(Reason::Timeout, "Timeout: request did not complete within the allotted timeout")
}

/// Writes have a limit of their own, which upstream's handlers keep.
fn unfinished() -> Status {
    let why = "request did not complete within requested timeout - context deadline exceeded";
    Status::generic(Reason::Timeout, format!("Timeout: {why}"))
}
