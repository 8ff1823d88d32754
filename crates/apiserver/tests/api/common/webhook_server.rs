//! Webhook server with its own certificate, on this machine.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::{PrivateKeyDer, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

/// Reply of a webhook.
pub enum Reply {
    /// Response in a review; `uid` is filled in.
    Response(Value),
    /// Any response.
    Raw(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Body without end.
    Endless,
    /// One byte per second.
    Drips,
    /// No response.
    Silence,
}

type Handler = dyn Fn(&str, &Value) -> Reply + Send + Sync;
type Body = UnsyncBoxBody<Bytes, Infallible>;

pub struct WebhookServer {
    pub address: SocketAddr,
    ca_bundle: String,
    /// Paths and requests, in order.
    pub asked: Arc<Mutex<Vec<(String, Value)>>>,
    /// Connections that were opened.
    pub connections: Arc<Mutex<usize>>,
    _tasks: JoinSet<()>,
}

impl WebhookServer {
    pub async fn start(handler: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let own = rcgen::generate_simple_self_signed(
            ["localhost", "127.0.0.1", "hook.default.svc"].map(str::to_owned).to_vec(),
        )
        .unwrap();
        let key = PrivateKeyDer::from_pem_slice(own.signing_key.serialize_pem().as_bytes()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, connections) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<usize>>::default());
        let mut tasks = JoinSet::new();
        let handler: Arc<Handler> = Arc::new(handler);
        tasks.spawn(accept(listener, TlsAcceptor::from(Arc::new(config)), handler, asked.clone(), connections.clone()));
        Self { address, ca_bundle: STANDARD.encode(own.cert.pem()), asked, connections, _tasks: tasks }
    }

    /// Returns a client configuration with a URL.
    pub fn client(&self, path: &str) -> Value {
        json!({"url": format!("https://{}{path}", self.address), "caBundle": self.ca_bundle})
    }

    /// Returns a client configuration with a Service.
    pub fn behind(&self, service: &str, port: u16) -> Value {
        let service = json!({"namespace": "default", "name": service, "path": "/x", "port": port});
        json!({"service": service, "caBundle": self.ca_bundle})
    }

    /// Returns the certificate authority of the server, as in a client configuration.
    pub fn ca_bundle(&self) -> &str {
        &self.ca_bundle
    }

    /// Returns the number of requests to a path.
    pub fn count(&self, path: &str) -> usize {
        self.asked.lock().iter().filter(|(asked, _)| asked == path).count()
    }

    /// The last request.
    pub fn last(&self) -> Value {
        self.asked.lock().last().map(|(_, request)| request.clone()).unwrap_or_default()
    }
}

async fn accept(
    listener: TcpListener,
    tls: TlsAcceptor,
    handler: Arc<Handler>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    connections: Arc<Mutex<usize>>,
) {
    let mut tasks = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        *connections.lock() += 1;
        let (tls, handler, asked) = (tls.clone(), handler.clone(), asked.clone());
        tasks.spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let service = service_fn(move |request| answer(request, handler.clone(), asked.clone()));
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    handler: Arc<Handler>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let headers = request.headers().clone();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    // A request without a body is known by its headers.
    let named = headers.iter().map(|(name, value)| (name.to_string(), Value::from(value.to_str().unwrap())));
    let review: Value = if body.is_empty() {
        named.collect::<serde_json::Map<_, _>>().into()
    } else {
        serde_json::from_slice(&body).unwrap()
    };
    // A body that is not an admission review contains no request.
    let request = review.get("request").unwrap_or(&review);
    asked.lock().push((path.clone(), request.clone()));
    let full = |bytes: Vec<u8>| Full::new(Bytes::from(bytes)).boxed_unsync();
    Ok(match handler(&path, request) {
        Reply::Response(mut response) => {
            if response.get("uid").is_none() {
                response["uid"] = review["request"]["uid"].clone();
            }
            let review = json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response});
            Response::new(full(review.to_string().into_bytes()))
        }
        Reply::Raw(code, headers, body) => {
            let mut response = Response::builder().status(code);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            response.body(full(body)).unwrap()
        }
        Reply::Endless => {
            let piece = Bytes::from(vec![b' '; 64 * 1024]);
            let pieces = futures::stream::repeat_with(move || Ok(Frame::data(piece.clone())));
            Response::new(StreamBody::new(pieces).boxed_unsync())
        }
        Reply::Drips => {
            let drops = futures::stream::repeat(()).then(|()| async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Frame::data(Bytes::from_static(b" ")))
            });
            Response::new(StreamBody::new(drops).boxed_unsync())
        }
        Reply::Silence => std::future::pending().await,
    })
}
