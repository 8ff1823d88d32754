//! Calls of cargo from within a task.

use std::process::Command;

use super::tools::repository;

/// Variables in which cargo describes the package that it runs. Build scripts such as ring's depend on these names:
/// unless they are removed, every switch between a task's cargo and one from the shell would compile them and their
/// dependents again.
const OF_THE_PACKAGE: [&str; 6] =
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_", "OUT_DIR"];

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
