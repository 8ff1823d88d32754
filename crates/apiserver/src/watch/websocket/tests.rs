//! Tests of watches over WebSockets.

use std::{
    future::poll_fn,
    pin::pin,
    task::{Context, Poll, Waker},
};

use super::*;
use crate::limits::RequestLimiter;

#[test]
fn it_is_served_in_time_slices() {
    let (request, context) = (RequestLimiter::single_slice_task_flow(), &mut Context::from_waker(Waker::noop()));
    // An upgrade that fails is ready at once.
    let upgrade = hyper::upgrade::on(http::Request::new(()));
    let socket = WebSocketHandshake { upgrade, accept: HeaderValue::from_static(""), protocol: None };
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
    let seen: Vec<ControlFrame> = client_frames(std::io::Cursor::new(sent)).collect().await;
    assert_eq!(seen, [ControlFrame::Ping(b"hi".to_vec()), ControlFrame::Close]);
    let unmasked = std::io::Cursor::new([0x81, 1, b'a', 0x88, 0x80, 0, 0, 0, 0]);
    assert_eq!(client_frames(unmasked).collect::<Vec<_>>().await, [ControlFrame::Invalid], "it is the last");
    assert_eq!(client_frames(std::io::Cursor::new([0x81])).collect::<Vec<_>>().await, [], "the client went");
}

#[tokio::test]
async fn the_reason_of_a_close_is_reported() {
    for (case, said, why) in [
        ("the client closes it", &[0x88, 0x80, 0, 0, 0, 0][..], CloseCode::Normal),
        ("the client goes", &[], CloseCode::Normal),
        ("the client does not mask what it says", &[0x81, 1, b'a'], CloseCode::Protocol),
        ("a reserved opcode of data", &[0x83, 0x80, 0, 0, 0, 0], CloseCode::Protocol),
        ("a reserved opcode of control", &[0x8b, 0x80, 0, 0, 0, 0], CloseCode::Protocol),
        ("a bit of an extension", &[0xc1, 0x80, 0, 0, 0, 0], CloseCode::Protocol),
        ("a ping in parts", &[0x09, 0x80, 0, 0, 0, 0], CloseCode::Protocol),
        (
            "a ping that is too long",
            &[0x89, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
            CloseCode::Protocol,
        ),
    ] {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(said).await.unwrap();
        client.shutdown().await.unwrap();
        run(server, futures::stream::pending(), true).await.unwrap();
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, [&[0x88, 2][..], &u16::from(why).to_be_bytes()].concat(), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_client_is_disconnected() {
    // An empty text frame of the client, which is ignored, and a ping of ten bytes.
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
        assert_eq!(begun.elapsed().as_secs(), STALL_TIMEOUT.as_secs(), "{case}");
    }
}

#[tokio::test]
async fn an_event_is_not_kept_until_the_next_one() {
    // Like TLS, this buffers until it is full or flushed.
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
