//! Copying of bytes between two connections.

use std::{io, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy};

/// Time for one direction after the other has ended: bytes in flight arrive, and a client that never closes does not
/// hold a permit.
const LINGER: Duration = Duration::from_secs(10);

/// Copies bytes both ways, with backpressure and half-close, until both directions have ended.
///
/// # Errors
/// The first failure of either direction.
pub(super) async fn splice(
    upstream: impl AsyncRead + AsyncWrite,
    downstream: impl AsyncRead + AsyncWrite,
) -> io::Result<()> {
    let (from_upstream, to_upstream) = tokio::io::split(upstream);
    let (from_downstream, to_downstream) = tokio::io::split(downstream);
    let mut down = std::pin::pin!(carry(from_upstream, to_downstream));
    let mut up = std::pin::pin!(carry(from_downstream, to_upstream));
    // After a failure, too, the other direction gets time: the last output of a pod arrives even if its input is
    // closed.
    let (first, rest) = tokio::select! {
        ended = &mut down => (ended, tokio::time::timeout(LINGER, up).await),
        ended = &mut up => (ended, tokio::time::timeout(LINGER, down).await),
    };
    first.and(rest.unwrap_or(Ok(())))
}

async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    copy(&mut from, &mut to).await?;
    to.shutdown().await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn bytes_and_ends_go_both_ways() {
        let ((mut client, upstream), (downstream, mut pod)) = (duplex(64), duplex(64));
        let spliced = tokio::spawn(splice(upstream, downstream));
        client.write_all(b"stdin").await.unwrap();
        client.shutdown().await.unwrap();
        let mut text = String::new();
        pod.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "stdin", "the end of what the client says arrives while the pod can still answer");
        pod.write_all(b"stdout").await.unwrap();
        drop(pod);
        text.clear();
        client.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "stdout");
        spliced.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_that_is_not_taken() {
        let ((_client, upstream), (downstream, mut pod)) = (duplex(64), duplex(64));
        let _spliced = tokio::spawn(splice(upstream, downstream));
        let flood = async {
            for _ in 0..1024 {
                pod.write_all(&[0; 1024]).await.unwrap();
            }
        };
        let flooded = tokio::time::timeout(Duration::from_millis(200), flood).await;
        assert!(flooded.is_err(), "who is not read from has to wait");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_closes_is_disconnected() {
        let ((client, upstream), (downstream, _pod)) = (duplex(64), duplex(64));
        drop(client);
        splice(upstream, downstream).await.unwrap();
    }
}
