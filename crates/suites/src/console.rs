//! The web console: its view logic in Node.js, and its pages in a real browser against a demo.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::demo::{self, DemoProcess};
use harness::clients::{ClientBundle, Clients};
use harness::cluster::PhysicalCluster;
use harness::process::Process;
use harness::report::CheckReport;
use harness::tools::{Tools, repository};
use harness::{poll, process};

/// Programs that may be the browser.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const LOGIC_LIMIT: Duration = Duration::from_secs(60);
const BROWSER_LIMIT: Duration = Duration::from_secs(600);
const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// Time in which the agent connects.
const JOIN_LIMIT: Duration = Duration::from_secs(60);
/// Name of the physical cluster that is killed.
const EDGE: &str = "edge";

/// Runs the unit tests of the views, then every check of the browser.
pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) {
    report.check("console: the logic of its views", || {
        let tests = repository().join("crates/console/tests/views.test.mjs");
        process::output(Command::new("node").arg("--test").arg(tests), LOGIC_LIMIT).map(drop)
    });
    let checked = check_pages(program, tools, dir);
    let lines = match &checked {
        Ok(lines) => lines.as_slice(),
        Err(_) => &[],
    };
    for (name, failure) in lines {
        report.check(&format!("console: {name}"), || match failure {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        });
    }
    report.check("console: the browser has run all checks", || checked.map(drop));
}

/// Name of a check, and the reason of its failure.
type PageCheck = (String, Option<String>);

fn check_pages(program: &Path, tools: &Tools, dir: &Path) -> Result<Vec<PageCheck>> {
    std::fs::create_dir_all(dir).context("cannot make the folder")?;
    let browser = browser()?;
    let clients = Clients::build([ClientBundle::Console])?;
    let (demo, said) = demo::start(program, dir)?;
    let link = said.split_whitespace().find(|word| word.contains("/ui#") && word.contains("link="));
    let link = link.context("the demo prints no link to the console")?;
    let server = link.split_once("/ui#").map(|(server, _)| server).context("the link has a server")?;
    let edge = EdgeCluster::start(&EdgeSetting { program, tools, demo: &demo, server, dir })?;
    let mut command = clients.console(dir)?;
    command.env("LINK", link).env("KUBECONFIG", demo.kubeconfig()).env("KUBECTL", tools.kubectl());
    command.env("CHROMIUM", browser).env("OUT", dir.join("screenshots"));
    command.env("PROGRAM", program).env("EDGE_PID", edge.agent.pid().to_string());
    // It fails if a check does; each is reported by itself.
    let ended = process::run(&mut command, "", BROWSER_LIMIT)?;
    demo.end()?;
    let printed = ended.stdout;
    let checks: Vec<PageCheck> = printed.lines().filter_map(parse).collect();
    ensure!(printed.lines().any(|line| line.ends_with(" failed")), "it ended early:\n{printed}{}", ended.stderr);
    Ok(checks)
}

/// Physical cluster with a real API server behind an agent, which the browser's program kills.
struct EdgeCluster {
    agent: Process,
    _cluster: PhysicalCluster,
}

/// Programs and folders of the physical cluster.
struct EdgeSetting<'a> {
    program: &'a Path,
    tools: &'a Tools,
    demo: &'a DemoProcess,
    server: &'a str,
    dir: &'a Path,
}

impl EdgeCluster {
    /// Starts it, and waits until it is ready.
    fn start(setting: &EdgeSetting<'_>) -> Result<Self> {
        let EdgeSetting { program, tools, demo, server, dir } = *setting;
        let cluster = PhysicalCluster::start(tools, &dir.join(EDGE), EDGE)?;
        let upstream = demo.root_kubeconfig();
        let portolan = |args: &[&str]| {
            let mut command = Command::new(program);
            process::output(command.args(args).arg("--upstream").arg(&upstream), COMMAND_LIMIT)
        };
        portolan(&["cluster", "join", EDGE, "--print-command", "--agent-server", server])?;
        let token = dir.join("edge-token");
        std::fs::write(&token, portolan(&["token", "create", "--cluster", EDGE])?)?;
        let own = cluster.kubeconfig_file();
        let args = [
            "agent".to_owned(),
            format!("--server={server}"),
            format!("--token-file={}", token.display()),
            format!("--kubeconfig={}", own.display()),
            format!("--data-dir={}", dir.join("edge-agent").display()),
        ];
        let agent = Process::spawn("agent", program, &args, &dir.join("logs"))?;
        poll::until("the agent", JOIN_LIMIT, || {
            agent.check_alive()?;
            portolan(&["cluster", "check", EDGE]).map(drop)
        })?;
        Ok(Self { agent, _cluster: cluster })
    }
}

/// Parses `ok - name` and `not ok - name: reason`.
fn parse(line: &str) -> Option<PageCheck> {
    if let Some(name) = line.strip_prefix("ok - ") {
        return Some((name.to_owned(), None));
    }
    let (name, why) = line.strip_prefix("not ok - ")?.split_once(": ")?;
    Some((name.to_owned(), Some(why.to_owned())))
}

/// Returns the path of the browser, which its driver does not look for.
fn browser() -> Result<PathBuf> {
    let folders: Vec<PathBuf> = env::var_os("PATH").iter().flat_map(env::split_paths).collect();
    let found = BROWSERS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    found.into_iter().find(|path| path.is_file()).context("no browser is installed; Debian's package is chromium")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_browser_are_checks() {
        for (line, expected) in [
            ("ok - objects show where they run", Some(("objects show where they run", None))),
            ("not ok - the map: it is too wide", Some(("the map", Some("it is too wide")))),
            ("#   complete after 300 ms", None),
            ("2 passed, 1 failed", None),
        ] {
            let found = parse(line);
            let found = found.as_ref().map(|(name, why)| (name.as_str(), why.as_deref()));
            assert_eq!(found, expected, "{line}");
        }
    }
}
