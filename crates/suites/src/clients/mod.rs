//! Unmodified third-party clients, each against a logical cluster of its own: programs for kube-apiserver must work.
//! The same programs pass against a real one (`--against kube`).

mod agents;
mod cert_manager;
mod deployed;
mod go_tests;
mod harbour;
mod helm;
mod helm_kinds;
pub(super) mod kcp;
mod mongodb;
mod mongodb_published;
mod programs;
mod prometheus;
mod prometheus_published;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::etcd::was_killed;
use super::scene::{copy, registration};
use super::workspaces::WorkspaceChecks;
use harness::clients::{ClientBundle, Clients};
use harness::cluster::PhysicalCluster;
use harness::kubectl::Kubectl;
use harness::pair::ServerPair;
use harness::poll;
use harness::report::CheckReport;
use harness::{portolan::Portolan, tools::Tools};

/// Published client that a suite is named after.
#[derive(Clone, Copy)]
pub(super) enum PublishedClient {
    ClientGo,
    ControllerRuntime,
    Helm,
    Python,
    Javascript,
    Java,
    PrometheusOperator,
    CertManager,
    MongodbOperator,
}

/// The server forgets changes after this many seconds, so that a watch from the beginning learns it soon.
const HISTORY: &str = "--history=10";

/// Physical cluster of the logical clusters' pods. No client may depend on its type.
const PHYSICAL_CLUSTER: &str = r#"{apiVersion: portolan.dev/v1alpha1, kind: PhysicalCluster,
    metadata: {name: harbour}, spec: {connection: {simulated: {nodes: 2}}}}"#;

/// Context of a client's suite.
struct ClientStage<'a> {
    clients: &'a Clients,
    /// Client of the logical cluster of the suite.
    kubectl: &'a Kubectl,
    /// Further logical clusters, where the server has them.
    workspaces: Option<&'a WorkspaceChecks>,
    /// Physical cluster whose pods' ports lead to this machine.
    quay: Option<&'a PhysicalCluster>,
    /// Folder for the files of the suite.
    dir: &'a Path,
}

/// Starts a server, and runs each suite in a workspace of its own.
pub(super) fn run_against_portolan(
    report: &mut CheckReport,
    chosen: &[PublishedClient],
    program: &Path,
    tools: &Tools,
    dir: &Path,
) -> Result<()> {
    // Suites make the nodes by hand that they look for.
    let flags = [HISTORY, "--stored-nodes"];
    let server = Portolan::start_with(program, tools, &dir.join("portolan"), &flags)?;
    run_at(report, chosen, server, tools, dir)
}

/// Runs as [`run_against_portolan`], at one of two servers on one etcd, while the other one is killed repeatedly.
pub(super) fn run_against_pair(
    report: &mut CheckReport,
    chosen: &[PublishedClient],
    program: &Path,
    tools: &Tools,
    dir: &Path,
) -> Result<()> {
    let (mut pair, server) = ServerPair::start(program, tools, dir, &[HISTORY, "--stored-nodes"])?;
    let (done, kills) = pair.while_one_is_killed(|| run_at(report, chosen, server, tools, dir));
    was_killed(report, "clients", kills);
    done
}

/// Runs each suite in a workspace of its own, with a simulated physical cluster.
fn run_at(
    report: &mut CheckReport,
    chosen: &[PublishedClient],
    server: Portolan,
    tools: &Tools,
    dir: &Path,
) -> Result<()> {
    let clients = Clients::build(bundles(chosen))?;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let workspaces = WorkspaceChecks::new(tools, dir, server)?;
    let ready = || {
        workspaces.root().run_with("apply -f -", PHYSICAL_CLUSTER)?;
        workspaces.root().run("wait physicalcluster/harbour --for=condition=Ready --timeout=50s").map(drop)
    };
    if !report.check("clients: a simulated physical cluster becomes Ready", ready) {
        return Ok(());
    }
    for client in chosen {
        let name = client.name();
        let made = workspaces.make(name);
        if report.check(&format!("{name}: a workspace is made and Ready"), || made.as_ref().map(drop).map_err(copy)) {
            let quay = client.quay(report, tools, dir, workspaces.root());
            if let Ok(kubectl) = &made {
                let stage =
                    ClientStage { clients: &clients, kubectl, workspaces: Some(&workspaces), quay: quay.as_ref(), dir };
                run(report, *client, &stage);
            }
            report
                .check(&format!("{name}: the workspace goes with all that is left in it"), || workspaces.delete(name));
            if quay.is_some() {
                report.check(&format!("{name}: its physical cluster is let go"), || let_go(workspaces.root()));
            }
        }
    }
    report.check("clients: the server is still the process that was started", || workspaces.server().check_alive());
    Ok(())
}

/// Runs each suite against a real kube-apiserver, with real controllers.
pub(super) fn run_against_kube(
    report: &mut CheckReport,
    chosen: &[PublishedClient],
    cluster: &PhysicalCluster,
    dir: &Path,
) -> Result<()> {
    let clients = Clients::build(bundles(chosen))?;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    // A restarted API server has no state of earlier runs in memory.
    cluster.interrupt(Duration::ZERO)?;
    let stage = ClientStage { clients: &clients, kubectl: cluster.kubectl(), workspaces: None, quay: None, dir };
    chosen.iter().for_each(|client| run(report, *client, &stage));
    Ok(())
}

/// Returns the bundles that the chosen suites run, each once.
pub(super) fn bundles(chosen: &[PublishedClient]) -> BTreeSet<ClientBundle> {
    chosen.iter().flat_map(|client| client.bundles()).copied().collect()
}

/// Real physical cluster for suites with webhooks behind Services: they are reached through its API server.
const QUAY: &str = "quay";

fn registered(tools: &Tools, dir: &Path, root: &Kubectl) -> Result<PhysicalCluster> {
    let cluster = PhysicalCluster::start(tools, &dir.join(QUAY), QUAY)?;
    let mut items = vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "infra"}})];
    items.extend(registration(&cluster, &json!({})));
    root.run_with("apply -f -", &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())?;
    root.run(&format!("wait physicalcluster/{QUAY} --for=condition=Ready --timeout=50s"))?;
    Ok(cluster)
}

fn let_go(root: &Kubectl) -> Result<()> {
    root.within(Duration::from_secs(70)).run(&format!("delete physicalcluster {QUAY} --timeout=60s")).map(drop)
}

impl PublishedClient {
    /// The physical cluster that it needs beside the simulated one, if it does.
    fn quay(self, report: &mut CheckReport, tools: &Tools, dir: &Path, root: &Kubectl) -> Option<PhysicalCluster> {
        let mut quay = None;
        if matches!(self, Self::CertManager) {
            report.check(&format!("{}: a physical cluster becomes Ready", self.name()), || {
                quay = Some(registered(tools, dir, root)?);
                Ok(())
            });
        }
        quay
    }

    /// Bundles of programs that its suite runs.
    fn bundles(self) -> &'static [ClientBundle] {
        match self {
            Self::ClientGo | Self::ControllerRuntime | Self::Helm => &[ClientBundle::Go],
            Self::Python => &[ClientBundle::Python],
            Self::Javascript => &[ClientBundle::Javascript],
            Self::Java => &[ClientBundle::Java],
            Self::PrometheusOperator => &[ClientBundle::PrometheusOperator],
            // Helm installs their charts.
            Self::CertManager => &[ClientBundle::Go, ClientBundle::CertManager],
            Self::MongodbOperator => &[ClientBundle::Go, ClientBundle::MongodbOperator],
        }
    }

    /// Returns the name, which is also that of its workspace.
    fn name(self) -> &'static str {
        match self {
            Self::ClientGo => "client-go",
            Self::ControllerRuntime => "controller-runtime",
            Self::Helm => "helm",
            Self::Python => "python",
            Self::Javascript => "javascript",
            Self::Java => "java",
            Self::PrometheusOperator => "prometheus-operator",
            Self::CertManager => "cert-manager",
            Self::MongodbOperator => "mongodb-operator",
        }
    }
}

fn run(report: &mut CheckReport, client: PublishedClient, stage: &ClientStage<'_>) {
    if !report.check(&format!("{}: the beginning is forgotten", client.name()), || forgotten(stage.kubectl)) {
        return;
    }
    match client {
        PublishedClient::ClientGo => programs::run(report, "client-go", stage.clients.go("clientgo"), stage),
        PublishedClient::ControllerRuntime => {
            programs::run(report, "controller-runtime", stage.clients.go("manager"), stage);
            programs::run(report, "controller-runtime, own kind", stage.clients.go("fleet"), stage);
        }
        PublishedClient::Helm => {
            helm::run(report, stage);
            helm_kinds::run(report, stage);
            programs::run(report, "helm library", stage.clients.go("helm"), stage);
        }
        PublishedClient::Python => {
            programs::run(report, "python", stage.clients.python("client_suite.py"), stage);
            programs::run(report, "kopf", stage.clients.python("kopf_suite.py"), stage);
            programs::run(report, "kopf, own kind", stage.clients.python("kopf_custom_suite.py"), stage);
        }
        PublishedClient::Java => programs::run(report, "java", stage.clients.java(), stage),
        PublishedClient::PrometheusOperator => {
            prometheus::run(report, stage);
            prometheus_published::run(report, stage);
        }
        PublishedClient::CertManager => cert_manager::run(report, stage),
        PublishedClient::MongodbOperator => mongodb::run(report, stage),
        PublishedClient::Javascript => match stage.clients.javascript("client_suite.mjs", stage.dir) {
            Ok(command) => programs::run(report, "javascript", command, stage),
            Err(error) => drop(report.check("javascript: the program is laid out", || Err(error))),
        },
    }
}

/// Waits until a watch from the first revision is refused: the programs want to see that.
fn forgotten(kubectl: &Kubectl) -> Result<()> {
    poll::until("a watch from the first revision is refused", Duration::from_secs(60), || {
        let said = kubectl.call("get --raw /api/v1/configmaps?watch=1&resourceVersion=1&timeoutSeconds=1", "")?;
        ensure!(said.to_string().contains("too old resource version"), "{said}");
        Ok(())
    })
}
