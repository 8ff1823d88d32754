//! `cargo xtask isolation`: compares the answers to one tenant with and without other tenants, at random.

use anyhow::{Context as _, Result};
use clap::Args;

use harness::cargo::cargo;

/// Options of the chore.
#[derive(Args)]
pub(crate) struct Options {
    /// Requests to compare.
    #[arg(long, default_value_t = 1_000_000)]
    requests: u64,
    /// Seed of the requests: the same seed makes the same requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Compares; `false` when an answer differed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let status = cargo()
        .args(["test", "--release", "--package", "portolan-apiserver", "--test", "isolation", "--", "--nocapture"])
        .env("ISOLATION_REQUESTS", options.requests.to_string())
        .env("ISOLATION_SEED", options.seed.to_string())
        .status()
        .context("cargo cannot be run")?;
    Ok(status.success())
}
