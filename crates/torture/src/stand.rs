//! Stands: one server on an embedded engine or two servers on one etcd, and their faults.

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

use super::clock::ShiftedClock;
use super::work::PATIENCE;
use harness::client::HttpClient;
use harness::etcd::Etcd;
use harness::kubeconfig::UserKubeconfig;
use harness::portolan::Portolan;
use harness::process::Process;
use harness::tools::Tools;

/// Storage of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TorturedEngine {
    /// The embedded engine redb.
    Redb,
    /// The embedded engine sled.
    Sled,
    /// One etcd, or three members.
    Etcd,
}

/// Fault that hits the servers while clients work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InjectedFault {
    /// kill -9 of a server, and a restart.
    Kill,
    /// A server is suspended for three seconds.
    Pause,
    /// The disk is full for a while.
    Full,
    /// Each sync takes 30 ms longer.
    Slow,
    /// Each sync takes two seconds, and then one takes longer than a write may wait.
    Stall,
    /// Syncs fail with EIO; no write succeeds until the server is restarted.
    Eio,
    /// The clock of a server jumps by days, forth and back.
    Clock,
    /// kill -9 of etcd, or of its leader, and a restart.
    KillEtcd,
    /// etcd, or its leader, is suspended for three seconds.
    PauseEtcd,
    /// etcd's leader is partitioned from the other members and the servers for five seconds.
    CutLeader,
    /// A server is suspended; meanwhile every member of etcd is killed and restarted, and all history compacted.
    CompactEtcd,
    /// etcd's database is full for three seconds, until an operator frees space.
    NoSpace,
}

impl InjectedFault {
    /// Returns true for a fault that requires an etcd of several members.
    fn needs_members(self) -> bool {
        matches!(self, Self::CutLeader | Self::CompactEtcd | Self::NoSpace)
    }

    /// Returns true for a fault that may compact history under its watchers. A server on a full disk compacts history
    /// before it refuses writes.
    pub(crate) fn forgets(self) -> bool {
        matches!(self, Self::CompactEtcd | Self::NoSpace | Self::Full)
    }
}

/// Time during which syncs are slow or fail.
const TRACED: Duration = Duration::from_secs(3);
/// Time during which each sync takes two seconds.
const STALLED: Duration = Duration::from_secs(8);
/// Time after which the writes in flight have ended when syncs become slow, and clients have sent new ones.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// Time within which a server must answer that the outcome of a write is unknown; it waits 30 seconds for the outcome.
const UNKNOWN: Duration = Duration::from_secs(45);
/// A server under writes syncs within this time.
const SYNCED: Duration = Duration::from_secs(30);

/// Quota of etcd's database with several members.
const QUOTA: &str = "--quota-backend-bytes=50331648";

/// Size of the small disk of a stand.
const ROOM: &str = "1000m";
/// Bytes that fill the small disk until less than the server's reserve of 64 MiB is free.
const FILLER: u64 = 960 << 20;

/// Servers, with their etcd.
pub(crate) struct Stand {
    pub(crate) servers: Vec<Portolan>,
    etcd: Option<Etcd>,
    store: PathBuf,
    /// True if the store has a small disk of its own, which ends with its server.
    small_disk: bool,
    /// Clock of each server, if it can jump.
    clocks: Vec<ShiftedClock>,
}

impl Stand {
    /// Starts a stand that supports `faults`.
    pub(crate) fn start(
        program: &Path,
        tools: &Tools,
        dir: &Path,
        engine: TorturedEngine,
        faults: &[InjectedFault],
    ) -> Result<Self> {
        let small_disk = faults.contains(&InjectedFault::Full);
        let engine_flag = match engine {
            TorturedEngine::Redb => "--store=redb",
            TorturedEngine::Sled => "--store=sled",
            TorturedEngine::Etcd => "--store=etcd",
        };
        let mut flags =
            vec![engine_flag.to_owned(), "--history=7200".to_owned(), "--history-revisions=1000000000".to_owned()];
        let etcd = match engine {
            TorturedEngine::Etcd if faults.iter().any(|fault| fault.needs_members()) => {
                Some(Etcd::start_three(tools, &dir.join("etcd"), &[QUOTA])?)
            }
            TorturedEngine::Etcd => Some(Etcd::start(tools, &dir.join("etcd"))?),
            TorturedEngine::Redb | TorturedEngine::Sled => None,
        };
        flags.extend(etcd.iter().map(|etcd| format!("--etcd-endpoints={}", etcd.url())));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let names: &[&str] = if etcd.is_some() { &["one", "two"] } else { &["one"] };
        let program = if small_disk { on_small_disk(program, dir)? } else { program.to_owned() };
        let (mut servers, mut clocks) = (Vec::new(), Vec::new());
        for name in names {
            let mut program = program.clone();
            if faults.contains(&InjectedFault::Clock) {
                let (clock, dir) = (ShiftedClock::new(&dir.join("clocks").join(name))?, dir.join("clocks").join(name));
                program = clock.on(&program, &dir)?;
                clocks.push(clock);
            }
            servers.push(Portolan::start_with(&program, tools, &dir.join(name), &flags)?);
        }
        Ok(Self { servers, etcd, store: dir.join("one/data/store"), small_disk, clocks })
    }

    /// Returns the administrator's kubeconfig for each server.
    pub(crate) fn configs(&self) -> Vec<UserKubeconfig> {
        self.servers.iter().map(|server| server.workspace("root")).collect()
    }

    /// Returns true when this setup supports a fault.
    pub(crate) fn bears(&self, fault: InjectedFault) -> bool {
        match fault {
            InjectedFault::Kill => !self.small_disk,
            InjectedFault::Pause | InjectedFault::Slow => true,
            InjectedFault::Stall => !self.small_disk,
            InjectedFault::Full => self.small_disk,
            InjectedFault::Eio => self.etcd.is_none() && !self.small_disk,
            InjectedFault::Clock => !self.clocks.is_empty(),
            InjectedFault::KillEtcd | InjectedFault::PauseEtcd => self.etcd.is_some(),
            InjectedFault::CutLeader => self.etcd.as_ref().is_some_and(Etcd::has_network),
            InjectedFault::CompactEtcd | InjectedFault::NoSpace => {
                self.etcd.as_ref().is_some_and(|etcd| etcd.members() > 1)
            }
        }
    }

    /// Injects the fault, and ends it.
    pub(crate) fn suffer(&mut self, fault: InjectedFault, turn: usize) -> Result<()> {
        let victim = turn % self.servers.len();
        match fault {
            InjectedFault::Kill => {
                self.servers[victim].kill()?;
                std::thread::sleep(Duration::from_millis(300));
                self.servers[victim].restart()
            }
            InjectedFault::Pause => paused(self.servers[victim].pid()),
            InjectedFault::Full => self.without_room(),
            InjectedFault::Eio => self.failed_sync(),
            InjectedFault::Clock => self.clocks.get(victim).context("the clock cannot jump")?.jump(turn),
            InjectedFault::Slow => slowed(self.syncing_process(victim)?),
            InjectedFault::Stall => self.stalled(victim, turn),
            InjectedFault::KillEtcd => {
                let etcd = self.etcd.as_mut().context("there is no etcd")?;
                etcd.kill_and_restart(etcd.leader()?)
            }
            InjectedFault::PauseEtcd => {
                let etcd = self.etcd()?;
                paused(etcd.pid(etcd.leader()?))
            }
            InjectedFault::CutLeader => {
                let etcd = self.etcd()?;
                etcd.cut_off(etcd.leader()?, Duration::from_secs(5))
            }
            InjectedFault::CompactEtcd => {
                let pid = self.servers[victim].pid();
                send("STOP", pid)?;
                // The server's connections still buffer events older than the compacted history.
                let forgotten = self.etcd.as_mut().context("there is no etcd")?.restart_and_forget();
                send("CONT", pid)?;
                forgotten
            }
            InjectedFault::NoSpace => self.etcd()?.run_out_of_room(Duration::from_secs(3)),
        }
    }

    /// Returns the process whose syncs make writes durable.
    fn syncing_process(&self, victim: usize) -> Result<u32> {
        self.etcd.as_ref().map_or(Ok(self.servers[victim].pid()), |etcd| Ok(etcd.pid(etcd.leader()?)))
    }

    /// Makes syncs take two seconds each, and then one so long that the server must answer a waiting write with an
    /// unknown outcome. If the syncs are the server's own, reads continue meanwhile.
    fn stalled(&self, victim: usize, turn: usize) -> Result<()> {
        let (pid, config) = (self.syncing_process(victim)?, self.servers[victim].workspace("root"));
        traced(pid, "delay_enter=2000000", STALLED)?;
        let tracer = Tracer::start(pid, "delay_enter=60000000")?;
        std::thread::sleep(UNDER_WAY);
        let path = "/api/v1/namespaces/default/configmaps";
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("stalled-{turn}")}});
        let (read, written) = tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            let client = HttpClient::connect(&config, 1).await?;
            let read = client.send(Method::GET, path, Bytes::new());
            let write = client.send(Method::POST, path, Bytes::from(body.to_string()));
            let (read, written) =
                tokio::join!(tokio::time::timeout(PATIENCE, read), tokio::time::timeout(UNKNOWN, write));
            anyhow::Ok((read, written.context("a write that nothing is known of was not answered")??.status))
        })?;
        tracer.end()?;
        if self.etcd.is_some() {
            // The read from etcd that admits the write may be the unanswered call.
            ensure!(written.is_server_error(), "a write that cannot be durable was answered {written}");
            return Ok(());
        }
        let read = read.context("while a sync stands still, nothing can be read")??.status;
        ensure!(read.is_success(), "while a sync stands still, a read is answered {read}");
        ensure!(written == StatusCode::GATEWAY_TIMEOUT, "a write that may happen yet was answered {written}");
        Ok(())
    }

    /// After a failed sync, a server must refuse writes and continue to read until it is restarted.
    fn failed_sync(&mut self) -> Result<()> {
        let server = &mut self.servers[0];
        let injected = traced(server.pid(), "error=EIO", TRACED)?;
        ensure!(injected > 0, "no sync was made to fail");
        server.check_alive()?;
        let config = server.workspace("root");
        let (ready, read) = tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            let ready =
                HttpClient::connect(&at_root(&config), 1).await?.send(Method::GET, "/readyz", Bytes::new()).await?;
            let read =
                HttpClient::connect(&config, 1).await?.send(Method::GET, "/api/v1/namespaces", Bytes::new()).await?;
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
        // Only the server's namespace has the disk mounted; its path leads through the process.
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

/// Fills space by writing, since memory-backed file systems do not count holes.
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

/// Returns a wrapper of `program` with a small file system mounted at the folder of its store.
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

/// Suspends a process.
pub fn still_for(pid: u32, time: Duration) -> Result<()> {
    send("STOP", pid)?;
    std::thread::sleep(time);
    send("CONT", pid)
}

/// Slows each sync of a process for three seconds.
fn slowed(pid: u32) -> Result<()> {
    traced(pid, "delay_enter=30000", TRACED).map(drop)
}

/// Tampers with each sync of a process for a time, or until there was one; returns their number.
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

/// Tracer that tampers with each sync of a process.
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

    /// Returns the number of affected syncs.
    fn done(&self) -> Result<usize> {
        self.process.check_alive()?;
        let lines = fs::read_to_string(self.dir.path().join("notes")).unwrap_or_default();
        Ok(lines.lines().filter(|line| line.contains("INJECTED") || line.contains("DELAYED")).count())
    }

    fn end(self) -> Result<()> {
        self.process.interrupt().map(drop)
    }
}

/// Returns the kubeconfig of the server itself, independent of the logical cluster.
fn at_root(config: &UserKubeconfig) -> UserKubeconfig {
    let server = config.server();
    config.with_server(server.split_once("/clusters/").map_or(server, |(server, _)| server))
}
