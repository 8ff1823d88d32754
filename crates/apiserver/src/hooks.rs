//! Seams: what the binary plugs into the server.

use std::sync::Arc;

use bytes::Bytes;
use portolan_machinery::{
    kinds::Kind,
    openapi::{OwnTexts, Texts},
    rbac::User,
};
use portolan_types::{BoxFuture, Reason, Status};
use serde_json::Value;
use tokio::io::DuplexStream;

use crate::{Body, admission::Admission, directory::LogicalCluster, limits::Place, pipeline::Counted};

/// Says in one line each what a write will lead to; the lines become `Warning:` headers.
pub trait WriteAdvisor: Send + Sync {
    /// `object` has been stored (or would be, in a dry run).
    fn advise(&self, cluster: &LogicalCluster, kind: &Kind, object: &Value) -> Vec<String>;
}

/// Answers create-only resources that are computed and never stored.
pub trait Reviews: Send + Sync {
    /// The object with its `status` filled in; `None` when this kind is none of its own.
    fn review<'a>(
        &'a self,
        cluster: &'a LogicalCluster,
        kind: &'a Kind,
        object: Value,
        user: &'a User,
    ) -> Option<BoxFuture<'a, Result<Value, Status>>>;
}

/// What is asked of a running pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodStream {
    /// `pods/log`.
    Log,
    /// `pods/exec`.
    Exec,
    /// `pods/attach`.
    Attach,
    /// `pods/portforward`.
    PortForward,
}

impl PodStream {
    /// The name of the subresource.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }
}

/// A request for a stream of a pod, authorized, its pod read.
pub struct PodStreamRequest {
    /// The logical cluster.
    pub cluster: Arc<LogicalCluster>,
    /// What is asked for.
    pub stream: PodStream,
    /// The pod as it is stored.
    pub pod: Value,
    /// Who asks.
    pub user: User,
    /// The HTTP request; its extensions hold the connection's upgrade. Credentials have been taken off.
    pub request: http::Request<Bytes>,
    /// To be kept as long as bytes flow: after an upgrade the server does not see the end of the stream.
    pub place: StreamPlace,
}

/// A place among the streams of the server; given back when the last clone is dropped.
#[derive(Clone)]
pub struct StreamPlace {
    _held: Arc<(Place, Counted)>,
}

impl StreamPlace {
    pub(crate) fn new(place: Place, counted: Counted) -> Self {
        Self { _held: Arc::new((place, counted)) }
    }
}

/// A port of a pod.
pub struct PodPort {
    /// The logical cluster.
    pub cluster: Arc<LogicalCluster>,
    /// The pod as it is stored.
    pub pod: Value,
    /// The port.
    pub port: u16,
}

/// Reaches into running pods.
pub trait PodStreams: Send + Sync {
    /// Answers with a body, or with 101 after taking the upgrade out of the request's extensions.
    fn open(&self, request: PodStreamRequest) -> BoxFuture<'_, Result<http::Response<Body>, Status>>;

    /// Connects to a port in a pod's own network. The error says why not, to those whose pod it is.
    fn connect(&self, to: PodPort) -> BoxFuture<'_, Result<DuplexStream, Status>> {
        Box::pin(async move {
            let name = portolan_types::object::name(&to.pod);
            Err(Status::new(Reason::ServiceUnavailable, format!("pod {name} cannot be reached: nothing runs in it")))
        })
    }
}

/// Has descriptions of types and fields, for OpenAPI and `kubectl explain`.
pub trait TextSource: Send + Sync {
    /// Reads them. They take megabytes, so they are read when the documents are made, and dropped after.
    fn read(&self) -> Box<dyn Texts>;
}

/// Where the binary has none: those of our own kinds.
struct OwnTextsOnly;

impl TextSource for OwnTextsOnly {
    fn read(&self) -> Box<dyn Texts> {
        Box::new(OwnTexts::read())
    }
}

/// Whether the server is ready, apart from its own state.
pub trait ReadyCheck: Send + Sync {
    /// One word for `/readyz?verbose`.
    fn name(&self) -> &str;
    /// `Err` says in one line why not.
    fn check(&self) -> Result<(), String>;
    /// Whether `/livez` and `/healthz` ask for it too, as kube-apiserver's do for etcd.
    fn is_vital(&self) -> bool {
        false
    }
    /// What those who run the server should know although it is ready, in one line.
    fn note(&self) -> Option<String> {
        None
    }
}

/// All seams.
#[derive(Clone)]
pub struct Hooks {
    /// Admission beside the built-in one, in order.
    pub admission: Vec<Arc<dyn Admission>>,
    /// Advice on writes.
    pub advisor: Option<Arc<dyn WriteAdvisor>>,
    /// Computed resources.
    pub reviews: Vec<Arc<dyn Reviews>>,
    /// Streams of pods.
    pub streams: Arc<dyn PodStreams>,
    /// Texts of `kubectl explain`.
    pub texts: Arc<dyn TextSource>,
    /// Conditions of `/readyz`.
    pub ready: Vec<Arc<dyn ReadyCheck>>,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            admission: Vec::new(),
            advisor: None,
            reviews: Vec::new(),
            streams: Arc::new(NoStreams),
            texts: Arc::new(OwnTextsOnly),
            ready: Vec::new(),
        }
    }
}

/// Where no physical cluster can be reached.
struct NoStreams;

impl PodStreams for NoStreams {
    fn open(&self, request: PodStreamRequest) -> BoxFuture<'_, Result<http::Response<Body>, Status>> {
        let name = portolan_types::object::name(&request.pod).to_owned();
        let what = request.stream.subresource();
        let message = format!("pods/{what} of {name:?} is not supported by this version of Portolan");
        Box::pin(async move { Err(Status::new(Reason::MethodNotAllowed, message)) })
    }
}
