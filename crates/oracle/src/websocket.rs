//! Watches over WebSocket, compared as the equivalent plain streams.

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::{
    client_async,
    tungstenite::{Error, Message, protocol::CloseFrame},
};

use super::exchange::{RawAnswer, Request, STREAM_LIMIT};
use harness::client;
use harness::kubeconfig::{UserCredential, UserKubeconfig};

/// Method name in the corpus.
pub(super) const METHOD: &str = "WEBSOCKET";
/// Header that describes the messages besides their content.
pub(super) const MESSAGES: &str = "websocket-messages";
pub(super) const CLOSE: &str = "websocket-close";

/// Opens a WebSocket on a new connection, with the server's own origin, and reads until it is closed.
pub(super) async fn watch(config: &UserKubeconfig, request: &Request) -> Result<RawAnswer> {
    let stream = client::dial(config, "http/1.1").await?;
    match client_async(opening(config, request)?, stream).await {
        Ok((socket, answer)) => Ok(read(socket, answer.headers()).await),
        // The message of a refusal is compared in the requests without a WebSocket.
        Err(Error::Http(refused)) => Ok(RawAnswer::Answer {
            status: refused.status().as_u16(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            cut: false,
        }),
        Err(error) => Err(error).context("the WebSocket handshake failed"),
    }
}

fn opening(config: &UserKubeconfig, request: &Request) -> Result<http::Request<()>> {
    let address = config.server().strip_prefix("https://").context("the server is not https")?.trim_end_matches('/');
    let host = address.split('/').next().unwrap_or(address);
    let key = STANDARD.encode([7; 16]);
    let mut opening = http::Request::get(format!("wss://{address}{}", request.path));
    let own = [
        ("host", host),
        ("origin", &format!("https://{host}")),
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", &key),
    ];
    for (name, value) in own {
        opening = opening.header(name, value);
    }
    for (name, value) in &request.headers {
        opening = opening.header(name, value);
    }
    if let UserCredential::Token(token) = config.credential() {
        opening = opening.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    opening.body(()).context("cannot build the request")
}

/// Returns all events as a plain stream has them: lines of JSON, or messages with a length prefix.
async fn read(mut messages: impl Stream<Item = Result<Message, Error>> + Unpin, answer: &HeaderMap) -> RawAnswer {
    let end = Instant::now() + STREAM_LIMIT;
    let mut body = Vec::new();
    let (mut forms, mut close, mut cut) = (Vec::new(), "none".to_owned(), false);
    loop {
        match timeout_at(end, messages.next()).await {
            Ok(Some(Ok(Message::Text(text)))) => {
                forms.push("text");
                body.extend_from_slice(text.as_bytes());
            }
            Ok(Some(Ok(Message::Binary(bytes)))) => {
                forms.push("binary");
                body.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
                body.extend_from_slice(&bytes);
            }
            Ok(Some(Ok(Message::Close(frame)))) => close = closing(frame.as_ref()),
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)))) => {}
            Ok(Some(Err(_)) | None) => break,
            Err(_) => {
                cut = true;
                break;
            }
        }
    }
    forms.dedup();
    RawAnswer::Answer { status: 101, headers: headers(answer, &forms.join(", "), &close), body: body.into(), cut }
}

fn closing(frame: Option<&CloseFrame>) -> String {
    frame.map_or_else(|| "without a reason".to_owned(), |frame| u16::from(frame.code).to_string())
}

/// Returns the negotiated headers of the handshake, and the kind of the messages.
fn headers(answer: &HeaderMap, forms: &str, close: &str) -> HeaderMap {
    let media = match forms {
        "binary" => "application/vnd.kubernetes.protobuf;stream=watch",
        _ => "application/json",
    };
    let mut headers = HeaderMap::new();
    if let Some(protocol) = answer.get(header::SEC_WEBSOCKET_PROTOCOL) {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol.clone());
    }
    let (messages, closed) = (HeaderName::from_static(MESSAGES), HeaderName::from_static(CLOSE));
    for (name, text) in [(header::CONTENT_TYPE, media), (messages, forms), (closed, close)] {
        headers.extend(HeaderValue::from_str(text).ok().map(|value| (name, value)));
    }
    headers
}

#[cfg(test)]
mod tests {
    use futures::stream::iter;

    use super::*;

    #[tokio::test]
    async fn messages_are_read_as_a_stream_of_events() {
        let close = Message::Close(Some(CloseFrame { code: 1000_u16.into(), reason: "".into() }));
        for (case, messages, expected) in [
            (
                "texts",
                vec![Message::text("{}\n"), Message::Ping(Bytes::new()), Message::text("{}\n"), close.clone()],
                (&b"{}\n{}\n"[..], "application/json", "text", "1000"),
            ),
            (
                "bytes",
                vec![Message::binary(&b"ab"[..]), close],
                (&b"\0\0\0\x02ab"[..], "application/vnd.kubernetes.protobuf;stream=watch", "binary", "1000"),
            ),
            ("nothing", vec![Message::Close(None)], (&b""[..], "application/json", "", "without a reason")),
        ] {
            let RawAnswer::Answer { status, headers, body, cut } =
                read(iter(messages.into_iter().map(Ok)), &HeaderMap::new()).await
            else {
                panic!("{case}: it is an answer")
            };
            let told = |name: &str| headers[name].to_str().unwrap().to_owned();
            assert_eq!((status, cut), (101, false), "{case}");
            assert_eq!((&*body, &*told("content-type"), &*told(MESSAGES), &*told(CLOSE)), expected, "{case}");
        }
    }
}
