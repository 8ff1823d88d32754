//! Portolan server under test: built from this clone, started, killed, restarted.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::tools::Tools;
use super::{cargo, kubeconfig::UserKubeconfig};
use super::{ports::free_port, process::Process};
use crate::client;

const START_LIMIT: Duration = Duration::from_secs(60);

/// Ready server with one data directory and one port over all its starts.
pub struct Portolan {
    program: PathBuf,
    data: PathBuf,
    logs: PathBuf,
    /// Address to listen on.
    listen: String,
    port: u16,
    flags: Vec<String>,
    process: Process,
    kubeconfig: UserKubeconfig,
}

/// Builds `portolan` in release and returns the path of the binary.
pub fn build() -> Result<PathBuf> {
    build_with(&["--release"])
}

/// Builds `portolan` with its failpoints.
pub fn build_debug() -> Result<PathBuf> {
    build_with(&[])
}

fn build_with(profile: &[&str]) -> Result<PathBuf> {
    cargo::build(&[&["--package", "portolan", "--bin", "portolan"], profile].concat())
}

impl Portolan {
    /// Starts `program server` on `<dir>/data` and waits until it is ready. Nodes are objects that tests create, as
    /// tests of kube-apiserver do.
    pub fn start(program: &Path, tools: &Tools, dir: &Path) -> Result<Self> {
        Self::start_with(program, tools, dir, &["--stored-nodes"])
    }

    /// Starts as [`Portolan::start`], with these flags instead.
    pub fn start_with(program: &Path, tools: &Tools, dir: &Path, flags: &[&str]) -> Result<Self> {
        Self::start_on("127.0.0.1", program, tools, dir, flags)
    }

    /// Starts a server that is reached at these addresses of the machine, too.
    pub fn start_reachable(program: &Path, tools: &Tools, dir: &Path, addresses: &[String]) -> Result<Self> {
        let names: Vec<String> = addresses.iter().map(|address| format!("--tls-san={address}")).collect();
        let flags: Vec<&str> = names.iter().map(String::as_str).collect();
        Self::start_on("0.0.0.0", program, tools, dir, &flags)
    }

    fn start_on(address: &str, program: &Path, tools: &Tools, dir: &Path, flags: &[&str]) -> Result<Self> {
        let (data, logs, port) = (dir.join("data"), dir.join("logs"), free_port()?);
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let listen = format!("{address}:{port}");
        let process = spawn(program, &data, &listen, &logs, &flags)?;
        let kubeconfig = wait_kubeconfig(&process, &tools.kubectl(), &data)?;
        let server = Self { program: program.to_owned(), data, logs, listen, port, flags, process, kubeconfig };
        server.wait_ready()?;
        Ok(server)
    }

    /// Sets the program for the next start.
    pub fn run_from_now_on(&mut self, program: &Path) {
        self.program = program.to_owned();
    }

    /// Returns the data directory: objects, keys and admin.kubeconfig.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&self) -> Result<()> {
        self.process.kill()
    }

    /// Stops the server with SIGTERM.
    pub fn stop(&self) -> Result<()> {
        self.process.terminate()
    }

    /// Restarts on the same data directory and port. The kubeconfig of the first start must still work.
    pub fn restart(&mut self) -> Result<()> {
        self.restart_unready()?;
        self.wait_ready()
    }

    /// Restarts as [`Portolan::restart`], without a wait for readiness.
    pub fn restart_unready(&mut self) -> Result<()> {
        self.process = self.spawn()?;
        Ok(())
    }

    /// Starts the server and kills it `after` this time, ready or not.
    pub fn start_and_kill(&mut self, after: Duration) -> Result<()> {
        self.process = self.spawn()?;
        std::thread::sleep(after);
        self.process.kill()
    }

    fn spawn(&self) -> Result<Process> {
        spawn(&self.program, &self.data, &self.listen, &self.logs, &self.flags)
    }

    /// Readiness belongs to the server, not to the kubeconfig's logical cluster.
    fn wait_ready(&self) -> Result<()> {
        let server = self.kubeconfig.with_server(&format!("https://127.0.0.1:{}", self.port));
        client::wait_ready(&server, START_LIMIT, || self.process.check_alive())
            .with_context(|| format!("portolan:\n{}", self.process.log_tail()))
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Fails if the server has ended.
    pub fn check_alive(&self) -> Result<()> {
        self.process.check_alive()
    }

    /// Returns the process id of the server.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the administrator's kubeconfig with the URL that the server wrote (the logical cluster `root`).
    pub fn kubeconfig(&self) -> &UserKubeconfig {
        &self.kubeconfig
    }

    /// Returns the administrator's kubeconfig for the logical cluster `path`.
    pub fn workspace(&self, path: &str) -> UserKubeconfig {
        self.kubeconfig.with_server(&format!("https://127.0.0.1:{}/clusters/{path}", self.port))
    }
}

fn spawn(program: &Path, data: &Path, listen: &str, logs: &Path, flags: &[String]) -> Result<Process> {
    let data = format!("--data-dir={}", data.display());
    let address = format!("--bind-address={listen}");
    // The physical clusters and webhooks of these tests run on this machine, or are simulated in workspaces.
    let permissions = ["--allow-loopback-clusters", "--allow-local-webhooks", "--allow-simulated-tenant-clusters"];
    let args = ["server", data.as_str(), address.as_str()].into_iter().chain(permissions);
    let args = args.chain(flags.iter().map(String::as_str));
    Process::spawn("portolan", program, args, logs)
}

/// The server writes the kubeconfig before it is ready.
fn wait_kubeconfig(process: &Process, kubectl: &Path, data: &Path) -> Result<UserKubeconfig> {
    let file = data.join("admin.kubeconfig");
    let start = Instant::now();
    while !file.exists() {
        process.check_alive()?;
        ensure!(start.elapsed() < START_LIMIT, "portolan wrote no {}:\n{}", file.display(), process.log_tail());
        std::thread::sleep(Duration::from_millis(2));
    }
    UserKubeconfig::read(kubectl, &file)
}
