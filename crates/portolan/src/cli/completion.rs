//! `portolan completion`: completion scripts of shells.

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::{PortolanCli, output};

/// Print the completion script of a shell for this program. kubectl completes its plugin by itself, once the links of
/// `portolan plugin install` are in PATH.
#[derive(Args)]
pub(crate) struct CompletionArgs {
    /// Shell: bash, zsh, fish, elvish or powershell.
    #[arg(value_enum)]
    shell: Shell,
}

impl CompletionArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut script = Vec::new();
        generate(self.shell, &mut PortolanCli::command(), "portolan", &mut script);
        output::print(&String::from_utf8_lossy(&script))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_complete_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            generate(shell, &mut PortolanCli::command(), "portolan", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(["snapshot", "kubeconfig", "plugin"].iter().all(|word| script.contains(word)), "{shell}");
        }
    }
}
