//! Frames that break the rules: the session ends, and nothing grows.

use portolan_types::Seams;
use tokio::io::AsyncReadExt as _;

use super::*;
use crate::wire::{End, Goodbye, Hello, MAX_DATA, Open, Reset, Welcome};

fn data(bytes: usize) -> Kind {
    Kind::Data(vec![0; bytes].into())
}

/// Feeds frames to a server with one open stream (1), and returns the end of the session.
async fn end_after(frames: Vec<Frame>) -> SessionEnd {
    let (session, _outgoing) = Session::new(SessionRole::Server, 7);
    let _stream = session.open().unwrap();
    session.run(futures::stream::iter(frames.into_iter().map(Ok::<_, String>)), Keepalive::default()).await
}

#[tokio::test]
async fn broken_rules_end_the_session() {
    let times = |count: usize, stream, kind: Kind| vec![Frame::of(7, stream, kind); count];
    let of = |stream, kind| times(1, stream, kind);
    let (end, reset) = (Kind::End(End {}), Kind::Reset(Reset { reason: String::new() }));
    for (frames, rule) in [
        (vec![Frame::of(8, 1, data(1))], "a frame of another session"),
        (vec![Frame::of(0, 0, Kind::Ping(1))], "a frame of another session"),
        (of(1, Kind::Open(Open {})), "an agent opens no streams"),
        (of(2, data(1)), "a frame of a stream that was not opened"),
        (of(2, Kind::Credit(1)), "a frame of a stream that was not opened"),
        (of(2, end.clone()), "a frame of a stream that was not opened"),
        (of(u32::MAX, reset.clone()), "a frame of a stream that was not opened"),
        (of(1, data(0)), "data of a size that is not allowed"),
        (of(1, data(MAX_DATA + 1)), "data of a size that is not allowed"),
        (times(3, 1, data(MAX_DATA)), "more data than the credit of its stream"),
        (of(1, Kind::Credit(0)), "a grant of nothing"),
        (of(1, Kind::Credit(u32::MAX)), "more credit than a stream may have"),
        (times(5, 1, Kind::Credit(1 << 20)), "more credit than a stream may have"),
        (times(2, 1, end.clone()), "a second end of a stream"),
        ([of(1, end), of(1, data(1))].concat(), "data after the end of a stream"),
        (of(0, Kind::Hello(Hello::default())), "a second greeting"),
        (of(0, Kind::Welcome(Welcome::default())), "a second greeting"),
        (of(0, data(1)), "a frame that belongs to no stream, or to one"),
        (of(1, Kind::Ping(1)), "a frame that belongs to no stream, or to one"),
        (of(0, Kind::Servers(9)), "a frame that belongs to no stream, or to one"),
        (vec![Frame { epoch: 7, stream: 0, kind: None }], "a frame without content"),
    ] {
        assert_eq!(end_after(frames).await, SessionEnd::Violation(rule));
    }
    for (case, frames) in [
        ("a reset of a stream that is gone", times(3, 1, reset)),
        ("more pings than answers", times(100_000, 0, Kind::Ping(1))),
    ] {
        assert_eq!(end_after(frames).await, SessionEnd::Closed, "{case}");
    }
    let goodbye = Goodbye { code: GoodbyeCode::GoodbyeStopping.into(), reason: "x\n".into() };
    let left = SessionEnd::Left(GoodbyeCode::GoodbyeStopping, "x ".into());
    assert_eq!(end_after(of(0, Kind::Goodbye(goodbye))).await, left);
}

#[tokio::test]
async fn data_for_a_stream_that_is_gone_is_bounded() {
    let (session, _outgoing) = Session::new(SessionRole::Server, 7);
    drop(session.open().unwrap());
    let frame = Frame::of(7, 1, data(MAX_DATA));
    let frames = futures::stream::iter(vec![frame; 3].into_iter().map(Ok::<_, String>));
    assert_eq!(session.run(frames, Keepalive::default()).await, SessionEnd::Violation("data of a stream that is gone"));
}

/// A peer that makes credit necessary and reads nothing.
#[tokio::test]
async fn a_peer_that_does_not_read_ends_the_session() {
    let (session, outgoing) = Session::new(SessionRole::Server, 7);
    let mut stream = session.open().unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 20];
        while stream.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {}
    });
    let flood = futures::stream::unfold((), |()| async {
        tokio::task::yield_now().await;
        Some((Ok::<_, String>(Frame::of(7, 1, data(MAX_DATA))), ()))
    });
    let end =
        tokio::time::timeout(Duration::from_secs(60), session.run(flood, Keepalive::default())).await.expect("it ends");
    assert!(matches!(end, SessionEnd::Violation(_)), "{end}");
    assert!(outgoing.count().await <= state::MAX_CONTROL + 1);
}

/// Random frames neither panic nor open streams, in any order.
#[tokio::test]
async fn random_frames_are_survived() {
    for seed in 0..2_000 {
        let seams = Seams::seeded(seed, jiff::Timestamp::UNIX_EPOCH);
        let byte = || {
            let mut byte = [0];
            seams.entropy.fill(&mut byte);
            byte[0]
        };
        for role in [SessionRole::Server, SessionRole::Agent] {
            let (session, mut outgoing) = Session::new(role, 7);
            let _streams: Vec<_> = (0..3).filter_map(|_| session.open().ok()).collect();
            for _ in 0..64 {
                let kind = match byte() % 9 {
                    0 => data(usize::from(byte())),
                    1 => Kind::Credit(u32::from(byte()) << (byte() % 24)),
                    2 => Kind::End(End {}),
                    3 => Kind::Reset(Reset { reason: "r".repeat(usize::from(byte())) }),
                    4 => Kind::Ping(byte().into()),
                    5 => Kind::Pong(byte().into()),
                    6 => Kind::Open(Open {}),
                    7 => Kind::Servers(byte().into()),
                    _ => Kind::Goodbye(Goodbye { code: i32::from(byte()), reason: "\u{7}".into() }),
                };
                let epoch = if byte() < 4 { 8 } else { 7 };
                let frame = Frame::of(epoch, u32::from(byte() % 5), kind);
                if session.shared.state.lock().receive(frame).is_err() {
                    break;
                }
                let _ = futures::FutureExt::now_or_never(outgoing.next());
            }
            assert!(session.streams() <= MAX_STREAMS);
        }
    }
}
