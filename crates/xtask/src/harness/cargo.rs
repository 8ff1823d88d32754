//! Running cargo from within a chore.

use std::process::Command;

use super::tools::repository;

/// What cargo says of the package that it runs. Build scripts such as ring's look at these names and would run again, and
/// all that depends on them be compiled again, with every change between a chore's cargo and one from the shell.
const OF_THE_PACKAGE: [&str; 6] =
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_", "OUT_DIR"];

/// Cargo in the repository, as from the shell.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repository());
    for (name, _) in std::env::vars_os() {
        if OF_THE_PACKAGE.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}
