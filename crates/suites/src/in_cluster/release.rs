//! Helm chart whose hooks run programs.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::stage::{InClusterStage, LIMIT};
use super::{EAST, SHOP, WEST};
use harness::process;
use harness::tools::repository;

/// Installs, upgrades and uninstalls the chart on each cluster.
pub(super) fn is_installed(stage: &InClusterStage<'_>) -> Result<()> {
    for place in [EAST, WEST] {
        let release = format!("ledger-{place}");
        let set = format!("place={place}");
        helm(stage, &["install", &release, "CHART", "--set", &set, "--wait"])?;
        let log = stage.shop.run(&format!("logs job/{release}-post-install"))?;
        ensure!(log.trim() == "first", "the hook after the installation says {log:?}");
        helm(stage, &["upgrade", &release, "CHART", "--set", &set, "--set", "text=second", "--wait"])?;
        let log = stage.shop.run(&format!("logs job/{release}-post-upgrade"))?;
        ensure!(log.trim() == "second", "the hook after the upgrade says {log:?}");
        helm(stage, &["uninstall", &release, "--wait"])?;
        let left = stage.shop.run(&format!("get deployments,services,configmaps -l app={release} -o name"))?;
        ensure!(left.is_empty(), "{left}");
    }
    Ok(())
}

fn helm(stage: &InClusterStage<'_>, args: &[&str]) -> Result<()> {
    let chart = repository().join("e2e/in-cluster/chart");
    let chart = chart.to_str().context("the path of the clone is not UTF-8")?;
    let mut command = Command::new(stage.clients.helm());
    command
        .args(args.iter().map(|&word| if word == "CHART" { chart } else { word }))
        .args(["--namespace", SHOP, "--timeout", "80s"])
        .env("KUBECONFIG", stage.shop.kubeconfig_file())
        .env("HOME", stage.dir);
    process::output(&mut command, LIMIT * 2).with_context(|| format!("helm {}", args.join(" "))).map(drop)
}
