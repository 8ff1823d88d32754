//! What goes on on a connection: one on which nothing does ends.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Response;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a connection lasts on which there is no request, as kube-apiserver has it (`IdleTimeout`).
pub(super) const IDLE: Duration = Duration::from_secs(90);
/// How long an answer of a known length waits for its client to take more of it.
pub(super) const UNTAKEN: Duration = Duration::from_secs(60);
/// How often is looked at a connection on which something goes on.
const LOOK: Duration = Duration::from_secs(30);

/// Of one connection.
pub(super) struct Activity(Mutex<State>);

struct State {
    opened: Instant,
    /// Requests that came, and of those the ones whose answers have not been sent whole.
    requests: u64,
    under_way: usize,
    /// Since when there is none under way.
    idle_since: Instant,
    /// Answers that wait for the client, by request, and since when they do.
    untaken: BTreeMap<u64, Instant>,
}

/// A request, until its answer was sent or given up.
pub(super) struct Request {
    activity: Arc<Activity>,
    number: u64,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        let now = Instant::now();
        let state = State { opened: now, requests: 0, under_way: 0, idle_since: now, untaken: BTreeMap::new() };
        Arc::new(Self(Mutex::new(state)))
    }

    /// A request has come.
    pub(super) fn begin(self: &Arc<Self>) -> Request {
        let mut state = self.0.lock();
        state.requests += 1;
        state.under_way += 1;
        Request { activity: self.clone(), number: state.requests }
    }

    /// Returns the time since which nothing is under way, or as an error the time at which the connection was opened.
    pub(super) fn idle_since(&self) -> Result<Instant, Instant> {
        let state = self.0.lock();
        if state.under_way == 0 { Ok(state.idle_since) } else { Err(state.opened) }
    }

    /// Waits until the connection is good for nothing more.
    pub(super) async fn is_over(&self) {
        loop {
            let (end, look) = self.0.lock().times();
            let now = Instant::now();
            if end.is_some_and(|end| end <= now) {
                return;
            }
            tokio::time::sleep_until(end.unwrap_or(look)).await;
        }
    }
}

impl State {
    /// When it ends if nothing changes, and when to look again if it does not.
    fn times(&self) -> (Option<Instant>, Instant) {
        let idle = (self.under_way == 0).then_some(self.idle_since + IDLE);
        let untaken = self.untaken.values().min().map(|since| *since + UNTAKEN);
        (idle.into_iter().chain(untaken).min(), Instant::now() + LOOK)
    }
}

impl Request {
    /// The answer, which is part of the request.
    pub(super) fn answer<B: Body>(self, response: Response<B>) -> Response<Sent<B>> {
        response.map(|body| {
            // Of streams it is their source that clients wait for, and they have bounds of their own.
            let waits = body.size_hint().exact().is_some_and(|length| length > 0);
            self.waits(waits);
            Sent { body, waits, request: self }
        })
    }

    /// Whether it now waits for the client.
    fn waits(&self, waits: bool) {
        let mut state = self.activity.0.lock();
        match waits {
            true => drop(state.untaken.insert(self.number, Instant::now())),
            false => drop(state.untaken.remove(&self.number)),
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut state = self.activity.0.lock();
        state.untaken.remove(&self.number);
        state.under_way -= 1;
        state.idle_since = Instant::now();
    }
}

/// The body of an answer on its way.
pub(super) struct Sent<B> {
    body: B,
    waits: bool,
    request: Request,
}

impl<B: Body + Unpin> Body for Sent<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        // There is room for more: what there was has been taken.
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if self.waits {
            self.request.waits(true);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};
    use tokio::time::{advance, timeout};

    use super::*;

    async fn is_over_within(activity: &Activity, time: Duration) -> bool {
        timeout(time, activity.is_over()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_ends() {
        let second = Duration::from_secs(1);
        let activity = Activity::new();
        assert!(!is_over_within(&activity, IDLE - second).await);
        let request = activity.begin();
        assert!(!is_over_within(&activity, 10 * IDLE).await, "a handler may take its time");
        drop(request);
        assert!(!is_over_within(&activity, IDLE - second).await);
        assert!(is_over_within(&activity, 2 * second).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_ends_the_connection() {
        let activity = Activity::new();
        let answer = activity.begin().answer(Response::new(Full::new(bytes::Bytes::from_static(b"much"))));
        advance(UNTAKEN / 2).await;
        let mut body = answer.into_body();
        body.frame().await.unwrap().unwrap();
        assert!(!is_over_within(&activity, UNTAKEN - Duration::from_secs(1)).await, "it was taken a moment ago");
        assert!(is_over_within(&activity, Duration::from_secs(2)).await);
        drop(body);
        assert!(activity.0.lock().untaken.is_empty());
    }
}
