//! Memory of sessions: a hostile agent that fills every window, and idle ones.

use std::time::Duration;

use futures::StreamExt as _;
use peak_alloc::PeakAlloc;
use portolan_tunnel::{
    session::{Keepalive, SESSION_BYTES, Session, SessionEnd, SessionRole},
    wire::{Frame, INITIAL_WINDOW, MAX_DATA, MAX_STREAMS, frame::Kind},
};
use tokio::io::AsyncWriteExt as _;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;

#[tokio::test]
async fn sessions_keep_their_bounds() {
    a_full_session_stays_within_its_bound().await;
    idle_sessions_are_small().await;
}

/// All streams are full in both directions, and none is read.
async fn a_full_session_stays_within_its_bound() {
    let before = ALLOCATOR.current_usage();
    let (session, mut outgoing) = Session::new(SessionRole::Server, 7);
    let mut streams: Vec<_> = (0..MAX_STREAMS).map(|_| session.open().expect("there is room")).collect();
    for stream in &mut streams {
        let flood = async {
            loop {
                stream.write_all(&[0; 1024]).await.expect("the session is up");
            }
        };
        let _: Option<()> = futures::FutureExt::now_or_never(flood);
    }
    // The agent takes all that its windows allow, and sends all that the server's do.
    while futures::FutureExt::now_or_never(outgoing.next()).is_some() {}
    let per_stream = INITIAL_WINDOW as usize / MAX_DATA;
    let frames = (1..=MAX_STREAMS).flat_map(|id| (0..per_stream).map(move |_| id));
    let frames = frames.map(|id| {
        Ok::<_, String>(Frame::of(7, u32::try_from(id).expect("ids are small"), Kind::Data(vec![0; MAX_DATA].into())))
    });
    let feed = futures::stream::iter(frames).chain(futures::stream::pending());
    let running = tokio::time::timeout(Duration::from_secs(2), session.run(feed, Keepalive::default())).await;
    assert!(running.is_err(), "no rule is broken: {running:?}");
    let used = ALLOCATOR.current_usage().saturating_sub(before);
    assert!(used >= MAX_STREAMS * INITIAL_WINDOW as usize, "all windows are full: {used}");
    assert!(used <= SESSION_BYTES, "{} MiB of {}", used / MIB, SESSION_BYTES / MIB);
    let one_more = Frame::of(7, 1, Kind::Data(vec![0; 1].into()));
    let end = session.run(futures::stream::iter([Ok::<_, String>(one_more)]), Keepalive::default()).await;
    assert!(matches!(end, SessionEnd::Violation(_)));
    drop((streams, session, outgoing));
    let left = ALLOCATOR.current_usage().saturating_sub(before);
    assert!(left < MIB, "{left} bytes are left");
}

/// A thousand sessions, each with 32 idle streams, as of watches.
async fn idle_sessions_are_small() {
    const SESSIONS: usize = 1_000;
    let before = ALLOCATOR.current_usage();
    let mut kept = Vec::new();
    for _ in 0..SESSIONS {
        let (session, outgoing) = Session::new(SessionRole::Server, 7);
        let streams: Vec<_> = (0..32).map(|_| session.open().expect("there is room")).collect();
        kept.push((session, outgoing, streams));
    }
    let each = ALLOCATOR.current_usage().saturating_sub(before) / SESSIONS;
    assert!(each < 32 * 1024, "{each} bytes per idle session");
}
