//! The server behind its socket.

use std::{net::SocketAddr, sync::Arc};

use crate::common::{MAPS, config_map};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan_apiserver::{ApiServer, ApiServerConfig};
use portolan_types::Seams;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

struct Served {
    api: Arc<ApiServer>,
    address: SocketAddr,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

async fn served() -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = ApiServerConfig { bind_address: address, ..ApiServerConfig::in_memory(Seams::system()) };
    let api = ApiServer::new(portolan_store::memory(), config).await.unwrap();
    let shutdown = CancellationToken::new();
    let (server, stop) = (api.clone(), shutdown.clone());
    let task = tokio::spawn(async move { server.serve(listener, stop).await.unwrap() });
    Served { api, address, shutdown, task }
}

impl Served {
    async fn connect(&self, protocol: &str, certified: bool) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.api.pki().ca.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = match certified {
            false => builder.with_no_client_auth(),
            true => {
                let admin = &self.api.pki().admin;
                let chain = vec![CertificateDer::from_pem_slice(admin.certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(admin.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
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

    let mut nobody = served.http2(false).await;
    let read = |path: &str| request(served.address, "GET", path, String::new());
    assert_eq!(nobody.send_request(read(&path)).await.unwrap().status(), StatusCode::FORBIDDEN);
    assert_eq!(nobody.send_request(read("/readyz")).await.unwrap().status(), StatusCode::OK);
    assert_eq!(nobody.send_request(read("/metrics")).await.unwrap().status(), StatusCode::FORBIDDEN);

    served.shutdown.cancel();
    let rest = events.collect().await.unwrap().to_bytes();
    assert!(rest.is_empty(), "watches end when the server does");
    drop((admin, nobody));
    served.task.await.unwrap();
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
