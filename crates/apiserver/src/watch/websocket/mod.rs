//! Watches over WebSockets (RFC 6455): one event per message. Clients send only ping, pong and close.

#[cfg(test)]
mod tests;

use std::{convert::Infallible, io, time::Duration};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
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
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::{
    handshake::derive_accept_key,
    protocol::frame::{
        FrameHeader,
        coding::{CloseCode, Control, Data, OpCode},
    },
};

use crate::{Body, authn::websocket::is_asked_for, encode::empty, limits::in_own_slices, request::RequestContext};

/// Time after which a client that reads nothing is disconnected.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest payload of a control frame.
const MAX_CONTROL: u64 = 125;
/// Bytes of a client's control frame with the longest header: two bytes, an extended length, a mask.
const READ_BUFFER: usize = 2 + 8 + 4 + MAX_CONTROL as usize;

/// Request for a WebSocket that is not open yet.
pub(super) struct WebSocketHandshake {
    upgrade: OnUpgrade,
    accept: HeaderValue,
    protocol: Option<HeaderValue>,
}

impl WebSocketHandshake {
    /// Parses the handshake; `None` when the client wants no WebSocket.
    ///
    /// # Errors
    /// 400 for a malformed handshake, 403 for a browser page of another origin.
    pub(super) fn of(call: &RequestContext) -> Result<Option<Self>, Status> {
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
        let accept = derive_accept_key(text(SEC_WEBSOCKET_KEY).as_bytes());
        let accept = HeaderValue::from_str(&accept).map_err(Status::internal)?;
        let upgrade = call.extensions.lock().remove::<OnUpgrade>();
        let upgrade = upgrade.ok_or_else(|| Status::bad_request("this connection cannot become a WebSocket"))?;
        Ok(Some(Self { upgrade, accept, protocol }))
    }

    /// Returns the response that opens the WebSocket.
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

    /// Sends the events of the watch until it or the client ends, in the watcher's scheduling slices. `is_text` selects
    /// the framing of events: lines of JSON, or length-prefixed messages.
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
                Err(error) => tracing::debug!(%error, "the WebSocket handshake failed"),
            }
        })
    }
}

/// Refuses a page of another origin, which would use the certificate of the browser's user.
fn check_origin(origin: &str, host: &str) -> Result<(), Status> {
    let own = origin.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host));
    if origin.is_empty() || own {
        Ok(())
    } else {
        Err(Status::new(Reason::Forbidden, "WebSockets are not opened for pages of other origins"))
    }
}

/// Appends the header of a server frame: final, not masked.
fn head(opcode: OpCode, length: usize, out: &mut BytesMut) {
    let header = FrameHeader { opcode, ..FrameHeader::default() };
    // Writing into memory cannot fail.
    let _ = header.format(length as u64, &mut out.writer());
}

/// Encodes each event of a piece as a message.
fn messages(mut piece: Bytes, is_text: bool) -> BytesMut {
    let mut out = BytesMut::with_capacity(piece.len() + 64);
    while !piece.is_empty() {
        let (opcode, event) = if is_text {
            let end = piece.iter().position(|byte| *byte == b'\n').map_or(piece.len(), |at| at + 1);
            (OpCode::Data(Data::Text), piece.split_to(end))
        } else {
            let length = if piece.len() < 4 { 0 } else { piece.get_u32() as usize };
            (OpCode::Data(Data::Binary), piece.split_to(length.min(piece.len())))
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
) -> io::Result<()> {
    let (reader, mut writer) = tokio::io::split(socket);
    let mut said = std::pin::pin!(client_frames(reader));
    let mut events = std::pin::pin!(events);
    let why = loop {
        tokio::select! {
            frame = said.next() => match frame {
                Some(ControlFrame::Ping(payload)) => {
                    let mut out = BytesMut::new();
                    head(OpCode::Control(Control::Pong), payload.len(), &mut out);
                    out.extend_from_slice(&payload);
                    send(&mut writer, &out).await?;
                }
                Some(ControlFrame::Invalid) => break CloseCode::Protocol,
                Some(ControlFrame::Close) | None => break CloseCode::Normal,
            },
            piece = events.next() => match piece {
                Some(Ok(piece)) => send(&mut writer, &messages(piece, is_text)).await?,
                Some(Err(never)) => match never {},
                None => break CloseCode::Normal,
            },
        }
    };
    let (mut out, why) = (BytesMut::new(), u16::from(why));
    head(OpCode::Control(Control::Close), size_of_val(&why), &mut out);
    out.put_u16(why);
    send(&mut writer, &out).await?;
    tokio::time::timeout(STALL_TIMEOUT, writer.shutdown()).await?
}

async fn send(writer: &mut (impl AsyncWrite + Unpin), frames: &[u8]) -> io::Result<()> {
    let sending = async {
        writer.write_all(frames).await?;
        // TLS buffers data that the connection has not accepted, and would otherwise send it only with the next event.
        writer.flush().await
    };
    tokio::time::timeout(STALL_TIMEOUT, sending).await?
}

/// Relevant frames of a client.
#[derive(Debug, PartialEq, Eq)]
enum ControlFrame {
    Ping(Vec<u8>),
    Close,
    /// Frame that violates the protocol: unmasked, with a reserved opcode, or a control frame that is too long or
    /// fragmented.
    Invalid,
}

/// Reads the client's control frames and discards all others. Ends with the client, or at a protocol error.
fn client_frames(reader: impl AsyncRead + Send + Unpin) -> impl Stream<Item = ControlFrame> + Send {
    let reader = FrameReader { reader, buffer: BytesMut::with_capacity(READ_BUFFER) };
    futures::stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        loop {
            match reader.next().await {
                Ok(None) => {}
                Ok(Some(last @ (ControlFrame::Close | ControlFrame::Invalid))) => return Some((last, None)),
                Ok(Some(control)) => return Some((control, Some(reader))),
                Err(error) => {
                    tracing::debug!(%error, "the client's side of a WebSocket ended");
                    return None;
                }
            }
        }
    })
}

/// Reader of a client's frames.
struct FrameReader<R> {
    reader: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads a frame; `None` for one that is discarded.
    async fn next(&mut self) -> io::Result<Option<ControlFrame>> {
        let Some((header, length)) = self.header().await? else { return Ok(Some(ControlFrame::Invalid)) };
        let Some(mask) = header.mask else { return Ok(Some(ControlFrame::Invalid)) };
        let OpCode::Control(control) = header.opcode else {
            self.discard(length).await?;
            return Ok(None);
        };
        if length > MAX_CONTROL || !header.is_final {
            return Ok(Some(ControlFrame::Invalid));
        }
        while (self.buffer.len() as u64) < length {
            self.fill().await?;
        }
        let mut payload = self.buffer.split_to(length as usize).to_vec();
        payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        Ok(match control {
            Control::Close => Some(ControlFrame::Close),
            Control::Ping => Some(ControlFrame::Ping(payload)),
            _ => None,
        })
    }

    /// Reads a header with the length of its payload; `None` for one that breaks the protocol.
    async fn header(&mut self) -> io::Result<Option<(FrameHeader, u64)>> {
        loop {
            let mut cursor = io::Cursor::new(&self.buffer);
            let Ok(parsed) = FrameHeader::parse(&mut cursor) else { return Ok(None) };
            let read = cursor.position();
            if let Some((header, length)) = parsed {
                self.buffer.advance(read as usize);
                // No extension is negotiated that would give these bits a meaning.
                let is_plain = !(header.rsv1 || header.rsv2 || header.rsv3);
                return Ok(is_plain.then_some((header, length)));
            }
            self.fill().await?;
        }
    }

    async fn discard(&mut self, length: u64) -> io::Result<()> {
        let buffered = length.min(self.buffer.len() as u64);
        self.buffer.advance(buffered as usize);
        let rest = length - buffered;
        if tokio::io::copy(&mut (&mut self.reader).take(rest), &mut tokio::io::sink()).await? < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    async fn fill(&mut self) -> io::Result<()> {
        self.buffer.reserve(READ_BUFFER);
        if self.reader.read_buf(&mut self.buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}
