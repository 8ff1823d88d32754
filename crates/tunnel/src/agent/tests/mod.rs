//! Agents and a server over loopback TLS, with faults between them.

mod world;

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use world::{FAST, FaultyProxy, ProxyFault, TestAgent, TestServer, agent_id};

use super::*;
use crate::{
    gateway::AgentState,
    session::{Session, SessionRole},
    wire::{GoodbyeCode, Hello, PROTOCOL, frame::Kind},
};

/// Time limit for each wait of a test.
const PATIENCE: Duration = Duration::from_secs(30);

fn get(path: &str) -> Request<MemberBody> {
    let body = boxed(Full::new(Bytes::new()));
    Request::get(format!("http://east{path}")).header(header::AUTHORIZATION, "Bearer client").body(body).unwrap()
}

async fn echo(server: &TestServer, bytes: usize) -> Result<usize, String> {
    let body = boxed(Full::new(Bytes::from(vec![7; bytes])));
    let request = Request::post("http://east/echo").body(body).unwrap();
    let response = server.client().request(request).await.map_err(|error| error.to_string())?;
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    Ok(body.len())
}

/// Repeats a small request until it succeeds.
async fn usable(server: &TestServer) {
    let asking = async {
        while echo(server, 10).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, asking).await.expect("the physical cluster is reached again");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_watches_and_upgrades_reach_the_physical_cluster() {
    let server = TestServer::start(CancellationToken::new()).await;
    let _agent = TestAgent::start(&server, server.address);
    server.connected().await;
    assert_eq!(echo(&server, 3 << 20).await.unwrap(), 3 << 20);
    let mut watch = server.client().request(get("/watch")).await.unwrap().into_body();
    for _ in 0..3 {
        watch.frame().await.unwrap().unwrap();
    }
    let mut request = get("/exec");
    request.headers_mut().insert(header::CONNECTION, "Upgrade".parse().unwrap());
    request.headers_mut().insert(header::UPGRADE, "SPDY/3.1".parse().unwrap());
    let response = server.client().request(request).await.unwrap();
    assert_eq!(
        (response.status(), &response.headers()[header::UPGRADE]),
        (StatusCode::SWITCHING_PROTOCOLS, &"SPDY/3.1".parse::<http::HeaderValue>().unwrap())
    );
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    stream.write_all(b"stdin").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "stdin");
    let AgentState::Connected { version, streams, .. } = server.gateway.state(&agent_id("east")) else { panic!() };
    assert_eq!(version, "v1");
    assert!(streams > 0, "the watch continues");
    drop(watch);
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_network_end_streams_in_time_and_heal() {
    for fault in
        [ProxyFault::BlackHole, ProxyFault::HalfClose, ProxyFault::Delay, ProxyFault::DropBytes, ProxyFault::Reset]
    {
        let server = TestServer::start(CancellationToken::new()).await;
        let proxy = FaultyProxy::start(server.address).await;
        let _agent = TestAgent::start(&server, proxy.address);
        server.connected().await;
        let mut watch = server.client().request(get("/watch")).await.unwrap().into_body();
        watch.frame().await.unwrap().unwrap();
        proxy.set(fault);
        if fault == ProxyFault::Delay {
            assert_eq!(echo(&server, 100_000).await, Ok(100_000), "slow is not lost");
        } else {
            let begun = Instant::now();
            let ended = async { while watch.frame().await.is_some_and(|frame| frame.is_ok()) {} };
            timeout(PATIENCE, ended).await.expect("the watch ends");
            assert!(begun.elapsed() < FAST.silence + Duration::from_secs(5), "{fault:?}: {:?}", begun.elapsed());
        }
        proxy.set(ProxyFault::None);
        usable(&server).await;
        drop(watch);
        let empty = async {
            while server.gateway.count().1 > 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, empty).await.expect("no stream is left but idle connections");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_outlives_a_lost_answer_and_the_certificate_a_restart() {
    let server = TestServer::start(CancellationToken::new()).await;
    let agent = TestAgent::start(&server, server.address);
    server.connected().await;
    assert_eq!(server.issued.load(Ordering::SeqCst), 1);
    let saved: AgentCredential =
        serde_json::from_slice(&std::fs::read(agent.folder.path().join("credential.json")).unwrap()).unwrap();
    assert!(saved.next_key.is_empty() && !saved.certificate.is_empty());
    agent.stop.cancel();
    let again = TestAgent { folder: tempfile::tempdir().unwrap(), stop: CancellationToken::new() };
    std::fs::copy(agent.folder.path().join("credential.json"), again.folder.path().join("credential.json")).unwrap();
    timeout(PATIENCE, async {
        while server.gateway.count().0 > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the agent says goodbye");
    again.spawn(server.address);
    usable(&server).await;
    assert_eq!(server.issued.load(Ordering::SeqCst), 1, "it needs no token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_before_it_ends() {
    let server = TestServer::start(CancellationToken::new()).await;
    server.life.store(3, Ordering::SeqCst);
    let agent = TestAgent::start(&server, server.address);
    server.connected().await;
    server.life.store(3_600, Ordering::SeqCst);
    std::fs::remove_file(agent.folder.path().join("token")).unwrap();
    let renewed = async {
        while server.issued.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, renewed).await.expect("it is renewed by itself");
    usable(&server).await;
}

/// The load balancer leads to each server twice in a row.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_keeps_a_session_with_every_server_behind_an_address() {
    let server = TestServer::start_several(3, CancellationToken::new()).await;
    let _agent = TestAgent::start(&server, server.address);
    let all = async {
        while server.gateways.iter().any(|gateway| gateway.count().0 == 0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, all).await.expect("each server reaches the agent");
    for gateway in &server.gateways {
        gateway.open(&agent_id("east")).unwrap();
    }
    // The agent does not wait for a stopped server.
    server.gateways.iter().for_each(|gateway| gateway.set_servers(1));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(server.gateways.iter().all(|gateway| gateway.count().0 == 1), "live sessions stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_authority_gets_no_token() {
    let (server, other) =
        (TestServer::start(CancellationToken::new()).await, TestServer::start(CancellationToken::new()).await);
    // The token names the authority of `server`.
    let _agent = TestAgent::start(&server, other.address);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((other.issued.load(Ordering::SeqCst), other.gateway.count().0), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_agent_does_not_hammer_the_server() {
    let server = TestServer::start(CancellationToken::new()).await;
    let proxy = FaultyProxy::start(server.address).await;
    server.refuses.store(true, Ordering::SeqCst);
    let _agent = TestAgent::start(&server, proxy.address);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let tried = proxy.accepted.load(Ordering::SeqCst);
    assert!((1..=5).contains(&tried), "{tried} connections in two seconds");
}

/// Connects a session to the gateway without a network.
fn connect(
    gateway: &Arc<crate::gateway::TunnelGateway>,
    servers: Vec<String>,
) -> (Session, tokio::task::JoinHandle<crate::session::SessionEnd>) {
    let (session, outgoing) = Session::new(SessionRole::Agent, 0);
    session.say(Kind::Hello(Hello { protocol: PROTOCOL, version: "v1".into(), servers }));
    let frames = futures::StreamExt::map(outgoing, Ok::<_, tonic::Status>);
    let encoder = tonic::codec::Codec::encoder(&mut crate::wire::codec());
    let body = tonic::codec::EncodeBody::new_client(encoder, frames, None, None);
    let response = gateway.accept(agent_id("east"), None, body).unwrap();
    let running = session.clone();
    let task = tokio::spawn(async move {
        let mut incoming = crate::wire::decode_response(response.into_body(), StatusCode::OK);
        let Some(Ok(frame)) = futures::StreamExt::next(&mut incoming).await else {
            return crate::session::SessionEnd::Closed;
        };
        match &frame.kind {
            Some(Kind::Welcome(welcome)) => running.begin(frame.epoch, welcome.servers),
            _ => running.begin(frame.epoch, 1),
        }
        if let Some(Kind::Goodbye(goodbye)) = frame.kind {
            return crate::session::SessionEnd::Left(goodbye.code(), goodbye.reason.into());
        }
        running.run(incoming, FAST).await
    });
    (session, task)
}

#[tokio::test]
async fn the_newest_session_of_an_agent_wins() {
    let closing = CancellationToken::new();
    let gateway = crate::gateway::TunnelGateway::new(Seams::system(), FAST, closing.clone());
    let count = async |expected: usize| {
        timeout(PATIENCE, async {
            while gateway.count().0 != expected {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the number of sessions")
    };
    let (waiting, east) = (gateway.clone(), agent_id("east"));
    let waiting = tokio::spawn(async move { waiting.connected(&east).await });
    let (_first, first_end) = connect(&gateway, Vec::new());
    count(1).await;
    timeout(PATIENCE, waiting).await.expect("an arrival wakes those that wait").unwrap();
    let (_refused, refused_end) = connect(&gateway, vec![gateway.server().to_owned()]);
    let refused = refused_end.await.unwrap();
    assert_eq!(refused, crate::session::SessionEnd::Left(GoodbyeCode::GoodbyeConnected, "".into()));
    let (second, second_end) = connect(&gateway, Vec::new());
    let replaced = first_end.await.unwrap();
    assert_eq!(replaced, crate::session::SessionEnd::Left(GoodbyeCode::GoodbyeReplaced, "".into()));
    count(1).await;
    let stream = gateway.open(&agent_id("east")).unwrap();
    assert_eq!(second.accept().await.unwrap().id(), stream.id());
    gateway.set_servers(3);
    timeout(PATIENCE, async {
        while second.servers() != 3 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("agents hear of new servers");
    assert!(gateway.open(&agent_id("west")).is_err());
    gateway.revoke(&agent_id("east"));
    assert!(matches!(second_end.await.unwrap(), crate::session::SessionEnd::Left(GoodbyeCode::GoodbyeRevoked, _)));
    assert_eq!(gateway.state(&agent_id("east")), AgentState::Unknown);
    let (_third, third_end) = connect(&gateway, Vec::new());
    count(1).await;
    closing.cancel();
    assert!(matches!(third_end.await.unwrap(), crate::session::SessionEnd::Left(GoodbyeCode::GoodbyeStopping, _)));
    timeout(PATIENCE, gateway.ended()).await.expect("all sessions end");
}

#[tokio::test]
async fn an_agent_that_breaks_the_protocol_has_to_wait() {
    let gateway = crate::gateway::TunnelGateway::new(Seams::system(), FAST, CancellationToken::new());
    let (hostile, end) = connect(&gateway, Vec::new());
    timeout(PATIENCE, async {
        while gateway.count().0 == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    hostile.say(Kind::Hello(Hello::default()));
    let end = timeout(PATIENCE, end).await.unwrap().unwrap();
    assert!(matches!(end, crate::session::SessionEnd::Left(GoodbyeCode::GoodbyeViolation, _)), "{end}");
    timeout(PATIENCE, async {
        while gateway.count().0 > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    let AgentState::Disconnected(end) = gateway.state(&agent_id("east")) else { panic!() };
    assert!(end.to_string().contains("broke the protocol"), "{end}");
    let body = http_body_util::Empty::<Bytes>::new();
    let refused = gateway.accept(agent_id("east"), None, body).err();
    assert!(matches!(refused, Some(crate::gateway::RefusedSession::Penalty(_))), "{refused:?}");
    gateway.accept(agent_id("west"), None, http_body_util::Empty::<Bytes>::new()).expect("others may connect");
}

/// A physical cluster may be deleted between the connection of its agent and the greeting.
#[tokio::test]
async fn connections_without_a_greeting_are_few_and_get_no_session_once_revoked() {
    use crate::gateway::RefusedSession;
    let gateway = crate::gateway::TunnelGateway::new(Seams::system(), FAST, CancellationToken::new());
    let mut silent = Vec::new();
    let refused = loop {
        let (sender, frames) = futures::channel::mpsc::unbounded::<Result<http_body::Frame<Bytes>, std::io::Error>>();
        match gateway.accept(agent_id("east"), None, http_body_util::StreamBody::new(frames)) {
            Ok(response) => silent.push((sender, response)),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused, silent.len()), (RefusedSession::Silent, 8));
    silent.clear();
    let room = async {
        while gateway.accept(agent_id("east"), None, http_body_util::Empty::<Bytes>::new()).is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, room).await.expect("those that have left do not count");

    let (_session, end) = connect(&gateway, Vec::new());
    gateway.revoke(&agent_id("east"));
    let end = timeout(PATIENCE, end).await.unwrap().unwrap();
    assert!(matches!(end, crate::session::SessionEnd::Left(GoodbyeCode::GoodbyeRevoked, _)), "{end}");
    assert_eq!((gateway.count(), gateway.state(&agent_id("east"))), ((0, 0), AgentState::Unknown));
}

/// A storm of agents after a restart of the server: each gets a session, and requests pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_sessions_is_served() {
    const SESSIONS: usize = 1_000;
    let gateway = crate::gateway::TunnelGateway::new(
        Seams::system(),
        crate::session::Keepalive::default(),
        CancellationToken::new(),
    );
    for _ in 0..2 {
        let mut ends = Vec::new();
        for at in 0..SESSIONS {
            let (session, outgoing) = Session::new(SessionRole::Agent, 0);
            session.say(Kind::Hello(Hello { protocol: PROTOCOL, version: "v1".into(), servers: Vec::new() }));
            let frames = futures::StreamExt::map(outgoing, Ok::<_, tonic::Status>);
            let encoder = tonic::codec::Codec::encoder(&mut crate::wire::codec());
            let body = tonic::codec::EncodeBody::new_client(encoder, frames, None, None);
            let response = gateway.accept(agent_id(&format!("c{at}")), None, body).unwrap();
            ends.push((session, response));
        }
        timeout(PATIENCE, async {
            while gateway.count().0 < SESSIONS {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("all are connected");
        let streams: Vec<_> = (0..SESSIONS).map(|at| gateway.open(&agent_id(&format!("c{at}"))).unwrap()).collect();
        assert_eq!(gateway.count(), (SESSIONS, SESSIONS));
        drop((streams, ends));
        timeout(PATIENCE, async {
            while gateway.count().0 > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("all are gone");
    }
}
