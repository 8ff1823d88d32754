//! Metrics of the tunnels, read on each scrape.

use std::sync::Arc;

use portolan_tunnel::gateway::TunnelGateway;
use prometheus::{
    IntGauge,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// Collector of the numbers of sessions and streams.
pub(crate) struct TunnelMetrics {
    tunnels: Arc<TunnelGateway>,
    sessions: IntGauge,
    streams: IntGauge,
}

impl TunnelMetrics {
    pub(crate) fn new(tunnels: Arc<TunnelGateway>) -> Self {
        let gauge = |name, help| IntGauge::new(name, help).expect("names are constants");
        let sessions = gauge("portolan_tunnel_sessions", "Agents that are connected to this server.");
        let streams = gauge("portolan_tunnel_streams", "Open streams to agents that are connected to this server.");
        Self { tunnels, sessions, streams }
    }
}

impl Collector for TunnelMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.sessions.desc().into_iter().chain(self.streams.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (sessions, streams) = self.tunnels.count();
        self.sessions.set(i64::try_from(sessions).unwrap_or(i64::MAX));
        self.streams.set(i64::try_from(streams).unwrap_or(i64::MAX));
        self.sessions.collect().into_iter().chain(self.streams.collect()).collect()
    }
}
