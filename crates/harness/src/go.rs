//! Calls of Go with fixed settings: the installed toolchain, no changed requirement, no use of git.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::process;
use super::tools::repository;

/// Time limit of a build: Kubernetes from nothing, on few cores, beside other builds.
pub const LIMIT: Duration = Duration::from_secs(3600);

/// Builds a program of the module `e2e`.
pub fn build(package: &str, program: &Path) -> Result<()> {
    run(&folder(), &["build", "-o", text(program)?, &format!("./{package}")]).map(drop)
}

/// Runs the tests of a package of the module `e2e`, without vet, which would check all of Kubernetes.
pub fn test(package: &str) -> Result<()> {
    run(&folder(), &["test", "-vet=off", "-count=1", &format!("./{package}")]).map(drop)
}

/// Returns the folder of a module in Go's module cache, and downloads it first if it is missing.
pub fn fetched(module: &str) -> Result<PathBuf> {
    let answer: Value = serde_json::from_str(&run(&folder(), &["mod", "download", "-json", module])?)?;
    Ok(answer["Dir"].as_str().context("go names no folder")?.into())
}

/// Runs go in the folder of a module, and returns its output.
pub fn run(module: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new("go");
    command.args(args).current_dir(module).env("GOFLAGS", "-buildvcs=false -mod=readonly").env("GOTOOLCHAIN", "local");
    process::output(&mut command, LIMIT).with_context(|| format!("go {}", args.join(" ")))
}

/// Runs a built program and returns its output.
pub fn printed(program: &Path, args: &[&str]) -> Result<String> {
    process::output(Command::new(program).args(args).current_dir(folder()), LIMIT)
}

/// Returns a path as an argument.
pub fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path is not UTF-8")
}

fn folder() -> PathBuf {
    repository().join("e2e")
}
