//! `portolan dns`: DNS responder for the names of logical clusters, beside a physical cluster.

mod message;
mod names;
mod responder;
mod sources;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context as _, ensure};
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::net::{TcpListener, UdpSocket};

use super::{cluster_api::ClusterApi, server};
use names::ClusterDomains;
use responder::Responder;

/// File with the resolver of the pod.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const PORT: u16 = 53;

/// Run the DNS responder of a physical cluster: it answers pods of Portolan with the names of their workspace, and
/// forwards all other names.
#[derive(Args)]
pub(crate) struct DnsArgs {
    /// Address to listen on, over UDP and TCP.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:5353")]
    listen: SocketAddr,
    /// Resolver of all other names; by default the first of /etc/resolv.conf.
    #[arg(long, value_name = "IP[:PORT]", value_parser = resolver)]
    resolver: Option<SocketAddr>,
    /// Domain of the physical cluster, beside cluster.local. Its names are never forwarded, because they include those
    /// of all tenants.
    #[arg(long, value_name = "DOMAIN")]
    cluster_domain: Vec<String>,
    /// Kubeconfig of the physical cluster; by default the ServiceAccount of the pod.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl DnsArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        server::init_logging("info");
        super::runtime()?.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<()> {
        let resolver = match self.resolver {
            Some(resolver) => resolver,
            None => {
                let text =
                    std::fs::read_to_string(RESOLV_CONF).with_context(|| format!("{RESOLV_CONF} cannot be read"))?;
                first_resolver(&text)
                    .with_context(|| format!("{RESOLV_CONF} names no resolver; name one with --resolver"))?
            }
        };
        ensure!(resolver != self.listen, "--resolver is the responder itself: names would go in a circle");
        let config = match &self.kubeconfig {
            None => kube::Config::incluster().context("not in a pod with a ServiceAccount; name a --kubeconfig")?,
            Some(path) => {
                let unusable = || format!("{} cannot be used", path.display());
                let kubeconfig = Kubeconfig::read_from(path).with_context(unusable)?;
                let options = KubeConfigOptions::default();
                kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.with_context(unusable)?
            }
        };
        let api = ClusterApi::new(config)?;
        let unusable = || format!("cannot listen on {}; fix: another --listen", self.listen);
        let socket = UdpSocket::bind(self.listen).await.with_context(unusable)?;
        let listener = TcpListener::bind(self.listen).await.with_context(unusable)?;
        tracing::info!(listen = %self.listen, %resolver, member = api.server(), "starting");
        let responder = Arc::new(Responder::new(socket, resolver, ClusterDomains::with(self.cluster_domain)));
        tokio::select! {
            () = responder.follow(&api) => Ok(()),
            () = responder.clone().serve_connections(listener) => Ok(()),
            ended = responder.clone().serve() => ended.context("the socket failed"),
            stopped = server::stop_signal() => stopped,
        }
    }
}

/// Parses the address of a resolver; without a port, 53.
fn resolver(text: &str) -> Result<SocketAddr, String> {
    let with_port = || text.parse().map_err(|_| "an IP address, or IP:PORT".to_owned());
    text.parse::<IpAddr>().map_or_else(|_| with_port(), |address| Ok(SocketAddr::from((address, PORT))))
}

/// Returns the first resolver of a `resolv.conf`.
fn first_resolver(text: &str) -> Option<SocketAddr> {
    let named = |line: &str| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok();
    text.lines().find_map(named).map(|address| SocketAddr::from((address, PORT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers() {
        for (case, text, expected) in [
            ("the first one", "search a.b\nnameserver 10.96.0.10\nnameserver 1.1.1.1\n", Some("10.96.0.10:53")),
            ("an IPv6 address", "nameserver\tfd00::a", Some("[fd00::a]:53")),
            ("none", "options ndots:5\n# nameserver 1.1.1.1", None),
        ] {
            assert_eq!(first_resolver(text).map(|address| address.to_string()).as_deref(), expected, "{case}");
        }
        assert_eq!(resolver("10.0.0.1:5300").map(|address| address.to_string()), Ok("10.0.0.1:5300".into()));
        assert!(resolver("dns.example").is_err());
    }
}
