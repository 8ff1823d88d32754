//! kill -9 of the server while 1,000 applies are in flight, and during its start: nothing acknowledged is lost,
//! every placement is legal, both physical clusters converge.

mod load;
mod verdict;

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::scene::{self, EAST, Scene, WEST};
use harness::cluster::PhysicalCluster;
use harness::kubectl::Kubectl;
use harness::poll;
use harness::portolan::Portolan;
use harness::report::CheckReport;
use load::{Applied, Load};

/// Applies that run at once in a round.
const APPLIES: usize = 1000;
/// Number of acknowledged writes before the kill, one round each.
const KILL_AFTER: [usize; 3] = [200, 700, 1400];
/// The namespaces that the load fills, each pinned to one physical cluster.
const NAMESPACES: [(&str, &str); 2] = [("load-east", EAST), ("load-west", WEST)];

/// Something that can be killed and started again on its data.
trait KilledServer {
    fn kill(&self) -> Result<()>;
    /// Returns when it is ready.
    fn restart(&mut self) -> Result<()>;
}

impl KilledServer for Portolan {
    fn kill(&self) -> Result<()> {
        self.kill()
    }

    fn restart(&mut self) -> Result<()> {
        self.restart()
    }
}

impl KilledServer for PhysicalCluster {
    fn kill(&self) -> Result<()> {
        self.kill_control_plane()
    }

    fn restart(&mut self) -> Result<()> {
        self.restart_control_plane()
    }
}

/// Runs in the workspace `kill`.
pub(super) fn run(report: &mut CheckReport, scene: &mut Scene) {
    let made = scene.workspace("kill").and_then(|kubectl| prepare(&kubectl).map(|()| kubectl));
    if !report
        .check("kill: a workspace with two pinned namespaces is made", || made.as_ref().map(drop).map_err(scene::copy))
    {
        return;
    }
    let Ok(kubectl) = made else { return };
    let Some(applied) = rounds(report, scene.server_mut(), &kubectl) else { return };
    report.check("kill: killed at ten moments of its start, it starts", || killed_while_starting(scene));
    report.check("kill: still every acknowledged write is there", || verdict::nothing_lost(&kubectl, &applied));
    report.check("kill: every placement is legal", || {
        poll::until("placements", Duration::from_secs(60), || verdict::placements_legal(&kubectl))
    });
    report.check("kill: both physical clusters converge", || {
        poll::until("convergence", Duration::from_secs(180), || verdict::converged(scene, &kubectl))
    });
    report.check("kill: a deleted workspace leaves nothing below", || scene.delete_workspace("kill"));
}

/// Runs the same load and the same check of acknowledged writes on etcd and kube-apiserver.
pub(super) fn run_against_kube(report: &mut CheckReport, cluster: &mut PhysicalCluster) {
    let kubectl = cluster.kubectl().clone();
    if report.check("kill: two namespaces are made", || prepare(&kubectl)) {
        rounds(report, cluster, &kubectl);
    }
}

/// Everything that was applied, unless the victim did not come back.
fn rounds(report: &mut CheckReport, victim: &mut impl KilledServer, kubectl: &Kubectl) -> Option<Vec<Applied>> {
    let mut applied = Vec::new();
    for (round, after) in KILL_AFTER.into_iter().enumerate() {
        let name = format!("kill: round {} (after {after} acknowledged writes): killed, started, ready", round + 1);
        if !report.check(&name, || one_round(victim, kubectl, round, after, &mut applied)) {
            return None;
        }
        report.check("kill: every acknowledged write is there, nothing is half there", || {
            verdict::nothing_lost(kubectl, &applied)
        });
        report.check("kill: resource versions go on where they were", || verdict::versions_go_on(kubectl, &applied));
    }
    Some(applied)
}

fn prepare(kubectl: &Kubectl) -> Result<()> {
    for (namespace, cluster) in NAMESPACES {
        let metadata = json!({"name": namespace, "annotations": {"portolan.dev/pin": cluster}});
        let manifest = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        kubectl.run_with("apply -f -", &manifest.to_string())?;
        let shared = "create configmap shared --from-literal=mode=calm -n";
        poll::until("the namespace takes objects", Duration::from_secs(20), || {
            kubectl.run(&format!("{shared} {namespace}"))
        })?;
    }
    Ok(())
}

fn one_round(
    victim: &mut impl KilledServer,
    kubectl: &Kubectl,
    round: usize,
    kill_after: usize,
    applied: &mut Vec<Applied>,
) -> Result<()> {
    let load = Load { config: kubectl.config().clone(), round, applies: APPLIES, kill_after };
    let outcome = load.run(|| victim.kill())?;
    let acknowledged = outcome.iter().map(Applied::acknowledged).sum::<usize>();
    println!("      {acknowledged} writes of {} objects were acknowledged before the end", outcome.len());
    applied.extend(outcome);
    victim.restart().context("after kill -9")
}

fn killed_while_starting(scene: &mut Scene) -> Result<()> {
    scene.server().kill()?;
    for step in 0..10 {
        scene.server_mut().start_and_kill(Duration::from_millis(step * step * 4))?;
    }
    scene.server_mut().restart()
}
