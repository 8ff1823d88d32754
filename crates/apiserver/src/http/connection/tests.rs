//! Tests of connections.

use hyper_util::rt::TokioExecutor;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    time::{Instant, timeout},
};

use super::{super::activity::IDLE, *};

const SETTINGS: u8 = 4;
const PING_FRAME: u8 = 6;
const ACK: u8 = 1;

/// Encodes a frame of the connection as a whole.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 0], payload].concat()
}

/// Client that sends no request.
struct Idle {
    socket: DuplexStream,
    answers: bool,
    pings: usize,
    acks: usize,
}

impl Idle {
    async fn connect(answers: bool) -> Self {
        let (mut socket, server) = tokio::io::duplex(64 * 1024);
        let service = service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(http::Response::new(String::new())));
        tokio::spawn(async move {
            let builder = builder(TokioExecutor::new());
            builder.serve_connection(TokioIo::new(server), service).await.map_err(|error| error.to_string())
        });
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        socket.write_all(&frame(SETTINGS, 0, &[])).await.unwrap();
        Self { socket, answers, pings: 0, acks: 0 }
    }

    /// Connects to a server that watches for activity, and sends nothing.
    fn say_nothing() -> Self {
        let (socket, server) = tokio::io::duplex(64 * 1024);
        let service = service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(http::Response::new(String::new())));
        tokio::spawn(async move {
            let builder = builder(TokioExecutor::new());
            let connection = pin!(builder.serve_connection(TokioIo::new(server), service));
            let (opened, never) = (EvictableConnection::new(), std::future::pending());
            until_over(connection, &opened, never, |connection| connection.graceful_shutdown()).await.is_some()
        });
        Self { socket, answers: true, pings: 0, acks: 0 }
    }

    /// Reads until the server closes the connection.
    async fn listen(&mut self) {
        let mut head = [0; 9];
        while self.socket.read_exact(&mut head).await.is_ok() {
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.socket.read_exact(&mut payload).await.unwrap();
            let answer = match (head[3], head[4] & ACK) {
                (SETTINGS, 0) => frame(SETTINGS, ACK, &[]),
                (PING_FRAME, ACK) => {
                    self.acks += 1;
                    continue;
                }
                (PING_FRAME, _) => {
                    self.pings += 1;
                    if !self.answers {
                        continue;
                    }
                    frame(PING_FRAME, ACK, &payload)
                }
                _ => continue,
            };
            // The server may have closed the connection by then.
            if self.socket.write_all(&answer).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_pings_stays() {
    let mut client = Idle::connect(true).await;
    let minutes = Duration::from_secs(90 * 60);
    assert!(timeout(minutes, client.listen()).await.is_err(), "it is not ended");
    let expected = (minutes.as_secs() / PING.as_secs()) as usize;
    assert!((expected - 2..=expected).contains(&client.pings), "{} pings", client.pings);
    // Go's clients send pings to check the connection.
    client.socket.write_all(&frame(PING_FRAME, 0, b"whatever")).await.unwrap();
    assert!(timeout(Duration::from_secs(1), client.listen()).await.is_err());
    assert_eq!(client.acks, 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_requests_ends_despite_pings() {
    for begun in [&b""[..], b"PRI * HTT", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"] {
        let mut client = Idle::say_nothing();
        client.socket.write_all(begun).await.unwrap();
        let since = Instant::now();
        timeout(2 * IDLE, client.listen()).await.expect("it is ended");
        assert!((IDLE..IDLE + 2 * LAST).contains(&since.elapsed()), "{begun:?}: {:?}", since.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_no_ping_is_disconnected() {
    let mut client = Idle::connect(false).await;
    let begun = Instant::now();
    timeout(Duration::from_secs(600), client.listen()).await.expect("it is ended");
    assert_eq!((client.pings, begun.elapsed().as_secs()), (1, (PING + PING_ANSWER).as_secs()));
}
