//! `portolan check`: what could keep a server from running here, found before it is started, or beside one that runs. Nothing is changed.

mod etcd;
mod store;

use std::{
    fs::File,
    io::{ErrorKind, Write as _},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::Args;
use portolan_store::{Engine, StoreConfig};

use super::{etcd::EtcdFlags, output, progress::human, server::ServerStore, values};
use crate::shared_keys;

/// An fsync slower than this makes every write slow.
const SLOW_SYNC: Duration = Duration::from_millis(20);
/// Where a server listens that is told nothing else.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 6443);
/// Open files that a server with many watches needs.
const FILES_WANTED: u64 = 4096;

/// Look whether this machine can run a server, and what is in its store, beside it or before it is started. Nothing is changed. A store on
/// redb that was not closed cleanly takes its time, and no server can start on it meanwhile.
#[derive(Args)]
pub(crate) struct Check {
    /// Data directory that the server would use.
    #[arg(long)]
    data_dir: PathBuf,
    /// Address that the server would use; unless it is given, the one of which admin.kubeconfig in the data directory tells, else
    /// 127.0.0.1:6443.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = values::address)]
    bind_address: Option<SocketAddr>,
    /// Storage engine that the server would use; unless it is given, whatever is there. With etcd, what --etcd-endpoints lead to is looked
    /// at as well.
    #[arg(long, value_enum)]
    store: Option<ServerStore>,
    #[command(flatten)]
    etcd: EtcdFlags,
}

/// The outcome of one check.
enum Finding {
    Good(String),
    Warning(String),
    Bad(String),
}

impl Check {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut findings = vec![
            ("data directory", data_directory(&self.data_dir)),
            ("room on disk", room(&self.data_dir, portolan_store::free_room(existing(&self.data_dir)))),
            ("sync to disk", sync_to_disk(&self.data_dir)),
            (
                "address",
                address(
                    self.bind_address.or_else(|| last_address(&self.data_dir)).unwrap_or(DEFAULT_ADDRESS),
                    &self.data_dir,
                ),
            ),
            ("open files", open_files()),
        ];
        match self.store {
            Some(ServerStore::Etcd) => findings.extend(etcd::look(&self.etcd.read()?)?),
            chosen => {
                self.etcd.refuse_for(chosen.unwrap_or(ServerStore::Redb))?;
                findings.push(("store", store::look(&self.data_dir, chosen)));
            }
        }
        let (mut bad, all) = (0, findings.len());
        for (name, finding) in findings {
            let (mark, text) = match finding {
                Finding::Good(text) => ("ok", text),
                Finding::Warning(text) => ("warning", text),
                Finding::Bad(text) => {
                    bad += 1;
                    ("failed", text)
                }
            };
            output::line(&format!("{name:<16}{mark:<9}{text}"))?;
        }
        if bad > 0 {
            bail!("{bad} of {all} checks failed");
        }
        Ok(())
    }
}

/// The directory itself, or the nearest one above that exists.
fn existing(dir: &Path) -> &Path {
    dir.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."))
}

fn data_directory(dir: &Path) -> Finding {
    use std::os::unix::fs::PermissionsExt as _;
    let place = existing(dir);
    let mode = place.metadata().map(|m| m.permissions().mode() & 0o777);
    if place == dir && mode.as_ref().is_ok_and(|mode| mode & 0o077 != 0) {
        return Finding::Bad(format!("{} is open to other users; fix: chmod 700 {}", dir.display(), dir.display()));
    }
    match tempfile_in(place) {
        Ok(_) if place == dir => Finding::Good(format!("{} is there and can be written", dir.display())),
        Ok(_) => Finding::Good(format!("{} will be made", dir.display())),
        Err(error) => Finding::Bad(format!("{} cannot be written: {error}", place.display())),
    }
}

/// A file that is gone with its handle.
fn tempfile_in(dir: &Path) -> std::io::Result<File> {
    let path = dir.join(format!(".portolan-check-{}", std::process::id()));
    let file = File::create_new(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Whether a server would take writes.
fn room(dir: &Path, free: std::io::Result<u64>) -> Finding {
    let reserve = StoreConfig::new(Engine::Redb, None).disk_reserve;
    let mib = |bytes: u64| bytes >> 20;
    match free {
        Ok(free) if free < reserve => Finding::Bad(format!(
            "{} MiB are free; with less than {} MiB a server takes deletions at most; fix: make room there, or a larger disk for {}",
            mib(free),
            mib(reserve),
            dir.display()
        )),
        Ok(free) => Finding::Good(format!("{} MiB are free", mib(free))),
        Err(error) => Finding::Warning(format!("the system does not tell how much is free: {error}")),
    }
}

fn sync_to_disk(dir: &Path) -> Finding {
    let measure = || -> anyhow::Result<Duration> {
        let mut file = tempfile_in(existing(dir)).context("no file can be made")?;
        let mut times = Vec::new();
        for _ in 0..20 {
            file.write_all(&[0; 4096]).context("write failed")?;
            let started = Instant::now();
            file.sync_data().context("fdatasync failed")?;
            times.push(started.elapsed());
        }
        times.sort();
        Ok(times[times.len() / 2])
    };
    match measure() {
        Ok(time) if time > SLOW_SYNC => {
            Finding::Warning(format!("fdatasync takes {}; writes wait for it", human(time)))
        }
        Ok(time) => Finding::Good(format!("fdatasync takes {} µs", time.as_micros())),
        Err(error) => Finding::Bad(format!("{error:#}")),
    }
}

/// Where the server listened that was last started on a data directory.
fn last_address(dir: &Path) -> Option<SocketAddr> {
    let text = std::fs::read_to_string(dir.join("admin.kubeconfig")).ok()?;
    let config: serde_json::Value = serde_saphyr::from_str(&text).ok()?;
    let server = config.pointer("/clusters/0/cluster/server")?.as_str()?;
    server.strip_prefix("https://")?.split('/').next()?.parse().ok()
}

fn address(address: SocketAddr, dir: &Path) -> Finding {
    match TcpListener::bind(address) {
        Ok(_) => Finding::Good(format!("{address} is free")),
        Err(error)
            if error.kind() == ErrorKind::AddrInUse
                && last_address(dir) == Some(address)
                && (portolan_store::is_in_use(&dir.join("store")) || shared_keys::is_claimed(dir)) =>
        {
            Finding::Good(format!("a server runs on {} and listens on {address}", dir.display()))
        }
        Err(error) => Finding::Bad(format!("cannot listen on {address}: {error}; fix: another --bind-address")),
    }
}

fn open_files() -> Finding {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3)).and_then(|n| n.parse::<u64>().ok());
    match soft {
        Some(limit) if limit < FILES_WANTED => Finding::Warning(format!(
            "{limit} allowed; {FILES_WANTED} are good for many watches; fix: ulimit -n {FILES_WANTED}"
        )),
        Some(limit) => Finding::Good(format!("{limit} allowed")),
        None => Finding::Warning("the limit is not known on this system".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_the_reserve_is_told_with_what_to_do() {
        let found = |free| room(Path::new("data"), Ok(free));
        assert!(matches!(found(64 << 20), Finding::Good(text) if text == "64 MiB are free"));
        let Finding::Bad(text) = found((64 << 20) - 1) else { panic!("it is too little") };
        assert!(text.contains("63 MiB are free") && text.contains("fix: make room"), "{text}");
        let unknown = room(Path::new("data"), Err(std::io::ErrorKind::Unsupported.into()));
        assert!(matches!(unknown, Finding::Warning(_)));
        assert!(portolan_store::free_room(Path::new(".")).is_ok_and(|free| free > 0));
    }

    #[test]
    fn the_address_of_the_server_that_runs_on_the_directory_is_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let listens = taken.local_addr().unwrap();
        let config = format!("clusters: [{{cluster: {{server: 'https://{listens}/clusters/root'}}}}]");
        std::fs::write(dir.path().join("admin.kubeconfig"), config).unwrap();
        let store = StoreConfig::new(Engine::Redb, Some(dir.path().join("store")));
        assert!(matches!(address(listens, dir.path()), Finding::Bad(_)), "somebody else listens");
        let running = portolan_store::open(store, portolan_types::Seams::system()).unwrap();
        assert!(matches!(address(listens, dir.path()), Finding::Good(text) if text.contains("a server runs on")));
        let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        assert!(matches!(address(other.local_addr().unwrap(), dir.path()), Finding::Bad(_)), "another address");
        drop(running);
        assert!(matches!(address(listens, dir.path()), Finding::Bad(_)), "it has ended");
        let claim = shared_keys::claim(dir.path()).unwrap();
        assert!(matches!(address(listens, dir.path()), Finding::Good(_)), "one whose objects are in etcd");
        let refused = shared_keys::claim(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("is in use by another process"), "{refused}");
        drop(claim);
        assert!(shared_keys::claim(dir.path()).is_ok() && !shared_keys::is_claimed(dir.path()));
    }

    #[test]
    fn the_address_is_that_of_the_server_that_was_there() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(last_address(dir.path()), None);
        for (server, expected) in [
            ("https://127.0.0.1:7443/clusters/root", Some("127.0.0.1:7443")),
            ("https://[::1]:6443/clusters/root", Some("[::1]:6443")),
            ("https://plane.example.com:6443/clusters/root", None),
        ] {
            let config = format!("clusters:\n- name: root\n  cluster:\n    server: {server}\n");
            std::fs::write(dir.path().join("admin.kubeconfig"), config).unwrap();
            assert_eq!(last_address(dir.path()), expected.map(|address| address.parse().unwrap()), "{server}");
        }
    }
}
