//! `cargo xtask fuzz`: sends the API server generated inputs, target by target.

use anyhow::{Context as _, Result};
use clap::Args;

use harness::cargo::cargo;

/// Options of the chore.
#[derive(Args)]
pub(crate) struct Options {
    /// Targets to fuzz: json, yaml, protobuf, json-patch, merge-patch, strategic-patch, apply, selectors, tokens or
    /// paths. May be repeated; all targets by default.
    #[arg(long)]
    target: Vec<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Seed of the inputs: the same seed makes the same inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Fuzzes; `false` when something was found. Unoptimized, so that overflows are found, too.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let every = [String::new()];
    let targets = if options.target.is_empty() { &every[..] } else { &options.target };
    let mut clean = true;
    for target in targets {
        let status = cargo()
            .args(["test", "--package", "portolan-apiserver", "--test", "fuzz", "--", "--nocapture"])
            .env("FUZZ_TARGET", target)
            .env("FUZZ_SECONDS", options.seconds.to_string())
            .env("FUZZ_SEED", options.seed.to_string())
            .status()
            .context("cargo cannot be run")?;
        if status.code().is_none() {
            eprintln!("{target}: the process died; its last input is in the target folder, tmp/fuzz/{target}.last");
        }
        clean &= status.success();
    }
    Ok(clean)
}
