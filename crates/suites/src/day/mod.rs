//! An admin's day: the commands of docs/guides/admins-day.md, run beside three real physical clusters and under load.
//! The page is the script; with `--update` its outputs become those of the run.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::docs::commands::{CommandPage, PageCommand, Promise};
use super::docs::shell::ShellSession;
use super::docs::transcript;
use super::traffic::{ServiceLoad, TrafficStage};
use harness::markdown;
use harness::report::CheckReport;
use harness::tools::{Tools, repository};

/// The page.
const PAGE: &str = "docs/guides/admins-day.md";
/// File in the session's folder with the results of the load, for `cat`.
const LOAD_FILE: &str = "load.txt";
/// Replicas of the Deployment under load.
const REPLICAS: u64 = 6;

/// Runs the page. With `update`, the page gets the outputs of this run.
pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path, update: bool) -> Result<()> {
    let page = markdown::read(Path::new(PAGE))?;
    let parsed = CommandPage::parse(&page)?.context("the page has no commands")?;
    let mut day = AdminsDay::start(program, tools, dir)?;
    let mut printed = Vec::new();
    for command in &parsed.commands {
        let first = command.script.lines().next().unwrap_or_default();
        report.check(&format!("admins-day: line {}: {first}", command.line), || {
            let outcome = day.run(command);
            // An event prints nothing: the page shows the output of the command before it.
            match day.shell.printed().filter(|_| command.promise != Promise::Happens) {
                Some(output) if update && outcome.is_err() => {
                    printed.push((command.shown.clone(), output.to_owned()));
                    Ok(())
                }
                _ => outcome,
            }
        });
    }
    if update { write(&page, &printed) } else { Ok(()) }
}

fn write(page: &str, printed: &[(Range<usize>, String)]) -> Result<()> {
    fs::write(repository().join(PAGE), transcript::with_outputs(page, printed)).context("cannot write the page")
}

/// The stage, the shell of the administrator, and the load.
struct AdminsDay {
    stage: TrafficStage,
    shell: ShellSession,
    load: Option<ServiceLoad>,
}

impl AdminsDay {
    fn start(program: &Path, tools: &Tools, dir: &Path) -> Result<Self> {
        let stage = TrafficStage::start(program, tools, dir)?;
        let shell = ShellSession::new(&dir.join("session"), program, &tools.kubectl())?;
        stage.server.kubeconfig().write(&shell.work().join("admin.kubeconfig"))?;
        for cluster in &stage.clusters {
            cluster.kubeconfig().write(&shell.work().join(format!("{}.kubeconfig", cluster.name())))?;
        }
        shell.prepare("export KUBECONFIG=admin.kubeconfig")?;
        Ok(Self { stage, shell, load: None })
    }

    fn run(&mut self, command: &PageCommand) -> Result<()> {
        if command.promise == Promise::Happens {
            return self.happen(&command.script);
        }
        if let Some(load) = &self.load {
            let told = load.record().told() + "\n";
            fs::write(self.shell.work().join(LOAD_FILE), told).context("cannot write what the load has seen")?;
        }
        self.shell.run(command)
    }

    fn happen(&mut self, event: &str) -> Result<()> {
        match event.split_whitespace().collect::<Vec<_>>()[..] {
            ["load", "begins"] => self.load = Some(self.stage.load()?),
            ["load", "was", "served"] => self.load.as_ref().context("there is no load")?.check_flawless(REPLICAS)?,
            ["load", "ends"] => self.load = None,
            ["lose", cluster] => self.stage.cluster(cluster)?.kill_control_plane()?,
            ["return", cluster] => self.stage.cluster(cluster)?.restart_control_plane()?,
            _ => bail!("nothing is known about {event:?}"),
        }
        Ok(())
    }
}
