//! Physical clusters behind agents: the API server's gateway, and the connector.

mod connector;
mod metrics;
mod servers;

use std::sync::Arc;

use http::Response;
use portolan_apiserver::{
    Body, Directory,
    hooks::{AgentConnection, AgentGateway},
};
use portolan_tunnel::gateway::{RefusedSession, TenantLookup, TunnelGateway};
use portolan_types::{LogicalClusterId, Reason, Status};

pub(crate) use connector::TunnelledConnector;
pub(crate) use metrics::TunnelMetrics;
pub(crate) use servers::ServerPresence;

/// Seconds until an agent tries again at a server that is full or stops.
const RETRY_SECONDS: u32 = 5;

/// Gateway of the API server.
pub(crate) struct AgentTunnels(pub(crate) Arc<TunnelGateway>);

/// Returns the lookup of the workspace below root that a logical cluster belongs to; root for itself.
pub(crate) fn tenant_lookup(directory: Arc<Directory>) -> TenantLookup {
    Box::new(move |home| {
        let parent = |cluster: &LogicalClusterId| directory.by_id(*cluster).and_then(|found| found.parent);
        let lineage = std::iter::successors(Some(home), parent);
        lineage.take_while(|cluster| *cluster != LogicalClusterId::ROOT).last().unwrap_or(LogicalClusterId::ROOT)
    })
}

impl AgentGateway for AgentTunnels {
    fn connect(&self, connection: AgentConnection) -> Result<Response<Body>, Status> {
        let AgentConnection { agent, valid_for, body } = connection;
        self.0.accept(agent, valid_for, body).map_err(|refused| match refused {
            RefusedSession::Full | RefusedSession::TenantFull | RefusedSession::Silent => {
                Status::too_many_requests(refused.to_string(), RETRY_SECONDS)
            }
            RefusedSession::Penalty(rest) => {
                let seconds = u32::try_from(rest.as_secs()).unwrap_or(RETRY_SECONDS) + 1;
                Status::too_many_requests(refused.to_string(), seconds)
            }
            RefusedSession::Stopping => Status::new(Reason::ServiceUnavailable, refused.to_string()),
        })
    }
}
