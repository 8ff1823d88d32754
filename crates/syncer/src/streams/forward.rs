//! A connection to a port of a pod, as a port-forward carries it over WebSocket.

use std::{io, mem, time::Duration};

use bytes::Bytes;
use futures::{
    SinkExt as _, StreamExt as _,
    future::BoxFuture,
    stream::{SplitSink, SplitStream},
};
use http::{
    HeaderMap, HeaderValue, Method,
    header::{
        CONNECTION, InvalidHeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
        SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        handshake::{client::generate_key, derive_accept_key},
        protocol::{Role, WebSocketConfig},
    },
};

use super::{DownstreamPod, OpenedStream, StreamError, StreamRequest, ask, locate};

/// Each message begins with the number of its channel; the first of a channel from downstream is the port in two bytes.
const PROTOCOL: &str = "v4.channel.k8s.io";
const DATA: u8 = 0;
const ERRORS: u8 = 1;
/// Bytes of the port in the first message of a channel.
const PORT: usize = 2;
/// Bytes that are sent at once, and that are buffered in each direction.
const PIECE: usize = 32 * 1024;
/// Longest message from downstream, in bytes. Kubelets send 32 KiB.
const MAX_MESSAGE: usize = 1024 * 1024;

/// Time without progress after which a connection is closed.
const STALL: Duration = Duration::from_secs(30);

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Connection to a port of a pod.
pub struct PortForward {
    /// End for the caller.
    pub stream: DuplexStream,
    /// Carries bytes until either end closes. Nothing moves unless it runs.
    pub carry: BoxFuture<'static, ()>,
}

/// Connects to a port of `pod`, in its own network: one that shares its node's is refused, since the port would be the
/// node's.
///
/// # Errors
/// [`StreamError`]. A port without listener is known only when the connection ends at once.
pub async fn forward(client: &Client, pod: &DownstreamPod, port: u16) -> Result<PortForward, StreamError> {
    let found = locate(client, pod).await?;
    if found["spec"]["hostNetwork"] == true {
        return Err(StreamError::NodeNetwork);
    }
    let key = generate_key();
    let headers = handshake_headers(&key).map_err(|error| StreamError::Garbled(error.to_string()))?;
    let query = format!("ports={port}");
    let asked = StreamRequest {
        subresource: "portforward",
        options: &["ports"],
        method: Method::GET,
        query: &query,
        headers: &headers,
    };
    let upgrade = match ask(client, pod, &asked).await? {
        OpenedStream::Upgraded(answered, upgrade) if is_answer(&answered, &key) => upgrade,
        OpenedStream::Upgraded(..) | OpenedStream::Body(_) => {
            return Err(StreamError::Garbled(format!("a port-forward does not speak {PROTOCOL}")));
        }
        OpenedStream::Text(code, message) => {
            return Err(StreamError::Refused { code: code.as_u16(), reason: String::new(), message });
        }
    };
    let upgraded = upgrade.await.map_err(|error| StreamError::Unreachable(error.to_string()))?;
    let bounds = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, Some(bounds)).await;
    let (stream, end) = tokio::io::duplex(PIECE);
    Ok(PortForward { stream, carry: Box::pin(copy_bytes(socket, end)) })
}

fn handshake_headers(key: &str) -> Result<HeaderMap, InvalidHeaderValue> {
    Ok(HeaderMap::from_iter([
        (CONNECTION, HeaderValue::from_static("Upgrade")),
        (UPGRADE, HeaderValue::from_static("websocket")),
        (SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")),
        (SEC_WEBSOCKET_KEY, HeaderValue::from_str(key)?),
        (SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL)),
    ]))
}

/// Returns true for headers that accept the WebSocket handshake (RFC 6455, 4.1).
fn is_answer(answered: &HeaderMap, key: &str) -> bool {
    let accept = derive_accept_key(key.as_bytes());
    answered.get(SEC_WEBSOCKET_ACCEPT).is_some_and(|value| *value == *accept)
        && answered.get(SEC_WEBSOCKET_PROTOCOL).is_some_and(|value| *value == *PROTOCOL)
}

async fn copy_bytes(socket: Socket, end: DuplexStream) {
    let ((to_pod, from_pod), (from, to)) = (socket.split(), tokio::io::split(end));
    let carried = tokio::select! {
        carried = down(from, to_pod) => carried,
        carried = up(from_pod, to) => carried,
    };
    if let Err(error) = carried {
        tracing::debug!(%error, "a connection to a pod failed");
    }
}

async fn down(mut from: ReadHalf<DuplexStream>, mut to_pod: SplitSink<Socket, Message>) -> io::Result<()> {
    let mut message = vec![DATA; 1 + PIECE];
    loop {
        let read = from.read(&mut message[1..]).await?;
        if read == 0 {
            return in_time(to_pod.close()).await;
        }
        let piece = Bytes::copy_from_slice(&message[..=read]);
        in_time(to_pod.send(Message::Binary(piece))).await?;
    }
}

async fn in_time(sent: impl Future<Output = Result<(), tungstenite::Error>>) -> io::Result<()> {
    tokio::time::timeout(STALL, sent).await?.map_err(io::Error::other)
}

async fn up(mut from_pod: SplitStream<Socket>, mut to: WriteHalf<DuplexStream>) -> io::Result<()> {
    let mut begun = [false; 2];
    while let Some(message) = from_pod.next().await {
        let Message::Binary(message) = message.map_err(io::Error::other)? else { continue };
        let Some((channel, bytes)) = message.split_first() else { continue };
        let Some(begun) = begun.get_mut(usize::from(*channel)).filter(|_| !bytes.is_empty()) else { continue };
        let skipped = if mem::replace(begun, true) { 0 } else { PORT };
        match (*channel, bytes.get(skipped..).unwrap_or_default()) {
            (ERRORS, why) if !why.is_empty() => {
                return Err(io::Error::other(String::from_utf8_lossy(why).into_owned()));
            }
            (DATA, bytes) => to.write_all(bytes).await?,
            _ => {}
        }
    }
    Ok(())
}
