//! Connector of an HTTP client whose connections are streams of a tunnel.

use std::{
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};

use http::Uri;
use hyper_util::rt::TokioIo;
use portolan_types::agent::AgentId;
use tower::Service;

use crate::session::{OpenError, TunnelStream};

use super::TunnelGateway;

/// Connector to the physical cluster of one agent. The address is ignored: the agent knows one API server only. It uses
/// the session that the agent has at the moment, so that a client outlives reconnects.
#[derive(Clone)]
pub struct TunnelConnector {
    gateway: Arc<TunnelGateway>,
    agent: AgentId,
}

impl TunnelConnector {
    /// Creates a connector.
    pub fn new(gateway: Arc<TunnelGateway>, agent: AgentId) -> Self {
        Self { gateway, agent }
    }
}

impl Service<Uri> for TunnelConnector {
    type Response = TokioIo<TunnelStream>;
    type Error = OpenError;
    type Future = Ready<Result<Self::Response, OpenError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), OpenError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(self.gateway.open(&self.agent).map(TokioIo::new))
    }
}
