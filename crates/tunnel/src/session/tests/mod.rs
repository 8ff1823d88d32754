//! Sessions whose frames are passed on in memory.

mod hostile;

use std::io::ErrorKind;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinHandle,
};

use super::*;

/// Both ends of a session.
struct Link {
    server: Session,
    agent: Session,
    running: [JoinHandle<SessionEnd>; 2],
}

impl Link {
    fn new() -> Self {
        let (server, to_agent) = Session::new(SessionRole::Server, 7);
        let (agent, to_server) = Session::new(SessionRole::Agent, 7);
        let run = |session: &Session, incoming: OutgoingFrames| {
            let session = session.clone();
            tokio::spawn(async move { session.run(incoming.map(Ok::<_, String>), Keepalive::default()).await })
        };
        let running = [run(&server, to_server), run(&agent, to_agent)];
        Self { server, agent, running }
    }

    /// Opens a stream and returns both of its ends.
    async fn stream(&self) -> (TunnelStream, TunnelStream) {
        let opened = self.server.open().unwrap();
        (opened, self.agent.accept().await.unwrap())
    }

    /// Echoes all streams that the server opens.
    fn echo(&self) {
        let agent = self.agent.clone();
        tokio::spawn(async move {
            while let Some(stream) = agent.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = tokio::io::split(stream);
                    tokio::io::copy(&mut read, &mut write).await?;
                    write.shutdown().await
                });
            }
        });
    }
}

/// Returns bytes that differ from stream to stream.
fn payload(id: u32, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32).wrapping_mul(31).wrapping_add(id) as u8).collect()
}

async fn echoed(stream: TunnelStream, bytes: usize) {
    let sent = payload(stream.id(), bytes);
    let (mut read, mut write) = tokio::io::split(stream);
    let expected = sent.clone();
    let writing = tokio::spawn(async move {
        write.write_all(&sent).await?;
        write.shutdown().await
    });
    let mut received = Vec::new();
    read.read_to_end(&mut received).await.unwrap();
    writing.await.unwrap().unwrap();
    assert!(received == expected, "the bytes of a stream arrive whole and in order");
}

#[tokio::test]
async fn as_many_streams_as_a_session_may_have_carry_their_own_bytes() {
    let link = Link::new();
    link.echo();
    let streams: Vec<TunnelStream> = (0..MAX_STREAMS).map(|_| link.server.open().unwrap()).collect();
    assert_eq!(link.server.open().err(), Some(OpenError::Full));
    let mut tasks = tokio::task::JoinSet::new();
    for (at, stream) in streams.into_iter().enumerate() {
        tasks.spawn(echoed(stream, 40_000 + at));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    tokio::time::timeout(Duration::from_secs(5), async {
        while link.server.streams() + link.agent.streams() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("no stream is left");
    link.server.open().expect("there is room again");
}

#[tokio::test]
async fn a_long_transfer_gets_a_larger_window() {
    let link = Link::new();
    link.echo();
    echoed(link.server.open().unwrap(), 20 << 20).await;
}

#[tokio::test(start_paused = true)]
async fn a_stalled_stream_blocks_only_its_writer() {
    let link = Link::new();
    let (_unread, mut writer) = link.stream().await;
    let mut written = 0;
    let flood = async {
        loop {
            written += writer.write(&[0; 1024]).await.unwrap();
        }
    };
    let flooded: Result<(), _> = tokio::time::timeout(Duration::from_secs(1), flood).await;
    assert!(flooded.is_err());
    assert_eq!(written, INITIAL_WINDOW as usize + SEND_BUFFER, "the window and the send buffer, and no more");
    let (mut one, mut other) = link.stream().await;
    one.write_all(b"question").await.unwrap();
    let mut question = [0; 8];
    other.read_exact(&mut question).await.unwrap();
    other.write_all(b"answer").await.unwrap();
    other.shutdown().await.unwrap();
    let mut answer = String::new();
    one.read_to_string(&mut answer).await.unwrap();
    assert_eq!((&question, answer.as_str()), (b"question", "answer"));
}

#[tokio::test]
async fn ends_and_resets_of_streams() {
    let link = Link::new();
    let (mut one, mut other) = link.stream().await;
    one.write_all(b"last words").await.unwrap();
    one.shutdown().await.unwrap();
    assert_eq!(one.write(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    let mut text = String::new();
    other.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "last words", "the other direction is still open");
    drop(other);
    assert_eq!(one.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset, "a drop is not an end");

    let (mut one, mut other) = link.stream().await;
    other.write_all(b"all of it").await.unwrap();
    other.shutdown().await.unwrap();
    drop(other);
    text.clear();
    one.read_to_string(&mut text).await.expect("what was written before an end arrives");
    assert_eq!(text, "all of it");

    let (mut one, mut other) = link.stream().await;
    drop(one.write_all(b"x").await);
    drop(one);
    let mut read = Vec::new();
    let failed = other.read_to_end(&mut read).await;
    assert!(failed.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn the_end_of_a_session_fails_its_streams_at_once() {
    let link = Link::new();
    let (mut one, mut other) = link.stream().await;
    other.write_all(b"arrived").await.unwrap();
    let mut first = [0; 1];
    one.read_exact(&mut first).await.unwrap();
    link.server.finish(GoodbyeCode::GoodbyeReplaced, "newer");
    let mut rest = [0; 6];
    one.read_exact(&mut rest).await.expect("received bytes are delivered");
    assert!(one.read_u8().await.unwrap_err().to_string().contains("the tunnel is down"));
    assert!(one.write_u8(1).await.is_err());
    assert!(matches!(link.server.open(), Err(OpenError::Ended(_))));
    let [server, agent] = link.running;
    assert_eq!(server.await.unwrap(), SessionEnd::Ended(GoodbyeCode::GoodbyeReplaced, "newer".into()));
    assert_eq!(agent.await.unwrap(), SessionEnd::Left(GoodbyeCode::GoodbyeReplaced, "newer".into()));
    assert!(other.read_u8().await.is_err());
    assert!(link.agent.accept().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_ends_the_session_within_the_bound() {
    let (session, outgoing) = Session::new(SessionRole::Server, 7);
    let (begun, keepalive) = (Instant::now(), Keepalive::default());
    let end = session.run(futures::stream::pending::<Result<Frame, String>>(), keepalive).await;
    assert_eq!(end, SessionEnd::Silent);
    assert!(begun.elapsed() <= Duration::from_secs(15), "{:?}", begun.elapsed());
    drop(outgoing);
    // A peer that answers pings stays.
    let link = Link::new();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(link.server.end(), None);
    link.stream().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_ends_the_session() {
    let (session, outgoing) = Session::new(SessionRole::Server, 7);
    let mut stream = session.open().unwrap();
    drop(outgoing);
    assert_eq!(session.end(), Some(SessionEnd::Closed), "nothing is opened any more");
    let silence = futures::stream::pending::<Result<Frame, String>>();
    assert_eq!(session.run(silence, Keepalive::default()).await, SessionEnd::Closed);
    assert!(stream.read_u8().await.is_err());
    let (session, _outgoing) = Session::new(SessionRole::Server, 7);
    let failed = futures::stream::iter([Err::<Frame, _>("cut\nshort".to_owned())]);
    assert_eq!(session.run(failed, Keepalive::default()).await, SessionEnd::Failed("cut short".into()));
}

#[tokio::test]
async fn rounds_of_streams_leave_nothing_behind() {
    let link = Link::new();
    link.echo();
    for _ in 0..100 {
        let mut tasks = tokio::task::JoinSet::new();
        for at in 0..100_usize {
            let mut stream = link.server.open().unwrap();
            tasks.spawn(async move {
                stream.write_all(&payload(stream.id(), 10)).await.unwrap();
                // Some are dropped in the middle.
                if at % 3 > 0 {
                    let mut read = [0; 10];
                    stream.read_exact(&mut read).await.unwrap();
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    }
    tokio::time::timeout(Duration::from_secs(5), async {
        while link.server.streams() + link.agent.streams() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("no stream is left");
    assert_eq!(link.server.end(), None);
}
