//! Names under which the binary is another program: kubectl finds plugins by the names of executables.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::Args;

/// Program that the binary is, by the name it was called with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applet {
    /// `kubectl portolan`.
    Portolan,
    /// `kubectl ws`.
    Ws,
    /// `kubectl create workspace`.
    CreateWorkspace,
    /// Completion of `kubectl portolan`.
    CompletePortolan,
    /// Completion of `kubectl ws`.
    CompleteWs,
}

/// Names of the links, and their programs. kubectl runs `kubectl-create-workspace` for `kubectl create workspace`, and
/// `kubectl-create_workspace` for `kubectl create-workspace`.
const LINKS: [(&str, Applet); 6] = [
    ("kubectl-portolan", Applet::Portolan),
    ("kubectl-ws", Applet::Ws),
    ("kubectl-create-workspace", Applet::CreateWorkspace),
    ("kubectl-create_workspace", Applet::CreateWorkspace),
    ("kubectl_complete-portolan", Applet::CompletePortolan),
    ("kubectl_complete-ws", Applet::CompleteWs),
];

impl Applet {
    /// Returns the program of a first argument; `None` for `portolan` itself.
    pub(crate) fn of(argument: &OsStr) -> Option<Self> {
        let name = Path::new(argument).file_name()?.to_str()?;
        LINKS.iter().find(|(link, _)| *link == name).map(|(_, applet)| *applet)
    }
}

/// Link this program under the names by which kubectl finds its plugins.
#[derive(Args)]
pub(crate) struct PluginInstallArgs {
    /// Directory for the links; it should be in PATH. By default that of this program.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Replace files of these names, as the plugins of kcp.
    #[arg(long)]
    force: bool,
}

impl PluginInstallArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// Fails if a name is taken by a file that is not such a link, or a link cannot be created.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("the path of this program is unknown")?;
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => program.parent().context("the path of this program is unknown")?.to_owned(),
        };
        for made in install(&program, &dir, self.force)? {
            crate::cli::output::line(&format!("{} -> {}", made.display(), program.display()))?;
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_found = std::env::split_paths(&path).any(|folder| same(&folder, &dir));
        if !is_found {
            eprintln!("hint: {} is not in PATH; kubectl finds its plugins only there", dir.display());
        }
        Ok(())
    }
}

fn same(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real(a) == real(b)
}

/// Creates the links, and returns their paths. Existing links to the program are kept.
fn install(program: &Path, dir: &Path, force: bool) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).with_context(|| format!("{} cannot be made", dir.display()))?;
    let links: Vec<PathBuf> = LINKS.iter().map(|(name, _)| dir.join(name)).collect();
    let is_other = |link: &&PathBuf| link.symlink_metadata().is_ok() && !same(link, program);
    if let Some(other) = links.iter().find(is_other).filter(|_| !force) {
        bail!("{} is there, and is another program; replace it with --force", other.display());
    }
    for link in &links {
        if link.symlink_metadata().is_ok() {
            fs::remove_file(link).with_context(|| format!("{} cannot be replaced", link.display()))?;
        }
        let made: io::Result<()> = std::os::unix::fs::symlink(program, link);
        made.with_context(|| format!("{} cannot be made", link.display()))?;
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_link_chooses_the_program() {
        for (argument, expected) in [
            ("kubectl-portolan", Some(Applet::Portolan)),
            ("/usr/local/bin/kubectl-ws", Some(Applet::Ws)),
            ("./kubectl-create-workspace", Some(Applet::CreateWorkspace)),
            ("kubectl-create_workspace", Some(Applet::CreateWorkspace)),
            ("kubectl_complete-portolan", Some(Applet::CompletePortolan)),
            ("kubectl_complete-ws", Some(Applet::CompleteWs)),
            ("portolan", None),
            ("/opt/kubectl-ws/portolan", None),
            ("kubectl-wsx", None),
            ("", None),
        ] {
            assert_eq!(Applet::of(OsStr::new(argument)), expected, "{argument}");
        }
    }

    #[test]
    fn other_programs_are_replaced_only_by_force() {
        let folder = tempfile::tempdir().unwrap();
        let (program, dir) = (folder.path().join("portolan"), folder.path().join("bin"));
        fs::write(&program, "program").unwrap();
        assert_eq!(install(&program, &dir, false).unwrap().len(), LINKS.len());
        assert_eq!(fs::read_to_string(dir.join("kubectl-ws")).unwrap(), "program");
        install(&program, &dir, false).unwrap();
        fs::remove_file(dir.join("kubectl-ws")).unwrap();
        fs::write(dir.join("kubectl-ws"), "kcp's").unwrap();
        let refused = install(&program, &dir, false).unwrap_err().to_string();
        assert!(refused.contains("kubectl-ws is there, and is another program"), "{refused}");
        install(&program, &dir, true).unwrap();
        assert_eq!(fs::read_to_string(dir.join("kubectl-ws")).unwrap(), "program");
    }
}
