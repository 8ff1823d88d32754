//! `portolan demo` as a newcomer uses it: its steps, every command that it suggests, and Ctrl-C.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::simulated;
use harness::process::{self, Process};
use harness::report::CheckReport;
use harness::{poll, ports::free_port, tools::Tools};

/// Prefix of each numbered step.
const STEPS: [&str; 6] = [
    "[1/6] store opened",
    "[2/6] API server ready",
    "[3/6] 3 simulated physical clusters joined",
    "[4/6] workspace root:shop ready",
    "[5/6] sample app applied",
    "[6/6] placed: ",
];
const START_LIMIT: Duration = Duration::from_secs(60);
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// Time for which the output of a watching command is read.
const WATCH_SECONDS: u32 = 10;
const CLOSING: &str = "Ctrl-C stops";

/// A running demo, and where it keeps its data.
pub(super) struct DemoProcess {
    process: Process,
    data: PathBuf,
}

impl DemoProcess {
    /// Returns the kubeconfig of the sample app's workspace.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.data.join("shop.kubeconfig")
    }

    /// Returns the administrator's kubeconfig.
    pub(super) fn root_kubeconfig(&self) -> PathBuf {
        self.data.join("admin.kubeconfig")
    }

    /// Ends it.
    pub(super) fn end(&self) -> Result<()> {
        self.process.terminate()
    }
}

/// Runs `program demo`, checks its output, and stops it.
pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) {
    let started = start(program, dir);
    if !report.check("demo: it starts and says what to try", || started.as_ref().map(drop).map_err(super::scene::copy))
    {
        return;
    }
    let Ok((demo, said)) = started else { return };
    report.check("demo: its six steps are done in order", || steps(&said));
    report.check("demo: every pod is ready when it says so", || all_ready(&said));
    let commands = commands(&said);
    report.check("demo: it names the kubeconfig and ten commands", || {
        ensure!(commands.len() == 11 && commands[0].starts_with("export KUBECONFIG="), "{commands:?}");
        Ok(())
    });
    let shell = Shell { export: commands.first().cloned().unwrap_or_default(), tools, dir };
    for command in commands.iter().skip(1) {
        report.check(&format!("demo: {command}"), || shell.run(command));
    }
    let manifests = dir.join("simulated.yaml");
    report.check("demo: workloads of many kinds are applied", || {
        fs::write(&manifests, simulated::MANIFESTS).context("cannot write the manifests")?;
        shell.run(&format!("kubectl apply -f {}", manifests.display()))
    });
    for (shows, command) in simulated::commands() {
        report.check(&format!("demo: {shows}"), || shell.run(&command));
    }
    report.check("demo: Ctrl-C ends it with 0, and its data is gone", || stop(&demo));
}

/// Starts a demo, and returns it with its output.
pub(super) fn start(program: &Path, dir: &Path) -> Result<(DemoProcess, String)> {
    let data = dir.join("demo-data");
    let address = format!("--bind-address=127.0.0.1:{}", free_port()?);
    let args = ["demo".to_owned(), format!("--data-dir={}", data.display()), address];
    let process = Process::spawn("demo", program, args, &dir.join("logs"))?;
    let demo = DemoProcess { process, data };
    let said = poll::until("the demo", START_LIMIT, || {
        demo.process.check_alive()?;
        let said = demo.process.log()?;
        ensure!(said.contains(CLOSING), "it has said only:\n{said}");
        Ok(said)
    })?;
    Ok((demo, said))
}

fn steps(said: &str) -> Result<()> {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| line.starts_with('[')).collect();
    let right = lines.len() == STEPS.len() && lines.iter().zip(STEPS).all(|(line, step)| line.starts_with(step));
    ensure!(right, "the steps are\n{}", lines.join("\n"));
    Ok(())
}

fn all_ready(said: &str) -> Result<()> {
    let placed = said.lines().find(|line| line.contains("placed: ")).context("no line says where it is placed")?;
    ensure!(placed.contains("6/6 ready"), "{placed}");
    Ok(())
}

/// Returns the commands between `Try, in a second terminal:` and the closing line, without their comments.
fn commands(said: &str) -> Vec<String> {
    let lines = said.lines().skip_while(|line| !line.starts_with("Try, in a second terminal")).skip(1);
    let lines = lines.take_while(|line| !line.starts_with(CLOSING)).filter(|line| !line.trim().is_empty());
    lines.map(|line| line.split("# ").next().unwrap_or(line).trim().to_owned()).collect()
}

/// A second terminal: the printed `export`, and the real kubectl in the path.
struct Shell<'a> {
    export: String,
    tools: &'a Tools,
    dir: &'a Path,
}

impl Shell<'_> {
    fn run(&self, command: &str) -> Result<()> {
        let watches = command.split_whitespace().any(|word| matches!(word, "-w" | "--watch"));
        // The time limit ends a command that watches, with 124.
        let bounded = if watches { format!("timeout {WATCH_SECONDS} {command}") } else { command.to_owned() };
        let home = self.dir.join("demo-home");
        fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        let path = std::env::join_paths(
            [self.tools.dir().to_owned()]
                .into_iter()
                .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
        )?;
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{}\n{bounded}", self.export)]).env("HOME", &home).env("PATH", path);
        let ended = process::run(&mut shell, "", COMMAND_LIMIT)?;
        let code = ended.status.code();
        ensure!(code == Some(if watches { 124 } else { 0 }), "exit code {code:?}\n{}{}", ended.stdout, ended.stderr);
        // A table has a header; one line of content is the least that shows something.
        let least = if command.contains(" get ") { 2 } else { 1 };
        ensure!(ended.stdout.lines().count() >= least, "it printed only\n{}{}", ended.stdout, ended.stderr);
        Ok(())
    }
}

fn stop(demo: &DemoProcess) -> Result<()> {
    match demo.process.interrupt()? {
        Some(0) => {}
        other => bail!("exit code {other:?}:\n{}", demo.process.log_tail()),
    }
    ensure!(!demo.data.exists(), "{} is still there", demo.data.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_without_their_remarks() {
        let said = "Ready.\n\nTry, in a second terminal:\n  export KUBECONFIG=/tmp/k   # the workspace\n  \
                    kubectl get pods -L a/b        # pods\nCtrl-C stops and cleans up.\n";
        assert_eq!(commands(said), ["export KUBECONFIG=/tmp/k", "kubectl get pods -L a/b"]);
    }
}
