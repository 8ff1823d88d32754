//! Tests of pod streams through a direct connection: TLS, a kubeconfig in a Secret, and an API server at the other end.

use std::{net::SocketAddr, sync::Arc};

use http::{
    Response, StatusCode,
    header::{CONNECTION, UPGRADE},
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use portolan_apiserver::{
    Body, full,
    hooks::{PodStreamRequest, PodStreams},
};
use portolan_simulator::{SimulatedCluster, SimulationConfig};
use portolan_syncer::{Addresses, Connector as _, DirectConnector};
use portolan_types::{BoxFuture, Seams, Status};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_util::sync::CancellationToken;

use super::*;

pub(super) const PODS: &str = "/clusters/root/api/v1/namespaces/default/pods";
pub(super) const EAST: &str = "/apis/portolan.dev/v1alpha1/physicalclusters/east";

/// Stream that echoes its input, and refuses upstream credentials.
pub(super) struct Echo;

impl PodStreams for Echo {
    fn open(&self, mut request: PodStreamRequest) -> BoxFuture<'_, Result<Response<Body>, Status>> {
        let answer = match (request.user.name.as_str(), request.request.extensions_mut().remove::<OnUpgrade>()) {
            ("portolan-admin", Some(upgrade)) => {
                tokio::spawn(async move {
                    let (mut from, mut to) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
                    tokio::io::copy(&mut from, &mut to).await.unwrap();
                    to.shutdown().await.unwrap();
                });
                let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
                let response = response.header(CONNECTION, "Upgrade").header(UPGRADE, "SPDY/3.1");
                let query = request.request.uri().query().unwrap_or_default().to_owned();
                Ok(response.header("x-stream-protocol-version", query).body(full("")).unwrap())
            }
            (name, _) => Err(Status::bad_request(format!("{name} asks for no upgrade"))),
        };
        Box::pin(async move { answer })
    }
}

/// Starts a simulated cluster that listens, and returns the kubeconfig of its administrator.
pub(super) async fn physical(config: SimulationConfig, stop: &CancellationToken) -> (Arc<SimulatedCluster>, String) {
    let cluster = SimulatedCluster::start(config, Seams::system(), stop).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let kubeconfig = cluster.api().pki().admin_kubeconfig(address).replace("/clusters/root", "");
    let (api, end) = (cluster.api().clone(), stop.clone());
    tokio::spawn(async move { api.serve(listener, end).await });
    (Arc::new(cluster), kubeconfig)
}

async fn answer_to(plane: &ControlPlane, method: Method, path: &str) -> (StatusCode, String) {
    let user = User { name: "admin".into(), groups: vec![portolan_strategy::rbac::MASTERS.into()], ..User::default() };
    let request = Request::builder().method(method).uri(path).body(Full::new(Bytes::new())).unwrap();
    let answer = plane.api().service_as(user).oneshot(request).await.unwrap();
    let status = answer.status();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// Starts a control plane with a pod on `east`, and returns the path of the pod.
async fn with_a_pod(kubeconfig: &str) -> (ControlPlane, tempfile::TempDir, WorkspaceClient, String) {
    let (plane, folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "east"},
        "stringData": {"kubeconfig": kubeconfig}});
    root.apply(&secret.to_string()).await.unwrap();
    let reference = json!({"namespace": "default", "name": "east"});
    let east = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "metadata": {"name": "east"},
        "spec": {"connection": {"direct": {"kubeconfigSecretRef": reference}}}});
    root.apply(&east.to_string()).await.unwrap();
    root.apply(&deployment("web").to_string()).await.unwrap();
    until(&root, "/apis/apps/v1/namespaces/default/deployments/web", |web| web["status"]["readyReplicas"] == 1).await;
    until(&root, "/api/v1/namespaces/default/pods", |pods| pods["items"][0]["status"]["phase"] == "Running").await;
    let pods = root.get("/api/v1/namespaces/default/pods").await.unwrap();
    let pod = format!("{PODS}/{}", pods["items"][0]["metadata"]["name"].as_str().unwrap());
    (plane, folder, root, pod)
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_a_pod_come_through_the_connection_for_as_long_as_it_may_be_used() {
    let stop = CancellationToken::new();
    let (_east, kubeconfig) = physical(SimulationConfig::named("east"), &stop).await;
    let (plane, _folder, root, pod) = with_a_pod(&kubeconfig).await;
    for (method, stream, code, expected) in [
        (Method::GET, "log", 200, "simulated: c of pod web-"),
        (Method::GET, "log?container=x", 400, "container x is not valid"),
        (Method::POST, "exec?command=sh", 400, "Upgrade request required"),
    ] {
        let (status, text) = answer_to(&plane, method, &format!("{pod}/{stream}")).await;
        assert!(status == code && text.contains(expected), "{status} {text}");
    }
    root.delete("/api/v1/namespaces/default/secrets/east").await.unwrap();
    let (status, text) = answer_to(&plane, Method::GET, &format!("{pod}/log")).await;
    let expected = r#"physical cluster \"east\" cannot be reached"#;
    assert!(status == StatusCode::SERVICE_UNAVAILABLE && text.contains(expected), "{status} {text}");
    plane.stop().await;
    stop.cancel();
}

/// Sends `exec` as kubectl does.
pub(super) async fn enter(folder: &Path, pod: &str) -> Response<kube::client::Body> {
    let kubeconfig = std::fs::read_to_string(folder.join("data/admin.kubeconfig")).unwrap();
    let kubeconfig = kubeconfig.replace("/clusters/root", "");
    let client =
        DirectConnector::from_kubeconfig(&kubeconfig, Addresses { allow_private: true, allow_loopback: true }).unwrap();
    let request = Request::post(format!("{pod}/exec?command=sh&stdin=true&secret=none"));
    let request = request.header(CONNECTION, "Upgrade").header(UPGRADE, "SPDY/3.1");
    client.connect().await.unwrap().send(request.body(kube::client::Body::empty()).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_is_spliced_through_and_ends_with_the_client_or_the_physical_cluster() {
    let stop = CancellationToken::new();
    let config = SimulationConfig { streams: Arc::new(Echo), ..SimulationConfig::named("east") };
    let (_east, kubeconfig) = physical(config, &stop).await;
    let (plane, folder, root, pod) = with_a_pod(&kubeconfig).await;

    let mut answer = enter(folder.path(), &pod).await;
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(answer.headers()["x-stream-protocol-version"], "command=sh&stdin=true", "what came below");
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
    let sent: Vec<u8> = (0..100_000_u32).flat_map(u32::to_be_bytes).collect();
    let (mut from, mut to) = tokio::io::split(&mut stream);
    let mut got = vec![0; sent.len()];
    let (written, read) = tokio::join!(to.write_all(&sent), from.read_exact(&mut got));
    written.and(read).unwrap();
    assert!(got == sent);
    to.shutdown().await.unwrap();
    assert_eq!(from.read(&mut got).await.unwrap(), 0, "the end of what the client said is the end of what it hears");

    let mut answer = enter(folder.path(), &pod).await;
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
    stream.write_all(b"hello").await.unwrap();
    stream.read_exact(&mut got[..5]).await.unwrap();
    root.delete("/apis/apps/v1/namespaces/default/deployments/web").await.unwrap();
    root.delete(EAST).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, stream.read(&mut got)).await.unwrap();
    assert!(ended.is_err() || ended.is_ok_and(|bytes| bytes == 0), "no stream to a pod that is gone stays open");
    plane.stop().await;
    stop.cancel();
}
