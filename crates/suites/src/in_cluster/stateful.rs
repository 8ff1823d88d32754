//! Data of a StatefulSet, which are files of this machine.

use std::fs;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::stage::{InClusterStage, LIMIT};
use super::{EAST, WEST};
use crate::downstream::{items, text};
use harness::poll;

/// A pod that replaces another one has the data of the first, also after its node was killed.
pub(super) fn keeps_data(stage: &InClusterStage<'_>) -> Result<()> {
    stage.apply("database.yaml", EAST)?;
    stage.shop.run("rollout status statefulset/db --timeout=80s")?;
    let pod = "db-0";
    stage.shop.run_args(&["exec", pod, "-c", "db", "--", "sh", "-c", "echo precious > /data/kept; sync"])?;
    stage.shop.run(&format!("delete pod {pod} --timeout=60s"))?;
    has_data(stage, 2)?;
    stage.cluster(EAST)?.restart_node()?;
    has_data(stage, 3)?;
    stage.shop.run("rollout status statefulset/db --timeout=80s").map(drop)
}

/// A move is refused until a user gives up the data. Then the pod ends on one cluster before it starts on the other,
/// with an empty volume, and the data stay behind.
pub(super) fn moves_without_data(stage: &InClusterStage<'_>) -> Result<()> {
    let refused = stage.shop.call(&format!("annotate statefulset/db portolan.dev/pin={WEST} --overwrite"), "")?;
    ensure!(refused.code == Some(0) && refused.stderr.contains("abandon-volumes"), "{refused}");
    has_data(stage, 3)?;
    stage.shop.run("annotate statefulset/db portolan.dev/abandon-volumes=true")?;
    let start = Instant::now();
    loop {
        let (there, here) = (running(stage, EAST)?, running(stage, WEST)?);
        ensure!(there == 0 || here == 0, "the pod runs on both clusters");
        if here == 1 && has_words(stage, &["1"]).is_ok() {
            break;
        }
        ensure!(start.elapsed() < LIMIT, "{there} pods on {EAST}, {here} on {WEST}");
    }
    let kept = stage.disks(EAST).into_iter().filter_map(|disk| fs::read_to_string(disk.join("kept")).ok());
    ensure!(kept.eq(["precious\n"]), "the data are lost");
    Ok(())
}

/// Number of pods of the database whose process may run on a cluster.
fn running(stage: &InClusterStage<'_>, place: &str) -> Result<usize> {
    let pods = stage.cluster(place)?.kubectl().json("get pods -A -l app=db")?;
    let ended = |pod: &Value| matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    Ok(items(&pods).iter().filter(|pod| !ended(pod)).count())
}

/// Checks that a pod is ready after this number of starts, with the data of the first.
fn has_data(stage: &InClusterStage<'_>, starts: usize) -> Result<()> {
    poll::until("the database is back", LIMIT, || has_words(stage, &["precious", &starts.to_string()]))
}

/// Wants these words: the data, if there are any, and the number of starts.
fn has_words(stage: &InClusterStage<'_>, expected: &[&str]) -> Result<()> {
    let script = "cat /data/kept 2>/dev/null; wc -l < /data/starts";
    let seen = stage.shop.run_args(&["exec", "db-0", "-c", "db", "--", "sh", "-c", script])?;
    ensure!(seen.split_whitespace().eq(expected.iter().copied()), "{seen}");
    Ok(())
}
