//! The syncer's own suite, which is a test program of its crate, against a real API server.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use harness::cluster::PhysicalCluster;
use harness::tools::repository;

/// With the whole workspace, so that `cargo test --workspace` has compiled everything already.
const TEST: [&str; 5] = ["test", "--quiet", "--workspace", "--test", "real_cluster"];

pub(super) fn run(cluster: &PhysicalCluster) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(TEST)
        .current_dir(repository())
        .env("PORTOLAN_SUITE_KUBECONFIG", cluster.kubeconfig_file())
        .output()
        .context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}{errors}");
    ensure!(said.contains("the suite passed"), "it did not run: {said}{errors}");
    said.lines().filter(|line| line.contains("reported, ms")).for_each(|line| println!("      {line}"));
    Ok(())
}
