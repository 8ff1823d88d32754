//! Service that moves between the clusters while a pod calls it under the name that is the same on all of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::stage::{InClusterStage, LIMIT};
use super::view::in_pod;
use super::{EAST, WEST};
use crate::downstream::items;
use harness::go;
use harness::poll;

/// Module with the published definitions of the Multi-Cluster Services API.
const DEFINITIONS: &str = "sigs.k8s.io/mcs-api@v0.5.0";
/// Name of the Service on all physical clusters.
const HOST: &str = "quote.shop.svc.clusterset.local";
/// Least calls per second over the whole time, of the 50 that the caller makes on an idle machine.
const LEAST_RATE: f64 = 40.0;
/// Time of calls before the first move and after the last one.
const CALM: Duration = Duration::from_secs(5);

/// Calls of the client since its start.
#[derive(Debug)]
struct CallCounts {
    calls: u64,
    failed: u64,
    /// Answers by the network of the physical cluster that gave them.
    answered: BTreeMap<String, u64>,
}

/// A client on one cluster calls a Service that moves to the client's cluster, and away from it: no call fails.
pub(super) fn move_under_load(stage: &InClusterStage<'_>) -> Result<()> {
    for name in ["serviceexports", "serviceimports"] {
        let file = go::fetched(DEFINITIONS)?.join(format!("config/crd/multicluster.x-k8s.io_{name}.yaml"));
        stage.shop.run(&format!("apply -f {}", file.display()))?;
        stage.shop.run(&format!("wait crd/{name}.multicluster.x-k8s.io --for=condition=Established --timeout=30s"))?;
    }
    stage.apply("quote.yaml", EAST)?;
    stage.shop.run("rollout status deployment/quote --timeout=80s")?;
    poll::until("the name resolves on both clusters", LIMIT, || {
        [EAST, WEST]
            .iter()
            .try_for_each(|place| in_pod(&stage.shop, place, &format!("curl -sf -m 3 http://{HOST}/")).map(drop))
    })?;
    stage.apply("caller.yaml", WEST)?;
    stage.shop.run("rollout status deployment/caller --timeout=80s")?;
    let begun = Instant::now();
    std::thread::sleep(CALM);
    for (from, to) in [(EAST, WEST), (WEST, EAST)] {
        let before = counts(stage)?;
        moves(stage, from, to)?;
        let after = counts(stage)?;
        ensure!(after.failed == 0, "the move to {to}: {}", log(stage)?);
        let network = |place: &str| -> Result<String> {
            let address = stage.cluster(place)?.host_address();
            Ok(address.split('.').take(2).collect::<Vec<_>>().join("."))
        };
        let new = |place: &str| -> Result<u64> {
            let of = |counts: &CallCounts, network: &str| counts.answered.get(network).copied().unwrap_or_default();
            let network = network(place)?;
            Ok(of(&after, &network) - of(&before, &network))
        };
        ensure!(new(from)? > 0 && new(to)? > 0, "the move to {to}: {before:?}, {after:?}");
    }
    std::thread::sleep(CALM);
    let (end, seconds) = (counts(stage)?, begun.elapsed().as_secs_f64());
    println!("  {} calls in {seconds:.0} s, {} failed", end.calls, end.failed);
    ensure!(end.failed == 0, "{}", log(stage)?);
    ensure!(end.calls as f64 / seconds >= LEAST_RATE, "{} calls in {seconds:.0} s", end.calls);
    stage
        .shop
        .run("delete deployment/caller deployment/quote service/quote serviceexport/quote --timeout=60s")
        .map(drop)
}

/// Moves the Service, and waits until the cluster that it leaves has no copy of it.
fn moves(stage: &InClusterStage<'_>, from: &str, to: &str) -> Result<()> {
    stage.shop.run(&format!("annotate deployment/quote portolan.dev/pin={to} --overwrite"))?;
    poll::until("the Service has moved", LIMIT, || {
        let left = stage.cluster(from)?.kubectl().json("get pods -A -l app=quote")?;
        ensure!(items(&left).is_empty(), "{} pods are on {from}", items(&left).len());
        Ok(())
    })?;
    stage.shop.run("rollout status deployment/quote --timeout=80s").map(drop)
}

fn log(stage: &InClusterStage<'_>) -> Result<String> {
    stage.shop.run("logs deploy/caller --tail=40")
}

/// Reads the last line of counts that the caller has printed.
fn counts(stage: &InClusterStage<'_>) -> Result<CallCounts> {
    let log = log(stage)?;
    let line =
        log.lines().rev().find(|line| line.starts_with("calls=")).with_context(|| format!("no counts: {log}"))?;
    let mut all: BTreeMap<String, u64> = line
        .split(' ')
        .filter_map(|word| word.split_once('='))
        .map(|(name, count)| Ok((name.to_owned(), count.parse()?)))
        .collect::<Result<_>>()?;
    let mut take = |name: &str| all.remove(name).with_context(|| format!("no {name} in {line}"));
    Ok(CallCounts { calls: take("calls")?, failed: take("failed")?, answered: all })
}
