//! Commands of README and docs, run as a reader runs them: page by page, block by block, with their output compared by
//! shape.

pub(super) mod commands;
mod shape;
pub(super) mod shell;
pub(super) mod transcript;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use commands::{CommandPage, Stage};
use harness::process::Process;
use harness::report::CheckReport;
use harness::{markdown, poll, ports::free_port};
use shell::ShellSession;

const START_LIMIT: Duration = Duration::from_secs(60);
/// Folders and files for contributors. Their commands build and test the repository.
const CONTRIBUTORS: [&str; 5] = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "e2e/", "docs/decisions/"];

/// Selection of pages.
#[derive(clap::Args)]
pub(super) struct PageSelection {
    /// Only these pages of the suite `docs`, such as docs/cli.md.
    #[arg(long = "page", value_delimiter = ',')]
    pages: Vec<PathBuf>,
}

/// Runs the commands of all pages, or of the selected ones.
pub(super) fn run(report: &mut CheckReport, selection: &PageSelection, program: &Path, kubectl: &Path, dir: &Path) {
    let pages = match user_pages() {
        Ok(pages) => pages,
        Err(error) => {
            report.check("docs: the pages are read", || Err(error));
            return;
        }
    };
    // The suite `admins-day` runs the pages that need physical clusters.
    for (path, page) in pages.into_iter().filter(|(_, page)| page.stage != Stage::Clusters) {
        page.skipped.iter().for_each(|block| println!("not run: {}:{}: {}", path.display(), block.line, block.reason));
        if selection.pages.is_empty() || selection.pages.contains(&path) {
            let folder = dir.join(path.display().to_string().replace('/', "-"));
            run_page(report, &path, &page, &PageTools { program, kubectl, dir: &folder });
        }
    }
}

/// Programs and folder of a page.
struct PageTools<'a> {
    program: &'a Path,
    kubectl: &'a Path,
    dir: &'a Path,
}

/// Returns the pages for users that have commands.
fn user_pages() -> Result<Vec<(PathBuf, CommandPage)>> {
    let mut found = Vec::new();
    for path in markdown::pages()? {
        if CONTRIBUTORS.iter().any(|start| path.display().to_string().starts_with(start)) {
            continue;
        }
        let page = CommandPage::parse(&markdown::read(&path)?);
        if let Some(page) = page.map_err(|error| error.context(path.display().to_string()))? {
            found.push((path, page));
        }
    }
    Ok(found)
}

fn run_page(report: &mut CheckReport, path: &Path, page: &CommandPage, tools: &PageTools) {
    if page.commands.is_empty() {
        return;
    }
    let name = path.display();
    let started = ShellSession::new(tools.dir, tools.program, tools.kubectl).and_then(|shell| {
        let server = start(page.stage, &shell, tools)?;
        Ok((shell, server))
    });
    let (mut shell, server) = match started {
        Ok(started) => started,
        Err(error) => {
            report.check(&format!("docs: {name}: its server starts"), || Err(error));
            return;
        }
    };
    for command in &page.commands {
        let first = command.script.lines().next().unwrap_or_default();
        report.check(&format!("docs: {name}:{}: {first}", command.line), || shell.run(command));
    }
    // What the page started ends before its server.
    drop(shell);
    server.iter().for_each(|server| drop(server.interrupt()));
}

/// Starts the server of a stage, and names its kubeconfig to the session.
fn start(stage: Stage, shell: &ShellSession, tools: &PageTools) -> Result<Option<Process>> {
    let (command, ready, kubeconfig) = match stage {
        Stage::Shell => return Ok(None),
        Stage::Demo => ("demo", "Ctrl-C stops", "portolan-demo/shop.kubeconfig"),
        Stage::Server => ("server", "", "data/admin.kubeconfig"),
        Stage::Clusters => bail!("the suite `admins-day` runs this page"),
    };
    let folder = if stage == Stage::Demo { "portolan-demo" } else { "data" };
    let data = shell.work().join(folder);
    let address = format!("--bind-address=127.0.0.1:{}", free_port()?);
    let args = [command.to_owned(), format!("--data-dir={}", data.display()), address];
    let process = Process::spawn("server", tools.program, args, &tools.dir.join("logs"))?;
    let kubeconfig = shell.work().join(kubeconfig);
    shell.prepare(&format!("export KUBECONFIG='{}'", kubeconfig.display()))?;
    poll::until("the server of the page", START_LIMIT, || {
        process.check_alive()?;
        ensure!(process.log()?.contains(ready) && kubeconfig.exists(), "it has said only:\n{}", process.log_tail());
        is_ready(tools, &kubeconfig)
    })?;
    Ok(Some(process))
}

fn is_ready(tools: &PageTools, kubeconfig: &Path) -> Result<()> {
    let asked = std::process::Command::new(tools.kubectl)
        .args(["get", "--raw", "/readyz", "--kubeconfig"])
        .arg(kubeconfig)
        .output()?;
    if !asked.status.success() {
        bail!("{}", String::from_utf8_lossy(&asked.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Component;

    use super::*;
    use harness::tools::repository;

    /// Most blocks of commands that no test runs.
    const SKIPPED_MOST: usize = 10;

    #[test]
    fn few_blocks_are_not_run_and_each_has_its_reason() {
        let pages = user_pages().unwrap();
        let skipped: Vec<String> = pages
            .iter()
            .flat_map(|(path, page)| {
                page.skipped.iter().map(move |block| format!("{}:{}: {}", path.display(), block.line, block.reason))
            })
            .collect();
        assert!(skipped.len() <= SKIPPED_MOST, "{skipped:#?}");
        assert!(skipped.iter().all(|block| block.split(": ").nth(1).is_some_and(|reason| reason.len() > 8)));
        assert!(pages.iter().map(|(_, page)| page.commands.len()).sum::<usize>() > 50);
    }

    #[test]
    fn links_lead_somewhere() {
        let mut dead = Vec::new();
        for path in markdown::pages().unwrap() {
            for link in markdown::links(&markdown::read(&path).unwrap()) {
                if !is_alive(&path, &link.target) {
                    dead.push(format!("{}:{}: {}", path.display(), link.line, link.target));
                }
            }
        }
        assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
    }

    /// Follows a link within the repository. Others are not requested: tests run without a network.
    fn is_alive(page: &Path, target: &str) -> bool {
        if ["https://", "http://", "mailto:"].iter().any(|scheme| target.starts_with(scheme)) {
            return true;
        }
        let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
        let file = if file.is_empty() { page.to_owned() } else { resolved(page, file) };
        let is_there = repository().join(&file).exists();
        let has_anchor =
            |anchor| markdown::anchors(&markdown::read(&file).unwrap_or_default()).iter().any(|own| own == anchor);
        is_there && anchor.is_none_or(has_anchor)
    }

    fn resolved(page: &Path, file: &str) -> PathBuf {
        let mut path = PathBuf::new();
        for part in page.with_file_name("").join(file).components() {
            match part {
                Component::ParentDir => drop(path.pop()),
                part => path.push(part),
            }
        }
        path
    }

    #[test]
    fn the_table_of_contents_has_every_page_once() {
        let contents = markdown::read(Path::new("docs/SUMMARY.md")).unwrap();
        let listed: Vec<PathBuf> = markdown::links(&contents)
            .into_iter()
            .map(|link| resolved(Path::new("docs/SUMMARY.md"), &link.target))
            .filter(|path| path.starts_with("docs"))
            .collect();
        let unique: BTreeSet<PathBuf> = listed.iter().cloned().collect();
        assert_eq!(unique.len(), listed.len(), "a page is listed twice");
        let pages = markdown::pages().unwrap().into_iter();
        let pages = pages.filter(|path| path.starts_with("docs") && !path.ends_with("SUMMARY.md"));
        let missing: Vec<PathBuf> = pages.filter(|path| !unique.contains(path)).collect();
        assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
    }
}
