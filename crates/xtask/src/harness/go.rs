//! Go, always in the same way: the tool chain that is installed, no requirement changed, and nothing asked of git.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::process;
use super::tools::repository;

/// Kubernetes is compiled from nothing, on few cores, beside other builds.
pub(crate) const LIMIT: Duration = Duration::from_secs(3600);

/// Builds a program of the module `e2e`.
pub(crate) fn build(package: &str, program: &Path) -> Result<()> {
    run(&folder(), &["build", "-o", text(program)?, &format!("./{package}")]).map(drop)
}

/// Runs the tests of a package of the module `e2e`. Vet would look at all of Kubernetes first.
pub(crate) fn test(package: &str) -> Result<()> {
    run(&folder(), &["test", "-vet=off", "-count=1", &format!("./{package}")]).map(drop)
}

/// Where Go keeps a module, which it fetches if it has to.
pub(crate) fn fetched(module: &str) -> Result<PathBuf> {
    let answer: Value = serde_json::from_str(&run(&folder(), &["mod", "download", "-json", module])?)?;
    Ok(answer["Dir"].as_str().context("go names no folder")?.into())
}

/// Runs go in the folder of a module, and gives what it prints.
pub(crate) fn run(module: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new("go");
    command.args(args).current_dir(module).env("GOFLAGS", "-buildvcs=false -mod=readonly").env("GOTOOLCHAIN", "local");
    process::output(&mut command, LIMIT).with_context(|| format!("go {}", args.join(" ")))
}

/// What a program that was built prints.
pub(crate) fn printed(program: &Path, args: &[&str]) -> Result<String> {
    process::output(Command::new(program).args(args).current_dir(folder()), LIMIT)
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path is not UTF-8")
}

fn folder() -> PathBuf {
    repository().join("e2e")
}
