//! Byte stream within a session.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    SessionShared,
    state::{SEND_BUFFER, SessionState, append},
};

/// Byte stream between the server and the agent, with flow control and half-close. Dropping it resets directions that
/// have not ended.
pub struct TunnelStream {
    session: Arc<SessionShared>,
    id: u32,
}

impl TunnelStream {
    pub(super) fn new(session: Arc<SessionShared>, id: u32) -> Self {
        Self { session, id }
    }

    /// Returns its number in the session.
    pub fn id(&self) -> u32 {
        self.id
    }

    fn poll_read_state(
        state: &mut SessionState,
        id: u32,
        context: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let end = state.end.as_ref().map(super::SessionEnd::of_stream);
        let Some(stream) = state.streams.get_mut(&id) else { return Poll::Ready(Err(stream_gone())) };
        if !stream.received.is_empty() {
            let bytes = state.read(id, buffer.remaining());
            buffer.put_slice(&bytes);
            return Poll::Ready(Ok(()));
        }
        if stream.is_read_ended {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = &stream.failure {
            return Poll::Ready(Err(reset(reason)));
        }
        if let Some(end) = end {
            return Poll::Ready(Err(end));
        }
        stream.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn poll_write_state(
        state: &mut SessionState,
        id: u32,
        context: &Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let end = state.end.as_ref().map(super::SessionEnd::of_stream);
        let Some(stream) = state.streams.get_mut(&id) else { return Poll::Ready(Err(stream_gone())) };
        if let Some(reason) = &stream.failure {
            return Poll::Ready(Err(reset(reason)));
        }
        if let Some(end) = end {
            return Poll::Ready(Err(end));
        }
        if stream.is_write_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let taken = bytes.len().min(SEND_BUFFER.saturating_sub(stream.unsent.len()));
        if taken == 0 && !bytes.is_empty() {
            stream.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        append(&mut stream.unsent, &bytes[..taken], SEND_BUFFER);
        state.queue(id);
        Poll::Ready(Ok(taken))
    }
}

fn reset(reason: &str) -> io::Error {
    let reason = if reason.is_empty() { "the other end of the tunnel closed the stream" } else { reason };
    io::Error::new(io::ErrorKind::ConnectionReset, reason.to_owned())
}

fn stream_gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the stream is gone")
}

impl AsyncRead for TunnelStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Self::poll_read_state(&mut self.session.state.lock(), self.id, cx, buffer)
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Self::poll_write_state(&mut self.session.state.lock(), self.id, cx, bytes)
    }

    /// Does nothing: written bytes leave as soon as the peer takes them.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.session.state.lock();
        if let Some(stream) = state.streams.get_mut(&self.id) {
            stream.is_write_ended = true;
            state.queue(self.id);
        }
        Poll::Ready(Ok(()))
    }
}

impl Connection for TunnelStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Drop for TunnelStream {
    fn drop(&mut self) {
        self.session.state.lock().drop_stream(self.id);
    }
}
