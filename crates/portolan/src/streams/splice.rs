//! Joins two connections.

use std::{io, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy};

/// How long the one direction may go on after the other has ended: what is on its way arrives, and nobody who never hangs up
/// holds a place.
const LINGER: Duration = Duration::from_secs(10);

/// Carries bytes both ways, each as fast as they are taken, and each end as an end, until both have ended.
///
/// # Errors
/// The first failure of either.
pub(super) async fn splice(above: impl AsyncRead + AsyncWrite, below: impl AsyncRead + AsyncWrite) -> io::Result<()> {
    let (from_above, to_above) = tokio::io::split(above);
    let (from_below, to_below) = tokio::io::split(below);
    let mut down = std::pin::pin!(carry(from_above, to_below));
    let mut up = std::pin::pin!(carry(from_below, to_above));
    // A failure, too, leaves the other direction its time: what a pod said last arrives also when it does not listen any more.
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
        let ((mut client, above), (below, mut pod)) = (duplex(64), duplex(64));
        let spliced = tokio::spawn(splice(above, below));
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
        let ((_client, above), (below, mut pod)) = (duplex(64), duplex(64));
        let _spliced = tokio::spawn(splice(above, below));
        let flood = async {
            for _ in 0..1024 {
                pod.write_all(&[0; 1024]).await.unwrap();
            }
        };
        let flooded = tokio::time::timeout(Duration::from_millis(200), flood).await;
        assert!(flooded.is_err(), "who is not read from has to wait");
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_never_hangs_up_is_hung_up_on() {
        let ((client, above), (below, _pod)) = (duplex(64), duplex(64));
        drop(client);
        splice(above, below).await.unwrap();
    }
}
