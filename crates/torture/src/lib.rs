//! Torture tests of real servers (`cargo xtask torture`): clients write and watchers follow while faults are injected.
//!
//! Afterwards the calls of each key must fit into one order, and every acknowledged write must exist. Every watch, with
//! or without a selector, must be ordered, without duplicates or gaps, and resumable. No transaction may ever be
//! visible in part.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real programs in real time")]

mod births;
mod clock;
pub mod failpoints;
mod flips;
mod guarantees;
mod history;
mod images;
mod linear;
mod stand;
mod watched;
mod watcher;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use births::Founder;
use guarantees::{Truth, check_filtered};
use harness::client::HttpClient;
use harness::kubeconfig::UserKubeconfig;
use harness::portolan;
use harness::report::CheckReport;
use harness::{tools::Tools, workdir::WorkDir};
use history::CallCounts;
use linear::{CallOutcome, RegisterCall};
use stand::Stand;
pub use stand::{InjectedFault, TorturedEngine, still_for};
use watched::WatchSelection;
use watcher::TortureWatcher;
use work::{Random, SharedWork};

/// Number of concurrent clients.
const CLIENTS: u64 = 8;
/// Number of keys that they share.
const KEYS: u64 = 8;
/// Time that clients work before a fault and after it.
const CALM: Duration = Duration::from_millis(1500);

/// Options of `cargo xtask torture`.
#[derive(clap::Args)]
pub struct Options {
    /// Only these engines.
    #[arg(long = "engine", value_enum, value_delimiter = ',')]
    engines: Vec<TorturedEngine>,
    /// Only these faults.
    #[arg(long = "fault", value_enum, value_delimiter = ',')]
    faults: Vec<InjectedFault>,
    /// Number of faults for each engine.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Seed of all random choices; printed, so that a run can be repeated.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead, end a server at each `failpoint!` of the sources. Requires a debug build in `--portolan`.
    #[arg(long, conflicts_with_all = ["engines", "faults"])]
    failpoints: bool,
    /// Instead, open crash images of the disk of each embedded engine, for a crash at any step.
    #[arg(long, conflicts_with_all = ["faults", "failpoints", "portolan"])]
    crash_images: bool,
    /// Minimum number of disk images per engine.
    #[arg(long, default_value_t = 10_000, requires = "crash_images")]
    images: usize,
    /// Time limit per engine in minutes, whatever the number of images.
    #[arg(long, requires = "crash_images")]
    minutes: Option<usize>,
    /// Instead, flip this many bits in the stores of each embedded engine, one at a time, and check the server's
    /// answers.
    #[arg(long, conflicts_with_all = ["faults", "failpoints", "crash_images"])]
    bit_flips: Option<usize>,
    /// Run this binary instead of building one.
    #[arg(long)]
    portolan: Option<PathBuf>,
}

/// Runs the requested tests; `false` if one failed.
pub fn run(options: &Options) -> Result<bool> {
    let engines = match &*options.engines {
        [] => &[TorturedEngine::Redb, TorturedEngine::Sled, TorturedEngine::Etcd],
        given => given,
    };
    if options.crash_images {
        let extent = images::ImageExtent { images: options.images, minutes: options.minutes, seed: options.seed };
        return images::run(engines, &extent);
    }
    let mut work = WorkDir::new("torture")?;
    let tools = Tools::build()?;
    if options.failpoints {
        let program = options.portolan.clone().map_or_else(portolan::build_debug, Ok)?;
        let mut report = CheckReport::default();
        failpoints::run(&mut report, &program, &tools, &work.path().join("failpoints"), 1);
        let fine = report.finish();
        if !fine {
            work.keep();
        }
        return Ok(fine);
    }
    let program = options.portolan.clone().map_or_else(portolan::build, Ok)?;
    let mut report = CheckReport::default();
    for engine in engines.iter().copied() {
        if let Some(flips) = options.bit_flips {
            if engine != TorturedEngine::Etcd {
                flips::check(&mut report, &program, &tools, work.path(), engine, flips, options.seed);
            }
            continue;
        }
        for faults in plans(engine, &options.faults) {
            let plan = TorturePlan { engine, faults, rounds: options.rounds, seed: options.seed };
            let dir = work.path().join(format!("{engine:?}-{:?}-{}", plan.faults[0], plan.faults.len()).to_lowercase());
            check(&mut report, &plan, &program, &tools, &dir);
        }
    }
    let fine = report.finish();
    if !fine {
        work.keep();
    }
    Ok(fine)
}

/// Returns the faults of an engine, grouped by the stand that supports them.
fn plans(engine: TorturedEngine, wanted: &[InjectedFault]) -> Vec<Vec<InjectedFault>> {
    let sets: &[&[InjectedFault]] = match engine {
        TorturedEngine::Redb | TorturedEngine::Sled => &[ALONE, &[InjectedFault::Full, InjectedFault::Pause]],
        TorturedEngine::Etcd => &[PAIR, MEMBERS],
    };
    let chosen =
        |set: &&[InjectedFault]| set.iter().copied().filter(|f| wanted.is_empty() || wanted.contains(f)).collect();
    sets.iter().map(chosen).filter(|set: &Vec<InjectedFault>| !set.is_empty()).collect()
}

/// Faults of a server with an embedded store.
const ALONE: &[InjectedFault] = &[
    InjectedFault::Kill,
    InjectedFault::Pause,
    InjectedFault::Slow,
    InjectedFault::Stall,
    InjectedFault::Eio,
    InjectedFault::Clock,
];

/// Faults of two servers on one etcd.
const PAIR: &[InjectedFault] = &[
    InjectedFault::Kill,
    InjectedFault::Pause,
    InjectedFault::KillEtcd,
    InjectedFault::PauseEtcd,
    InjectedFault::Slow,
    InjectedFault::Stall,
    InjectedFault::Clock,
];

/// Faults of two servers on three members of etcd.
pub const MEMBERS: &[InjectedFault] = &[
    InjectedFault::KillEtcd,
    InjectedFault::CutLeader,
    InjectedFault::PauseEtcd,
    InjectedFault::CompactEtcd,
    InjectedFault::NoSpace,
    InjectedFault::Kill,
    InjectedFault::Pause,
];

/// Run on one stand.
pub struct TorturePlan {
    /// Engine of the servers.
    pub engine: TorturedEngine,
    /// Faults, in order.
    pub faults: Vec<InjectedFault>,
    /// Number of repetitions of all faults.
    pub rounds: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Runs a plan as a check of a report.
pub fn check(report: &mut CheckReport, plan: &TorturePlan, program: &Path, tools: &Tools, dir: &Path) {
    let TorturePlan { engine, faults, rounds, seed } = plan;
    let name = format!(
        "torture: {engine:?} under {faults:?}, {rounds} rounds, seed {seed}: one order of all writes, no watch missed one"
    );
    report.check(&name, || {
        let mut stand = Stand::start(program, tools, dir, *engine, faults)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let found = torture(&runtime, &mut stand, plan)?;
        println!(
            "      {} calls, {} writes acknowledged, {} without an answer; watches: {} events, resumed {} times, {} times by \
             a new list; {} logical clusters followed from their beginning",
            found.counts.calls,
            found.counts.acknowledged,
            found.counts.unknown,
            found.events,
            found.resumed,
            found.relisted,
            found.births
        );
        Ok(())
    });
}

/// Figures of a successful run.
struct TortureFindings {
    counts: CallCounts,
    events: usize,
    resumed: usize,
    relisted: usize,
    /// Number of logical clusters that were created.
    births: usize,
}

fn torture(runtime: &tokio::runtime::Runtime, stand: &mut Stand, plan: &TorturePlan) -> Result<TortureFindings> {
    let configs = stand.configs();
    let may_forget = plan.faults.iter().any(|fault| fault.forgets());
    let work = Arc::new(SharedWork::new(KEYS));
    let (tell, upto) = watch::channel(None);
    let (mut clients, mut watchers) = (JoinSet::new(), JoinSet::new());
    let founder = runtime.block_on(async {
        make_namespace(&configs[0]).await?;
        for watched in [WatchSelection::All, WatchSelection::Odd] {
            for turn in 0..configs.len().max(2) {
                let (mut configs, count) = (configs.clone(), configs.len());
                configs.rotate_left(turn % count);
                watchers.spawn(TortureWatcher::new(watched, configs, may_forget).await?.run(upto.clone()));
            }
        }
        // These watchers stay at one server, and see events that it missed.
        for config in configs.iter().filter(|_| may_forget) {
            watchers.spawn(
                TortureWatcher::new(WatchSelection::All, vec![config.clone()], may_forget).await?.run(upto.clone()),
            );
        }
        for client in 0..CLIENTS {
            clients.spawn(work.clone().client(configs.clone(), plan.seed * 1000 + client));
        }
        anyhow::Ok(tokio::spawn(Founder::new(configs.clone(), may_forget).run(work.clone())))
    })?;
    let suffered = suffer(stand, plan, &work);
    work.stop.store(true, Ordering::Release);
    runtime.block_on(async {
        while clients.join_next().await.transpose()?.is_some() {}
        let founder = founder.await?;
        let suffered = suffered?;
        let (begun, client) = (work.history.now(), HttpClient::connect(&configs[0], 1).await?);
        let end = work::last_write(&client).await.context("a write after all others")?;
        let last = RegisterCall::Swap { from: None, to: Some(work::LAST), outcome: CallOutcome::Done };
        work.history.note("end", begun, last, Some(end));
        tell.send_replace(Some(end));
        work.read_all(&client).await.context("reading every key after the end")?;
        work.history.check_linearizable()?;
        let mut seen = Vec::new();
        while let Some(watcher) = tokio::time::timeout(Duration::from_secs(120), watchers.join_next()).await? {
            seen.push(watcher??);
        }
        let mut found = judge(&work, &seen)?;
        found.births = founder.judge().await?;
        for config in &configs {
            let client = HttpClient::connect(config, 1).await?;
            // Version 0 reads any state of the server; this read needs the latest one.
            for options in ["", "resourceVersion=0"] {
                let (version, objects) = watcher::list(&client, WatchSelection::All, options).await?;
                ensure!(version >= end, "a list ({options}) shows the past: {version}, after a write at {end}");
                ensure!(objects.iter().any(|(name, _)| name == "end"), "the last write is not in a list ({options})");
            }
        }
        ensure!(found.counts.acknowledged > plan.rounds, "nothing was written: {:?}", found.counts);
        // Watchers of the server behind which history was compacted cannot have resumed.
        let had_to_list = suffered.contains(&InjectedFault::CompactEtcd);
        ensure!(!had_to_list || found.relisted > 0, "history was forgotten behind a server, and no watch listed again");
        // Watches whose start was compacted have only lists.
        ensure!(may_forget || found.births > 0, "no logical cluster was made");
        Ok(found)
    })
}

/// Compares watches of all objects with the acknowledged writes, and watches with a selector with the former.
fn judge(work: &SharedWork, watchers: &[TortureWatcher]) -> Result<TortureFindings> {
    let lists = |watcher: &TortureWatcher| {
        watcher.seen.iter().filter(|seen| matches!(seen, history::WatchItem::List { .. })).count()
    };
    let found = TortureFindings {
        counts: work.history.counts(),
        events: watchers.iter().map(|watcher| watcher.seen.len()).sum(),
        resumed: watchers.iter().map(|watcher| watcher.resumed).sum(),
        relisted: watchers.iter().map(lists).sum(),
        births: 0,
    };
    let (all, chosen): (Vec<_>, Vec<_>) = watchers.iter().partition(|watcher| watcher.watched == WatchSelection::All);
    let (mut truth, mut is_whole) = (Truth::new(), false);
    for watcher in all {
        truth.extend(work.history.check_watch(&watcher.seen)?);
        is_whole |= lists(watcher) == 0;
    }
    for watcher in chosen {
        check_filtered(watcher.watched, &truth, is_whole, watcher.start, &watcher.seen)?;
    }
    Ok(found)
}

/// Returns the faults of the run.
fn suffer(stand: &mut Stand, plan: &TorturePlan, work: &SharedWork) -> Result<Vec<InjectedFault>> {
    let faults: Vec<InjectedFault> = plan.faults.iter().copied().filter(|fault| stand.bears(*fault)).collect();
    let (mut random, mut suffered) = (Random::new(plan.seed), Vec::new());
    std::thread::sleep(CALM);
    for round in 0..plan.rounds {
        // Each fault at least once, then random ones.
        let fault = faults.get(round).copied().unwrap_or(faults[random.below(faults.len() as u64) as usize]);
        stand.suffer(fault, round).with_context(|| format!("round {round}: {fault:?}"))?;
        suffered.push(fault);
        std::thread::sleep(CALM);
        // Not earlier: objects that were written before a fault are read and changed after it.
        work.part.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(CALM);
    }
    Ok(suffered)
}

async fn make_namespace(config: &UserKubeconfig) -> Result<()> {
    let client = HttpClient::connect(config, 1).await?;
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": work::NAMESPACE}});
    let answer = client.send(Method::POST, "/api/v1/namespaces", Bytes::from(body.to_string())).await?;
    ensure!(answer.status == StatusCode::CREATED, "the namespace was answered {}", answer.status);
    // The namespace is quiet only after its controller has created the default objects.
    for _ in 0..200 {
        let path = format!("/api/v1/namespaces/{}/configmaps/kube-root-ca.crt", work::NAMESPACE);
        if client.send(Method::GET, &path, Bytes::new()).await?.status == StatusCode::OK {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("the namespace was never made ready")
}
