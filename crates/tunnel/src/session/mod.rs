//! Session between the server and one agent: byte streams over one sequence of frames in each direction.
//!
//! The carrier of the frames is not part of it: [`Session::run`] takes those that arrive, [`OutgoingFrames`] gives
//! those to send. Receiving never waits for a reader, since each stream has room for all the credit that its peer
//! holds; so a stream that is not read delays no other. Streams with something to send take turns.
//!
//! Memory of a session: at most [`SESSION_BYTES`], of which [`RECEIVE_BYTES`] for received data. The rest are
//! [`state::SEND_BUFFER`] bytes per stream to send. An idle stream keeps two buffers of at most 4 KiB.

mod end;
mod state;
mod stream;
#[cfg(test)]
mod tests;
mod window;

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, StreamExt as _};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::wire::{Frame, GoodbyeCode, INITIAL_WINDOW, MAX_STREAMS, frame::Kind};

pub use end::{OpenError, SessionEnd};
pub use state::SessionRole;
use state::{SEND_BUFFER, SessionState};
pub use stream::TunnelStream;
pub use window::{MAX_WINDOW, WINDOW_POOL};

/// Most memory of a session for received data, in bytes.
pub const RECEIVE_BYTES: usize = MAX_STREAMS * INITIAL_WINDOW as usize + WINDOW_POOL;
/// Most memory of a session for data, in bytes: 64 MiB.
pub const SESSION_BYTES: usize = RECEIVE_BYTES + MAX_STREAMS * SEND_BUFFER;

/// Time in which the goodbye of a peer may still arrive after nothing can be sent any more.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Check that the peer is alive.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    /// Interval of pings.
    pub ping: Duration,
    /// Time without any frame after which the peer counts as gone.
    pub silence: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { ping: Duration::from_secs(5), silence: Duration::from_secs(12) }
    }
}

/// State of a session that its streams share.
struct SessionShared {
    state: Mutex<SessionState>,
    /// Cancelled once the session has ended.
    ended: CancellationToken,
    /// Cancelled once nothing can be sent any more.
    cut: CancellationToken,
}

/// Session with one peer.
#[derive(Clone)]
pub struct Session {
    shared: Arc<SessionShared>,
}

impl Session {
    /// Creates a session and the source of the frames to send.
    pub fn new(role: SessionRole, epoch: u64) -> (Self, OutgoingFrames) {
        let ended = CancellationToken::new();
        let state = Mutex::new(SessionState::new(role, epoch, ended.clone()));
        let shared = Arc::new(SessionShared { state, ended, cut: CancellationToken::new() });
        (Self { shared: shared.clone() }, OutgoingFrames { shared })
    }

    /// Returns its epoch.
    pub fn epoch(&self) -> u64 {
        self.shared.state.lock().epoch
    }

    /// Applies the values that the server sent: the epoch, and the number of servers that share its store.
    pub(crate) fn begin(&self, epoch: u64, servers: u32) {
        let mut state = self.shared.state.lock();
        (state.epoch, state.servers) = (epoch, servers);
    }

    /// Returns the number of servers that share the store.
    pub(crate) fn servers(&self) -> u32 {
        self.shared.state.lock().servers
    }

    /// Queues a frame of the session itself.
    pub(crate) fn say(&self, kind: Kind) {
        self.shared.state.lock().control(0, kind);
    }

    /// Opens a stream. It is usable at once; the agent's refusal is a failure of the first read.
    ///
    /// # Errors
    /// The session has ended, its peer is leaving, or it is full.
    pub fn open(&self) -> Result<TunnelStream, OpenError> {
        let id = self.shared.state.lock().open()?;
        Ok(TunnelStream::new(self.shared.clone(), id))
    }

    /// Waits for the next stream that the server opens; `None` once the session has ended.
    pub async fn accept(&self) -> Option<TunnelStream> {
        let id = poll_fn(|context| {
            let mut state = self.shared.state.lock();
            if state.end.is_some() {
                return Poll::Ready(None);
            }
            match state.accepted.pop_front() {
                Some(id) => Poll::Ready(Some(id)),
                None => {
                    state.acceptor = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        id.await.map(|id| TunnelStream::new(self.shared.clone(), id))
    }

    /// Returns the number of open streams.
    pub fn streams(&self) -> usize {
        self.shared.state.lock().streams.len()
    }

    /// Returns the reason that no streams can be opened any more, if there is one.
    pub fn end(&self) -> Option<SessionEnd> {
        let state = self.shared.state.lock();
        state.end.as_ref().or(state.leaving.as_ref()).cloned()
    }

    /// Ends the session with a goodbye. Its streams fail.
    pub fn finish(&self, code: GoodbyeCode, reason: &str) {
        self.shared.state.lock().finish(SessionEnd::Ended(code, reason.into()));
    }

    /// Ends the session without a goodbye.
    pub(crate) fn abort(&self, end: SessionEnd) {
        self.shared.state.lock().finish(end);
    }

    /// Handles the frames of the peer until the session ends, and returns the reason. Pings the peer, and ends the
    /// session if nothing arrives.
    pub async fn run<E: std::fmt::Display>(
        &self,
        incoming: impl Stream<Item = Result<Frame, E>>,
        keepalive: Keepalive,
    ) -> SessionEnd {
        let mut incoming = pin!(incoming);
        let mut pings = tokio::time::interval_at(Instant::now() + keepalive.ping, keepalive.ping);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut heard, mut number) = (Instant::now(), 0);
        let mut cut = pin!(async {
            self.shared.cut.cancelled().await;
            tokio::time::sleep(LAST_WORDS).await;
        });
        loop {
            if let Some(end) = self.shared.state.lock().end.clone() {
                return end;
            }
            let arrived = tokio::select! {
                arrived = incoming.next() => arrived,
                _ = pings.tick() => {
                    number += 1;
                    if heard.elapsed() > keepalive.silence {
                        self.abort(SessionEnd::Silent);
                    } else {
                        self.shared.state.lock().ask(number);
                    }
                    continue;
                }
                () = self.ended() => continue,
                () = &mut cut => None,
            };
            heard = Instant::now();
            let mut state = self.shared.state.lock();
            match arrived {
                Some(Ok(frame)) => {
                    if let Err(rule) = state.receive(frame) {
                        state.finish(SessionEnd::Violation(rule));
                    }
                }
                Some(Err(error)) => {
                    let end = state.leaving.clone();
                    let failed = SessionEnd::Failed(crate::wire::printable(&error.to_string()).into());
                    state.finish(end.unwrap_or(failed));
                }
                None => {
                    let end = state.leaving.clone();
                    state.finish(end.unwrap_or(SessionEnd::Closed));
                }
            }
        }
    }

    /// Waits until the session has ended.
    pub async fn ended(&self) {
        self.shared.ended.cancelled().await;
    }
}

/// Source of the frames to send. Dropping it ends the session soon: the connection is gone.
pub struct OutgoingFrames {
    shared: Arc<SessionShared>,
}

impl Stream for OutgoingFrames {
    type Item = Frame;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        let mut state = self.shared.state.lock();
        if let Some(frame) = state.next_frame() {
            return Poll::Ready(Some(frame));
        }
        if state.end.is_some() {
            return Poll::Ready(None);
        }
        state.pump = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for OutgoingFrames {
    fn drop(&mut self) {
        self.shared.state.lock().leaving.get_or_insert(SessionEnd::Closed);
        self.shared.cut.cancel();
    }
}
