//! Pods that run, on two physical clusters of process kubelets: one that the server reaches directly, and one by an
//! agent that is itself a pod there.

mod moving;
mod names;
mod operator;
mod release;
mod services;
mod stage;
mod stateful;
mod storm;
mod streams;
mod view;

use std::path::{Path, PathBuf};

use anyhow::Result;

use harness::process_kubelet;
use harness::report::CheckReport;
use harness::tools::Tools;
use stage::InClusterStage;

/// Physical cluster that the server reaches directly.
const EAST: &str = "east";
/// Physical cluster that the server reaches by an agent.
const WEST: &str = "west";
/// Workspace with its namespace of the same name.
const SHOP: &str = "shop";

/// Named step of the suite.
type InClusterCheck = (&'static str, fn(&InClusterStage<'_>) -> Result<()>);

const CHECKS: [InClusterCheck; 12] = [
    ("the Deployments of an application roll out on each cluster", view::rolls_out),
    ("a pod sees its workspace, and nothing of others", view::sees_its_workspace),
    ("names of the workspace resolve in its pods, and no others", names::resolve),
    ("logs, exec, cp, attach, port-forward and debug reach the containers", streams::reach_containers),
    ("an operator that is a placed pod reconciles its custom resources", operator::reconciles),
    ("a StatefulSet keeps its data over the end of its pod and of its node", stateful::keeps_data),
    ("a StatefulSet moves only without its data, and never runs twice", stateful::moves_without_data),
    ("Helm runs the hooks of a chart, and uninstalls it", release::is_installed),
    (
        "a client calls a Service 50 times a second while that moves to its cluster and back: no call fails",
        services::move_under_load,
    ),
    ("another pod of the agent takes over, and changes arrive again", moving::agent_restarts),
    ("a thousand agents connect, and connect again after a restart of the server", storm::agents_reconnect),
    ("tokens are renewed, and no request is refused meanwhile", view::tokens_are_renewed),
];

/// Builds the programs of the suite beside Kubernetes' own, and returns their folders.
pub(super) fn prepare() -> Result<Vec<PathBuf>> {
    let clients = stage::clients()?;
    let kubelet = process_kubelet::build()?;
    Ok(clients.folders().map(Path::to_owned).chain(kubelet.parent().map(Path::to_owned)).collect())
}

/// Runs all steps in order.
pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) {
    report.check("in-cluster: the tests of the process kubelet pass", process_kubelet::test);
    let mut made = None;
    let starts = report.check("in-cluster: east joins directly, and west by an agent in a pod", || {
        made = Some(InClusterStage::start(program, tools, dir)?);
        Ok(())
    });
    let Some(stage) = made.filter(|_| starts) else { return };
    for (name, check) in CHECKS {
        report.check(&format!("in-cluster: {name}"), || stage.explain(check(&stage)));
    }
    report.check("in-cluster: a deleted workspace leaves nothing on either cluster", || stage.delete_workspace());
}
