//! Activity on a connection: an inactive one is closed.

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

/// Time after which a connection without a request is closed, as in kube-apiserver (`IdleTimeout`).
pub(super) const IDLE: Duration = Duration::from_secs(90);
/// Time for which a response of known length waits for its client to read more of it.
pub(super) const RESPONSE_STALL: Duration = Duration::from_secs(60);
/// Interval at which an active connection is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Activity of one connection.
pub(super) struct ConnectionActivity(Mutex<ActivityState>);

struct ActivityState {
    opened: Instant,
    /// Requests received so far, and those of them whose responses are not fully sent.
    requests: u64,
    running: usize,
    /// Time since which no request is running.
    idle_since: Instant,
    /// Responses that wait for the client, by request, with the start of the wait.
    stalled: BTreeMap<u64, Instant>,
}

/// Running request; it ends when its response is sent or dropped.
pub(super) struct ActiveRequest {
    activity: Arc<ConnectionActivity>,
    number: u64,
}

impl ConnectionActivity {
    pub(super) fn new() -> Arc<Self> {
        let now = Instant::now();
        let state = ActivityState { opened: now, requests: 0, running: 0, idle_since: now, stalled: BTreeMap::new() };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Starts a request.
    pub(super) fn begin(self: &Arc<Self>) -> ActiveRequest {
        let mut state = self.0.lock();
        state.requests += 1;
        state.running += 1;
        ActiveRequest { activity: self.clone(), number: state.requests }
    }

    /// Returns the time since which no request is running; as an error, the time at which the connection was opened.
    pub(super) fn idle_since(&self) -> Result<Instant, Instant> {
        let state = self.0.lock();
        if state.running == 0 { Ok(state.idle_since) } else { Err(state.opened) }
    }

    /// Waits until the connection has to be closed.
    pub(super) async fn until_over(&self) {
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

impl ActivityState {
    /// Returns the time at which it ends if nothing changes, and the time of the next check.
    fn times(&self) -> (Option<Instant>, Instant) {
        let idle = (self.running == 0).then_some(self.idle_since + IDLE);
        let stalled = self.stalled.values().min().map(|since| *since + RESPONSE_STALL);
        (idle.into_iter().chain(stalled).min(), Instant::now() + CHECK_INTERVAL)
    }
}

impl ActiveRequest {
    /// Wraps the response, so that the request lasts until it is sent.
    pub(super) fn track<B: Body>(self, response: Response<B>) -> Response<TrackedBody<B>> {
        response.map(|body| {
            // A stream waits for its source, and has limits of its own.
            let waits = body.size_hint().exact().is_some_and(|length| length > 0);
            self.waits(waits);
            TrackedBody { body, waits, request: self }
        })
    }

    /// Records if the response waits for the client.
    fn waits(&self, waits: bool) {
        let mut state = self.activity.0.lock();
        if waits {
            state.stalled.insert(self.number, Instant::now());
        } else {
            state.stalled.remove(&self.number);
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut state = self.activity.0.lock();
        state.stalled.remove(&self.number);
        state.running -= 1;
        state.idle_since = Instant::now();
    }
}

/// Response body that reports its progress.
pub(super) struct TrackedBody<B> {
    body: B,
    waits: bool,
    request: ActiveRequest,
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        // The transport asks for more, so the client has read the last frame.
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

    async fn is_over_within(activity: &ConnectionActivity, time: Duration) -> bool {
        timeout(time, activity.until_over()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_ends() {
        let second = Duration::from_secs(1);
        let activity = ConnectionActivity::new();
        assert!(!is_over_within(&activity, IDLE - second).await);
        let request = activity.begin();
        assert!(!is_over_within(&activity, 10 * IDLE).await, "a handler may take its time");
        drop(request);
        assert!(!is_over_within(&activity, IDLE - second).await);
        assert!(is_over_within(&activity, 2 * second).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_not_read_ends_the_connection() {
        let activity = ConnectionActivity::new();
        let track = activity.begin().track(Response::new(Full::new(bytes::Bytes::from_static(b"much"))));
        advance(RESPONSE_STALL / 2).await;
        let mut body = track.into_body();
        body.frame().await.unwrap().unwrap();
        assert!(!is_over_within(&activity, RESPONSE_STALL - Duration::from_secs(1)).await, "it was taken a moment ago");
        assert!(is_over_within(&activity, Duration::from_secs(2)).await);
        drop(body);
        assert!(activity.0.lock().stalled.is_empty());
    }
}
