//! An etcd of one member, which can be killed and started again on its data.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::poll;
use super::process::Process;
use super::{ports::free_port, tools::Tools};

/// A running etcd.
pub(crate) struct Etcd {
    program: PathBuf,
    args: Vec<String>,
    logs: PathBuf,
    url: String,
    process: Process,
}

impl Etcd {
    /// Starts one with its data under `dir`, as durable as in production.
    pub(crate) fn start(tools: &Tools, dir: &Path) -> Result<Self> {
        Self::start_with(tools, dir, &[])
    }

    /// As [`Etcd::start`], with further flags.
    pub(crate) fn start_with(tools: &Tools, dir: &Path, flags: &[&str]) -> Result<Self> {
        let (url, peer) = (format!("http://127.0.0.1:{}", free_port()?), format!("http://127.0.0.1:{}", free_port()?));
        let mut args = vec![
            "--name=one".to_owned(),
            format!("--data-dir={}", dir.join("data").display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=one={peer}"),
            "--log-level=warn".to_owned(),
        ];
        args.extend(flags.iter().map(|&flag| flag.to_owned()));
        let (program, logs) = (tools.etcd(), dir.join("logs"));
        let process = Process::spawn("etcd", &program, &args, &logs)?;
        let etcd = Self { program, args, logs, url, process };
        etcd.wait_ready()?;
        Ok(etcd)
    }

    /// kill -9, and a start on the same data.
    pub(crate) fn kill_and_restart(&mut self) -> Result<()> {
        self.process.kill()?;
        std::thread::sleep(Duration::from_millis(500));
        self.process = Process::spawn("etcd", &self.program, &self.args, &self.logs)?;
        self.wait_ready()
    }

    /// Where clients reach it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn wait_ready(&self) -> Result<()> {
        poll::until("etcd listens", Duration::from_secs(30), || {
            self.process.check_alive()?;
            let address = self.url.trim_start_matches("http://");
            Ok(std::net::TcpStream::connect(address).map(drop)?)
        })
    }
}
