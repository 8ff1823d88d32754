//! A Portolan server under test: built from this clone, started, killed, started again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::tools::Tools;
use super::{cargo::cargo, kubeconfig::Kubeconfig};
use super::{ports::free_port, process::Process};
use crate::client;

const START_LIMIT: Duration = Duration::from_secs(60);

/// A ready server with one data directory and one port over all its starts.
pub(crate) struct Portolan {
    program: PathBuf,
    data: PathBuf,
    logs: PathBuf,
    port: u16,
    flags: Vec<String>,
    process: Process,
    kubeconfig: Kubeconfig,
}

/// Builds `portolan` in release and gives the path of the binary.
pub(crate) fn build() -> Result<PathBuf> {
    build_with(&["--release"])
}

/// Builds `portolan` with the places at which it may be made to end.
pub(crate) fn build_debug() -> Result<PathBuf> {
    build_with(&[])
}

fn build_with(profile: &[&str]) -> Result<PathBuf> {
    let args = ["build", "--package", "portolan", "--bin", "portolan", "--message-format=json"];
    let args = args.iter().chain(profile);
    let output = cargo().args(args).stderr(std::process::Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo could not build portolan");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .next_back()
        .context("cargo named no executable")
}

impl Portolan {
    /// Starts `program server` on `<dir>/data` and waits until it is ready. Nodes are objects, as tests of kube-apiserver make them by
    /// hand.
    pub(crate) fn start(program: &Path, tools: &Tools, dir: &Path) -> Result<Self> {
        Self::start_with(program, tools, dir, &["--stored-nodes"])
    }

    /// As [`Portolan::start`], with these flags instead.
    pub(crate) fn start_with(program: &Path, tools: &Tools, dir: &Path, flags: &[&str]) -> Result<Self> {
        let (data, logs, port) = (dir.join("data"), dir.join("logs"), free_port()?);
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let process = spawn(program, &data, port, &logs, &flags)?;
        let kubeconfig = wait_kubeconfig(&process, &tools.kubectl(), &data)?;
        let server = Self { program: program.to_owned(), data, logs, port, flags, process, kubeconfig };
        server.wait_ready()?;
        Ok(server)
    }

    /// From its next start on it is this program.
    pub(crate) fn run_from_now_on(&mut self, program: &Path) {
        self.program = program.to_owned();
    }

    /// Where it keeps its objects, keys and admin.kubeconfig.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// kill -9.
    pub(crate) fn kill(&self) -> Result<()> {
        self.process.kill()
    }

    /// Stops it cleanly.
    pub(crate) fn stop(&self) -> Result<()> {
        self.process.terminate()
    }

    /// Starts it again on the same data directory and port. The kubeconfig of the first start must still serve.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.restart_unready()?;
        self.wait_ready()
    }

    /// As [`Portolan::restart`], where it is not to become ready yet.
    pub(crate) fn restart_unready(&mut self) -> Result<()> {
        self.process = self.spawn()?;
        Ok(())
    }

    /// Starts it and kills it `after` so long, ready or not.
    pub(crate) fn start_and_kill(&mut self, after: Duration) -> Result<()> {
        self.process = self.spawn()?;
        std::thread::sleep(after);
        self.process.kill()
    }

    fn spawn(&self) -> Result<Process> {
        spawn(&self.program, &self.data, self.port, &self.logs, &self.flags)
    }

    /// Readiness is the server's, whatever logical cluster the kubeconfig points into.
    fn wait_ready(&self) -> Result<()> {
        let server = self.kubeconfig.with_server(&format!("https://127.0.0.1:{}", self.port));
        client::wait_ready(&server, START_LIMIT, || self.process.check_alive())
            .with_context(|| format!("portolan:\n{}", self.process.log_tail()))
    }

    /// Fails when the server has ended by itself.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.process.check_alive()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The administrator, at the URL that the server wrote down (the logical cluster `root`).
    pub(crate) fn kubeconfig(&self) -> &Kubeconfig {
        &self.kubeconfig
    }

    /// The administrator in the logical cluster `path`.
    pub(crate) fn workspace(&self, path: &str) -> Kubeconfig {
        self.kubeconfig.with_server(&format!("https://127.0.0.1:{}/clusters/{path}", self.port))
    }
}

fn spawn(program: &Path, data: &Path, port: u16, logs: &Path, flags: &[String]) -> Result<Process> {
    let data = format!("--data-dir={}", data.display());
    let address = format!("--bind-address=127.0.0.1:{port}");
    // The physical clusters and webhooks of these tests are on this machine, or simulated in workspaces.
    let permissions = ["--allow-loopback-clusters", "--allow-local-webhooks", "--allow-simulated-tenant-clusters"];
    let args = ["server", data.as_str(), address.as_str()].into_iter().chain(permissions);
    let args = args.chain(flags.iter().map(String::as_str));
    Process::spawn("portolan", program, args, logs)
}

/// The kubeconfig is written some time before the server is ready.
fn wait_kubeconfig(process: &Process, kubectl: &Path, data: &Path) -> Result<Kubeconfig> {
    let file = data.join("admin.kubeconfig");
    let start = Instant::now();
    while !file.exists() {
        process.check_alive()?;
        ensure!(start.elapsed() < START_LIMIT, "portolan wrote no {}:\n{}", file.display(), process.log_tail());
        std::thread::sleep(Duration::from_millis(2));
    }
    Kubeconfig::read(kubectl, &file)
}
