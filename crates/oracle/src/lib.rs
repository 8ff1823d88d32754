//! Differential oracle: replays one corpus of requests against a real kube-apiserver and against Portolan, and reports
//! every difference of their answers. No expectation is stored; kube-apiserver decides.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real programs in real time")]

mod caching;
mod catalog;
mod corpus;
mod diff;
mod exchange;
mod file;
mod fresh;
mod generated;
mod hooks;
mod listed;
mod metadata;
mod metrics;
mod mutation;
mod normal;
pub mod record;
mod replay;
mod rule;
mod settled;
mod share;
mod step;
mod tally;
mod values;
mod websocket;
mod wire;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use catalog::ResourceCatalog;
use exchange::OracleServer;
use harness::client::HttpClient;
use harness::control_plane::{Durability, KubeControlPlane};
use harness::kubeconfig::UserKubeconfig;
use harness::portolan::{self, Portolan};
use harness::report::CheckReport;
use harness::tools::{Tools, repository};
use harness::workdir::WorkDir;
use hooks::OracleWebhooks;
use listed::{KnownDifferences, RunVerdict};
use replay::{Servers, StepOutcome};
pub use share::CorpusShare;
use tally::OpenDifference;

/// Options of `cargo xtask oracle`.
#[derive(Default, clap::Args)]
pub struct Options {
    /// Run this binary instead of building one.
    #[arg(long)]
    portolan: Option<PathBuf>,
    /// Only files whose name begins with this, as in `apps/deployment`; words after `:` filter the output.
    #[arg(long)]
    only: Vec<String>,
    /// Only one of several equal shares of the scripts, as in `1/3`.
    #[arg(long, default_value_t = CorpusShare::WHOLE)]
    share: CorpusShare,
    /// Show every different answer in full.
    #[arg(long)]
    show: bool,
    /// Write the groups of differences as Markdown.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Write every difference as a line of JSON.
    #[arg(long)]
    places: Option<PathBuf>,
    /// Write every difference that a listed reason explains as a line of JSON.
    #[arg(long)]
    explained: Option<PathBuf>,
    /// Write both answers to every request as a line of JSON.
    #[arg(long)]
    answers: Option<PathBuf>,
    /// Write the open differences of the run into the list.
    #[arg(long)]
    list: bool,
    /// Keep logs and data on disk also after a success.
    #[arg(long)]
    keep: bool,
}

impl Options {
    /// Returns true if the whole corpus runs, so that the list of differences must match exactly.
    fn whole(&self) -> bool {
        self.only.is_empty() && self.share == CorpusShare::WHOLE
    }
}

/// Logical cluster for the requests.
const WORKSPACE: &str = "oracle";

/// Name of Portolan's administrator. Answers contain the user's name.
const ADMIN: &str = "portolan-admin";
/// Portolan has no API priority and fairness by objects. kube-apiserver would write status into such objects of the
/// corpus at arbitrary times.
const FLAGS: [&str; 2] = ["--enable-priority-and-fairness=false", SERVICES];
/// Portolan's service IP range.
const SERVICES: &str = "--service-cluster-ip-range=10.96.0.0/12";

/// Maximum number of differing scripts that are replayed alone. If more differ, interference between scripts is not the
/// cause.
const ALONE: usize = 12;

/// Runs the corpus. Returns false if there are unlisted differences.
///
/// # Errors
/// Fails if a server cannot be started or stops answering.
pub fn run(options: &Options) -> Result<bool> {
    let tools = Tools::build()?;
    let program = options.portolan.clone().map_or_else(portolan::build, Ok)?;
    let mut work = WorkDir::new("oracle")?;
    let outcome = compare_settled(options, &tools, &program, work.path());
    if options.keep || outcome.is_err() {
        work.keep();
    }
    let outcomes = outcome?;
    report(options, &outcomes)
}

/// Replays a share of the corpus as one check of the end-to-end suites.
pub fn check(report: &mut CheckReport, share: CorpusShare, program: &Path, tools: &Tools, work: &WorkDir) {
    let options = Options { share, ..Options::default() };
    report.check(&format!("oracle, {share}: no answer differs from kube-apiserver's that is not listed"), || {
        let outcomes = compare_settled(&options, tools, program, work.path())?;
        let listed = KnownDifferences::read(&KnownDifferences::file())?;
        ensure!(judge(&options, &listed, &outcomes)?, "`cargo xtask oracle --show` shows the differences");
        Ok(())
    });
}

/// Replays the corpus, and once more the few scripts that differed, without the others.
fn compare_settled(options: &Options, tools: &Tools, program: &Path, folder: &Path) -> Result<Vec<StepOutcome>> {
    let mut outcomes = compare(options, tools, program, &folder.join("oracle"))?;
    let RunVerdict { doubtful, fresh, loose, .. } =
        KnownDifferences::read(&KnownDifferences::file())?.judge(&outcomes, options.whole());
    if options.only.is_empty() && (1..=ALONE).contains(&doubtful.len()) {
        fresh.iter().for_each(|(step, places)| println!("differs beside others: {step}: {}", places.join(", ")));
        loose.iter().for_each(|reason| println!("explains more beside others: {reason}"));
        let again = alone(&doubtful, tools, program, &folder.join("oracle-alone"))?;
        outcomes.retain(|outcome| !doubtful.contains(&outcome.script));
        outcomes.extend(again);
    }
    Ok(outcomes)
}

/// Replays differing scripts without the others. All scripts share cluster-scoped objects, and a write of one may
/// become visible to another earlier on one of the two servers: a difference counts if no other script can have caused
/// it.
fn alone(doubtful: &BTreeSet<String>, tools: &Tools, program: &Path, folder: &Path) -> Result<Vec<StepOutcome>> {
    let mut outcomes = Vec::new();
    for (number, script) in doubtful.iter().enumerate() {
        println!("once more without the others: {script}");
        let options = Options { only: vec![script.clone()], ..Options::default() };
        let answers = compare(&options, tools, program, &folder.join(number.to_string()))?;
        outcomes.extend(answers.into_iter().filter(|outcome| outcome.script == *script));
    }
    Ok(outcomes)
}

fn compare(options: &Options, tools: &Tools, program: &Path, folder: &Path) -> Result<Vec<StepOutcome>> {
    let kube = KubeControlPlane::start_as(ADMIN, tools, &folder.join("kube"), Durability::Unsynced, &FLAGS)?;
    let portolan = Portolan::start(program, tools, &folder.join("portolan"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcomes = runtime.block_on(async {
        let servers = Servers {
            kube: OracleServer::connect(kube.kubeconfig().clone()).await?,
            portolan: OracleServer::connect(workspace(&portolan).await?).await?,
            hooks: OracleWebhooks::serve()?,
        };
        let catalog = ResourceCatalog::read(&*servers.kube.client().await).await?;
        let names: Vec<String> = options.only.iter().map(|only| split(only).0.to_owned()).collect();
        let scripts = options.share.of(corpus::read(&repository().join("e2e/corpus"), &catalog, &names)?);
        let servers = Arc::new(servers);
        let mut outcomes = replay::all(servers.clone(), scripts).await?;
        if options.whole() || names.iter().any(|name| metrics::SCRIPT.starts_with(name.as_str())) {
            outcomes.extend(metrics::outcomes(&servers).await?);
        }
        anyhow::Ok(outcomes)
    })?;
    kube.check_alive()?;
    portolan.check_alive()?;
    Ok(outcomes)
}

/// Creates the logical cluster and waits until it answers.
async fn workspace(server: &Portolan) -> Result<UserKubeconfig> {
    let root = HttpClient::connect(server.kubeconfig(), 1).await?;
    let body = json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": WORKSPACE}});
    let path = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
    root.send(Method::POST, path, Bytes::from(body.to_string())).await?.success().context("the workspace")?;
    for _ in 0..200 {
        let found: Value = serde_json::from_slice(&root.get(&format!("{path}/{WORKSPACE}")).await?)?;
        if found["status"]["phase"] == "Ready" {
            return Ok(server.workspace(&format!("root:{WORKSPACE}")));
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    bail!("the workspace does not become ready")
}

/// Splits `apps/deployment: words` into its two parts.
fn split(only: &str) -> (&str, &str) {
    only.split_once(':').map_or((only, ""), |(name, words)| (name.trim(), words.trim()))
}

/// Prints the result; `false` if there are unlisted differences.
fn report(options: &Options, outcomes: &[StepOutcome]) -> Result<bool> {
    let wanted = |outcome: &&StepOutcome| {
        let fits = |only: &String| outcome.script.starts_with(split(only).0) && outcome.step.contains(split(only).1);
        options.only.is_empty() || options.only.iter().any(fits)
    };
    let different: Vec<&StepOutcome> =
        outcomes.iter().filter(|outcome| !outcome.differences.is_empty()).filter(wanted).collect();
    if options.show {
        different.iter().for_each(|outcome| println!("{}", tally::show(outcome)));
    }
    let listed = KnownDifferences::read(&KnownDifferences::file())?;
    let open: Vec<OpenDifference<'_>> =
        different.into_iter().filter_map(|outcome| OpenDifference::of(&listed, outcome)).collect();
    for group in tally::groups(&open) {
        println!("{:5}  {}    e.g. {}", group.outcomes.len(), group.shape, group.example());
    }
    let write = |file: &Path, text: String| {
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    if let Some(file) = &options.report {
        write(file, tally::markdown(outcomes.len(), &open))?;
    }
    if let Some(file) = &options.places {
        write(file, tally::places(&open))?;
    }
    if let Some(file) = &options.explained {
        write(file, tally::explained(&listed, outcomes))?;
    }
    if let Some(file) = &options.answers {
        write(file, tally::answers(outcomes))?;
    }
    judge(options, &listed, outcomes)
}

fn judge(options: &Options, listed: &KnownDifferences, outcomes: &[StepOutcome]) -> Result<bool> {
    let whole = options.whole();
    let verdict = listed.judge(outcomes, whole);
    for (step, places) in &verdict.fresh {
        println!("not listed: {step}: {}", places.join(", "));
    }
    verdict.unused.iter().for_each(|reason| println!("explains nothing: {reason}"));
    verdict.loose.iter().for_each(|reason| println!("explains more than listed: {reason}"));
    verdict.tight.iter().for_each(|reason| println!("better than listed: {reason}"));
    let (all, open, explained) = (outcomes.len(), verdict.open_now(), verdict.explained);
    println!("{all} requests: {} equal, {explained} explained, {open} open", all - open - explained);
    println!("{} not listed, {} better than listed", verdict.fresh.len(), verdict.better + verdict.tight.len());
    if options.list {
        std::fs::write(KnownDifferences::file(), listed.updated(&verdict, whole)?).context("cannot write the list")?;
    }
    Ok(verdict.fresh.is_empty() && verdict.unused.is_empty() && verdict.loose.is_empty())
}
