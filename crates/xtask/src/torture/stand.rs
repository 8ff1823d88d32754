//! What is tortured: one server on an engine of its own, or two on one etcd; and what can be done to them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use http::{Method, StatusCode};
use serde_json::json;
use tempfile::TempDir;

use super::clock::Clock;
use super::work::PATIENCE;
use crate::client::Client;
use crate::harness::etcd::Etcd;
use crate::harness::kubeconfig::Kubeconfig;
use crate::harness::portolan::Portolan;
use crate::harness::process::Process;
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
    /// Each sync takes two seconds, and then one of them longer than a write may wait.
    Stall,
    /// Syncs fail with EIO: nothing is written then until the server is started again.
    Eio,
    /// The clock of a server jumps by days, forth and back.
    Clock,
    /// kill -9 of etcd, or of its member that leads, which is then started again.
    KillEtcd,
    /// etcd, or its member that leads, stands still for three seconds.
    PauseEtcd,
    /// etcd's member that leads is cut off from the others and from the servers for five seconds.
    CutLeader,
    /// A server stands still; meanwhile every member of etcd is killed and started again, and all history forgotten.
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

/// How long syncs are made slow or to fail.
const TRACED: Duration = Duration::from_secs(3);
/// How long they take two seconds each.
const STALLED: Duration = Duration::from_secs(8);
/// Writes under way when syncs begin to stand still are done by then, and clients have sent others.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// What a server may take to answer that nothing is known of a write: it waits 30 seconds for it.
const UNKNOWN: Duration = Duration::from_secs(45);
/// A server whose clients write syncs within this time.
const SYNCED: Duration = Duration::from_secs(30);

/// What etcd's database may take on a stand of several members.
const QUOTA: &str = "--quota-backend-bytes=50331648";

/// The room that the store of a stand has whose disk can be full.
const ROOM: &str = "1000m";
/// What is taken of it, so that less than the server's reserve of 64 MiB is left.
const FILLER: u64 = 960 << 20;

/// Servers, and the etcd below them.
pub(crate) struct Stand {
    pub(crate) servers: Vec<Portolan>,
    etcd: Option<Etcd>,
    store: PathBuf,
    /// Whether the store has a disk of its own, which is gone with its server.
    small_disk: bool,
    /// The clock of each server, where they can jump.
    clocks: Vec<Clock>,
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
        let mut flags =
            vec![engine_flag.to_owned(), "--history=7200".to_owned(), "--history-revisions=1000000000".to_owned()];
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
        let (mut servers, mut clocks) = (Vec::new(), Vec::new());
        for name in names {
            let mut program = program.clone();
            if faults.contains(&Fault::Clock) {
                let (clock, dir) = (Clock::new(&dir.join("clocks").join(name))?, dir.join("clocks").join(name));
                program = clock.on(&program, &dir)?;
                clocks.push(clock);
            }
            servers.push(Portolan::start_with(&program, tools, &dir.join(name), &flags)?);
        }
        Ok(Self { servers, etcd, store: dir.join("one/data/store"), small_disk, clocks })
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
            Fault::Stall => !self.small_disk,
            Fault::Full => self.small_disk,
            Fault::Eio => self.etcd.is_none() && !self.small_disk,
            Fault::Clock => !self.clocks.is_empty(),
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
            Fault::Eio => self.failed_sync(),
            Fault::Clock => self.clocks.get(victim).context("the clock cannot jump")?.jump(turn),
            Fault::Slow => slowed(self.who_syncs(victim)?),
            Fault::Stall => self.stalled(victim, turn),
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
                // What its connections still hold is older than what is forgotten then.
                let forgotten = self.etcd.as_mut().context("there is no etcd")?.restart_and_forget();
                send("CONT", pid)?;
                forgotten
            }
            Fault::NoSpace => self.etcd()?.run_out_of_room(Duration::from_secs(3)),
        }
    }

    /// The process whose syncs make writes durable.
    fn who_syncs(&self, victim: usize) -> Result<u32> {
        self.etcd.as_ref().map_or(Ok(self.servers[victim].pid()), |etcd| Ok(etcd.pid(etcd.leader()?)))
    }

    /// Syncs take two seconds each; then one takes so long that a write which waits for it must be answered that nothing is known
    /// of it. Where the syncs are the server's own, reads go on meanwhile.
    fn stalled(&self, victim: usize, turn: usize) -> Result<()> {
        let (pid, config) = (self.who_syncs(victim)?, self.servers[victim].workspace("root"));
        traced(pid, "delay_enter=2000000", STALLED)?;
        let tracer = Tracer::start(pid, "delay_enter=60000000")?;
        std::thread::sleep(UNDER_WAY);
        let path = "/api/v1/namespaces/default/configmaps";
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("stalled-{turn}")}});
        let (read, written) = tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            let client = Client::connect(&config, 1).await?;
            let read = client.send(Method::GET, path, Bytes::new());
            let write = client.send(Method::POST, path, Bytes::from(body.to_string()));
            let (read, written) =
                tokio::join!(tokio::time::timeout(PATIENCE, read), tokio::time::timeout(UNKNOWN, write));
            anyhow::Ok((read, written.context("a write that nothing is known of was not answered")??.status))
        })?;
        tracer.end()?;
        if self.etcd.is_some() {
            // What is read of etcd to admit the write may be what was not answered.
            ensure!(written.is_server_error(), "a write that cannot be durable was answered {written}");
            return Ok(());
        }
        let read = read.context("while a sync stands still, nothing can be read")??.status;
        ensure!(read.is_success(), "while a sync stands still, a read is answered {read}");
        ensure!(written == StatusCode::GATEWAY_TIMEOUT, "a write that may happen yet was answered {written}");
        Ok(())
    }

    /// After a failed sync a server must say that it takes no writes, and go on reading, until it is started again.
    fn failed_sync(&mut self) -> Result<()> {
        let server = &mut self.servers[0];
        let injected = traced(server.pid(), "error=EIO", TRACED)?;
        ensure!(injected > 0, "no sync was made to fail");
        server.check_alive()?;
        let config = server.workspace("root");
        let (ready, read) = tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            let ready = Client::connect(&at_root(&config), 1).await?.send(Method::GET, "/readyz", Bytes::new()).await?;
            let read = Client::connect(&config, 1).await?.send(Method::GET, "/api/v1/namespaces", Bytes::new()).await?;
            anyhow::Ok((ready.status, read.status))
        })?;
        ensure!(!ready.is_success(), "it says that it is ready, although a sync failed");
        ensure!(read.is_success(), "after a failed sync a read is answered {read}");
        server.kill()?;
        server.restart()
    }

    fn etcd(&self) -> Result<&Etcd> {
        self.etcd.as_ref().context("there is no etcd")
    }

    fn without_room(&self) -> Result<()> {
        // The disk is the server's alone; the way to it leads through its process.
        let root = PathBuf::from(format!("/proc/{}/root", self.servers[0].pid()));
        let filler = root.join(self.store.strip_prefix("/")?).join("filler");
        let file = fs::File::create(&filler).with_context(|| format!("cannot make {}", filler.display()))?;
        let filled = fill(file);
        if filled.is_ok() {
            std::thread::sleep(Duration::from_secs(2));
        }
        fs::remove_file(filler).context("cannot make room again")?;
        filled?;
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
    still_for(pid, Duration::from_secs(3))
}

/// Lets a process stand still.
pub(crate) fn still_for(pid: u32, time: Duration) -> Result<()> {
    send("STOP", pid)?;
    std::thread::sleep(time);
    send("CONT", pid)
}

/// Makes each sync of a process slower for three seconds.
fn slowed(pid: u32) -> Result<()> {
    traced(pid, "delay_enter=30000", TRACED).map(drop)
}

/// Does something to each sync of a process for so long, or until there was one; tells how often.
fn traced(pid: u32, what: &str, time: Duration) -> Result<usize> {
    let (tracer, start) = (Tracer::start(pid, what)?, Instant::now());
    let mut done = 0;
    while start.elapsed() < time || (done == 0 && start.elapsed() < SYNCED) {
        std::thread::sleep(Duration::from_millis(50));
        done = tracer.done()?;
    }
    tracer.end()?;
    Ok(done)
}

/// A program that does something to each sync of a process.
struct Tracer {
    process: Process,
    dir: TempDir,
}

impl Tracer {
    fn start(pid: u32, what: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let inject = format!("inject=fsync,fdatasync:{what}");
        let (file, pid) = (dir.path().join("notes").display().to_string(), pid.to_string());
        let args = ["-f", "-qq", "-e", "trace=fsync,fdatasync", "-e", &inject, "-o", &file, "-p", &pid];
        let process = Process::spawn("strace", Path::new("strace"), args, dir.path())?;
        Ok(Self { process, dir })
    }

    /// How many syncs it was done to.
    fn done(&self) -> Result<usize> {
        self.process.check_alive()?;
        let lines = fs::read_to_string(self.dir.path().join("notes")).unwrap_or_default();
        Ok(lines.lines().filter(|line| line.contains("INJECTED") || line.contains("DELAYED")).count())
    }

    fn end(self) -> Result<()> {
        self.process.interrupt().map(drop)
    }
}

/// The server itself, whatever logical cluster a kubeconfig points into.
fn at_root(config: &Kubeconfig) -> Kubeconfig {
    let server = config.server();
    config.with_server(server.split_once("/clusters/").map_or(server, |(server, _)| server))
}
