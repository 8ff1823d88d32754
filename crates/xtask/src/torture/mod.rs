//! `cargo xtask torture`: real servers under faults, while clients write and watchers follow; then the verdict: every key's calls
//! fit into one order, every acknowledged write is there, and every watch was ordered, unique, without holes and resumable.

pub(crate) mod failpoints;
mod history;
mod linear;
pub(crate) mod stand;
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
use crate::harness::cargo::cargo;
use crate::harness::kubeconfig::Kubeconfig;
use crate::harness::portolan;
use crate::harness::{tools::Tools, workdir::WorkDir};
use crate::report::Report;
use history::Counts;
use linear::{Call, Outcome};
use stand::Stand;
pub(crate) use stand::{Engine, Fault};
use work::{Random, Watcher, Work};

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
    /// Instead, open the disk of each embedded engine as a crash at any step could leave it: some 10,000 crashes per engine.
    #[arg(long, conflicts_with_all = ["engines", "faults", "failpoints", "portolan"])]
    crash_images: bool,
    /// Run this binary instead of building one.
    #[arg(long)]
    portolan: Option<PathBuf>,
}

/// Runs all that is asked for; `false` when something was found.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.crash_images {
        return crash_images(options.seed);
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
    let all = |given: &[Engine]| {
        if given.is_empty() { vec![Engine::Redb, Engine::Sled, Engine::Etcd] } else { given.to_vec() }
    };
    for engine in all(&options.engines) {
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

/// Every step of the recorded runs of `crates/store/tests/crash`, on either engine.
fn crash_images(seed: u64) -> Result<bool> {
    let args = ["test", "--package", "portolan-store", "--test", "crash", "--", "--nocapture", "a_crash_at_any_step"];
    let mut command = cargo();
    command.args(args).env("PORTOLAN_CRASH_STRIDE", "1").env("PORTOLAN_CRASH_SEED", seed.to_string());
    Ok(command.status().context("cannot run cargo")?.success())
}

/// The faults of an engine, those together that one stand can bear.
fn plans(engine: Engine, wanted: &[Fault]) -> Vec<Vec<Fault>> {
    let sets: &[&[Fault]] = match engine {
        Engine::Redb => &[&[Fault::Kill, Fault::Pause, Fault::Slow], &[Fault::Full, Fault::Pause]],
        Engine::Sled => &[&[Fault::Kill, Fault::Pause, Fault::Slow]],
        Engine::Etcd => &[&[Fault::Kill, Fault::Pause, Fault::KillEtcd, Fault::PauseEtcd, Fault::Slow], MEMBERS],
    };
    let chosen = |set: &&[Fault]| set.iter().copied().filter(|f| wanted.is_empty() || wanted.contains(f)).collect();
    sets.iter().map(chosen).filter(|set: &Vec<Fault>| !set.is_empty()).collect()
}

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
             a new list",
            found.counts.calls,
            found.counts.acknowledged,
            found.counts.unknown,
            found.events,
            found.resumed,
            found.relisted
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
}

fn torture(runtime: &tokio::runtime::Runtime, stand: &mut Stand, plan: &Plan) -> Result<Found> {
    let configs = stand.configs();
    let work = Arc::new(Work::new(KEYS));
    let (tell, upto) = watch::channel(None);
    let (mut clients, mut watchers) = (JoinSet::new(), JoinSet::new());
    runtime.block_on(async {
        make_namespace(&configs[0]).await?;
        for turn in 0..configs.len().max(2) {
            let (mut configs, count) = (configs.clone(), configs.len());
            configs.rotate_left(turn % count);
            let may_forget = plan.faults.iter().any(|fault| fault.forgets());
            watchers.spawn(Watcher::new(configs, may_forget).await?.run(upto.clone()));
        }
        for client in 0..CLIENTS {
            clients.spawn(work.clone().client(configs.clone(), plan.seed * 1000 + client));
        }
        anyhow::Ok(())
    })?;
    let suffered = suffer(stand, plan, &work);
    work.stop.store(true, Ordering::Release);
    runtime.block_on(async {
        while clients.join_next().await.transpose()?.is_some() {}
        suffered?;
        let (begun, client) = (work.history.now(), Client::connect(&configs[0], 1).await?);
        let end = work::last_write(&client).await.context("a write after all others")?;
        let last = Call::Swap { from: None, to: Some(0), outcome: Outcome::Done };
        work.history.note("end", begun, last, Some(end));
        tell.send_replace(Some(end));
        work.history.check_linearizable()?;
        let mut found = Found { counts: work.history.counts(), events: 0, resumed: 0, relisted: 0 };
        while let Some(watcher) = tokio::time::timeout(Duration::from_secs(120), watchers.join_next()).await? {
            let watcher = watcher??;
            work.history.check_watch(&watcher.seen)?;
            found.events += watcher.seen.len();
            found.resumed += watcher.resumed;
            found.relisted += watcher.seen.iter().filter(|seen| matches!(seen, history::Seen::List { .. })).count();
        }
        for config in &configs {
            let (version, objects) = work::list(&Client::connect(config, 1).await?).await?;
            ensure!(version >= end, "a list shows the past: {version}, after a write at {end}");
            ensure!(objects.iter().any(|(name, _)| name == "end"), "the last write is not in a list");
        }
        ensure!(found.counts.acknowledged > plan.rounds, "nothing was written: {:?}", found.counts);
        Ok(found)
    })
}

fn suffer(stand: &mut Stand, plan: &Plan, work: &Work) -> Result<()> {
    let faults: Vec<Fault> = plan.faults.iter().copied().filter(|fault| stand.bears(*fault)).collect();
    let mut random = Random::new(plan.seed);
    std::thread::sleep(CALM);
    for round in 0..plan.rounds {
        // Each at least once, then by chance.
        let fault = faults.get(round).copied().unwrap_or(faults[random.below(faults.len() as u64) as usize]);
        stand.suffer(fault, round).with_context(|| format!("round {round}: {fault:?}"))?;
        work.part.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(CALM);
    }
    Ok(())
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
