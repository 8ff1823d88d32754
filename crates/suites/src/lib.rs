//! End-to-end suites, and the servers that they run against.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real programs in real time")]

mod app;
mod apply;
mod cases;
mod cel;
mod clients;
mod conformance;
mod console;
mod custom_kinds;
mod day;
mod demo;
mod docs;
mod downstream;
mod embedded_torture;
mod envtest;
mod etcd;
mod flattened;
mod gate;
mod ginkgo;
mod in_cluster;
mod kiali;
mod kill;
mod kubeapps;
mod kubectl;
mod moving;
mod packages;
mod scene;
mod selection;
mod simulated;
mod streams;
mod sync;
mod syncer;
mod tables;
mod traffic;
mod type_checks;
mod workspaces;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use clients::PublishedClient;
use harness::clients::{ClientBundle, Clients};
use harness::cluster::{self, PhysicalCluster};
use harness::kubeconfig::UserKubeconfig;
use harness::kubectl::Kubectl;
use harness::poll;
use harness::portolan::{self, Portolan};
use harness::report::CheckReport;
use harness::{tools::Tools, workdir::WorkDir};
use scene::Scene;
use selection::SuiteSelection;

/// Options of `cargo xtask e2e`. Without `--suite`, `--all` or `--slice` it runs the core set.
#[derive(clap::Args)]
pub struct Options {
    /// Run only these suites.
    #[arg(long = "suite", value_enum, value_delimiter = ',')]
    suites: Vec<Suite>,
    /// Run all suites.
    #[arg(long, conflicts_with_all = ["suites", "slice"])]
    all: bool,
    /// Run one slice of the long suites. Numbers beyond the last slice wrap around, so that the number of commits can
    /// be used.
    #[arg(long, conflicts_with = "suites")]
    slice: Option<usize>,
    /// The server under test. `kube` is the oracle: the suites of kubectl and of the other clients, and the checks of
    /// acknowledged writes in the suite `kill`, must pass there first.
    #[arg(long, value_enum, default_value_t = ServerUnderTest::Portolan)]
    against: ServerUnderTest,
    /// Run only the kubectl suite, against a running server.
    #[arg(long, conflicts_with_all = ["suites", "all", "slice", "against", "portolan"])]
    kubeconfig: Option<PathBuf>,
    /// Run this binary instead of building one.
    #[arg(long)]
    portolan: Option<PathBuf>,
    /// Leave logs and data on disk also after a success.
    #[arg(long)]
    keep: bool,
    /// Write the outputs of the suite `admins-day` into its page.
    #[arg(long)]
    update: bool,
    #[command(flatten)]
    apply: apply::HistorySearch,
    #[command(flatten)]
    flattened: flattened::TenantCount,
    #[command(flatten)]
    docs: docs::PageSelection,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Every kubectl verb, in one namespace of one logical cluster.
    Kubectl,
    /// The suite that every physical cluster passes, on a real one, without a Portolan server.
    Syncer,
    /// The sample app: placed, running, scaled, moved, deleted.
    Sync,
    /// Regressions: faults that users and clients found, each with the steps that reproduce it.
    Cases,
    /// Logs, exec, attach, port-forward and cp of pods on physical clusters.
    Streams,
    /// Pods that run as processes of this machine: the view of their workspace, names, an operator, volumes. Needs
    /// root.
    InCluster,
    /// Admission policies and their controllers, beside kube-controller-manager's.
    Admission,
    /// kill -9 under load: nothing acknowledged is lost.
    Kill,
    /// The engine on a real etcd: its contract, two servers on one etcd, and a short torture.
    Etcd,
    /// A short torture of the embedded engines: one order of all writes under all faults.
    Torture,
    /// The same requests to a real kube-apiserver: only listed differences.
    Oracle,
    /// The crate `cel` compared with Kubernetes' own CEL, on expressions and published CRDs. Needs no server.
    Cel,
    /// Server-side apply compared with the real field manager, on histories generated from seeds. Needs no server.
    Apply,
    /// Tables and golden files that are generated from Kubernetes' Go packages: compares the bytes. Needs no server.
    Tables,
    /// `portolan demo`: its steps, the commands that it suggests, and Ctrl-C.
    Demo,
    /// The web console in a real browser, against a demo.
    Console,
    /// The commands of README and docs, page by page, with their output compared by shape.
    Docs,
    /// Charts, units and the Debian package, as administrators use them.
    Packages,
    /// The commands of docs/guides/admins-day.md, with three real physical clusters.
    AdminsDay,
    /// 200 requests per second to a Service that moves, is drained, and loses physical clusters.
    Traffic,
    /// One cert-manager for many workspaces, through one flattened view.
    FlattenedView,
    /// client-go: typed, dynamic and metadata clients, informers, watches, apply, leader election, events.
    ClientGo,
    /// controller-runtime: an operator over built-in kinds, and one over its own kind with webhooks.
    ControllerRuntime,
    /// controller-runtime's own integration tests, as they are published.
    Envtest,
    /// Kubernetes' own conformance specs of the API machinery that need no server in a pod.
    Conformance,
    /// Helm, the program and the library.
    Helm,
    /// The Python client, and operators written with kopf.
    Python,
    /// The JavaScript client.
    Javascript,
    /// fabric8's client for Java.
    Java,
    /// Released prometheus-operator.
    PrometheusOperator,
    /// Released cert-manager, with its own end-to-end tests.
    CertManager,
    /// Released operator of MongoDB replica sets, with its own end-to-end tests.
    MongodbOperator,
    /// kcp's multicluster-provider and multicluster-runtime as they are published, and the requests of kcp's plugins.
    Kcp,
    /// Released Kiali, over workspaces and mounted physical clusters.
    Kiali,
    /// Users who sign in by OIDC, with kubectl and with the requests of Kubeapps.
    Kubeapps,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ServerUnderTest {
    Portolan,
    /// One of two servers on one etcd, while the other one is killed again and again: the suites of clients.
    Pair,
    Kube,
}

impl SuiteSelection {
    /// Returns the clients other than kubectl whose suites are wanted.
    fn clients(&self) -> Vec<PublishedClient> {
        Suite::value_variants().iter().filter(|suite| self.wants(**suite)).filter_map(|suite| suite.client()).collect()
    }
}

impl Suite {
    /// Returns the published client that the suite runs, if it is one other than kubectl.
    fn client(self) -> Option<PublishedClient> {
        match self {
            Self::ClientGo => Some(PublishedClient::ClientGo),
            Self::ControllerRuntime => Some(PublishedClient::ControllerRuntime),
            Self::Helm => Some(PublishedClient::Helm),
            Self::Python => Some(PublishedClient::Python),
            Self::Javascript => Some(PublishedClient::Javascript),
            Self::Java => Some(PublishedClient::Java),
            Self::PrometheusOperator => Some(PublishedClient::PrometheusOperator),
            Self::CertManager => Some(PublishedClient::CertManager),
            Self::MongodbOperator => Some(PublishedClient::MongodbOperator),
            Self::Kubectl
            | Self::Kcp
            | Self::Kiali
            | Self::Kubeapps
            | Self::Envtest
            | Self::Conformance
            | Self::Syncer
            | Self::Sync
            | Self::Cases
            | Self::Streams
            | Self::InCluster
            | Self::Admission
            | Self::Kill
            | Self::Etcd
            | Self::Torture
            | Self::Oracle
            | Self::Cel
            | Self::Apply
            | Self::Tables
            | Self::Console
            | Self::Demo
            | Self::Docs
            | Self::Packages
            | Self::AdminsDay
            | Self::FlattenedView
            | Self::Traffic => None,
        }
    }
}

/// Builds the third-party programs that a run with these options needs, and returns their folders.
pub fn prepare(options: &Options) -> Result<Vec<PathBuf>> {
    let tools = Tools::build()?;
    let selection = SuiteSelection::of(options);
    let clients = Clients::build(clients::bundles(&selection.clients()))?;
    let mut folders: Vec<PathBuf> = std::iter::once(tools.dir()).chain(clients.folders()).map(Path::to_owned).collect();
    if selection.wants(Suite::InCluster) {
        folders.extend(in_cluster::prepare()?);
    }
    let own =
        [(Suite::Kcp, ClientBundle::Kcp), (Suite::Kiali, ClientBundle::Kiali), (Suite::Kubeapps, ClientBundle::Oidc)];
    for (_, bundle) in own.into_iter().filter(|(suite, _)| selection.wants(*suite)) {
        folders.extend(Clients::build([bundle])?.folders().map(Path::to_owned));
    }
    Ok(folders)
}

/// Runs the chosen suites; `false` when a check failed.
pub fn run(options: &Options) -> Result<bool> {
    let mut work = WorkDir::new("e2e")?;
    let selection = SuiteSelection::of(options);
    let outcome = match (&options.kubeconfig, options.against) {
        (Some(file), _) => run_against_running(file, &work),
        (None, ServerUnderTest::Kube) => run_against_kube(&selection, &work),
        (None, ServerUnderTest::Pair) => run_against_pair(options, &selection, &work),
        (None, ServerUnderTest::Portolan) => run_against_portolan(options, &selection, &work),
    };
    if options.keep || !matches!(outcome, Ok(true)) {
        work.keep();
    }
    outcome
}

fn run_against_running(kubeconfig: &Path, work: &WorkDir) -> Result<bool> {
    let program = Tools::build()?.kubectl();
    let config = UserKubeconfig::read(&program, kubeconfig)?;
    let mut report = CheckReport::default();
    kubectl::run(&mut report, &Kubectl::new(&program, &config, work.path(), "kubectl")?);
    Ok(report.finish())
}

fn run_against_kube(selection: &SuiteSelection, work: &WorkDir) -> Result<bool> {
    let ours = [
        Suite::Syncer,
        Suite::Sync,
        Suite::Cases,
        Suite::Streams,
        Suite::InCluster,
        Suite::Admission,
        Suite::Demo,
        Suite::Console,
        Suite::Docs,
        Suite::Packages,
        Suite::AdminsDay,
        Suite::FlattenedView,
        Suite::Traffic,
        Suite::Oracle,
        Suite::Etcd,
        Suite::Torture,
        Suite::Cel,
        Suite::Apply,
        Suite::Tables,
        Suite::Envtest,
        Suite::Conformance,
        Suite::MongodbOperator,
        Suite::Kcp,
        Suite::Kiali,
        Suite::Kubeapps,
    ];
    ensure!(
        !ours.into_iter().any(|suite| selection.wants(suite)),
        "the suites syncer, sync, cases, in-cluster, admission, demo, console, docs, admins-day, flattened-view, traffic, oracle, etcd, torture, cel, apply, tables, envtest, conformance, mongodb-operator, kcp, kiali and kubeapps do not \
         run against kube"
    );
    let tools = Tools::build()?;
    let mut cluster = PhysicalCluster::start(&tools, &work.path().join("kube"), "kube")?;
    let mut report = CheckReport::default();
    if selection.wants(Suite::Kubectl) {
        let before = downstream::inventory(&cluster)?;
        kubectl::run(&mut report, cluster.kubectl());
        report.check("kubectl: nothing of the suite is left", || {
            poll::until("clean", Duration::from_secs(60), || downstream::nothing_since(&cluster, &before))
        });
    }
    if selection.wants(Suite::Kill) {
        kill::run_against_kube(&mut report, &mut cluster);
    }
    let mut chosen = selection.clients();
    // There is no provisioner, and pods with volumes are not scheduled without volumes.
    chosen.retain(|client| !matches!(client, PublishedClient::MongodbOperator));
    if !chosen.is_empty() {
        clients::run_against_kube(&mut report, &chosen, &cluster, &work.path().join("clients"))?;
    }
    Ok(report.finish())
}

fn run_against_pair(options: &Options, selection: &SuiteSelection, work: &WorkDir) -> Result<bool> {
    let chosen = selection.clients();
    ensure!(
        selection.suites().len() <= chosen.len(),
        "against pair run the suites of clients other than kubectl; the suite etcd has that of kubectl"
    );
    let tools = Tools::build()?;
    let program = options.portolan.clone().map_or_else(portolan::build, Ok)?;
    let mut report = CheckReport::default();
    clients::run_against_pair(&mut report, &chosen, &program, &tools, work.path())?;
    Ok(report.finish())
}

fn run_against_portolan(options: &Options, selection: &SuiteSelection, work: &WorkDir) -> Result<bool> {
    let mut report = CheckReport::default();
    if selection.wants(Suite::Cel) {
        cel::run(&mut report, work.path());
    }
    if selection.wants(Suite::Apply) {
        apply::run(&mut report, &options.apply, work.path());
    }
    if selection.wants(Suite::Tables) {
        tables::run(&mut report, work.path());
    }
    let needs_server = |suite: &Suite| !matches!(suite, Suite::Cel | Suite::Apply | Suite::Tables);
    if !selection.suites().iter().any(needs_server) {
        return Ok(report.finish());
    }
    let tools = Tools::build()?;
    let program = options.portolan.clone().map_or_else(portolan::build, Ok)?;
    if selection.wants(Suite::Oracle) {
        oracle::check(&mut report, selection.corpus, &program, &tools, work);
    }
    if selection.wants(Suite::Etcd) {
        in_folder(&mut report, options, &work.path().join("etcd"), |report, dir| {
            etcd::run(report, &program, &tools, dir);
        });
    }
    if selection.wants(Suite::Torture) {
        in_folder(&mut report, options, &work.path().join("torture"), |report, dir| {
            embedded_torture::run(report, &program, &tools, dir);
        });
    }
    if selection.wants(Suite::Demo) {
        demo::run(&mut report, &program, &tools, work.path());
    }
    if selection.wants(Suite::Console) {
        console::run(&mut report, &program, &tools, &work.path().join("console"));
    }
    if selection.wants(Suite::Docs) {
        docs::run(&mut report, &options.docs, &program, &tools.kubectl(), &work.path().join("docs"));
    }
    if selection.wants(Suite::Packages) {
        let helm = Clients::build(clients::bundles(&[PublishedClient::Helm]))?.helm();
        packages::run(&mut report, &program, &tools, helm, &work.path().join("packages"));
    }
    if selection.wants(Suite::AdminsDay) {
        day::run(&mut report, &program, &tools, &work.path().join("day"), options.update)?;
    }
    if selection.wants(Suite::Traffic) {
        // The long outage of ten minutes runs only with `--all`.
        let outage = Duration::from_secs(if options.all { 600 } else { 60 });
        traffic::run(&mut report, &program, &tools, &work.path().join("traffic"), outage)?;
    }
    if [Suite::Syncer, Suite::Sync, Suite::Cases, Suite::Streams, Suite::Admission, Suite::Kill, Suite::Kubectl]
        .into_iter()
        .any(|suite| selection.wants(suite))
    {
        run_with_physical_clusters(&mut report, selection, &program, &tools, work)?;
    }
    if selection.wants(Suite::InCluster) {
        in_folder(&mut report, options, &work.path().join("in-cluster"), |report, dir| {
            in_cluster::run(report, &program, &tools, dir);
        });
    }
    if selection.wants(Suite::FlattenedView) {
        flattened::run(&mut report, &options.flattened, &program, &tools, &work.path().join("flattened"))?;
    }
    let chosen = selection.clients();
    if !chosen.is_empty() {
        clients::run_against_portolan(&mut report, &chosen, &program, &tools, &work.path().join("clients"))?;
    }
    if selection.wants(Suite::Kcp) {
        clients::kcp::run(&mut report, &program, &tools, &work.path().join("kcp"))?;
    }
    if selection.wants(Suite::Kiali) {
        kiali::run(&mut report, &program, &tools, &work.path().join("kiali"))?;
    }
    if selection.wants(Suite::Kubeapps) {
        kubeapps::run(&mut report, &program, &tools, &work.path().join("kubeapps"))?;
    }
    if selection.wants(Suite::Conformance) {
        conformance::run(&mut report, &program, &tools, &work.path().join("conformance"))?;
    }
    if selection.wants(Suite::Envtest) {
        envtest::run(&mut report, &program, &tools, &work.path().join("envtest"))?;
    }
    Ok(report.finish())
}

/// Runs a suite that fills a folder, which is removed after a success to make room for later suites.
fn in_folder(report: &mut CheckReport, options: &Options, dir: &Path, suite: impl FnOnce(&mut CheckReport, &Path)) {
    let before = report.failures();
    suite(report, dir);
    if !options.keep && report.failures() == before {
        // Other files are removed with the folder of the run.
        let _ = std::fs::remove_dir_all(dir);
    }
}

fn run_with_physical_clusters(
    report: &mut CheckReport,
    selection: &SuiteSelection,
    program: &Path,
    tools: &Tools,
    work: &WorkDir,
) -> Result<()> {
    let names = [scene::EAST, scene::WEST].map(str::to_owned);
    println!("starting the physical clusters {} and {}", scene::EAST, scene::WEST);
    let clusters = cluster::start_all(tools, work.path(), &names)?;
    if selection.wants(Suite::Syncer) {
        report.check("syncer: its suite passes on a real physical cluster", || syncer::run(&clusters[0]));
    }
    if selection.suites() == [Suite::Syncer] {
        return Ok(());
    }
    let server = Portolan::start(program, tools, &work.path().join("portolan"))?;
    let mut scene = Scene::new(tools, work.path(), clusters, server)?;

    if !report.check("scene: two physical clusters join and become Ready", || scene.join_clusters()) {
        return Ok(());
    }
    if selection.wants(Suite::Sync) {
        sync::run(report, &scene);
    }
    if selection.wants(Suite::Cases) {
        cases::run(report, &scene);
    }
    if selection.wants(Suite::Streams) {
        streams::run(report, &scene);
    }
    if selection.wants(Suite::Admission) {
        type_checks::run(report, &scene);
        gate::run(report, &scene);
    }
    if selection.wants(Suite::Kill) {
        kill::run(report, &mut scene);
    }
    // Last, as the other suites need clean physical clusters.
    if selection.wants(Suite::Kubectl) {
        let made = scene.workspace("verbs");
        if report.check("kubectl: a workspace is made and Ready", || made.as_ref().map(drop).map_err(scene::copy)) {
            made.iter().for_each(|workspace| kubectl::run(report, workspace));
            report.check("kubectl: nothing of the suite is left below", || scene.delete_workspace("verbs"));
        }
    }
    report.check("scene: the server is still the process that was started", || scene.server().check_alive());
    Ok(())
}
