//! Tests against an API server in this process whose answers the test chooses.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _, future::BoxFuture};
use http::{
    HeaderValue, Uri,
    header::{AUTHORIZATION, CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::Client as HttpClient,
    rt::{TokioExecutor, TokioIo},
};
use kube::client::middleware::BaseUriLayer;
use portolan_types::{
    GroupResource, LogicalClusterId, ObjectKey,
    placement::{CopyPhase, NamespaceMapping, PlacedCopy, PlacementRecord, ProjectionSource},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};
use tower::{BoxError, ServiceBuilder};

use super::*;

type Answer = fn(&Request<Incoming>) -> Response<Full<Bytes>>;

type Upgraded = fn(OnUpgrade) -> BoxFuture<'static, ()>;

/// Starts a physical cluster with one pod, whose streams give `answer`. Returns the recorded requests, without reads of
/// the pod.
async fn physical(pod: Value, answer: Answer) -> (Client, mpsc::UnboundedReceiver<(String, HeaderMap)>) {
    physical_with(pod, answer, |upgrade| Box::pin(echo(upgrade))).await
}

/// As [`physical`], with something else at the other end of connections that change their protocol.
async fn physical_with(
    pod: Value,
    answer: Answer,
    upgraded: Upgraded,
) -> (Client, mpsc::UnboundedReceiver<(String, HeaderMap)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (asked, questions) = mpsc::unbounded_channel();
    let pod = Arc::new(pod.to_string());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (pod, asked) = (pod.clone(), asked.clone());
            let service = service_fn(move |mut request: Request<Incoming>| {
                let (pod, asked) = (pod.clone(), asked.clone());
                async move {
                    if request.uri().path().ends_with("/pods/web-1") {
                        return Ok::<_, Infallible>(Response::new(Full::from((*pod).clone())));
                    }
                    let _ = asked.send((request.uri().to_string(), request.headers().clone()));
                    let response = answer(&request);
                    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                        tokio::spawn(upgraded(hyper::upgrade::on(&mut request)));
                    }
                    Ok(response)
                }
            });
            let server = hyper::server::conn::http1::Builder::new();
            tokio::spawn(server.serve_connection(TokioIo::new(socket), service).with_upgrades());
        }
    });
    let http = HttpClient::builder(TokioExecutor::new()).build_http::<Body>();
    let service = ServiceBuilder::new().layer(BaseUriLayer::new(uri)).map_err(BoxError::from).service(http);
    (Client::new(service, "default"), questions)
}

async fn echo(upgrade: OnUpgrade) {
    let (mut from, mut to) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

/// The pod as it is known upstream, and as it is downstream.
fn web(uid_downstream: &str) -> (DownstreamPod, Value) {
    let (east, cluster) = ("east-uid".parse().unwrap(), LogicalClusterId::new(7));
    let key = ObjectKey::namespaced(
        cluster,
        GroupResource::new("", "pods"),
        "shop".parse().unwrap(),
        "web-1".parse().unwrap(),
    );
    let source = ProjectionSource {
        namespace: "shop".into(),
        name: "web-1".into(),
        uid: "downstream".into(),
        is_used: false,
        shown: Default::default(),
    };
    let mut pod = json!({"metadata": {"name": "web-1", "namespace": "shop", "uid": "upstream",
        "annotations": {"sync.portolan.dev/source": json!({"east-uid": source}).to_string()}}});
    let copy = PlacedCopy {
        name: "east".into(),
        uid: "east-uid".parse().unwrap(),
        phase: CopyPhase::Projected,
        replicas: None,
        epoch: 0,
    };
    PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() }.write_to(&mut pod);
    let known = DownstreamPod::of(&pod, &key, &east, NamespaceMapping::Identity, None).unwrap();
    let downstream = json!({"metadata": {"name": "web-1", "uid": uid_downstream, "labels": {"sync.portolan.dev/cluster": cluster.to_string()}}});
    (known, downstream)
}

fn upgrading(to: &'static str) -> HeaderMap {
    HeaderMap::from_iter([
        (CONNECTION, HeaderValue::from_static("Upgrade")),
        (UPGRADE, HeaderValue::from_static(to)),
        (AUTHORIZATION, HeaderValue::from_static("Bearer of-the-tenant")),
    ])
}

fn answer(code: u16, body: &str) -> Response<Full<Bytes>> {
    Response::builder().status(code).body(Full::from(body.to_owned())).unwrap()
}

fn status(code: u16, reason: &str, message: &str) -> Response<Full<Bytes>> {
    let status = json!({"kind": "Status", "code": code, "reason": reason, "message": message});
    answer(code, &status.to_string())
}

fn question<'a>(subresource: &'a str, headers: &'a HeaderMap) -> StreamRequest<'a> {
    StreamRequest { subresource, options: &["command", "stdin"], method: Method::POST, query: "", headers }
}

async fn recorded_request(
    stream: &str,
    headers: &HeaderMap,
    uid_downstream: &str,
    answer: Answer,
) -> Result<OpenedStream, StreamError> {
    let (pod, downstream) = web(uid_downstream);
    let (client, _questions) = physical(downstream, answer).await;
    open(&client, &pod, &question(stream, headers)).await
}

#[tokio::test]
async fn an_upgraded_connection_carries_bytes_both_ways_and_no_credentials_of_the_client() {
    let (pod, downstream) = web("downstream");
    let (client, mut questions) = physical(downstream, |_| {
        let upgrade = Response::builder().status(101).header(CONNECTION, "Upgrade").header(UPGRADE, "SPDY/3.1");
        upgrade.header("set-cookie", "a=b").body(Full::default()).unwrap()
    })
    .await;
    let headers = upgrading("SPDY/3.1");
    let query = "command=sh&stdin=true&x=y";
    let asked = StreamRequest { query, ..question("exec", &headers) };
    let opened = open(&client, &pod, &asked).await.unwrap();
    let OpenedStream::Upgraded(headers, upgrade) = opened else { panic!("{opened:?}") };
    assert!(!headers.contains_key("set-cookie"), "{headers:?}");
    let (uri, seen) = questions.recv().await.unwrap();
    assert_eq!(uri, "/api/v1/namespaces/shop/pods/web-1/exec?command=sh&stdin=true");
    assert!(!seen.contains_key(AUTHORIZATION), "{seen:?}");
    let mut connection = TokioIo::new(upgrade.await.unwrap());
    connection.write_all(b"hello").await.unwrap();
    connection.shutdown().await.unwrap();
    let mut text = String::new();
    connection.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");
}

#[tokio::test]
async fn logs_come_as_a_body() {
    let opened = recorded_request("log", &HeaderMap::new(), "downstream", |_| answer(200, "a line\n")).await.unwrap();
    let OpenedStream::Body(body) = opened else { panic!("{opened:?}") };
    assert_eq!(body.collect().await.unwrap().to_bytes(), "a line\n");
}

#[tokio::test]
async fn a_pod_that_is_not_ours_is_not_asked() {
    let (pod, downstream) = web("another");
    let (client, mut questions) = physical(downstream, |_| answer(200, "secrets")).await;
    let headers = HeaderMap::new();
    let asked = question("log", &headers);
    let opened = open(&client, &pod, &asked).await;
    assert!(matches!(opened, Err(StreamError::NoSuchPod)), "{opened:?}");
    assert!(questions.try_recv().is_err());
}

#[tokio::test]
async fn refusals_are_distinguished() {
    let refused: [(&str, Answer, &str); 7] = [
        (
            "in its own words",
            |_| status(400, "BadRequest", "container x is not valid"),
            "answered 400: container x is not valid",
        ),
        (
            "a right that is missing downstream",
            |_| status(403, "Forbidden", "User \"portolan\" cannot"),
            "has no right",
        ),
        ("credentials that have expired", |_| answer(401, ""), "has no right"),
        ("a redirect to elsewhere", |_| answer(302, ""), "makes no sense"),
        ("success without a change of protocol", |_| answer(200, "hello"), "makes no sense"),
        (
            "another protocol than was asked for",
            |_| Response::builder().status(101).header(UPGRADE, "h2c").body(Full::default()).unwrap(),
            "makes no sense",
        ),
        ("a pod that went meanwhile", |_| status(404, "NotFound", "pods \"web-1\" not found"), "answered 404"),
    ];
    for (case, answer, expected) in refused {
        let error =
            recorded_request("exec", &upgrading("websocket"), "downstream", answer).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{case}: {error}");
    }
}

#[tokio::test]
async fn kubelet_output_is_forwarded_within_a_bound() {
    let long: Answer = |_| answer(500, &"x".repeat(1 << 20));
    let opened = recorded_request("exec", &upgrading("SPDY/3.1"), "downstream", long).await.unwrap();
    let OpenedStream::Text(code, text) = opened else { panic!("{opened:?}") };
    assert_eq!((code.as_u16(), text.len()), (500, 1024));
}

#[tokio::test]
async fn a_physical_cluster_that_is_not_there_is_unreachable() {
    let uri: Uri = "http://127.0.0.1:1".parse().unwrap();
    let http = HttpClient::builder(TokioExecutor::new()).build_http::<Body>();
    let service = ServiceBuilder::new().layer(BaseUriLayer::new(uri)).map_err(BoxError::from).service(http);
    let headers = HeaderMap::new();
    let asked = question("log", &headers);
    let opened = open(&Client::new(service, "default"), &web("downstream").0, &asked).await;
    assert!(matches!(opened, Err(StreamError::Unreachable(_))), "{opened:?}");
}

fn forwards(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let key = request.headers().get(SEC_WEBSOCKET_KEY).unwrap();
    let response = Response::builder().status(101).header(CONNECTION, "Upgrade").header(UPGRADE, "websocket");
    let response = response.header(SEC_WEBSOCKET_ACCEPT, derive_accept_key(key.as_bytes()));
    response.header(SEC_WEBSOCKET_PROTOCOL, "v4.channel.k8s.io").body(Full::default()).unwrap()
}

/// A kubelet's end of a port-forward to port 8443, behind which a server echoes its input until it reads `fail`.
async fn kubelet(upgrade: OnUpgrade) {
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgrade.await.unwrap()), Role::Server, None).await;
    let (mut to, mut from) = socket.split();
    for channel in [0, 1] {
        to.send(Message::binary(vec![channel, 0xfb, 0x20])).await.unwrap();
    }
    while let Some(Ok(Message::Binary(heard))) = from.next().await {
        let said = if heard.ends_with(b"fail") { Bytes::from_static(b"\x01refused") } else { heard };
        to.send(Message::Binary(said)).await.unwrap();
    }
}

async fn forwarded(downstream: Value, answer: Answer) -> (Result<PortForward, StreamError>, String) {
    let (pod, _) = web("downstream");
    let (client, mut questions) = physical_with(downstream, answer, |upgrade| Box::pin(kubelet(upgrade))).await;
    let forwarded = forward(&client, &pod, 8443).await;
    (forwarded, questions.try_recv().map(|(uri, _)| uri).unwrap_or_default())
}

#[tokio::test]
async fn a_port_of_a_pod_is_connected_to() {
    let (connection, uri) = forwarded(web("downstream").1, forwards).await;
    assert_eq!(uri, "/api/v1/namespaces/shop/pods/web-1/portforward?ports=8443");
    let PortForward { stream, carry } = connection.unwrap();
    let carried = tokio::spawn(carry);
    let (mut from, mut to) = tokio::io::split(stream);
    let sent: Vec<u8> = (0..100_000_u32).flat_map(u32::to_be_bytes).collect();
    let (written, mut got) = (sent.clone(), vec![0; sent.len()]);
    let writing = tokio::spawn(async move {
        to.write_all(&written).await.unwrap();
        to
    });
    from.read_exact(&mut got).await.unwrap();
    assert!(got == sent, "other bytes came back");
    writing.await.unwrap().write_all(b"fail").await.unwrap();
    assert_eq!(from.read(&mut got).await.unwrap(), 0, "what fails there ends the connection");
    carried.await.unwrap();
}

#[tokio::test]
async fn a_port_is_connected_to_only_where_that_is_the_pods() {
    let mut of_node = web("downstream").1;
    of_node["spec"]["hostNetwork"] = true.into();
    let without_proof: Answer = |request| {
        let mut response = forwards(request);
        response.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, HeaderValue::from_static("another"));
        response
    };
    let another_protocol: Answer = |request| {
        let mut response = forwards(request);
        response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("channel.k8s.io"));
        response
    };
    let refusals: [(&str, Value, Answer, bool, &str); 5] = [
        ("another pod", web("another").1, forwards, false, "the pod is not on the physical cluster"),
        ("a pod with its node's network", of_node, forwards, false, "the pod has the network of its node"),
        (
            "no proof that it was understood",
            web("downstream").1,
            without_proof,
            true,
            "does not speak v4.channel.k8s.io",
        ),
        ("another protocol", web("downstream").1, another_protocol, true, "does not speak v4.channel.k8s.io"),
        (
            "a kubelet that refuses",
            web("downstream").1,
            |_| answer(500, "not running"),
            true,
            "answered 500: not running",
        ),
    ];
    for (case, downstream, answer, is_asked, expected) in refusals {
        let (refused, uri) = forwarded(downstream, answer).await;
        let why = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(why.contains(expected), "{case}: {why}");
        assert_eq!(!uri.is_empty(), is_asked, "{case}");
    }
}

#[tokio::test]
async fn a_pod_that_takes_nothing_is_given_up() {
    let (pod, downstream) = web("downstream");
    let deaf: Upgraded = |upgrade| {
        Box::pin(async move {
            let _held = upgrade.await.unwrap();
            std::future::pending().await
        })
    };
    let (client, _questions) = physical_with(downstream, forwards, deaf).await;
    let PortForward { mut stream, carry } = forward(&client, &pod, 8443).await.unwrap();
    tokio::time::pause();
    let carried = tokio::spawn(carry);
    let (piece, mut written) = (vec![0; 1 << 20], 0);
    while stream.write_all(&piece).await.is_ok() {
        written += 1;
        assert!(written < 1000, "somebody takes it");
    }
    carried.await.unwrap();
}
