//! Queries over UDP and TCP, by a client and resolvers on loopback.

use portolan_types::annotations;
use serde_json::json;

use super::{super::names::NameSources, *};

const LOOPBACK: &str = "127.0.0.1:0";

fn table(client: &str) -> NameTable {
    let identity = json!({"cluster": "a", "namespace": "shop", "physical": "east"}).to_string();
    let service =
        |name: &str| json!({"metadata": {"name": name, "namespace": "shop-a"}, "spec": {"clusterIP": "10.96.0.1"}});
    NameTable::new(&NameSources {
        namespaces: vec![json!({"metadata": {"name": "shop-a", "labels": {annotations::DOWN_TENANT: "one"},
            "annotations": {annotations::DOWN_IDENTITY: identity}}})],
        pods: vec![json!({"metadata": {"namespace": "shop-a"}, "status": {"podIP": client}})],
        services: vec![
            service("web"),
            json!({"metadata": {"name": "mail", "namespace": "shop-a"},
                "spec": {"type": "ExternalName", "externalName": "mail.example.com"}}),
        ],
        slices: Vec::new(),
    })
}

async fn ask(client: &UdpSocket, name: &str) -> Vec<u8> {
    client.send(&message::query(name, 1)).await.unwrap();
    let mut buffer = vec![0; 512];
    let length = client.recv(&mut buffer).await.unwrap();
    buffer.truncate(length);
    buffer
}

#[tokio::test]
async fn connections_of_a_client_have_a_bound_and_strangers_have_none() {
    let (socket, listener) = (UdpSocket::bind(LOOPBACK).await.unwrap(), TcpListener::bind(LOOPBACK).await.unwrap());
    let (resolver, address) = (socket.local_addr().unwrap(), listener.local_addr().unwrap());
    let responder = Arc::new(Responder::new(socket, resolver, ClusterDomains::with([])));
    let serving = tokio::spawn(responder.clone().serve_connections(listener));
    let at_once = FIRST_QUERY / 2;
    let mut stranger = TcpStream::connect(address).await.unwrap();
    let closed = timeout(PATIENCE * 2, stranger.read_u16()).await;
    assert!(closed.expect("closed after the time for a read").is_err());
    responder.learn(table("127.0.0.1"), responder.begin_read());
    let mut held = Vec::new();
    for _ in 0..MAX_CONNECTIONS_OF_CLIENT {
        held.push(TcpStream::connect(address).await.unwrap());
    }
    let mut extra = TcpStream::connect(address).await.unwrap();
    assert!(timeout(at_once, extra.read_u16()).await.expect("closed at once").is_err());
    let idle = timeout(FIRST_QUERY * 2, held[0].read_u16()).await;
    assert!(idle.expect("an idle connection ends after the time for its first query").is_err());
    serving.abort();
}

#[tokio::test]
async fn a_pod_that_was_made_a_moment_ago_is_answered_over_tcp() {
    let (socket, listener) = (UdpSocket::bind(LOOPBACK).await.unwrap(), TcpListener::bind(LOOPBACK).await.unwrap());
    let (resolver, address) = (socket.local_addr().unwrap(), listener.local_addr().unwrap());
    let responder = Arc::new(Responder::new(socket, resolver, ClusterDomains::with([])));
    let serving = tokio::spawn(responder.clone().serve_connections(listener));
    let mut early: Vec<TcpStream> = Vec::new();
    for _ in 0..2 {
        early.push(TcpStream::connect(address).await.unwrap());
        write_message(early.last_mut().unwrap(), &message::query("web.shop.svc", 1)).await.unwrap();
    }
    timeout(PATIENCE, responder.wanted.notified()).await.expect("a connection wakes the next read");
    responder.learn(table("127.0.0.1"), responder.begin_read());
    for mut stream in early {
        let found = read_message(&mut stream, MAX_MESSAGE).await.unwrap();
        assert!(found.ends_with(&[10, 96, 0, 1]), "{found:?}");
    }
    serving.abort();
}

#[tokio::test]
async fn unknown_clients_have_few_connections_together() {
    let (socket, listener) = (UdpSocket::bind(LOOPBACK).await.unwrap(), TcpListener::bind(LOOPBACK).await.unwrap());
    let (resolver, address) = (socket.local_addr().unwrap(), listener.local_addr().unwrap());
    let serving =
        tokio::spawn(Arc::new(Responder::new(socket, resolver, ClusterDomains::with([]))).serve_connections(listener));
    let from = |last: u8| async move {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        socket.connect(address).await.unwrap()
    };
    let mut held = Vec::new();
    for last in 0..MAX_STRANGERS {
        held.push(from(u8::try_from(last).unwrap() + 10).await);
    }
    let mut extra = from(200).await;
    assert!(timeout(PATIENCE / 2, extra.read_u16()).await.expect("closed at once").is_err());
    assert!(timeout(Duration::from_millis(1), held[0].read_u16()).await.is_err(), "the others wait for a read");
    serving.abort();
}

#[tokio::test]
async fn names_that_others_resolve_have_a_bound_by_client() {
    let resolver = UdpSocket::bind(LOOPBACK).await.unwrap();
    let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
    let responder = Responder::new(socket, resolver.local_addr().unwrap(), ClusterDomains::with([]));
    responder.learn(table("127.0.0.1"), responder.begin_read());
    let client = IpAddr::from([127, 0, 0, 1]);
    let held: Vec<_> = (0..MAX_FORWARDING_OF_CLIENT).map(|_| responder.forwarding.admit(client).unwrap()).collect();
    let query = message::query("example.com", 1);
    let question = message::parse(&query).unwrap();
    let refused = timeout(FORWARD / 2, responder.answer(&question, &query, client)).await.expect("at once");
    assert_eq!(refused, question.answer(ResultCode::ServerFailure, &[]));
    drop(held);
    let asked = async {
        let mut buffer = [0; MAX_QUERY];
        let (length, from) = resolver.recv_from(&mut buffer).await.unwrap();
        let answer = message::parse(&buffer[..length]).unwrap();
        resolver.send_to(&answer.answer(ResultCode::NameError, &[]), from).await.unwrap();
    };
    let (answered, ()) = tokio::join!(responder.answer(&question, &query, client), asked);
    assert_eq!(answered, question.answer(ResultCode::NameError, &[]));
}

#[tokio::test(start_paused = true)]
async fn a_read_that_began_before_the_query_does_not_answer_it() {
    let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
    let resolver = socket.local_addr().unwrap();
    let responder = Responder::new(socket, resolver, ClusterDomains::with([]));
    let early = responder.begin_read();
    let bytes = message::query("web.shop.svc", 1);
    let question = message::parse(&bytes).unwrap();
    let reading = async {
        responder.wanted.notified().await;
        responder.learn(NameTable::default(), early);
        tokio::time::sleep(EARLIEST_REFRESH).await;
        responder.learn(table("127.0.0.1"), responder.begin_read());
    };
    let asking = responder.answer(&question, &bytes, "127.0.0.1".parse().unwrap());
    let (found, ()) = tokio::join!(asking, reading);
    assert!(found.ends_with(&[10, 96, 0, 1]), "{found:?}");
}

#[tokio::test]
async fn a_client_with_many_waiting_queries_is_answered_at_once() {
    let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
    let resolver = socket.local_addr().unwrap();
    let responder = Responder::new(socket, resolver, ClusterDomains::with([]));
    responder.learn(table("127.0.0.1"), responder.begin_read());
    let client = IpAddr::from([127, 0, 0, 1]);
    let _waiting: Vec<_> = (0..MAX_WAITING_OF_CLIENT).map(|_| responder.waiting.admit(client).unwrap()).collect();
    let query = message::query("missing.shop.svc.cluster.local", 1);
    let question = message::parse(&query).unwrap();
    let answer = timeout(PATIENCE / 2, responder.answer(&question, &query, client)).await.expect("at once");
    assert_eq!(answer, question.answer(ResultCode::NameError, &[]));
}

#[tokio::test]
async fn names_of_the_logical_cluster_are_answered_and_others_forwarded() {
    let resolver = UdpSocket::bind(LOOPBACK).await.unwrap();
    let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
    let address = socket.local_addr().unwrap();
    let responder = Arc::new(Responder::new(socket, resolver.local_addr().unwrap(), ClusterDomains::with([])));
    responder.learn(table("127.0.0.1"), responder.begin_read());
    let serving = tokio::spawn(responder.clone().serve());
    let client = UdpSocket::bind(LOOPBACK).await.unwrap();
    client.connect(address).await.unwrap();
    let found = ask(&client, "web.shop.svc.cluster.local").await;
    assert!(found.ends_with(&[10, 96, 0, 1]), "{found:?}");
    let forwarding = tokio::spawn(async move {
        let mut buffer = [0; 512];
        let (length, from) = resolver.recv_from(&mut buffer).await.unwrap();
        let wrong = [buffer[0] ^ 1, buffer[1], 0x81];
        resolver.send_to(&wrong, from).await.unwrap();
        let question = message::parse(&buffer[..length]).unwrap();
        let answer = question.answer(ResultCode::NoError, &["192.0.2.1".parse().unwrap()]);
        resolver.send_to(&answer, from).await.unwrap();
    });
    let forwarded = ask(&client, "example.com").await;
    assert!(forwarded.ends_with(&[192, 0, 2, 1]), "{forwarded:?}");
    forwarding.await.unwrap();
    serving.abort();
}

#[tokio::test]
async fn many_addresses_are_answered_over_tcp_and_other_names_forwarded() {
    let resolver = TcpListener::bind(LOOPBACK).await.unwrap();
    let (socket, listener) = (UdpSocket::bind(LOOPBACK).await.unwrap(), TcpListener::bind(LOOPBACK).await.unwrap());
    let address = listener.local_addr().unwrap();
    let responder = Arc::new(Responder::new(socket, resolver.local_addr().unwrap(), ClusterDomains::with([])));
    responder.learn(table("127.0.0.1"), responder.begin_read());
    let serving = tokio::spawn(responder.serve_connections(listener));
    let mut client = TcpStream::connect(address).await.unwrap();
    write_message(&mut client, &message::query("web.shop.svc", 1)).await.unwrap();
    let found = read_message(&mut client, MAX_MESSAGE).await.unwrap();
    assert!(found.ends_with(&[10, 96, 0, 1]), "{found:?}");
    write_message(&mut client, &message::query("example.com", 1)).await.unwrap();
    let (mut forwarded, _) = resolver.accept().await.unwrap();
    let asked = read_message(&mut forwarded, MAX_QUERY).await.unwrap();
    let addresses: Vec<IpAddr> = (0..200).map(|last| IpAddr::from([192, 0, 2, last])).collect();
    let answer = message::parse(&asked).unwrap().answer_within(MAX_MESSAGE, ResultCode::NoError, &addresses);
    write_message(&mut forwarded, &answer).await.unwrap();
    assert_eq!(read_message(&mut client, MAX_MESSAGE).await.unwrap(), answer);
    write_message(&mut client, &message::query("mail.shop.svc", 1)).await.unwrap();
    let (mut forwarded, _) = resolver.accept().await.unwrap();
    let asked = read_message(&mut forwarded, MAX_QUERY).await.unwrap();
    let outside = message::parse(&asked).unwrap();
    assert_eq!(outside.name, "mail.example.com", "the name that an ExternalName stands for");
    let answer = outside.answer(ResultCode::NoError, &["192.0.2.9".parse().unwrap()]);
    write_message(&mut forwarded, &answer).await.unwrap();
    let alias = read_message(&mut client, MAX_MESSAGE).await.unwrap();
    assert!(alias[3] & 15 == 0 && alias.ends_with(&[192, 0, 2, 9]), "{alias:?}");
    client.write_all(&[0xff, 0xff]).await.unwrap();
    assert!(read_message(&mut client, MAX_MESSAGE).await.is_err(), "a longer query than any ends the connection");
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn clients_that_are_not_placed_pods_are_refused() {
    let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
    let address = socket.local_addr().unwrap();
    let responder = Arc::new(Responder::new(socket, address, ClusterDomains::with([])));
    responder.learn(table("10.0.0.9"), responder.begin_read());
    let bytes = message::query("web.shop.svc", 1);
    let question = message::parse(&bytes).unwrap();
    let refused = responder.answer(&question, &bytes, "127.0.0.1".parse().unwrap()).await;
    assert_eq!(refused[3] & 15, 5);
    let learning = async {
        responder.wanted.notified().await;
        responder.learn(table("127.0.0.1"), responder.begin_read());
    };
    responder.wanted.notified().await;
    let asking = responder.answer(&question, &bytes, "127.0.0.1".parse().unwrap());
    let ((), found) = tokio::join!(learning, asking);
    assert!(found.ends_with(&[10, 96, 0, 1]), "a pod that was made a moment ago is found");
}

#[tokio::test(start_paused = true)]
async fn only_names_that_may_come_wait_for_a_read_and_old_names_are_not_answered() {
    let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
    let address = socket.local_addr().unwrap();
    let responder = Arc::new(Responder::new(socket, address, ClusterDomains::with([])));
    responder.learn(table("127.0.0.1"), responder.begin_read());
    let ask = |name: &'static str| {
        let responder = responder.clone();
        async move {
            let (bytes, began) = (message::query(name, 1), Instant::now());
            let question = message::parse(&bytes).unwrap();
            let answer = responder.answer(&question, &bytes, "127.0.0.1".parse().unwrap()).await;
            (answer[3] & 15, began.elapsed())
        }
    };
    assert_eq!(ask("example.com.shop.svc.cluster.local").await, (3, Duration::ZERO));
    assert_eq!(ask("1.0.0.127.in-addr.arpa").await, (3, Duration::ZERO));
    assert_eq!(ask("later.shop.svc.cluster.local").await, (3, PATIENCE));
    tokio::time::advance(MAX_AGE).await;
    assert_eq!(ask("web.shop.svc").await.0, 2, "the address may be another's");
}
