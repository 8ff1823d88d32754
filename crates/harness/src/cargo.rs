//! Calls of cargo from within a task.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::tools::repository;

/// Variables in which cargo describes the package that it runs. Build scripts such as ring's depend on these names:
/// unless they are removed, every switch between a task's cargo and one from the shell would compile them and their
/// dependents again.
const OF_THE_PACKAGE: [&str; 6] =
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_", "OUT_DIR"];

/// Builds a program of this repository, `arguments` of `cargo build`, and returns its path.
pub fn build(arguments: &[&str]) -> Result<PathBuf> {
    let output = cargo().arg("build").args(arguments).arg("--message-format=json").stderr(Stdio::inherit()).output();
    let output = output.context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo could not build {}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .next_back()
        .context("cargo named no executable")
}

/// Builds an example of a package, without optimization, and returns its path.
pub fn example(package: &str, name: &str) -> Result<PathBuf> {
    build(&["--package", package, "--example", name])
}

/// Returns cargo in the repository, with the environment of a shell.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repository());
    for (name, _) in std::env::vars_os() {
        if OF_THE_PACKAGE.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}
