//! Servers that are measured: Portolan on its engines, and kube-apiserver.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use super::load::LoadTarget;
use harness::control_plane::{Durability, KubeControlPlane, admin_file};
use harness::etcd::Etcd;
use harness::gateway::Gateway;
use harness::kubeconfig::UserKubeconfig;
use harness::{portolan::Portolan, process::Process, tools::Tools};

/// Storage quota of etcd. Its default of 2 GiB is too small for a benchmark.
const ETCD_QUOTA: &str = "--quota-backend-bytes=17179869184";
/// Delay that is added to each sync of a slow disk, in microseconds.
const SLOWER: u32 = 2000;

/// Server that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Which {
    /// kube-apiserver and etcd, with their defaults.
    Kube,
    /// `portolan server` with its defaults.
    Redb,
    /// With `--store sled`.
    Sled,
    /// With `--store etcd`, and an etcd.
    Etcd,
    /// With `--store memory`.
    Memory,
}

impl Which {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kube => "kube-apiserver + etcd",
            Self::Redb => "Portolan, redb",
            Self::Sled => "Portolan, sled",
            Self::Etcd => "Portolan, etcd",
            Self::Memory => "Portolan, memory",
        }
    }

    /// Returns the name of the server in the options.
    pub(super) fn id(self) -> &'static str {
        match self {
            Self::Kube => "kube",
            Self::Redb => "redb",
            Self::Sled => "sled",
            Self::Etcd => "etcd",
            Self::Memory => "memory",
        }
    }
}

/// Settings of the server that a part measures.
#[derive(Clone, Copy, Default)]
pub(super) struct Recipe {
    /// Syncs take two milliseconds more.
    pub(super) slow_disk: bool,
    /// kube-controller-manager runs beside kube-apiserver. Portolan runs its own controllers.
    pub(super) controllers: bool,
    /// Further flags of Portolan.
    pub(super) flags: &'static [&'static str],
}

/// Starts servers.
pub(super) struct Lab {
    tools: Tools,
    slow_tools: Tools,
    program: PathBuf,
    slow_program: PathBuf,
    dir: PathBuf,
}

impl Lab {
    pub(super) fn new(tools: &Tools, program: &Path, dir: &Path) -> Result<Self> {
        let etcd = tools.etcd();
        Ok(Self {
            tools: tools.with_etcd(script(&dir.join("etcd"), &etcd, ETCD_QUOTA, false)?),
            slow_tools: tools.with_etcd(script(&dir.join("slow-etcd"), &etcd, ETCD_QUOTA, true)?),
            program: program.to_owned(),
            slow_program: script(&dir.join("slow-portolan"), program, "", true)?,
            dir: dir.to_owned(),
        })
    }

    /// Returns the folder of data and scripts.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the programs of Kubernetes.
    pub(super) fn tools(&self) -> &Tools {
        &self.tools
    }

    /// Returns the measured program of Portolan.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Starts a server with its data in `dir`; it is ready.
    pub(super) fn start(&self, which: Which, dir: &Path, recipe: &Recipe) -> Result<BenchSubject> {
        let (tools, program) =
            if recipe.slow_disk { (&self.slow_tools, &self.slow_program) } else { (&self.tools, &self.program) };
        let server = match which {
            Which::Kube => {
                let plane = KubeControlPlane::start(tools, dir, Durability::Synced)?;
                let manager = recipe.controllers.then(|| controllers(tools, dir)).transpose()?;
                SubjectServer::Kube(plane, manager)
            }
            _ => {
                let etcd = (which == Which::Etcd).then(|| Etcd::start(tools, &dir.join("etcd"))).transpose()?;
                let endpoints = etcd.as_ref().map(|etcd| format!("--etcd-endpoints={}", etcd.url()));
                let flags = [["--store", which.id()].as_slice(), recipe.flags].concat();
                let flags: Vec<&str> = flags.into_iter().chain(endpoints.as_deref()).collect();
                SubjectServer::Portolan(Portolan::start_with(program, tools, dir, &flags)?, etcd)
            }
        };
        Ok(BenchSubject { which, server, dir: dir.to_owned() })
    }

    /// Writes a snapshot of a stopped server's data into a file.
    pub(super) fn save(&self, data: &Path, file: &Path) -> Result<()> {
        self.snapshot(&["save", "--data-dir", text(data)?, text(file)?])
    }

    /// Makes a store of a snapshot: these are the arguments of `portolan snapshot restore`.
    pub(super) fn restore(&self, args: &[&str]) -> Result<()> {
        self.snapshot(&[&["restore"], args].concat())
    }

    fn snapshot(&self, args: &[&str]) -> Result<()> {
        let args = [&["snapshot"], args].concat();
        let ended = Command::new(&self.program).args(&args).output().context("cannot run portolan")?;
        ensure!(ended.status.success(), "portolan {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
        Ok(())
    }
}

/// Starts kube-controller-manager without its client-side rate limit of 20 requests per second, which would dominate
/// the figures.
fn controllers(tools: &Tools, dir: &Path) -> Result<Process> {
    let path = |name: &str| dir.join(name).display().to_string();
    let args = [
        format!("--kubeconfig={}", admin_file(dir).display()),
        "--secure-port=0".to_owned(),
        "--leader-elect=false".to_owned(),
        format!("--root-ca-file={}", path("pki/ca.crt")),
        format!("--service-account-private-key-file={}", path("pki/service-accounts.key")),
        "--kube-api-qps=100000".to_owned(),
        "--kube-api-burst=100000".to_owned(),
    ];
    Process::spawn("kube-controller-manager", &tools.kube_controller_manager(), args, &dir.join("logs"))
}

/// Writes a script that runs a program with a further first argument and, if wanted, with slow syncs. strace delays
/// only the syncs. It is not the parent of the program, and ends with it.
fn script(path: &Path, program: &Path, argument: &str, slow: bool) -> Result<PathBuf> {
    let calls = "fsync,fdatasync,sync_file_range";
    let slower = format!(
        "strace -D -f --seccomp-bpf -qq -o /dev/null -e trace={calls} -e inject={calls}:delay_exit={SLOWER} --"
    );
    let wrapper = if slow { slower.as_str() } else { "" };
    fs::write(path, format!("#!/bin/sh\nexec {wrapper} '{}' {argument} \"$@\"\n", program.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(path.to_owned())
}

/// Running server that the benchmark has started.
pub(super) struct BenchSubject {
    which: Which,
    server: SubjectServer,
    dir: PathBuf,
}

enum SubjectServer {
    Kube(KubeControlPlane, Option<Process>),
    Portolan(Portolan, Option<Etcd>),
}

impl BenchSubject {
    pub(super) fn which(&self) -> Which {
        self.which
    }

    /// Returns the ids of all processes of the server.
    pub(super) fn pids(&self) -> Vec<u32> {
        match &self.server {
            SubjectServer::Kube(plane, manager) => {
                plane.pids().into_iter().chain(manager.as_ref().map(Process::pid)).collect()
            }
            SubjectServer::Portolan(server, etcd) => {
                etcd.iter().map(|etcd| etcd.pid(0)).chain([server.pid()]).collect()
            }
        }
    }

    /// Returns the credentials of an administrator: a client certificate, which both servers issue.
    fn kubeconfig(&self) -> &UserKubeconfig {
        match &self.server {
            SubjectServer::Kube(plane, _) => plane.kubeconfig(),
            SubjectServer::Portolan(server, _) => server.kubeconfig(),
        }
    }

    /// Returns a target for load on the running server.
    pub(super) fn bench(&self) -> LoadTarget {
        LoadTarget { config: self.kubeconfig().clone(), pids: self.pids() }
    }

    /// Stops it cleanly.
    pub(super) fn stop(&self) -> Result<()> {
        match &self.server {
            SubjectServer::Kube(plane, manager) => {
                // kube-apiserver does not stop while kube-controller-manager restarts its watches.
                manager.as_ref().map_or(Ok(()), Process::kill)?;
                plane.stop()
            }
            SubjectServer::Portolan(server, etcd) => {
                server.stop()?;
                etcd.as_ref().map_or(Ok(()), Etcd::stop)
            }
        }
    }

    /// Kills all its processes with SIGKILL.
    pub(super) fn kill(&self) -> Result<()> {
        match &self.server {
            SubjectServer::Kube(plane, _) => plane.kill(),
            SubjectServer::Portolan(server, etcd) => {
                server.kill()?;
                etcd.as_ref().map_or(Ok(()), Etcd::kill)
            }
        }
    }

    /// Starts the server on its data. Returns when `/readyz` succeeds.
    pub(super) fn start_again(&mut self) -> Result<()> {
        match &mut self.server {
            SubjectServer::Kube(plane, _) => plane.restart(),
            SubjectServer::Portolan(server, etcd) => {
                etcd.as_mut().map_or(Ok(()), Etcd::restart)?;
                server.restart()
            }
        }
    }

    /// Stops Portolan, but not its etcd.
    pub(super) fn stop_server(&self) -> Result<()> {
        match &self.server {
            SubjectServer::Kube(..) => self.stop(),
            SubjectServer::Portolan(server, _) => server.stop(),
        }
    }

    /// Starts Portolan again on the running etcd.
    pub(super) fn start_server(&mut self) -> Result<()> {
        match &mut self.server {
            SubjectServer::Kube(..) => self.start_again(),
            SubjectServer::Portolan(server, _) => server.restart(),
        }
    }

    /// Returns the folder of all its files.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns Portolan's data directory.
    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Returns the folders in which the servers under `dir` store objects.
    pub(super) fn stored_in(dir: &Path) -> [PathBuf; 2] {
        [dir.join("data/store"), dir.join("etcd")]
    }

    /// Returns a client of the server's etcd.
    pub(super) fn gateway(&self) -> Option<Gateway> {
        match &self.server {
            SubjectServer::Kube(plane, _) => Some(plane.gateway()),
            SubjectServer::Portolan(_, etcd) => etcd.as_ref().map(Etcd::gateway),
        }
    }

    /// Returns the disk space of the objects in MiB.
    pub(super) fn disk_mib(&self) -> Result<f64> {
        let store = match self.which {
            Which::Kube | Which::Etcd => self.dir.join("etcd"),
            Which::Redb | Which::Sled | Which::Memory => self.data().join("store"),
        };
        allocated_mib(&store)
    }
}

/// Returns the disk space of a folder in MiB: blocks, not lengths, since files may have holes.
pub(super) fn allocated_mib(folder: &Path) -> Result<f64> {
    let mut taken = 0.0;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        taken += if entry.file_type()?.is_dir() {
            allocated_mib(&entry.path())?
        } else {
            entry.metadata()?.blocks() as f64 / 2048.0
        };
    }
    Ok(taken)
}

pub(super) fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}
