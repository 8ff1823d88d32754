//! Stage of the load: three physical clusters with load balancers, and a server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use harness::cluster::{self, PhysicalCluster};
use harness::kubeconfig::UserKubeconfig;
use harness::poll;
use harness::{portolan::Portolan, tools::Tools};

use super::super::downstream;
use super::addresses::{AddressBook, SERVICE};
use super::balancers::LoadBalancers;
use super::load::ServiceLoad;
use super::server_link::ServerLink;

/// The physical clusters.
const NAMES: [&str; 3] = ["east", "north", "west"];

/// Everything that runs. Dropping it stops it.
pub(crate) struct TrafficStage {
    pub(crate) server: Portolan,
    pub(crate) clusters: Vec<PhysicalCluster>,
    _balancers: LoadBalancers,
}

impl TrafficStage {
    /// Starts all programs. Nothing is registered.
    pub(crate) fn start(program: &Path, tools: &Tools, dir: &Path) -> Result<Self> {
        println!("starting the physical clusters {}", NAMES.join(", "));
        let clusters = cluster::start_all(tools, dir, &NAMES.map(str::to_owned))?;
        let balancers = LoadBalancers::start(&clusters)?;
        let server = Portolan::start_with(program, tools, &dir.join("portolan"), &[])?;
        Ok(Self { server, clusters, _balancers: balancers })
    }

    /// Returns the physical cluster of this name.
    pub(crate) fn cluster(&self, name: &str) -> Result<&PhysicalCluster> {
        let found = self.clusters.iter().find(|cluster| cluster.name() == name);
        found.with_context(|| format!("no cluster {name:?}"))
    }

    /// Returns the kubeconfig of the workspace `root:shop`.
    pub(crate) fn shop(&self) -> UserKubeconfig {
        self.server.workspace("root:shop")
    }

    /// Starts the load on the Service of the workspace `root:shop`, which has a copy on a physical cluster.
    pub(crate) fn load(&self) -> Result<ServiceLoad> {
        let namespace = poll::until("a copy of the Service", Duration::from_secs(30), || self.namespace())?;
        ServiceLoad::start(AddressBook {
            upstream: ServerLink::new(self.shop()),
            names: NAMES.map(str::to_owned).to_vec(),
            clusters: self.clusters.iter().map(|one| ServerLink::new(one.kubeconfig().clone())).collect(),
            namespace,
        })
    }

    /// Returns the namespace downstream that stands for `default`. It has the same name on each physical cluster.
    fn namespace(&self) -> Result<String> {
        let copies = self.clusters.iter().map(|cluster| downstream::find(cluster, "service", SERVICE));
        let copies = copies.collect::<Result<Vec<_>>>()?.concat();
        copies.first().map(|copy| downstream::namespace(copy).to_owned()).context("no physical cluster has a copy")
    }
}
