//! What is tortured: one server on an engine of its own, or two on one etcd; and what can be done to them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::harness::etcd::Etcd;
use crate::harness::kubeconfig::Kubeconfig;
use crate::harness::portolan::Portolan;
use crate::harness::tools::Tools;

/// Where the objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    Redb,
    Sled,
    Etcd,
}

/// What is done while clients are at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// kill -9 of a server, which is then started again.
    Kill,
    /// A server stands still for three seconds.
    Pause,
    /// No room on the disk, and then room again.
    Full,
    /// Each sync takes 30 ms longer.
    Slow,
    /// kill -9 of etcd, or of its member that leads, which is then started again.
    KillEtcd,
    /// etcd, or its member that leads, stands still for three seconds.
    PauseEtcd,
    /// etcd's member that leads is cut off from the others and from the servers for five seconds.
    CutLeader,
    /// A server stands still, and meanwhile all history is forgotten that it has not read.
    CompactEtcd,
    /// etcd's database has no room for three seconds, until an operator makes some.
    NoSpace,
}

impl Fault {
    /// Whether it takes an etcd of several members.
    fn needs_members(self) -> bool {
        matches!(self, Self::CutLeader | Self::CompactEtcd | Self::NoSpace)
    }

    /// Whether it may take history from those who follow.
    pub(crate) fn forgets(self) -> bool {
        matches!(self, Self::CompactEtcd | Self::NoSpace)
    }
}

/// What etcd's database may take on a stand of several members.
const QUOTA: &str = "--quota-backend-bytes=50331648";

/// The room that the store of a stand has whose disk can be full.
const ROOM: &str = "200m";
/// What is taken of it, so that less than the server's reserve of 64 MiB is left.
const FILLER: u64 = 160 << 20;

/// Servers, and the etcd below them.
pub(crate) struct Stand {
    pub(crate) servers: Vec<Portolan>,
    etcd: Option<Etcd>,
    store: PathBuf,
    /// Whether the store has a disk of its own, which is gone with its server.
    small_disk: bool,
}

impl Stand {
    /// A stand that can bear `faults`.
    pub(crate) fn start(program: &Path, tools: &Tools, dir: &Path, engine: Engine, faults: &[Fault]) -> Result<Self> {
        let small_disk = faults.contains(&Fault::Full);
        let engine_flag = match engine {
            Engine::Redb => "--store=redb",
            Engine::Sled => "--store=sled",
            Engine::Etcd => "--store=etcd",
        };
        let mut flags = vec![engine_flag.to_owned(), "--history=7200".to_owned()];
        let etcd = match engine {
            Engine::Etcd if faults.iter().any(|fault| fault.needs_members()) => {
                Some(Etcd::start_three(tools, &dir.join("etcd"), &[QUOTA])?)
            }
            Engine::Etcd => Some(Etcd::start(tools, &dir.join("etcd"))?),
            Engine::Redb | Engine::Sled => None,
        };
        flags.extend(etcd.iter().map(|etcd| format!("--etcd-endpoints={}", etcd.url())));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let names: &[&str] = if etcd.is_some() { &["one", "two"] } else { &["one"] };
        let program = if small_disk { on_small_disk(program, dir)? } else { program.to_owned() };
        let start = |name: &&str| Portolan::start_with(&program, tools, &dir.join(name), &flags);
        let servers = names.iter().map(start).collect::<Result<_>>()?;
        Ok(Self { servers, etcd, store: dir.join("one/data/store"), small_disk })
    }

    /// The administrator, at each server.
    pub(crate) fn configs(&self) -> Vec<Kubeconfig> {
        self.servers.iter().map(|server| server.workspace("root")).collect()
    }

    /// What can be done to this stand of what is asked for.
    pub(crate) fn bears(&self, fault: Fault) -> bool {
        match fault {
            Fault::Kill => !self.small_disk,
            Fault::Pause | Fault::Slow => true,
            Fault::Full => self.small_disk,
            Fault::KillEtcd | Fault::PauseEtcd => self.etcd.is_some(),
            Fault::CutLeader => self.etcd.as_ref().is_some_and(Etcd::has_network),
            Fault::CompactEtcd | Fault::NoSpace => self.etcd.as_ref().is_some_and(|etcd| etcd.members() > 1),
        }
    }

    /// Does it, and undoes it.
    pub(crate) fn suffer(&mut self, fault: Fault, turn: usize) -> Result<()> {
        let victim = turn % self.servers.len();
        match fault {
            Fault::Kill => {
                self.servers[victim].kill()?;
                std::thread::sleep(Duration::from_millis(300));
                self.servers[victim].restart()
            }
            Fault::Pause => paused(self.servers[victim].pid()),
            Fault::Full => self.without_room(),
            Fault::Slow => match &self.etcd {
                Some(etcd) => slowed(etcd.pid(etcd.leader()?)),
                None => slowed(self.servers[victim].pid()),
            },
            Fault::KillEtcd => {
                let etcd = self.etcd.as_mut().context("there is no etcd")?;
                etcd.kill_and_restart(etcd.leader()?)
            }
            Fault::PauseEtcd => {
                let etcd = self.etcd()?;
                paused(etcd.pid(etcd.leader()?))
            }
            Fault::CutLeader => {
                let etcd = self.etcd()?;
                etcd.cut_off(etcd.leader()?, Duration::from_secs(5))
            }
            Fault::CompactEtcd => {
                let pid = self.servers[victim].pid();
                send("STOP", pid)?;
                std::thread::sleep(Duration::from_secs(3));
                let compacted = self.etcd()?.compact();
                send("CONT", pid)?;
                compacted
            }
            Fault::NoSpace => self.etcd()?.run_out_of_room(Duration::from_secs(3)),
        }
    }

    fn etcd(&self) -> Result<&Etcd> {
        self.etcd.as_ref().context("there is no etcd")
    }

    fn without_room(&self) -> Result<()> {
        // The disk is the server's alone; the way to it leads through its process.
        let root = PathBuf::from(format!("/proc/{}/root", self.servers[0].pid()));
        let filler = root.join(self.store.strip_prefix("/")?).join("filler");
        let file = fs::File::create(&filler).with_context(|| format!("cannot make {}", filler.display()))?;
        fill(file)?;
        std::thread::sleep(Duration::from_secs(2));
        fs::remove_file(filler).context("cannot make room again")?;
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    }
}

/// Takes room by writing, since memory-backed file systems give none to holes.
fn fill(mut file: fs::File) -> Result<()> {
    use std::io::Write;
    let piece = vec![0; 1 << 20];
    for _ in 0..FILLER >> 20 {
        match file.write_all(&piece) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error).context("cannot fill the disk"),
        }
    }
    Ok(())
}

/// A program that runs `program` with a small file system in place of the folder of its store.
fn on_small_disk(program: &Path, dir: &Path) -> Result<PathBuf> {
    let store = dir.join("one/data/store");
    fs::create_dir_all(&store)?;
    for private in [dir.join("one/data"), store.clone()] {
        fs::set_permissions(private, fs::Permissions::from_mode(0o700))?;
    }
    let inner = format!(
        "mount -t tmpfs -o mode=0700,size={ROOM} none '{}' && exec '{}' \"$@\"",
        store.display(),
        program.display()
    );
    let script = format!("#!/bin/sh\nexec unshare -rm sh -c '{}' sh \"$@\"\n", inner.replace('\'', "'\\''"));
    let path = dir.join("portolan-on-small-disk");
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn send(signal: &str, pid: u32) -> Result<()> {
    let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status().context("cannot run sh")?;
    ensure!(sent.success(), "SIG{signal} could not be sent");
    Ok(())
}

fn paused(pid: u32) -> Result<()> {
    send("STOP", pid)?;
    std::thread::sleep(Duration::from_secs(3));
    send("CONT", pid)
}

/// Makes each sync of a process slower for three seconds.
fn slowed(pid: u32) -> Result<()> {
    let inject = "inject=fsync,fdatasync:delay_enter=30000";
    let strace = ["-f", "-qq", "-e", "trace=fsync,fdatasync", "-e", inject, "-o", "/dev/null", "-p"];
    let mut tracer: Child = Command::new("strace")
        .args(strace)
        .arg(pid.to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("slow syncs need strace")?;
    std::thread::sleep(Duration::from_secs(3));
    if let Some(status) = tracer.try_wait()? {
        bail!("strace ended with {status}");
    }
    send("INT", tracer.id())?;
    tracer.wait()?;
    Ok(())
}
