//! The one way from a request to an answer: limits → authenticate → resolve the logical cluster → authorize → decode → admit →
//! act → encode. Nothing reaches a handler but through here.

mod door;
mod outcome;
mod read;

#[cfg(test)]
mod tests;

use std::{panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use futures::FutureExt as _;
use http::{Request, Response, request::Parts};
use portolan_types::{Reason, Status};
use tokio::time::Instant;

use crate::{
    ApiServer, Body,
    authn::{Peer, strip_proxy_headers},
    call::Call,
    encode, handlers,
    limits::WatchPlace,
};

pub(crate) use door::is_long_running;
pub(crate) use outcome::Counted;
use outcome::Outcome;

/// Answers a request; every failure is a `Status`.
pub(crate) async fn answer<B>(api: Arc<ApiServer>, peer: Peer, request: Request<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let mut outcome = Outcome::default();
    let way = AssertUnwindSafe(through(&api, &peer, parts, body, &mut outcome)).catch_unwind();
    let answered = way.await.unwrap_or_else(|_| {
        tracing::error!("a handler panicked");
        Err(Status::internal("the request could not be handled"))
    });
    outcome.finish(&api, answered, started)
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
    outcome.seen(&entry);
    let mut place = None;
    let identity = door::authenticate(api, peer, &parts.headers).await?;
    let admitted = door::admit(api, entry, identity, &mut parts.headers).await?;
    outcome.admitted(&admitted);
    let _inflight = match admitted.is_long_running() {
        true => {
            place = admitted.is_watch().then(|| api.admittance.watch(admitted.cluster.id)).transpose()?;
            None
        }
        false => {
            let gauge = api.metrics.inflight(admitted.is_write());
            Some((api.admittance.enter(admitted.is_write())?, outcome::Counted::new(gauge)))
        }
    };
    let limit = admitted.time_limit(api);
    let body = tokio::time::timeout(limit, read::body(&parts.headers, body)).await.map_err(|_| timed_out())??;
    let call = admitted.into_call(parts, body);
    let long = call.is_long_running();
    let handled = act(api, call, place, outcome);
    match long {
        true => handled.await,
        false => tokio::time::timeout(limit, handled).await.map_err(|_| timed_out())?,
    }
}

async fn act(
    api: &Arc<ApiServer>,
    call: Call,
    place: Option<WatchPlace>,
    outcome: &mut Outcome,
) -> Result<Response<Body>, Status> {
    let call = Arc::new(call);
    let mut answered = handlers::handle(api, &call, place).await;
    if let Ok(response) = &mut answered {
        encode::warn(response, std::mem::take(&mut *call.warnings.lock()));
    }
    outcome.handled(&call);
    answered
}

fn timed_out() -> Status {
    Status::new(Reason::Timeout, "Timeout: request did not complete within the allotted timeout")
}
