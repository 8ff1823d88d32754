//! The stage of the suites: a Portolan server with two physical clusters joined to it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use serde_json::{Value, json};

use super::downstream;
use super::workspaces::WorkspaceChecks;
use harness::cluster::PhysicalCluster;
use harness::kubectl::Kubectl;
use harness::poll;
use harness::{portolan::Portolan, tools::Tools};

/// The physical cluster in region `eu`.
pub(super) const EAST: &str = "east";
/// The physical cluster in region `us`.
pub(super) const WEST: &str = "west";

/// Everything that runs. Dropping it stops it.
pub(super) struct Scene {
    clusters: Vec<PhysicalCluster>,
    workspaces: WorkspaceChecks,
    /// Objects on each physical cluster before anything was synced.
    before: Vec<BTreeSet<String>>,
}

impl Scene {
    pub(super) fn new(tools: &Tools, dir: &Path, clusters: Vec<PhysicalCluster>, server: Portolan) -> Result<Self> {
        let before = clusters.iter().map(downstream::inventory).collect::<Result<_>>()?;
        Ok(Self { clusters, workspaces: WorkspaceChecks::new(tools, dir, server)?, before })
    }

    pub(super) fn server(&self) -> &Portolan {
        self.workspaces.server()
    }

    pub(super) fn server_mut(&mut self) -> &mut Portolan {
        self.workspaces.server_mut()
    }

    /// kubectl in the logical cluster `root`.
    pub(super) fn root(&self) -> &Kubectl {
        self.workspaces.root()
    }

    pub(super) fn clusters(&self) -> &[PhysicalCluster] {
        &self.clusters
    }

    /// The physical cluster of this name.
    pub(super) fn cluster(&self, name: &str) -> Result<&PhysicalCluster> {
        self.clusters.iter().find(|cluster| cluster.name() == name).ok_or_else(|| anyhow!("no cluster {name:?}"))
    }

    /// Registers the physical clusters in `root`, their kubeconfigs in Secrets of the namespace `infra`, and waits
    /// until they are Ready. Safe to repeat.
    pub(super) fn join_clusters(&self) -> Result<()> {
        let regions = [(EAST, "eu"), (WEST, "us")];
        let mut items = vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "infra"}})];
        for (name, region) in regions {
            items.extend(registration(self.cluster(name)?, &json!({"region": region, "zone": format!("{region}-1")})));
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
        self.workspaces.root().run_with("apply -f -", &list)?;
        self.clusters_ready()
    }

    /// Waits until both physical clusters are Ready.
    pub(super) fn clusters_ready(&self) -> Result<()> {
        let wait = format!("wait physicalclusters/{EAST} physicalclusters/{WEST} --for=condition=Ready --timeout=50s");
        self.workspaces.root().run(&wait).map(drop)
    }

    /// Deletes the workspace `root:<name>` and checks that the physical clusters are clean.
    pub(super) fn delete_workspace(&self, name: &str) -> Result<()> {
        self.workspaces.delete(name)?;
        poll::until("the physical clusters are clean", Duration::from_secs(60), || self.clean())
    }

    /// Checks that nothing new is left on the physical clusters.
    fn clean(&self) -> Result<()> {
        let pairs = self.clusters.iter().zip(&self.before);
        pairs.into_iter().try_for_each(|(cluster, before)| downstream::nothing_since(cluster, before))
    }

    /// Makes the workspace `root:<name>`, waits until it is Ready, and gives kubectl in it.
    pub(super) fn workspace(&self, name: &str) -> Result<Kubectl> {
        self.workspaces.make(name)
    }
}

/// Returns the objects that register a physical cluster in `root`: a Secret in the namespace `infra`, and the
/// PhysicalCluster that names it.
pub(super) fn registration(cluster: &PhysicalCluster, labels: &Value) -> [Value; 2] {
    let name = cluster.name();
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "infra"},
        "stringData": {"kubeconfig": cluster.kubeconfig().to_json()},
    });
    let reference = json!({"namespace": "infra", "name": name, "key": "kubeconfig"});
    let registered = json!({
        "apiVersion": "portolan.dev/v1alpha1",
        "kind": "PhysicalCluster",
        "metadata": {"name": name, "labels": labels},
        "spec": {"connection": {"direct": {"kubeconfigSecretRef": reference}}},
    });
    [secret, registered]
}

/// The same error again, for a second place that reports it.
pub(super) fn copy(error: &Error) -> Error {
    anyhow!("{error:#}")
}
