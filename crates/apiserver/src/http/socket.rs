//! Socket of a connection that can be cut, also after a request has upgraded it to another protocol.

use std::{
    io::{Error, ErrorKind, IoSlice, Result},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Socket that is closed once its [`SocketHandle`] cuts it. It moves into the task of an upgraded connection.
pub(super) struct CuttableSocket<S> {
    /// `None` once it is cut.
    open: Option<(S, DropGuard)>,
    cut: Arc<SocketCut>,
}

/// Handle of a socket that another task may own.
pub(super) struct SocketHandle {
    cut: Arc<SocketCut>,
    closed: CancellationToken,
}

#[derive(Default)]
struct SocketCut {
    is_cut: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
}

impl<S: Unpin> CuttableSocket<S> {
    pub(super) fn new(socket: S) -> (Self, SocketHandle) {
        let handle = SocketHandle { cut: Arc::default(), closed: CancellationToken::new() };
        (Self { open: Some((socket, handle.closed.clone().drop_guard())), cut: handle.cut.clone() }, handle)
    }

    /// Polls the socket, unless it is shut down. The shutdown wakes a pending poll.
    fn poll<T>(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        waker: fn(&SocketCut) -> &AtomicWaker,
        poll: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<Result<T>>,
    ) -> Poll<Result<T>> {
        let Self { open, cut } = self.get_mut();
        if let Some((socket, _)) = open.as_mut().filter(|_| !cut.is_set()) {
            let polled = poll(Pin::new(socket), context);
            if polled.is_ready() {
                return polled;
            }
            waker(cut).register(context.waker());
            if !cut.is_set() {
                return Poll::Pending;
            }
        }
        *open = None;
        Poll::Ready(Err(Error::new(ErrorKind::ConnectionAborted, "the server has cut the connection")))
    }
}

impl SocketHandle {
    /// Closes the socket: later reads and writes fail.
    pub(super) fn cut(&self) {
        self.cut.is_cut.store(true, Ordering::SeqCst);
        self.cut.reader.wake();
        self.cut.writer.wake();
    }

    /// Waits until the socket is closed, by the connection or by the protocol it was upgraded to.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

impl SocketCut {
    fn is_set(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CuttableSocket<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        self.poll(cx, |cut| &cut.reader, |socket, cx| socket.poll_read(cx, buffer))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CuttableSocket<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.poll(cx, |cut| &cut.writer, |socket, cx| socket.poll_write(cx, bytes))
    }

    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        self.poll(cx, |cut| &cut.writer, |socket, cx| socket.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        self.open.as_ref().is_some_and(|(socket, _)| socket.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll(cx, |cut| &cut.writer, |socket, cx| socket.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll(cx, |cut| &cut.writer, |socket, cx| socket.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_cut_ends_reads_and_writes_that_wait() {
        let (mut client, server) = tokio::io::duplex(4);
        let (socket, handle) = CuttableSocket::new(server);
        let (mut reader, mut writer) = tokio::io::split(socket);
        let reading = tokio::spawn(async move { reader.read_u8().await });
        let writing = tokio::spawn(async move { writer.write_all(&[0; 8]).await });
        tokio::task::yield_now().await;
        assert!(!reading.is_finished() && !writing.is_finished());
        handle.cut();
        assert_eq!(reading.await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert_eq!(writing.await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionAborted);
        handle.closed().await;
        assert_eq!(client.read_to_end(&mut Vec::new()).await.unwrap(), 4, "the client sees the end");
    }
}
