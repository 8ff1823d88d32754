//! Connector of a physical cluster behind an agent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderName, HeaderValue};
use hyper_util::{client::legacy::Client as HttpClient, rt::TokioExecutor};
use kube::client::{Body, middleware::BaseUriLayer};
use portolan_syncer::{ConnectError, Connector};
use portolan_tunnel::gateway::{AgentState, TunnelConnector, TunnelGateway};
use portolan_types::{
    BoxFuture,
    agent::{ACCESS_IDENTITY, AgentId, IDENTITY_HEADER},
};
use tower::{BoxError, ServiceBuilder};

/// Maximum number of idle connections.
const MAX_IDLE: usize = 32;
/// Base of URLs; the agent ignores it.
const BASE: &str = "http://agent.invalid";

/// Time in which a connection waits for an agent, so that it is used as soon as it is back.
const ARRIVAL: Duration = Duration::from_secs(15);

/// Connector through the tunnel of an agent. Its clients use the session that the agent has at the moment.
pub(crate) struct TunnelledConnector {
    gateway: Arc<TunnelGateway>,
    agent: AgentId,
    /// True once the absence of the agent was reported; only then a connection waits.
    is_absence_known: AtomicBool,
}

impl TunnelledConnector {
    pub(crate) fn new(gateway: Arc<TunnelGateway>, agent: AgentId) -> Self {
        Self { gateway, agent, is_absence_known: AtomicBool::new(false) }
    }

    /// Makes a client. `identity` names the account that the agent acts as, if not its own.
    fn client(&self, identity: Option<HeaderValue>) -> Result<kube::Client, ConnectError> {
        match self.gateway.state(&self.agent) {
            AgentState::Connected { .. } => {}
            AgentState::Unknown => {
                let why = format!(
                    "no agent is connected; `portolan cluster join {} --print-command` prints the command that installs one",
                    self.agent.name
                );
                return Err(ConnectError::Failed(why));
            }
            AgentState::Disconnected(end) => {
                return Err(ConnectError::Failed(format!("the agent is disconnected: {end}")));
            }
        }
        let connector = TunnelConnector::new(self.gateway.clone(), self.agent.clone());
        let http: HttpClient<_, Body> =
            HttpClient::builder(TokioExecutor::new()).pool_max_idle_per_host(MAX_IDLE).build(connector);
        let base = http::Uri::from_static(BASE);
        let add_identity = move |mut request: http::Request<Body>| {
            if let Some(identity) = &identity {
                request.headers_mut().insert(HeaderName::from_static(IDENTITY_HEADER), identity.clone());
            }
            request
        };
        let service = ServiceBuilder::new().layer(BaseUriLayer::new(base)).map_request(add_identity);
        let service = service.map_err(BoxError::from).service(http);
        Ok(kube::Client::new(service, "default"))
    }
}

impl Connector for TunnelledConnector {
    fn connect(&self) -> BoxFuture<'_, Result<kube::Client, ConnectError>> {
        Box::pin(async move {
            if self.is_absence_known.load(Ordering::Relaxed) {
                // Without an agent, the client below says why.
                let _ = tokio::time::timeout(ARRIVAL, self.gateway.connected(&self.agent)).await;
            }
            let client = self.client(None);
            self.is_absence_known.store(client.is_err(), Ordering::Relaxed);
            client
        })
    }

    fn connect_for_users(&self) -> BoxFuture<'_, Result<kube::Client, ConnectError>> {
        let identity = HeaderValue::from_static(ACCESS_IDENTITY);
        Box::pin(std::future::ready(self.client(Some(identity))))
    }
}
