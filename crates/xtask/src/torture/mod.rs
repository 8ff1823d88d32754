//! `cargo xtask torture`: real servers under faults, while clients write and watchers follow; then the verdict: every key's calls
//! fit into one order, every acknowledged write is there, and every watch was ordered, unique, without holes and resumable, with a
//! selector as without; and nothing that one transaction wrote was ever seen in parts.

mod births;
mod clock;
pub(crate) mod failpoints;
mod flips;
mod guarantees;
mod history;
mod images;
mod linear;
pub(crate) mod stand;
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

use crate::client::Client;
use crate::harness::kubeconfig::Kubeconfig;
use crate::harness::portolan;
use crate::harness::{tools::Tools, workdir::WorkDir};
use crate::report::Report;
use births::Founder;
use guarantees::{Truth, check_filtered};
use history::Counts;
use linear::{Call, Outcome};
use stand::Stand;
pub(crate) use stand::{Engine, Fault};
use watched::Watched;
use watcher::Watcher;
use work::{Random, Work};

/// Clients that are at work at once.
const CLIENTS: u64 = 8;
/// Keys that they share.
const KEYS: u64 = 8;
/// How long clients are at work before a fault and after it.
const CALM: Duration = Duration::from_millis(1500);

/// What `cargo xtask torture` can be told.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these engines.
    #[arg(long = "engine", value_enum, value_delimiter = ',')]
    engines: Vec<Engine>,
    /// Only these faults.
    #[arg(long = "fault", value_enum, value_delimiter = ',')]
    faults: Vec<Fault>,
    /// How many faults each engine suffers.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Where chance begins; printed, so that a run can be had again.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead, end a server at each place that the sources name with `failpoint!`. `--portolan` must be a debug build then.
    #[arg(long, conflicts_with_all = ["engines", "faults"])]
    failpoints: bool,
    /// Instead, open the disk of each embedded engine as a crash at any step could leave it.
    #[arg(long, conflicts_with_all = ["faults", "failpoints", "portolan"])]
    crash_images: bool,
    /// How many disks of each engine that is at least.
    #[arg(long, default_value_t = 10_000, requires = "crash_images")]
    images: usize,
    /// After how many minutes for each engine it is enough all the same.
    #[arg(long, requires = "crash_images")]
    minutes: Option<usize>,
    /// Instead, flip so many bits of the stores of each embedded engine, one at a time, and look what its server answers.
    #[arg(long, conflicts_with_all = ["faults", "failpoints", "crash_images"])]
    bit_flips: Option<usize>,
    /// Run this binary instead of building one.
    #[arg(long)]
    portolan: Option<PathBuf>,
}

/// Runs all that is asked for; `false` when something was found.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let engines = match &*options.engines {
        [] => &[Engine::Redb, Engine::Sled, Engine::Etcd],
        given => given,
    };
    if options.crash_images {
        let extent = images::Extent { images: options.images, minutes: options.minutes, seed: options.seed };
        return images::run(engines, &extent);
    }
    let mut work = WorkDir::new("torture")?;
    let tools = Tools::build()?;
    if options.failpoints {
        let program = options.portolan.clone().map_or_else(portolan::build_debug, Ok)?;
        let mut report = Report::default();
        failpoints::run(&mut report, &program, &tools, &work.path().join("failpoints"), 1);
        let fine = report.finish();
        if !fine {
            work.keep();
        }
        return Ok(fine);
    }
    let program = options.portolan.clone().map_or_else(portolan::build, Ok)?;
    let mut report = Report::default();
    for engine in engines.iter().copied() {
        if let Some(flips) = options.bit_flips {
            if engine != Engine::Etcd {
                flips::check(&mut report, &program, &tools, work.path(), engine, flips, options.seed);
            }
            continue;
        }
        for faults in plans(engine, &options.faults) {
            let plan = Plan { engine, faults, rounds: options.rounds, seed: options.seed };
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

/// The faults of an engine, those together that one stand can bear.
fn plans(engine: Engine, wanted: &[Fault]) -> Vec<Vec<Fault>> {
    let sets: &[&[Fault]] = match engine {
        Engine::Redb | Engine::Sled => &[ALONE, &[Fault::Full, Fault::Pause]],
        Engine::Etcd => &[PAIR, MEMBERS],
    };
    let chosen = |set: &&[Fault]| set.iter().copied().filter(|f| wanted.is_empty() || wanted.contains(f)).collect();
    sets.iter().map(chosen).filter(|set: &Vec<Fault>| !set.is_empty()).collect()
}

/// What a server with a store of its own suffers.
const ALONE: &[Fault] = &[Fault::Kill, Fault::Pause, Fault::Slow, Fault::Stall, Fault::Eio, Fault::Clock];

/// What one etcd and two servers suffer.
const PAIR: &[Fault] =
    &[Fault::Kill, Fault::Pause, Fault::KillEtcd, Fault::PauseEtcd, Fault::Slow, Fault::Stall, Fault::Clock];

/// What three members of etcd and two servers suffer.
pub(crate) const MEMBERS: &[Fault] = &[
    Fault::KillEtcd,
    Fault::CutLeader,
    Fault::PauseEtcd,
    Fault::CompactEtcd,
    Fault::NoSpace,
    Fault::Kill,
    Fault::Pause,
];

/// One run on one stand.
pub(crate) struct Plan {
    pub(crate) engine: Engine,
    pub(crate) faults: Vec<Fault>,
    pub(crate) rounds: usize,
    pub(crate) seed: u64,
}

/// Runs a plan as a check of a report.
pub(crate) fn check(report: &mut Report, plan: &Plan, program: &Path, tools: &Tools, dir: &Path) {
    let Plan { engine, faults, rounds, seed } = plan;
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

/// Figures of a run in which all was well.
struct Found {
    counts: Counts,
    events: usize,
    resumed: usize,
    relisted: usize,
    /// Logical clusters that were made.
    births: usize,
}

fn torture(runtime: &tokio::runtime::Runtime, stand: &mut Stand, plan: &Plan) -> Result<Found> {
    let configs = stand.configs();
    let may_forget = plan.faults.iter().any(|fault| fault.forgets());
    let work = Arc::new(Work::new(KEYS));
    let (tell, upto) = watch::channel(None);
    let (mut clients, mut watchers) = (JoinSet::new(), JoinSet::new());
    let founder = runtime.block_on(async {
        make_namespace(&configs[0]).await?;
        for watched in [Watched::All, Watched::Odd] {
            for turn in 0..configs.len().max(2) {
                let (mut configs, count) = (configs.clone(), configs.len());
                configs.rotate_left(turn % count);
                watchers.spawn(Watcher::new(watched, configs, may_forget).await?.run(upto.clone()));
            }
        }
        // These stay at one server, and see what it has missed.
        for config in configs.iter().filter(|_| may_forget) {
            watchers.spawn(Watcher::new(Watched::All, vec![config.clone()], may_forget).await?.run(upto.clone()));
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
        let (begun, client) = (work.history.now(), Client::connect(&configs[0], 1).await?);
        let end = work::last_write(&client).await.context("a write after all others")?;
        let last = Call::Swap { from: None, to: Some(work::LAST), outcome: Outcome::Done };
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
            let client = Client::connect(config, 1).await?;
            // Version 0 is any state that the server has; ours is the latest.
            for options in ["", "resourceVersion=0"] {
                let (version, objects) = watcher::list(&client, Watched::All, options).await?;
                ensure!(version >= end, "a list ({options}) shows the past: {version}, after a write at {end}");
                ensure!(objects.iter().any(|(name, _)| name == "end"), "the last write is not in a list ({options})");
            }
        }
        ensure!(found.counts.acknowledged > plan.rounds, "nothing was written: {:?}", found.counts);
        // Those who stayed at the server behind which history was forgotten cannot have gone on.
        let had_to_list = suffered.contains(&Fault::CompactEtcd);
        ensure!(!had_to_list || found.relisted > 0, "history was forgotten behind a server, and no watch listed again");
        // Of those whose beginning is forgotten there are only lists.
        ensure!(may_forget || found.births > 0, "no logical cluster was made");
        Ok(found)
    })
}

/// Compares watches of everything with what was acknowledged, and those with a selector with them.
fn judge(work: &Work, watchers: &[Watcher]) -> Result<Found> {
    let lists =
        |watcher: &Watcher| watcher.seen.iter().filter(|seen| matches!(seen, history::Seen::List { .. })).count();
    let found = Found {
        counts: work.history.counts(),
        events: watchers.iter().map(|watcher| watcher.seen.len()).sum(),
        resumed: watchers.iter().map(|watcher| watcher.resumed).sum(),
        relisted: watchers.iter().map(lists).sum(),
        births: 0,
    };
    let (all, chosen): (Vec<_>, Vec<_>) = watchers.iter().partition(|watcher| watcher.watched == Watched::All);
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

/// Returns what was done to the stand.
fn suffer(stand: &mut Stand, plan: &Plan, work: &Work) -> Result<Vec<Fault>> {
    let faults: Vec<Fault> = plan.faults.iter().copied().filter(|fault| stand.bears(*fault)).collect();
    let (mut random, mut suffered) = (Random::new(plan.seed), Vec::new());
    std::thread::sleep(CALM);
    for round in 0..plan.rounds {
        // Each at least once, then by chance.
        let fault = faults.get(round).copied().unwrap_or(faults[random.below(faults.len() as u64) as usize]);
        stand.suffer(fault, round).with_context(|| format!("round {round}: {fault:?}"))?;
        suffered.push(fault);
        std::thread::sleep(CALM);
        // Not before: what was written ahead of a fault is read and changed after it.
        work.part.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(CALM);
    }
    Ok(suffered)
}

async fn make_namespace(config: &Kubeconfig) -> Result<()> {
    let client = Client::connect(config, 1).await?;
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": work::NAMESPACE}});
    let answer = client.send(Method::POST, "/api/v1/namespaces", Bytes::from(body.to_string())).await?;
    ensure!(answer.status == StatusCode::CREATED, "the namespace was answered {}", answer.status);
    // Until its loop has put there what every namespace has, it is not quiet.
    for _ in 0..200 {
        let path = format!("/api/v1/namespaces/{}/configmaps/kube-root-ca.crt", work::NAMESPACE);
        if client.send(Method::GET, &path, Bytes::new()).await?.status == StatusCode::OK {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("the namespace was never made ready")
}
