//! Shell session of a page: each command is a process; variables and the folder go from one to the next.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::commands::{PageCommand, Promise};
use super::shape;
use harness::poll;
use harness::process::{self, Process};
use harness::tools::repository;

/// Time in which a command ends.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// Time limit in which the output of a read-only command must become that of the page.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);

/// Programs of the session that replace those of a user's machine: cargo, which would build the program under test
/// once more; sudo, which needs a user with rights; and the program itself, on a free port.
const STAND_INS: [(&str, &str); 3] = [
    (
        "cargo",
        "#!/bin/sh\nwhile [ $# -gt 0 ] && [ \"$1\" != -- ]; do shift; done\n\
         [ $# -eq 0 ] || { shift; exec portolan \"$@\"; }\n",
    ),
    ("sudo", "#!/bin/sh\n[ \"$1\" != -u ] || shift 2\nexec \"$@\"\n"),
    (
        "portolan",
        "#!/bin/sh\ncase \"$1 $*\" in\n*--bind-address*) ;;\n'demo '*|'server '*) set -- \"$@\" \
         --bind-address=127.0.0.1:0 ;;\nesac\nexec \"$PORTOLAN\" \"$@\"\n",
    ),
];

/// Folder, variables and programs that stay in the background.
pub(crate) struct ShellSession {
    dir: PathBuf,
    background: Vec<Process>,
    /// Output of the last command that ended as promised.
    printed: Option<String>,
}

impl ShellSession {
    /// Makes a session in an empty folder, with the program, its links, kubectl and the manifests of the repository.
    pub(crate) fn new(dir: &Path, program: &Path, kubectl: &Path) -> Result<Self> {
        let bin = dir.join("bin");
        for folder in ["bin", "home", "work/target/release"] {
            fs::create_dir_all(dir.join(folder)).with_context(|| format!("cannot make {folder}"))?;
        }
        let link = |from: &Path, to: PathBuf| {
            std::os::unix::fs::symlink(from, &to).with_context(|| format!("cannot make {}", to.display()))
        };
        let program = fs::canonicalize(program).context("the program under test is missing")?;
        link(kubectl, bin.join("kubectl"))?;
        link(&repository().join("manifests"), dir.join("work/manifests"))?;
        for (name, script) in STAND_INS {
            write_program(&bin.join(name), script)?;
        }
        link(&bin.join("portolan"), dir.join("work/target/release/portolan"))?;
        let links = Command::new(&program).args(["plugin", "install", "--dir"]).arg(&bin).output()?;
        ensure!(links.status.success(), "{}", String::from_utf8_lossy(&links.stderr));
        let path = std::env::var("PATH").unwrap_or_default();
        let state = format!(
            "cd '{0}/work'\nexport HOME='{0}/home' KUBECACHEDIR='{0}/home/cache' PATH='{0}/bin:{path}' NO_COLOR=1 EDITOR=true\n\
             export PORTOLAN='{1}'\nunset KUBECONFIG\n",
            dir.display(),
            program.display()
        );
        fs::write(dir.join("state"), state).context("cannot write the state of the session")?;
        Ok(Self { dir: dir.to_owned(), background: Vec::new(), printed: None })
    }

    /// Adds a line that runs before every later command.
    pub(crate) fn prepare(&self, line: &str) -> Result<()> {
        let state = fs::read_to_string(self.dir.join("state"))?;
        fs::write(self.dir.join("state"), format!("{state}{line}\n")).context("cannot write the state of the session")
    }

    /// Returns the folder in which the commands run.
    pub(crate) fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// Runs a command, and compares its end and output with what the page says.
    pub(crate) fn run(&mut self, command: &PageCommand) -> Result<()> {
        self.printed = None;
        self.write_shown(command)?;
        match command.promise {
            Promise::Runs => self.start(command),
            Promise::Exits(code) if reads_only(&command.script) && !command.output.is_empty() => {
                poll::until("the output of the page", SETTLE_LIMIT, || self.run_once(command, code))
            }
            Promise::Exits(code) => self.run_once(command, code),
            Promise::Happens => bail!("no shell makes {:?} happen", command.script),
        }
    }

    /// Returns the output of the last command if it ended as the page promised, whatever it printed.
    pub(crate) fn printed(&self) -> Option<&str> {
        self.printed.as_deref()
    }

    /// Writes a file that the page shows with `cat`, unless it exists.
    fn write_shown(&self, command: &PageCommand) -> Result<()> {
        let name = command.script.strip_prefix("cat ").filter(|name| !name.contains([' ', '/', '<']));
        let Some(file) = name.map(|name| self.work().join(name)).filter(|file| !file.exists()) else { return Ok(()) };
        fs::write(&file, &command.output).with_context(|| format!("cannot write {}", file.display()))
    }

    fn run_once(&mut self, command: &PageCommand, code: i32) -> Result<()> {
        let script = self.script(
            "command",
            &command.script,
            "export -p > \"$state.new\"; echo \"cd '$PWD'\" >> \"$state.new\"",
        )?;
        let mut shell = Command::new("bash");
        shell.arg(&script).current_dir(&self.dir);
        let ended = process::run(&mut shell, "", COMMAND_LIMIT)?;
        let output = ended.stdout.replace(&self.work().display().to_string(), "");
        ensure!(ended.status.code() == Some(code), "it ended with {}, not with {code}:\n{output}", ended.status);
        fs::rename(self.dir.join("state.new"), self.dir.join("state")).context("the state of the session is lost")?;
        let difference = Some(&command.output).filter(|expected| !expected.is_empty());
        let difference = difference.and_then(|expected| shape::difference(expected, &output));
        let outcome = difference.map(|difference| format!("{difference}\nIt printed:\n{output}"));
        self.printed = Some(output);
        outcome.map_or(Ok(()), |difference| bail!("{difference}"))
    }

    /// Starts a command that continues to run, and waits for its output.
    fn start(&mut self, command: &PageCommand) -> Result<()> {
        let name = format!("background-{}", self.background.len());
        let script = self.script(&name, &format!("exec {}", command.script), "true")?;
        let process = Process::spawn(&name, Path::new("bash"), [script], &self.dir.join("logs"))?;
        let expected = command.output.clone();
        let outcome = poll::until("the output of the page", SETTLE_LIMIT, || {
            process.check_alive()?;
            let said = process.log()?;
            // Only the files that the page shows must exist by now.
            match shape::difference(&format!("{expected}…\n"), &said) {
                None => Ok(()),
                Some(difference) => bail!("{difference}\nIt printed:\n{said}"),
            }
        });
        self.background.push(process);
        outcome
    }

    /// Writes a command and what follows it into a file of that name. A shell reads its script while it runs.
    fn script(&self, name: &str, command: &str, after: &str) -> Result<PathBuf> {
        let script = self.dir.join(name).with_extension("sh");
        let state = self.dir.join("state");
        // Absolute paths are replaced by paths in the page's folder.
        let folders = ["lib", "log", "backups"].map(|name| format!("/var/{name}/"));
        let work = self.work().display().to_string();
        let command =
            folders.iter().fold(command.to_owned(), |text, path| text.replace(path, &format!("{work}{path}")));
        let text = format!(
            "state='{}'\n. \"$state\"\nexec 2>&1 < /dev/null\n{{\n{command}\n}}\ncode=$?\n{after}\nexit $code\n",
            state.display()
        );
        fs::write(&script, text).context("cannot write a command")?;
        Ok(script)
    }
}

impl Drop for ShellSession {
    fn drop(&mut self) {
        for process in self.background.drain(..) {
            // A program that has ended by itself cannot be interrupted.
            let _ = process.interrupt();
        }
    }
}

/// Returns true for commands that may be repeated until they print the expected output.
fn reads_only(script: &str) -> bool {
    let reading = ["get", "describe", "logs", "top", "wait", "explain", "auth"];
    let ours = ["where", "why", "tree", "policy"];
    let words: Vec<&str> = script.split_whitespace().collect();
    match words[..] {
        ["kubectl", "portolan", command, ..] => ours.contains(&command),
        ["kubectl", ref rest @ ..] => rest.iter().any(|word| reading.contains(word)),
        ["portolan", command, ..] => ["status", "check"].contains(&command),
        ["curl", ..] => true,
        _ => false,
    }
}

fn write_program(file: &Path, script: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(file, script).with_context(|| format!("cannot write {}", file.display()))?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).context("cannot make a program executable")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reading_commands_are_repeated() {
        for (script, expected) in [
            ("kubectl get pods", true),
            ("kubectl -n infra get pods", true),
            ("kubectl portolan where deploy/web", true),
            ("kubectl portolan move deploy/web --to b", false),
            ("kubectl apply -f x", false),
            ("portolan status", true),
            ("portolan token create", false),
        ] {
            assert_eq!(reads_only(script), expected, "{script}");
        }
    }
}
