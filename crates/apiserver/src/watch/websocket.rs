//! Watches over WebSockets (RFC 6455): one event per message. Clients have nothing to say but ping, pong and close.

use std::{convert::Infallible, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Buf as _, Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{
        CONNECTION, HOST, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
        SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use portolan_types::{Reason, Status};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{Body, authn::websocket::is_asked_for, call::Call, encode::empty, limits::in_own_slices};

/// What RFC 6455 has the server add to the client's key.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// A client that takes nothing for so long is gone.
const STALL: Duration = Duration::from_secs(60);
/// Longest payload of a control frame.
const MAX_CONTROL: u64 = 125;
/// Why a WebSocket is closed (RFC 6455, section 7.4.1).
const NORMAL: u16 = 1000;
const PROTOCOL_ERROR: u16 = 1002;

/// A WebSocket that has been asked for and not been opened.
pub(super) struct Handshake {
    upgrade: OnUpgrade,
    accept: HeaderValue,
    protocol: Option<HeaderValue>,
}

impl Handshake {
    /// `None` when the client wants no WebSocket.
    ///
    /// # Errors
    /// 400 when it wants one in a way that cannot be, 403 for browsers that show somebody else's page.
    pub(super) fn of(call: &Call) -> Result<Option<Self>, Status> {
        let headers = &call.headers;
        if !is_asked_for(headers) {
            return Ok(None);
        }
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if text(SEC_WEBSOCKET_VERSION) != "13" || text(SEC_WEBSOCKET_KEY).is_empty() {
            return Err(Status::bad_request("a WebSocket of version 13 with a key is expected"));
        }
        check_origin(text(ORIGIN), text(HOST))?;
        let protocols: Vec<&str> = text(SEC_WEBSOCKET_PROTOCOL).split(',').map(str::trim).collect();
        let protocol = match protocols.as_slice() {
            [""] => None,
            [one] => HeaderValue::from_str(one).ok(),
            _ => return Err(Status::bad_request("a watch is served in one WebSocket protocol only")),
        };
        let key = format!("{}{GUID}", text(SEC_WEBSOCKET_KEY));
        let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes()));
        let accept = HeaderValue::from_str(&accept).map_err(Status::internal)?;
        let upgrade = call.extensions.lock().remove::<OnUpgrade>();
        let upgrade = upgrade.ok_or_else(|| Status::bad_request("this connection cannot become a WebSocket"))?;
        Ok(Some(Self { upgrade, accept, protocol }))
    }

    /// The answer that opens the WebSocket.
    pub(super) fn answer(&self) -> Response<Body> {
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, self.accept.clone());
        if let Some(protocol) = &self.protocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol.clone());
        }
        response
    }

    /// Sends what the watch brings until it or the client ends, in time slices of the watcher's. `is_text` is how frames are cut: lines
    /// of JSON, or messages with their length in front.
    pub(super) fn serve<E>(self, events: E, is_text: bool) -> impl Future<Output = ()> + Send + use<E>
    where
        E: Stream<Item = Result<Bytes, Infallible>> + Send,
    {
        in_own_slices(async move {
            match self.upgrade.await {
                Ok(upgraded) => {
                    if let Err(error) = run(TokioIo::new(upgraded), events, is_text).await {
                        tracing::debug!(%error, "a WebSocket ended with an error");
                    }
                }
                Err(error) => tracing::debug!(%error, "no WebSocket came about"),
            }
        })
    }
}

/// A page of another site must not use the certificate of whoever looks at it.
fn check_origin(origin: &str, host: &str) -> Result<(), Status> {
    let own = origin.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host));
    match origin.is_empty() || own {
        true => Ok(()),
        false => Err(Status::new(Reason::Forbidden, "WebSockets are not opened for pages of other origins")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opcode {
    Text = 1,
    Binary = 2,
    Close = 8,
    Pong = 10,
}

/// The header of a frame that the server sends: whole, not masked.
fn head(opcode: Opcode, length: usize, out: &mut BytesMut) {
    out.extend_from_slice(&[0x80 | opcode as u8]);
    match length {
        0..=125 => out.extend_from_slice(&[length as u8]),
        126..=0xffff => {
            out.extend_from_slice(&[126]);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.extend_from_slice(&[127]);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

/// Every event of a piece as a message.
fn messages(mut piece: Bytes, is_text: bool) -> BytesMut {
    let mut out = BytesMut::with_capacity(piece.len() + 64);
    while !piece.is_empty() {
        let (opcode, event) = match is_text {
            true => {
                let end = piece.iter().position(|byte| *byte == b'\n').map_or(piece.len(), |at| at + 1);
                (Opcode::Text, piece.split_to(end))
            }
            false => {
                let length = if piece.len() < 4 { 0 } else { piece.get_u32() as usize };
                (Opcode::Binary, piece.split_to(length.min(piece.len())))
            }
        };
        head(opcode, event.len(), &mut out);
        out.extend_from_slice(&event);
        if event.is_empty() && !is_text {
            break;
        }
    }
    out
}

async fn run(
    socket: impl AsyncRead + AsyncWrite + Send,
    events: impl Stream<Item = Result<Bytes, Infallible>> + Send,
    is_text: bool,
) -> std::io::Result<()> {
    let (reader, mut writer) = tokio::io::split(socket);
    let mut said = std::pin::pin!(client_frames(reader));
    let mut events = std::pin::pin!(events);
    let why = loop {
        tokio::select! {
            frame = said.next() => match frame {
                Some(Control::Ping(payload)) => {
                    let mut out = BytesMut::new();
                    head(Opcode::Pong, payload.len(), &mut out);
                    out.extend_from_slice(&payload);
                    send(&mut writer, &out).await?;
                }
                Some(Control::Unmasked) => break PROTOCOL_ERROR,
                Some(Control::Close) | None => break NORMAL,
            },
            piece = events.next() => match piece {
                Some(Ok(piece)) => send(&mut writer, &messages(piece, is_text)).await?,
                Some(Err(never)) => match never {},
                None => break NORMAL,
            },
        }
    };
    let mut out = BytesMut::new();
    head(Opcode::Close, size_of_val(&why), &mut out);
    out.extend_from_slice(&why.to_be_bytes());
    send(&mut writer, &out).await?;
    tokio::time::timeout(STALL, writer.shutdown()).await?
}

async fn send(writer: &mut (impl AsyncWrite + Unpin), frames: &[u8]) -> std::io::Result<()> {
    let sending = async {
        writer.write_all(frames).await?;
        // TLS keeps what the connection has not taken, and would send it with the next event only.
        writer.flush().await
    };
    tokio::time::timeout(STALL, sending).await?
}

/// What a client may say that matters.
#[derive(Debug, PartialEq, Eq)]
enum Control {
    Ping(Vec<u8>),
    Close,
    /// A frame that is not masked, as clients have to.
    Unmasked,
}

/// The client's control frames; all else is read and forgotten. Ends when the client does, or speaks something else.
fn client_frames(reader: impl AsyncRead + Send + Unpin) -> impl Stream<Item = Control> + Send {
    futures::stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        loop {
            match client_frame(&mut reader).await {
                Ok(None) => {}
                Ok(Some(last @ (Control::Close | Control::Unmasked))) => return Some((last, None)),
                Ok(Some(control)) => return Some((control, Some(reader))),
                Err(error) => {
                    tracing::debug!(%error, "the client's side of a WebSocket ended");
                    return None;
                }
            }
        }
    })
}

async fn client_frame(reader: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Option<Control>> {
    let mut start = [0; 2];
    reader.read_exact(&mut start).await?;
    if start[1] & 0x80 == 0 {
        return Ok(Some(Control::Unmasked));
    }
    let length = match start[1] & 0x7f {
        126 => u64::from(reader.read_u16().await?),
        127 => reader.read_u64().await?,
        short => u64::from(short),
    };
    let mut mask = [0; 4];
    reader.read_exact(&mut mask).await?;
    let opcode = start[0] & 0x0f;
    if opcode < 8 {
        tokio::io::copy(&mut reader.take(length), &mut tokio::io::sink()).await?;
        return Ok(None);
    }
    if length > MAX_CONTROL {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "a control frame is too long"));
    }
    let mut payload = vec![0; length as usize];
    reader.read_exact(&mut payload).await?;
    payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Ok(match opcode {
        8 => Some(Control::Close),
        9 => Some(Control::Ping(payload)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;
    use crate::limits::Admittance;

    #[test]
    fn it_is_served_in_time_slices() {
        let (request, context) = (Admittance::task_flow_of_one_slice(), &mut Context::from_waker(Waker::noop()));
        // One that comes to nothing is done at once.
        let upgrade = hyper::upgrade::on(http::Request::new(()));
        let socket = Handshake { upgrade, accept: HeaderValue::from_static(""), protocol: None };
        let answering = request.work(async { Some(socket.serve(futures::stream::pending(), true)) });
        let Poll::Ready(Some(serving)) = pin!(answering).poll(context) else { panic!("it answers at once") };
        let mut serving = pin!(serving);
        let another = request.work(poll_fn(|context| Poll::Ready(serving.as_mut().poll(context).is_pending())));
        assert_eq!(pin!(another).poll(context), Poll::Ready(true), "it waits for the slice that another has");
        assert!(serving.poll(context).is_ready());
    }

    #[test]
    fn every_event_is_a_message() {
        let long = "x".repeat(200);
        let text = messages(Bytes::from(format!("{{}}\n{long}\n")), true);
        assert_eq!(text[..6], [0x81, 3, b'{', b'}', b'\n', 0x81]);
        assert_eq!(text[6..9], [126, 0, 201]);
        let binary = messages(Bytes::from_static(&[0, 0, 0, 2, 7, 8, 0, 0, 0, 1, 9]), false);
        assert_eq!(binary[..], [0x82, 2, 7, 8, 0x82, 1, 9]);
    }

    #[tokio::test]
    async fn clients_ping_and_close_and_nothing_else_matters() {
        // A masked ping "hi", a text frame, a close.
        let sent: Vec<u8> = [
            &[0x89, 0x82, 1, 2, 3, 4, b'h' ^ 1, b'i' ^ 2][..],
            &[0x81, 0x83, 0, 0, 0, 0, b'a', b'b', b'c'],
            &[0x88, 0x80, 0, 0, 0, 0],
        ]
        .concat();
        let seen: Vec<Control> = client_frames(std::io::Cursor::new(sent)).collect().await;
        assert_eq!(seen, [Control::Ping(b"hi".to_vec()), Control::Close]);
        let unmasked = std::io::Cursor::new([0x81, 1, b'a', 0x88, 0x80, 0, 0, 0, 0]);
        assert_eq!(client_frames(unmasked).collect::<Vec<_>>().await, [Control::Unmasked], "it is the last");
        for broken in [&[0x89, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0][..], &[0x81]] {
            assert_eq!(client_frames(std::io::Cursor::new(broken.to_vec())).collect::<Vec<_>>().await, []);
        }
    }

    #[tokio::test]
    async fn it_is_said_why_it_is_closed() {
        for (case, said, why) in [
            ("the client closes it", &[0x88, 0x80, 0, 0, 0, 0][..], NORMAL),
            ("the client goes", &[], NORMAL),
            ("the client does not mask what it says", &[0x81, 1, b'a'], PROTOCOL_ERROR),
        ] {
            let (mut client, server) = tokio::io::duplex(64);
            client.write_all(said).await.unwrap();
            client.shutdown().await.unwrap();
            run(server, futures::stream::pending(), true).await.unwrap();
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, [&[0x88, 2][..], &why.to_be_bytes()].concat(), "{case}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_let_go_whatever_it_is_sent() {
        // An empty text frame of the client's, which says nothing, and a ping of ten bytes.
        let quiet = [0x81, 0x80, 0, 0, 0, 0];
        let ping = [&[0x89, 0x8a, 0, 0, 0, 0][..], &[b'p'; 10]].concat();
        let event = || futures::stream::iter([Ok(Bytes::from_static(b"{\"type\": \"ADDED\"}\n"))]).boxed();
        for (case, said, events) in [
            ("a pong", ping.repeat(2), futures::stream::pending().boxed()),
            ("an event", quiet.to_vec(), event().chain(futures::stream::pending()).boxed()),
            ("the close", quiet.to_vec(), futures::stream::iter([Ok(Bytes::from_static(b"{}\n"))]).boxed()),
        ] {
            // The event "{}" takes five of the bytes.
            let room = if case == "the close" { 6 } else { 16 };
            let (mut client, server) = tokio::io::duplex(room);
            let begun = tokio::time::Instant::now();
            let writing = async move {
                client.write_all(&said).await.unwrap();
                std::future::pending::<()>().await;
            };
            let ended = tokio::select! {
                ended = run(server, events, true) => ended,
                () = writing => unreachable!(),
            };
            assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::TimedOut, "{case}");
            assert_eq!(begun.elapsed().as_secs(), STALL.as_secs(), "{case}");
        }
    }

    #[tokio::test]
    async fn an_event_is_not_kept_until_the_next_one() {
        // As TLS does, this keeps what it has taken until it is full or flushed.
        let (mut client, server) = tokio::io::duplex(64);
        let event = futures::stream::iter([Ok(Bytes::from_static(b"{}\n"))]).chain(futures::stream::pending());
        let reading = async {
            let mut heard = [0; 5];
            client.read_exact(&mut heard).await.map(|_| heard)
        };
        tokio::select! {
            ended = run(tokio::io::BufStream::new(server), event, true) => panic!("{ended:?}"),
            heard = reading => assert_eq!(heard.unwrap(), [0x81, 3, b'{', b'}', b'\n']),
        }
    }

    #[test]
    fn pages_of_other_origins_open_nothing() {
        for (origin, expected) in [
            ("", true),
            ("https://127.0.0.1:6443", true),
            ("https://evil.example", false),
            ("null", false),
            ("https://127.0.0.1:6443.evil.example", false),
        ] {
            assert_eq!(check_origin(origin, "127.0.0.1:6443").is_ok(), expected, "{origin}");
        }
    }
}
