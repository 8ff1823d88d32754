//! The server behind its socket.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::common::{Hands, MAPS, config_map, user};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan_apiserver::{ApiServer, ApiServerConfig, authn::StaticToken, config::Limits};
use portolan_types::Seams;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

struct Served {
    api: Arc<ApiServer>,
    store: portolan_store::DynStore,
    address: SocketAddr,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

async fn served() -> Served {
    served_with(Seams::system()).await
}

async fn served_with(seams: Seams) -> Served {
    served_from(ApiServerConfig::in_memory(seams)).await
}

async fn served_from(config: ApiServerConfig) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ann = StaticToken { token: "t-ann".into(), user: user("ann", &["system:masters"]) };
    let config = ApiServerConfig { bind_address: address, static_tokens: vec![ann], ..config };
    let store = portolan_store::memory();
    let api = ApiServer::new(store.clone(), config).await.unwrap();
    let shutdown = CancellationToken::new();
    let (server, stop) = (api.clone(), shutdown.clone());
    let task = tokio::spawn(async move { server.serve(listener, stop).await.unwrap() });
    Served { api, store, address, shutdown, task }
}

impl Served {
    async fn connect(&self, protocol: &str, certified: bool) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.api.pki().ca.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = if certified {
            let admin = &self.api.pki().admin;
            let chain = vec![CertificateDer::from_pem_slice(admin.certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(admin.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let socket = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap()
    }

    async fn http2(&self, certified: bool) -> http2::SendRequest<Full<Bytes>> {
        let stream = self.connect("h2", certified).await;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

fn request(address: SocketAddr, method: &str, path: &str, body: String) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(format!("https://{address}{path}")).body(Full::new(body.into())).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_seen_over_http2() {
    let served = served().await;
    let mut admin = served.http2(true).await;
    let path = format!("/clusters/root{MAPS}");
    let create = request(served.address, "POST", &path, config_map("a", serde_json::json!({})).to_string());
    assert_eq!(admin.send_request(create).await.unwrap().status(), StatusCode::CREATED);

    let watch = request(served.address, "GET", &format!("{path}?watch=true"), String::new());
    let mut events = admin.send_request(watch).await.unwrap().into_body();
    let first = events.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(b"{\"type\":\"ADDED\""));

    let mut anonymous = served.http2(false).await;
    let read = |path: &str| request(served.address, "GET", path, String::new());
    assert_eq!(anonymous.send_request(read(&path)).await.unwrap().status(), StatusCode::FORBIDDEN);
    assert_eq!(anonymous.send_request(read("/readyz")).await.unwrap().status(), StatusCode::OK);
    assert_eq!(anonymous.send_request(read("/metrics")).await.unwrap().status(), StatusCode::FORBIDDEN);

    served.shutdown.cancel();
    let rest = events.collect().await.unwrap().to_bytes();
    assert!(rest.is_empty(), "watches end when the server does");
    drop((admin, anonymous));
    served.task.await.unwrap();
}

impl Served {
    /// The lines of `/metrics` that begin so.
    async fn metrics(&self, begin: &str) -> Vec<String> {
        let mut admin = self.http2(true).await;
        let read = request(self.address, "GET", "/metrics", String::new());
        let body = admin.send_request(read).await.unwrap().into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        text.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_fail_and_certificates_that_are_shown_are_counted() {
    let served = served().await;
    assert_eq!(
        served.metrics("apiserver_tls_handshake_errors_total").await,
        ["apiserver_tls_handshake_errors_total 0"]
    );
    let certified = "apiserver_client_certificate_expiration_seconds_";
    // The request that reads the revocation list also has a certificate, which is valid for a month.
    let counted = served.metrics(certified).await;
    for line in ["bucket{le=\"604800\"} 0", "bucket{le=\"2592000\"} 2", "bucket{le=\"+Inf\"} 2", "count 2"] {
        assert!(counted.contains(&format!("{certified}{line}")), "{line} is not in {counted:?}");
    }
    for begun in ["GET / HTTP/1.1\r\n\r\n", "no TLS at all"] {
        let mut socket = TcpStream::connect(served.address).await.unwrap();
        socket.write_all(begun.as_bytes()).await.unwrap();
        // The connection may end before all that was sent is read.
        let _ = socket.read_to_end(&mut Vec::new()).await;
    }
    let failed = async {
        while served.metrics("apiserver_tls_handshake_errors_total").await != ["apiserver_tls_handshake_errors_total 2"]
        {
        }
    };
    tokio::time::timeout(Duration::from_secs(30), failed).await.expect("both are counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_of_one_address_do_not_lock_out_its_other_clients() {
    for (case, handshakes, connections) in [("handshake slots", 8, 1_000), ("connection slots", 512, 8)] {
        let limits = Limits { handshakes, connections, ..Limits::default() };
        let served = served_from(ApiServerConfig { limits, ..ApiServerConfig::in_memory(Seams::system()) }).await;
        let mut admin = served.http2(true).await;
        let path = format!("/clusters/root{MAPS}");
        let read = |path: &str| request(served.address, "GET", path, String::new());
        let watched = admin.send_request(read(&format!("{path}?watch=true"))).await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..64 {
            silent.push(TcpStream::connect(served.address).await.unwrap());
        }
        let client = async { served.http2(true).await.send_request(read(&path)).await.unwrap().status() };
        let status = tokio::time::timeout(Duration::from_secs(2), client).await;
        assert_eq!(status.expect("it is served before silent handshakes end"), StatusCode::OK, "{case}");
        let oldest = tokio::time::timeout(Duration::from_secs(2), silent[0].read(&mut [0])).await;
        assert!(matches!(oldest, Ok(Ok(0) | Err(_))), "{case}: the oldest silent connection is closed: {oldest:?}");
        let mut events = watched.into_body();
        let create = request(served.address, "POST", &path, config_map("a", serde_json::json!({})).to_string());
        assert_eq!(admin.send_request(create).await.unwrap().status(), StatusCode::CREATED, "{case}");
        let event = events.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(event.starts_with(b"{\"type\":\"ADDED\""), "{case}: a watch goes on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_is_revoked_ends_its_connections_and_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = ApiServerConfig::in_directory(folder.path().join("data"), Seams::system());
    let served = served_from(config).await;
    let path = format!("/clusters/root{MAPS}");
    let read = |path: &str| request(served.address, "GET", path, String::new());
    let mut admin = served.http2(true).await;
    let watch = admin.send_request(read(&format!("{path}?watch=true"))).await.unwrap();
    assert_eq!(watch.status(), StatusCode::OK);
    let mut socket = websocket(&served, "application/json").await;
    let before = std::fs::read_to_string(folder.path().join("data/admin.kubeconfig")).unwrap();
    let der = CertificateDer::from_pem_slice(served.api.pki().admin.certificate.as_bytes()).unwrap();
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
    let line = format!("serial:{} # it has leaked\n", parsed.raw_serial_as_string());
    std::fs::write(folder.path().join("data/pki/revoked-certificates"), line).unwrap();
    let rest = tokio::time::timeout(Duration::from_secs(20), watch.into_body().collect()).await;
    assert!(rest.expect("the watch ends").is_err(), "it is cut");
    let rest = tokio::time::timeout(Duration::from_secs(5), socket.read_to_end(&mut Vec::new())).await;
    rest.expect("a watch over a WebSocket ends, too").unwrap_err();
    let mut again = served.http2(true).await;
    for path in [path.as_str(), "/readyz", "/version"] {
        assert_eq!(again.send_request(read(path)).await.unwrap().status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let renewed = async {
        while std::fs::read_to_string(folder.path().join("data/admin.kubeconfig")).unwrap() == before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), renewed).await.expect("the administrator gets another one");
    let mut anonymous = served.http2(false).await;
    assert_eq!(anonymous.send_request(read("/readyz")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_does_not_go_on_ends_after_three_seconds() {
    let served = served().await;
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    let opened = tokio::time::Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(8), silent.read(&mut [0])).await;
    assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
    assert!(opened.elapsed() >= Duration::from_millis(2_900), "{:?}", opened.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_sent_away_and_its_watches_go_on() {
    let served =
        served_from(ApiServerConfig { goaway_chance: 1.0, ..ApiServerConfig::in_memory(Seams::system()) }).await;
    let path = format!("/clusters/root{MAPS}");
    let opened = async {
        loop {
            let mut admin = served.http2(true).await;
            let watch = request(served.address, "GET", &format!("{path}?watch=true"), String::new());
            // A client that is sent away before its request has left tries again on another connection.
            match admin.send_request(watch).await {
                Ok(response) => return (admin, response.into_body()),
                Err(error) => assert!(error.to_string().contains("http2"), "{error}"),
            }
        }
    };
    let (mut admin, mut events) = tokio::time::timeout(Duration::from_secs(20), opened).await.expect("a watch opens");
    let told = async {
        let ready = || request(served.address, "GET", "/readyz", String::new());
        while admin.send_request(ready()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), told).await.expect("the connection takes no further requests");

    let stream = served.connect("http/1.1", true).await;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for name in ["a", "b"] {
        let create = request(served.address, "POST", &path, config_map(name, serde_json::json!({})).to_string());
        sender.ready().await.expect("there is no GOAWAY in HTTP/1.1");
        let answer = sender.send_request(create).await.unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED);
        answer.into_body().collect().await.unwrap();
    }
    let first = events.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(b"{\"type\":\"ADDED\""), "what is under way goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http1_is_spoken_too() {
    let served = served().await;
    let stream = served.connect("http/1.1", true).await;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let answer = sender
        .send_request(request(served.address, "GET", "/clusters/root/api/v1/namespaces", String::new()))
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_ok());
    drop(sender);
    served.shutdown.cancel();
    served.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversized_body_gets_its_error_before_the_end() {
    const PIECE: usize = 4096;
    const PIECES: usize = ((3 << 20) + (100 << 10)) / PIECE;
    let served = served().await;
    for (framing, begin, end, last) in [
        (format!("content-length: {}", PIECES * PIECE), String::new(), "", ""),
        ("transfer-encoding: chunked".to_owned(), format!("{PIECE:x}\r\n"), "\r\n", "0\r\n\r\n"),
    ] {
        let mut stream = served.connect("http/1.1", true).await;
        let head = format!(
            "POST /clusters/root{MAPS} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{framing}\r\n\r\n",
            served.address
        );
        let piece = format!("{begin}{}{end}", "x".repeat(PIECE));
        let talk = async {
            stream.write_all(head.as_bytes()).await.unwrap();
            for _ in 0..PIECES {
                stream.write_all(piece.as_bytes()).await.expect("the server listens to the end");
            }
            stream.write_all(last.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            let mut answer = Vec::new();
            while !String::from_utf8_lossy(&answer).contains("Request entity too large: limit is 3145728") {
                assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "{}", String::from_utf8_lossy(&answer));
            }
            assert!(answer.starts_with(b"HTTP/1.1 413 "), "{framing}: {}", String::from_utf8_lossy(&answer));
        };
        tokio::time::timeout(Duration::from_secs(60), talk).await.expect("an answer in time");
    }
    served.shutdown.cancel();
    served.task.await.unwrap();
}

/// A client that puts everything on one connection, each of whose streams is blocked by its own reader only.
async fn patient_http2(served: &Served) -> http2::SendRequest<Full<Bytes>> {
    let stream = served.connect("h2", true).await;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_connection_window_size(64 << 20).initial_stream_window_size(64 << 10);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Reads until so many events have come.
async fn events(body: &mut hyper::body::Incoming, count: usize) -> usize {
    let mut seen = 0;
    while seen < count {
        let data = body.frame().await.expect("the watch goes on").unwrap().into_data().unwrap();
        seen += data.iter().filter(|byte| **byte == b'\n').count();
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_watch_on_a_shared_connection_delays_no_other() {
    const EVENTS: usize = 300;
    let served = served().await;
    let mut admin = patient_http2(&served).await;
    let path = format!("/clusters/root{MAPS}?watch=true&resourceVersion={}", served.store.current());
    let mut watches = Vec::new();
    for _ in 0..100 {
        let watch = request(served.address, "GET", &path, String::new());
        let answer = admin.send_request(watch).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        watches.push(answer.into_body());
    }
    let mut stalled = watches.pop().unwrap();
    crate::common::fill(&served.store, EVENTS, 4096).await;
    for watch in &mut watches {
        assert_eq!(events(watch, EVENTS).await, EVENTS, "an event is missing");
    }
    let read = request(served.address, "GET", "/clusters/root/api/v1/namespaces", String::new());
    assert_eq!(admin.send_request(read).await.unwrap().status(), StatusCode::OK);
    assert_eq!(events(&mut stalled, EVENTS).await, EVENTS, "who comes late misses nothing");
    drop((watches, stalled, admin));
    served.shutdown.cancel();
    served.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_server_drains_its_connections() {
    let served = served().await;
    crate::common::fill(&served.store, 2000, 900).await;
    let mut admin = patient_http2(&served).await;
    let list = request(served.address, "GET", &format!("/clusters/root{MAPS}"), String::new());
    let mut body = admin.send_request(list).await.unwrap().into_body();
    let mut text = body.frame().await.unwrap().unwrap().into_data().unwrap().to_vec();
    served.shutdown.cancel();
    text.extend_from_slice(&body.collect().await.unwrap().to_bytes());
    let list: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2000));
    served.task.await.unwrap();
    // The client may see the end of the connection a moment later.
    let closed = async {
        while admin.ready().await.is_ok() {
            tokio::task::yield_now().await
        }
    };
    let closed = tokio::time::timeout(Duration::from_secs(10), closed).await;
    closed.expect("the connection takes no request any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_end_in_order_when_the_server_stops() {
    const WATCHES: usize = 20;
    let served = served().await;
    let mut admin = patient_http2(&served).await;
    let path = format!("/clusters/root{MAPS}?watch=true&resourceVersion={}", served.store.current());
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        let watch = request(served.address, "GET", &path, String::new());
        watches.push(admin.send_request(watch).await.unwrap().into_body());
    }
    let mut plain = http1::handshake(TokioIo::new(served.connect("http/1.1", true).await)).await.unwrap();
    tokio::spawn(plain.1);
    let watch = Request::get(&path).header("host", "portolan").body(Full::new(Bytes::new())).unwrap();
    watches.push(plain.0.send_request(watch).await.unwrap().into_body());
    crate::common::fill(&served.store, 1, 10).await;
    for watch in &mut watches {
        assert_eq!(events(watch, 1).await, 1);
    }
    served.shutdown.cancel();
    for watch in watches {
        // Not cut off: a stream that is reset, or a body without its end, is an error here.
        assert!(watch.collect().await.unwrap().to_bytes().is_empty(), "nothing is made up at the end");
    }
    served.task.await.unwrap();
    // The client was told to open a new connection, but may not have received that yet.
    let told = async {
        while admin.ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), told).await.expect("the client is told");
}

/// Opens a watch as a WebSocket in whose frames every event is a message.
async fn websocket(served: &Served, accept: &str) -> TokioIo<hyper::upgrade::Upgraded> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(served.connect("http/1.1", true).await)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let watch = Request::get(format!("/clusters/root{MAPS}?watch=true&resourceVersion={}", served.store.current()))
        .header("host", served.address.to_string())
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("accept", accept);
    let answer = sender.send_request(watch.body(Full::new(Bytes::new())).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    TokioIo::new(hyper::upgrade::on(answer).await.unwrap())
}

/// The next message: how its length is written, its opcode, and its payload.
async fn message(socket: &mut TokioIo<hyper::upgrade::Upgraded>) -> (u8, u8, Vec<u8>) {
    let mut head = [0; 2];
    socket.read_exact(&mut head).await.unwrap();
    let length = match head[1] {
        126 => u64::from(socket.read_u16().await.unwrap()),
        127 => socket.read_u64().await.unwrap(),
        short => u64::from(short),
    };
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    socket.read_exact(&mut payload).await.unwrap();
    (head[1], head[0], payload)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websockets_count_as_connections_for_as_long_as_they_last() {
    let limits = Limits { connections: 8, ..Limits::default() };
    let served = served_from(ApiServerConfig { limits, ..ApiServerConfig::in_memory(Seams::system()) }).await;
    let mut sockets = Vec::new();
    for _ in 0..12 {
        sockets.push(websocket(&served, "application/json").await);
    }
    // All are of one tenant, which may hold two when others need slots.
    for (n, socket) in sockets.iter_mut().take(4).enumerate() {
        let rest = tokio::time::timeout(Duration::from_secs(5), socket.read_to_end(&mut Vec::new())).await;
        rest.unwrap_or_else(|_| panic!("{n} is closed for a newer one")).unwrap_err();
    }
    crate::common::fill(&served.store, 1, 10).await;
    message(sockets.last_mut().unwrap()).await;
    served.shutdown.cancel();
    served.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websockets_carry_protobuf_and_large_events() {
    let served = served().await;
    let protobuf = "application/vnd.kubernetes.protobuf;stream=watch";
    let (mut json, mut binary) = (websocket(&served, "application/json").await, websocket(&served, protobuf).await);
    for (n, (size, length)) in [(10, 126), (100_000, 127), (1_000_000, 127)].into_iter().enumerate() {
        let name = format!("n{n}");
        let text = "x".repeat(size);
        let object = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": text}});
        let make = request(served.address, "POST", &format!("/clusters/root{MAPS}"), object.to_string());
        assert_eq!(served.http2(true).await.send_request(make).await.unwrap().status(), StatusCode::CREATED);
        let (written, opcode, payload) = message(&mut json).await;
        assert_eq!((written, opcode), (length, 0x81), "{size}: one text message");
        let event: serde_json::Value = serde_json::from_slice(&payload).unwrap();
        assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&"ADDED".into(), &name.as_str().into()));
        assert_eq!(event["object"]["data"]["k"].as_str().map(str::len), Some(size));
        let (written, opcode, payload) = message(&mut binary).await;
        assert_eq!((written, opcode), (length, 0x82), "{size}: one binary message");
        // `WatchEvent`: its type, and the object as `RawExtension` in its own envelope.
        assert_eq!(payload[..7], *b"\x0a\x05ADDED");
        let envelope = payload.windows(4).position(|window| window == b"k8s\0").unwrap();
        assert!(envelope < 24, "{envelope}");
        let has = |needle: &[u8]| payload.windows(needle.len()).any(|window| window == needle);
        assert!(has(name.as_bytes()) && has(text.as_bytes()), "{size}");
    }
    served.shutdown.cancel();
    let (_, opcode, payload) = message(&mut json).await;
    assert_eq!((opcode, payload), (0x88, vec![0x03, 0xe8]), "a server that stops says goodbye");
    served.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_is_served_over_a_websocket() {
    let served = served().await;
    let connect = async |origin: Option<&str>, upgrade: bool| {
        let stream = served.connect("http/1.1", true).await;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let mut watch = Request::get(format!("/clusters/root{MAPS}?watch=true"))
            .header("host", served.address.to_string())
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        if upgrade {
            watch = watch.header("connection", "keep-alive, Upgrade").header("upgrade", "websocket");
        }
        if let Some(origin) = origin {
            watch = watch.header("origin", origin);
        }
        sender.send_request(watch.body(Full::new(Bytes::new())).unwrap()).await.unwrap()
    };
    let with_token = async |protocols: &str| {
        let stream = served.connect("http/1.1", false).await;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let watch = Request::get(format!("/clusters/root{MAPS}?watch=true"))
            .header("host", served.address.to_string())
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", protocols);
        sender.send_request(watch.body(Full::new(Bytes::new())).unwrap()).await.unwrap()
    };
    let prefix = "base64url.bearer.authorization.k8s.io.";
    let known = with_token(&format!("{prefix}dC1hbm4, binary.k8s.io")).await;
    assert_eq!(known.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(known.headers()["sec-websocket-protocol"], "binary.k8s.io", "the token is not repeated");
    assert_eq!(with_token(&format!("{prefix}bm9ib2R5, binary.k8s.io")).await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(with_token("binary.k8s.io").await.status(), StatusCode::FORBIDDEN);
    assert_eq!(connect(Some("https://evil.example"), true).await.status(), StatusCode::FORBIDDEN);
    assert_eq!(connect(None, false).await.status(), StatusCode::OK, "without an upgrade it is a plain watch");

    let answer = connect(Some(&format!("https://{}", served.address)), true).await;
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    // The example of RFC 6455, section 1.3.
    assert_eq!(answer.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    let mut socket = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
    crate::common::fill(&served.store, 1, 10).await;
    let mut head = [0; 4];
    socket.read_exact(&mut head).await.unwrap();
    assert_eq!(head[..2], [0x81, 126], "one text message");
    let mut event = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]]))];
    socket.read_exact(&mut event).await.unwrap();
    let event: serde_json::Value = serde_json::from_slice(&event).unwrap();
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&"ADDED".into(), &"m00000".into()));
    // A masked ping is answered; a masked close ends it.
    socket.write_all(&[0x89, 0x81, 0, 0, 0, 0, 7]).await.unwrap();
    let mut pong = [0; 3];
    socket.read_exact(&mut pong).await.unwrap();
    assert_eq!(pong, [0x8a, 1, 7]);
    socket.write_all(&[0x88, 0x80, 0, 0, 0, 0]).await.unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, [0x88, 2, 0x03, 0xe8]);
    served.shutdown.cancel();
    served.task.await.unwrap();
}

async fn answer_to(address: SocketAddr, words: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(words).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(std::time::Duration::from_secs(20), socket.read_to_end(&mut answer)).await;
    // Who is refused may see the connection reset.
    let _ = read.expect("the connection is ended");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_http_gets_a_clear_error() {
    const REFUSED: &str = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
    let served = served().await;
    let long = format!("POST /api HTTP/1.1\r\nhost: a\r\ncontent-length: 30000\r\n\r\n{}", "x".repeat(30_000));
    for request in ["GET / HTTP/1.1\r\n\r\n", "HEAD /livez HTTP/1.0\r\n\r\n", "PUT /a HTTP/1.1\r\n", "OPTIONS", &long] {
        let answer = answer_to(served.address, request.as_bytes()).await;
        assert_eq!(String::from_utf8_lossy(&answer), REFUSED, "{request:.20}");
    }
    for request in ["PATCH /a HTTP/1.1\r\n\r\n", "DELETE / HTTP/1.1\r\n\r\n", "\n\n\n\n\n\n"] {
        let answer = answer_to(served.address, request.as_bytes()).await;
        assert!(!answer.starts_with(b"HTTP"), "Go's server answers to none: {request:?}");
    }
    let mut admin = served.http2(true).await;
    let read = request(served.address, "GET", "/readyz", String::new());
    assert_eq!(admin.send_request(read).await.unwrap().status(), StatusCode::OK);
    served.shutdown.cancel();
    served.task.await.unwrap();
}

/// The certificate that the server presents, issued 300 days ago or now.
#[tokio::test]
async fn a_certificate_that_soon_ends_is_replaced_while_the_server_runs() {
    const DAYS: i64 = 300;
    let hands = Hands::now();
    hands.forward(-DAYS * 86_400);
    let served = served_with(hands.seams()).await;
    let shown = |stream: &TlsStream<TcpStream>| stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    // A client certificate of that day has ended.
    let stream = served.connect("h2", false).await;
    let before = shown(&stream);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let live = || request(served.address, "GET", "/livez", String::new());
    // Nor would the connection last for an hour without anything on it.
    let lasting = "/api/v1/namespaces?watch=true&timeoutSeconds=7200";
    let mut watch = request(served.address, "GET", lasting, String::new());
    watch.headers_mut().insert("authorization", "Bearer t-ann".parse().unwrap());
    let watch = sender.send_request(watch).await.unwrap();
    assert_eq!(watch.status(), StatusCode::OK);
    hands.forward(DAYS * 86_400);
    assert_eq!(shown(&served.connect("http/1.1", false).await), before, "it has not been read yet");
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(3601)).await;
    tokio::time::resume();
    let renewed = async {
        while shown(&served.connect("http/1.1", false).await) == before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), renewed).await.expect("another one is shown");
    assert_eq!(sender.send_request(live()).await.unwrap().status(), StatusCode::OK, "connections of before go on");
    drop((watch, sender));
    served.shutdown.cancel();
    served.task.await.unwrap();
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// As in CVE-2023-44487: streams that are reset as soon as they are opened cost who sends them next to nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_opens_streams_only_to_reset_them_is_ended() {
    const CANCEL: u32 = 8;
    const ENHANCE_YOUR_CALM: u32 = 11;
    let (headers, reset, settings, go_away) = (1, 3, 4, 7);
    let served = served().await;
    let mut stream = served.connect("h2", true).await;
    // GET, https, and a path; the names are those of HPACK's own table.
    let request = [&[0x82, 0x87, 0x04, 7][..], b"/readyz"].concat();
    let mut sent = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(settings, 0, 0, &[])].concat();
    for stream in (1..400).step_by(2) {
        sent.extend(frame(headers, 5, stream, &request));
        sent.extend(frame(reset, 0, stream, &CANCEL.to_be_bytes()));
    }
    stream.write_all(&sent).await.unwrap();
    let mut said = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut said)).await;
    // It may end without the last words of TLS.
    let _ = ended.expect("the connection is ended");
    let mut rest = said.as_slice();
    let mut why = None;
    while let Some((head, tail)) = rest.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (payload, next) = tail.split_at(length.min(tail.len()));
        if head[3] == go_away {
            why = payload.get(4..8).map(|code| u32::from_be_bytes(code.try_into().unwrap()));
        }
        rest = next;
    }
    assert_eq!(why, Some(ENHANCE_YOUR_CALM));
    let mut other = served.http2(true).await;
    let ready = other.send_request(self::request(served.address, "GET", "/readyz", String::new())).await.unwrap();
    assert_eq!(ready.status(), StatusCode::OK, "other clients are not disturbed");
    drop((ready, other));
    served.shutdown.cancel();
    served.task.await.unwrap();
}
