//! Seams that the binary plugs into the server.

mod admission;
pub(crate) mod annotations;
mod inline_budget;
mod plans;
mod proxies;
mod resource_metrics;
pub(crate) mod warnings;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use portolan_kinds::{
    Kind,
    openapi::{OwnTexts, Texts},
};
use portolan_strategy::rbac::User;
use portolan_types::{BoxFuture, Reason, Status, agent::AgentId};
use serde_json::Value;
use tokio::io::DuplexStream;

pub(crate) use admission::AdmissionOptions;
pub use admission::{AdmissionPlugin, AdmissionRequest, Operation};
pub(crate) use inline_budget::InlineBudget;
pub use plans::{AdmittedWrite, WritePlan, WritePlanner, check_whole_object};
pub use proxies::{ProxyEndpoint, ProxyRequest, ProxyTarget};
pub use resource_metrics::{MeasuredResource, MeasuredUsage, UsageRequest, UsageSource};

pub use crate::requester::{Requester, UserToken};
use crate::{Body, directory::LogicalCluster, limits::Permit, metrics::GaugeGuard};

/// Advisor that predicts the effects of a write, one line each; the lines become `Warning:` headers.
pub trait WriteAdvisor: Send + Sync {
    /// Returns the effects of storing `object`, also for a dry run.
    fn advise(&self, cluster: &LogicalCluster, kind: &Kind, object: &Value) -> Vec<String>;
}

/// Handler of create-only resources that are computed and never stored.
pub trait ReviewHandler: Send + Sync {
    /// Returns the object with its `status`; `None` if it does not handle this kind.
    fn review<'a>(
        &'a self,
        cluster: &'a LogicalCluster,
        kind: &'a Kind,
        object: Value,
        caller: Requester<'a>,
    ) -> Option<BoxFuture<'a, Result<Value, Status>>>;
}

/// Stream of a running pod.
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
    /// Returns the name of the subresource.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }
}

/// Authorized request for a stream of a pod.
pub struct PodStreamRequest {
    /// The logical cluster.
    pub cluster: Arc<LogicalCluster>,
    /// Requested stream.
    pub stream: PodStream,
    /// Pod as stored.
    pub pod: Value,
    /// Requesting user.
    pub user: User,
    /// HTTP request; its extensions hold the connection's upgrade. Credentials are removed.
    pub request: http::Request<Bytes>,
    /// Permit to hold while bytes flow: after an upgrade the server does not see the end of the stream.
    pub permit: StreamPermit,
}

/// Permit for a stream, released with its last clone.
#[derive(Clone)]
pub struct StreamPermit {
    _held: Arc<(Permit, GaugeGuard)>,
}

impl StreamPermit {
    pub(crate) fn new(permit: Permit, counted: GaugeGuard) -> Self {
        Self { _held: Arc::new((permit, counted)) }
    }
}

/// Port of a pod.
pub struct PodPort {
    /// The logical cluster.
    pub cluster: Arc<LogicalCluster>,
    /// Pod as stored.
    pub pod: Value,
    /// Port.
    pub port: u16,
}

/// Access to running pods.
pub trait PodStreams: Send + Sync {
    /// Opens a stream. The response has a body, or is a 101 after the upgrade was taken out of the request's
    /// extensions.
    fn open(&self, request: PodStreamRequest) -> BoxFuture<'_, Result<http::Response<Body>, Status>>;

    /// Passes a request to a physical cluster. The response is cleaned of what its sender must not set, and is a 101
    /// after the upgrade was taken out of the request's extensions.
    fn proxy(&self, request: ProxyRequest) -> BoxFuture<'_, Result<http::Response<Body>, Status>> {
        drop(request);
        let refused =
            Status::new(Reason::ServiceUnavailable, "no application runs here to which requests could be forwarded");
        Box::pin(std::future::ready(Err(refused)))
    }

    /// Connects to a port in a pod's own network. Its owners see the error.
    fn connect(&self, to: PodPort) -> BoxFuture<'_, Result<DuplexStream, Status>> {
        Box::pin(async move {
            let name = portolan_types::object::name(&to.pod);
            Err(Status::new(Reason::ServiceUnavailable, format!("pod {name} cannot be reached: nothing runs in it")))
        })
    }
}

/// Connection of an authenticated agent.
pub struct AgentConnection {
    /// Agent.
    pub agent: AgentId,
    /// Rest of the life of its certificate.
    pub valid_for: Option<Duration>,
    /// Frames of the agent, as they arrive.
    pub body: Body,
}

/// Gateway to physical clusters behind agents.
pub trait AgentGateway: Send + Sync {
    /// Starts a session with an agent. The body of the response has the frames for it.
    ///
    /// # Errors
    /// 429 for too many agents, and for an agent that broke the protocol a moment ago.
    fn connect(&self, connection: AgentConnection) -> Result<http::Response<Body>, Status>;
}

/// Source of descriptions of types and fields, for OpenAPI and `kubectl explain`.
pub trait TextSource: Send + Sync {
    /// Reads the descriptions. They take megabytes, so they are dropped once the documents are built.
    fn read(&self) -> Box<dyn Texts>;
}

/// Default source with the descriptions of Portolan's own kinds.
struct OwnTextsOnly;

impl TextSource for OwnTextsOnly {
    fn read(&self) -> Box<dyn Texts> {
        Box::new(OwnTexts::read())
    }
}

/// Readiness check of a part outside the server.
pub trait ReadyCheck: Send + Sync {
    /// Returns its name in `/readyz?verbose`.
    fn name(&self) -> &str;
    /// Checks it; the error is a one-line reason.
    fn check(&self) -> Result<(), String>;
    /// Returns true if `/livez` and `/healthz` include it, as kube-apiserver's include etcd.
    fn is_vital(&self) -> bool {
        false
    }
    /// Returns a one-line note for operators, although the check passes.
    fn note(&self) -> Option<String> {
        None
    }
}

/// File of the web console. That of `/ui` itself is `index.html`.
#[derive(Clone, Copy, Debug)]
pub struct ConsoleFile {
    /// Path below `/ui/`.
    pub path: &'static str,
    /// Media type.
    pub media_type: &'static str,
    /// Hash of the content, quoted.
    pub etag: &'static str,
    /// Content, compressed by gzip.
    pub gzip: &'static [u8],
}

/// Seams of the server.
#[derive(Clone)]
pub struct Hooks {
    /// Admission plugins that run after the built-in ones, in order.
    pub admission: Vec<Arc<dyn AdmissionPlugin>>,
    /// Advisor on writes.
    pub advisor: Option<Arc<dyn WriteAdvisor>>,
    /// Planner of writes.
    pub planner: Option<Arc<dyn WritePlanner>>,
    /// Handlers of computed resources.
    pub reviews: Vec<Arc<dyn ReviewHandler>>,
    /// Access to pods.
    pub streams: Arc<dyn PodStreams>,
    /// Source of the usage of pods and nodes; without it `metrics.k8s.io` is not served.
    pub usage: Option<Arc<dyn UsageSource>>,
    /// Gateway to agents; `None` refuses them.
    pub agents: Option<Arc<dyn AgentGateway>>,
    /// Descriptions for `kubectl explain`.
    pub texts: Arc<dyn TextSource>,
    /// Checks of `/readyz`.
    pub ready: Vec<Arc<dyn ReadyCheck>>,
    /// Files of the web console; without any, `/ui` is 404.
    pub console: Vec<ConsoleFile>,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            admission: Vec::new(),
            advisor: None,
            planner: None,
            reviews: Vec::new(),
            streams: Arc::new(NoStreams),
            usage: None,
            agents: None,
            texts: Arc::new(OwnTextsOnly),
            ready: Vec::new(),
            console: Vec::new(),
        }
    }
}

/// Pod access without any physical cluster.
struct NoStreams;

impl PodStreams for NoStreams {
    fn open(&self, request: PodStreamRequest) -> BoxFuture<'_, Result<http::Response<Body>, Status>> {
        let name = portolan_types::object::name(&request.pod).to_owned();
        let what = request.stream.subresource();
        let message = format!("pods/{what} of {name:?} is not supported by this version of Portolan");
        Box::pin(async move { Err(Status::new(Reason::MethodNotAllowed, message)) })
    }
}
