//! Server and clusters of the suite.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{EAST, SHOP, WEST};
use crate::downstream::{items, name};
use crate::workspaces::WorkspaceChecks;
use harness::clients::{ClientBundle, Clients};
use harness::kubectl::Kubectl;
use harness::portolan::Portolan;
use harness::process_kubelet::{self, ProcessCluster, ProcessClusterOptions};
use harness::tools::{Tools, repository};
use harness::{poll, process};

/// Time limit for the actions of pods.
pub(super) const LIMIT: Duration = Duration::from_secs(90);
/// Name of the image of Portolan, whose program the kubelet knows.
const IMAGE: &str = "portolan:e2e";
/// Life of the tokens of pods, in seconds. It is the shortest one.
const TOKEN_SECONDS: u64 = 60;

/// Server with two joined clusters, and the workspace `shop`.
pub(super) struct InClusterStage<'a> {
    /// Programs of Kubernetes.
    pub(super) tools: &'a Tools,
    /// Folder of the suite.
    pub(super) dir: &'a Path,
    /// Python with the client and kopf, and Helm.
    pub(super) clients: Clients,
    /// kubectl in the namespace `shop` of the workspace `shop`.
    pub(super) shop: Kubectl,
    program: PathBuf,
    workspaces: WorkspaceChecks,
    // Dropped after the server, which works on them.
    clusters: Vec<ProcessCluster>,
}

impl<'a> InClusterStage<'a> {
    /// Starts everything, and joins the clusters.
    pub(super) fn start(program: &Path, tools: &'a Tools, dir: &'a Path) -> Result<Self> {
        let program = fs::canonicalize(program).context("the program is missing")?;
        let kubelet = process_kubelet::build()?;
        let clients = clients()?;
        let options =
            ProcessClusterOptions { tools, kubelet: &kubelet, dir, entrypoints: &[(IMAGE, program.as_path())] };
        let clusters = process_kubelet::start_all(&options, &[EAST, WEST])?;
        let addresses: Vec<String> = clusters.iter().map(ProcessCluster::host_address).collect();
        let server = Portolan::start_reachable(&program, tools, &dir.join("portolan"), &addresses)?;
        let workspaces = WorkspaceChecks::new(tools, dir, server)?;
        let shop = workspaces.make(SHOP)?;
        shop.run(&format!("create namespace {SHOP}"))?;
        let shop = shop.in_namespace(SHOP).within(LIMIT * 2);
        let stage = Self { tools, dir, clients, shop, program, workspaces, clusters };
        stage.join()?;
        Ok(stage)
    }

    /// Program of Portolan.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// kubectl in the workspace root.
    pub(super) fn root(&self) -> &Kubectl {
        self.workspaces.root()
    }

    /// Server under test.
    pub(super) fn server(&self) -> &Portolan {
        self.workspaces.server()
    }

    /// Physical cluster of this name.
    pub(super) fn cluster(&self, name: &str) -> Result<&ProcessCluster> {
        self.clusters.iter().find(|cluster| cluster.name() == name).context("no such cluster")
    }

    /// Folders of the volumes of a cluster.
    pub(super) fn disks(&self, cluster: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir.join(cluster).join("disks")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// Makes another workspace, with kubectl in it.
    pub(super) fn workspace(&self, name: &str) -> Result<Kubectl> {
        self.workspaces.make(name)
    }

    /// Applies a file of `e2e/in-cluster` in the workspace, with PLACE and PYTHON filled in.
    pub(super) fn apply(&self, file: &str, place: &str) -> Result<()> {
        let text = source(file)?;
        let python = self.clients.python("").get_program().to_str().context("a path is not UTF-8")?.to_owned();
        self.shop.run_with("apply -f -", &text.replace("PLACE", place).replace("PYTHON", &python)).map(drop)
    }

    /// Joins `east` directly, with the server's address for its pods, and `west` by an agent.
    fn join(&self) -> Result<()> {
        self.join_cluster(EAST, &[])?;
        let agent = format!("--agent-server={}", self.address_at(WEST)?);
        self.join_cluster(WEST, &["--agent", &agent])?;
        let server = self.address_at(EAST)?;
        for (cluster, access) in [
            (EAST, json!({"server": server, "tokenSeconds": TOKEN_SECONDS})),
            (WEST, json!({"tokenSeconds": TOKEN_SECONDS})),
        ] {
            let patch = json!({"spec": {"podAccess": access}}).to_string();
            self.root().run_args(&["patch", "physicalcluster", cluster, "--type=merge", "-p", &patch])?;
        }
        let wait = "wait physicalclusters --all --timeout=80s --for=condition=";
        for condition in ["Ready", "PodsReachServer", "PodsResolveNames"] {
            self.root().within(LIMIT).run(&format!("{wait}{condition}"))?;
        }
        Ok(())
    }

    fn join_cluster(&self, name: &str, flags: &[&str]) -> Result<()> {
        let file = self.cluster(name)?.kubectl().kubeconfig_file();
        let mut command = Command::new(&self.program);
        command.args(["cluster", "join", name, "--dns", "--image", IMAGE, "--kubeconfig"]).arg(file);
        command.arg("--upstream").arg(self.root().kubeconfig_file()).args(flags);
        process::output(&mut command, LIMIT).with_context(|| format!("portolan cluster join {name}")).map(drop)
    }

    /// URL of the server for the pods of a cluster.
    fn address_at(&self, cluster: &str) -> Result<String> {
        Ok(format!("https://{}:{}", self.cluster(cluster)?.host_address(), self.server().port()))
    }

    /// Adds the logs of the pods of both clusters to an error.
    pub(super) fn explain(&self, outcome: Result<()>) -> Result<()> {
        outcome.with_context(|| {
            let told = self.clusters.iter().map(|cluster| {
                let pods = cluster.kubectl().run("get pods -A -o wide").unwrap_or_else(|error| format!("{error:#}"));
                format!("{}:\n{pods}", cluster.name())
            });
            told.collect::<Vec<_>>().join("\n")
        })
    }

    /// Deletes the workspace, and waits until both clusters have no namespace of it.
    pub(super) fn delete_workspace(&self) -> Result<()> {
        self.workspaces.delete(SHOP)?;
        poll::until("the clusters are clean", LIMIT, || {
            for cluster in &self.clusters {
                let list = cluster.kubectl().json("get namespaces")?;
                let left: Vec<&str> = items(&list).iter().map(name).filter(|name| name.contains(SHOP)).collect();
                ensure!(left.is_empty(), "{} has {left:?}", cluster.name());
            }
            Ok(())
        })
    }
}

/// Builds kopf, the Python client and Helm.
pub(super) fn clients() -> Result<Clients> {
    Clients::build([ClientBundle::Python, ClientBundle::Go])
}

/// Returns a file of `e2e/in-cluster`.
pub(super) fn source(file: &str) -> Result<String> {
    let path = repository().join("e2e/in-cluster").join(file);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}
