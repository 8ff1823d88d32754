//! Tests of progress on a real terminal: bars for `drain`, `move` and `join` there, plain lines elsewhere.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use portolan_types::MonotonicInstant;

/// Width of the bars.
const BAR: usize = 24;

/// Time for a server to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Server in a process of its own.
struct RunningServer {
    server: Child,
    data: PathBuf,
}

impl RunningServer {
    /// Starts a demo, and waits until its sample app is ready.
    fn demo(folder: &Path) -> Self {
        let mut demo = Self::start(&["demo"], folder.join("demo"));
        let mut lines = BufReader::new(demo.server.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("[6/6]")), "the demo ends: {:?}", demo.server.try_wait());
        // Nothing reads the rest, which is short.
        std::thread::spawn(move || lines.for_each(drop));
        demo
    }

    /// Starts a server that connects to physical clusters of the same machine, and waits until it serves.
    fn alone(folder: &Path, name: &str) -> Self {
        let mut alone = Self::start(&["server", "--allow-loopback-clusters"], folder.join(format!("{name}-data")));
        let end = MonotonicInstant::now() + PATIENCE;
        while !alone.data.join("admin.kubeconfig").exists() {
            assert_eq!(alone.server.try_wait().unwrap(), None, "the server ends");
            assert!(MonotonicInstant::now() < end, "the server has not started");
            std::thread::sleep(Duration::from_millis(20));
        }
        alone
    }

    fn start(args: &[&str], data: PathBuf) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
        command.args(args).args(["--bind-address", "127.0.0.1:0", "--data-dir"]).arg(&data);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self { server: command.spawn().unwrap(), data }
    }

    /// Returns `portolan kubectl …` as a line of a shell, with a kubeconfig of the server.
    fn line(&self, workspace: &str, args: &str) -> String {
        let kubeconfig = self.data.join(format!("{workspace}.kubeconfig"));
        format!("KUBECONFIG={} {} kubectl {args}", kubeconfig.display(), env!("CARGO_BIN_EXE_portolan"))
    }

    /// Runs a command, and returns all that it prints.
    fn run(&self, workspace: &str, args: &str, on: Output) -> String {
        let line = self.line(workspace, args);
        let mut command = match on {
            Output::Terminal => Command::new("script"),
            Output::Pipe => Command::new("sh"),
        };
        match on {
            // It runs the line on a pseudo-terminal, and copies what that shows.
            Output::Terminal => command.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]),
            Output::Pipe => command.args(["-c", &format!("{line} 2>&1")]),
        };
        command.env("TERM", "xterm").env_remove("NO_COLOR").stdin(Stdio::null());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args}: {}: {text}", output.status);
        text
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.server.kill().and_then(|()| self.server.wait());
    }
}

/// Receiver of the output of a command.
#[derive(Clone, Copy)]
enum Output {
    Terminal,
    Pipe,
}

/// Returns true if the text has a bar in brackets.
fn has_bar(text: &str) -> bool {
    text.match_indices('[').any(|(at, _)| {
        let bar: Vec<char> = text[at + 1..].chars().take(BAR + 1).collect();
        bar.len() == BAR + 1 && bar[BAR] == ']' && bar[..BAR].iter().all(|c| "=> ".contains(*c))
    })
}

fn shows_bars(server: &RunningServer, workspace: &str, args: &str) {
    let shown = server.run(workspace, args, Output::Terminal);
    assert!(has_bar(&shown), "no bar: {args}: {shown:?}");
    assert!(shown.contains("\u{1b}["), "nothing is drawn over: {args}: {shown:?}");
}

fn prints_lines(server: &RunningServer, workspace: &str, args: &str, expected: &str) {
    let printed = server.run(workspace, args, Output::Pipe);
    assert!(!has_bar(&printed) && !printed.contains('\u{1b}') && !printed.contains('\r'), "{args}: {printed:?}");
    assert!(printed.contains(expected), "{args}: {printed:?}");
}

#[test]
fn a_terminal_shows_bars_and_all_else_plain_lines() {
    let folder = tempfile::tempdir().unwrap();
    let alone = RunningServer::alone(folder.path(), "alone");
    // The API of a workspace is that of a Kubernetes cluster.
    let members = ["north", "south"].map(|name| (name, RunningServer::alone(folder.path(), name)));
    let join = |name: &str| format!("cluster join {name} --kubeconfig {}", folder.path().join(name).display());
    for (name, member) in &members {
        let kubeconfig = fs::read_to_string(member.data.join("admin.kubeconfig")).unwrap();
        fs::write(folder.path().join(name), kubeconfig.replace("/clusters/root", "")).unwrap();
    }
    shows_bars(&alone, "admin", &join("north"));
    prints_lines(&alone, "admin", &join("south"), "✓ south is ready");
    let demo = RunningServer::demo(folder.path());
    shows_bars(&demo, "shop", "drain eu-1");
    prints_lines(&demo, "shop", "drain eu-1 --undo", " undone: ");
    shows_bars(&demo, "shop", "move deploy/web --to us-1");
    prints_lines(&demo, "shop", "move deploy/web --to eu-2", "deployment.apps/web runs on eu-2 6/6");
}
