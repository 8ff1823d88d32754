//! `portolan check`: finds obstacles to a server on this machine, before a start or beside a running server. It changes
//! nothing.

mod certificates;
mod etcd;
mod store;

use std::{
    fs::File,
    io::{ErrorKind, Write as _},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::Args;
use portolan_control_plane::data_dir;
use portolan_store::{Engine, StoreConfig};
use portolan_types::MonotonicInstant;

use super::{etcd::EtcdFlags, output, progress::human, server::ServerStore, values};

/// Fsync time from which every write is slow.
const SLOW_SYNC: Duration = Duration::from_millis(20);
/// Default address of a server.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 6443);
/// Number of open files that a server with many watches needs.
const FILES_WANTED: u64 = 4096;

/// Check whether a server can run on this machine, and examine its store, beside a running server or before a start.
/// Nothing is changed. A redb store that was not closed cleanly takes time to check, and no server can start on it
/// meanwhile.
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Data directory that the server would use.
    #[arg(long)]
    data_dir: PathBuf,
    /// Address that the server would use; by default the one in admin.kubeconfig of the data directory, else
    /// 127.0.0.1:6443.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = values::address)]
    bind_address: Option<SocketAddr>,
    /// Storage engine that the server would use; by default that of the existing store. With etcd, the members behind
    /// --etcd-endpoints are checked as well.
    #[arg(long, value_enum)]
    store: Option<ServerStore>,
    #[command(flatten)]
    etcd: EtcdFlags,
    #[command(flatten)]
    certificates: certificates::CertificateFlags,
}

/// Result of one check.
enum CheckFinding {
    Good(String),
    Warning(String),
    Bad(String),
}

impl CheckArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut findings = vec![
            ("data directory", data_directory(&self.data_dir)),
            ("room on disk", room(&self.data_dir, portolan_store::free_disk_space(existing(&self.data_dir)))),
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
        findings.extend(certificates::look(&self.data_dir, &self.certificates));
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
                CheckFinding::Good(text) => ("ok", text),
                CheckFinding::Warning(text) => ("warning", text),
                CheckFinding::Bad(text) => {
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

/// Returns the directory, or its nearest existing ancestor.
fn existing(dir: &Path) -> &Path {
    dir.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."))
}

fn data_directory(dir: &Path) -> CheckFinding {
    use std::os::unix::fs::PermissionsExt as _;
    let place = existing(dir);
    let mode = place.metadata().map(|m| m.permissions().mode() & 0o777);
    if place == dir && mode.as_ref().is_ok_and(|mode| mode & 0o077 != 0) {
        return CheckFinding::Bad(format!(
            "{} is open to other users; fix: chmod 700 {}",
            dir.display(),
            dir.display()
        ));
    }
    match tempfile_in(place) {
        Ok(_) if place == dir => CheckFinding::Good(format!("{} is there and can be written", dir.display())),
        Ok(_) => CheckFinding::Good(format!("{} will be made", dir.display())),
        Err(error) => CheckFinding::Bad(format!("{} cannot be written: {error}", place.display())),
    }
}

/// Makes a temporary file that is removed with its handle.
fn tempfile_in(dir: &Path) -> std::io::Result<File> {
    let path = dir.join(format!(".portolan-check-{}", std::process::id()));
    let file = File::create_new(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Checks that a server would accept writes.
fn room(dir: &Path, free: std::io::Result<u64>) -> CheckFinding {
    let reserve = StoreConfig::new(Engine::Redb, None).disk_reserve;
    let mib = |bytes: u64| bytes >> 20;
    match free {
        Ok(free) if free < reserve => CheckFinding::Bad(format!(
            "{} MiB are free; with less than {} MiB a server takes deletions at most; fix: make room there, or a larger disk for {}",
            mib(free),
            mib(reserve),
            dir.display()
        )),
        Ok(free) => CheckFinding::Good(format!("{} MiB are free", mib(free))),
        Err(error) => CheckFinding::Warning(format!("the system does not tell how much is free: {error}")),
    }
}

fn sync_to_disk(dir: &Path) -> CheckFinding {
    let measure = || -> anyhow::Result<Duration> {
        let mut file = tempfile_in(existing(dir)).context("no file can be made")?;
        let mut times = Vec::new();
        for _ in 0..20 {
            file.write_all(&[0; 4096]).context("write failed")?;
            let started = MonotonicInstant::now();
            file.sync_data().context("fdatasync failed")?;
            times.push(started.elapsed());
        }
        times.sort();
        Ok(times[times.len() / 2])
    };
    match measure() {
        Ok(time) if time > SLOW_SYNC => {
            CheckFinding::Warning(format!("fdatasync takes {}; writes wait for it", human(time)))
        }
        Ok(time) => CheckFinding::Good(format!("fdatasync takes {} µs", time.as_micros())),
        Err(error) => CheckFinding::Bad(format!("{error:#}")),
    }
}

/// Returns the address of the last server on a data directory.
fn last_address(dir: &Path) -> Option<SocketAddr> {
    let text = std::fs::read_to_string(dir.join("admin.kubeconfig")).ok()?;
    let config: serde_json::Value = serde_saphyr::from_str(&text).ok()?;
    let server = config.pointer("/clusters/0/cluster/server")?.as_str()?;
    server.strip_prefix("https://")?.split('/').next()?.parse().ok()
}

fn address(address: SocketAddr, dir: &Path) -> CheckFinding {
    match TcpListener::bind(address) {
        Ok(_) => CheckFinding::Good(format!("{address} is free")),
        Err(error)
            if error.kind() == ErrorKind::AddrInUse
                && last_address(dir) == Some(address)
                && (portolan_store::is_in_use(&dir.join("store")) || data_dir::is_locked(dir)) =>
        {
            CheckFinding::Good(format!("a server runs on {} and listens on {address}", dir.display()))
        }
        Err(error) => CheckFinding::Bad(format!("cannot listen on {address}: {error}; fix: another --bind-address")),
    }
}

fn open_files() -> CheckFinding {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3)).and_then(|n| n.parse::<u64>().ok());
    match soft {
        Some(limit) if limit < FILES_WANTED => CheckFinding::Warning(format!(
            "{limit} allowed; {FILES_WANTED} are good for many watches; fix: ulimit -n {FILES_WANTED}"
        )),
        Some(limit) => CheckFinding::Good(format!("{limit} allowed")),
        None => CheckFinding::Warning("the limit is not known on this system".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_below_the_reserve_is_reported_with_a_remedy() {
        let found = |free| room(Path::new("data"), Ok(free));
        assert!(matches!(found(64 << 20), CheckFinding::Good(text) if text == "64 MiB are free"));
        let CheckFinding::Bad(text) = found((64 << 20) - 1) else { panic!("it is too little") };
        assert!(text.contains("63 MiB are free") && text.contains("fix: make room"), "{text}");
        let unknown = room(Path::new("data"), Err(std::io::ErrorKind::Unsupported.into()));
        assert!(matches!(unknown, CheckFinding::Warning(_)));
        assert!(portolan_store::free_disk_space(Path::new(".")).is_ok_and(|free| free > 0));
    }

    #[test]
    fn the_address_of_the_server_that_runs_on_the_directory_is_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let listens = taken.local_addr().unwrap();
        let config = format!("clusters: [{{cluster: {{server: 'https://{listens}/clusters/root'}}}}]");
        std::fs::write(dir.path().join("admin.kubeconfig"), config).unwrap();
        let store = StoreConfig::new(Engine::Redb, Some(dir.path().join("store")));
        assert!(matches!(address(listens, dir.path()), CheckFinding::Bad(_)), "somebody else listens");
        let running = portolan_store::open(store, portolan_types::Seams::system()).unwrap();
        assert!(matches!(address(listens, dir.path()), CheckFinding::Good(text) if text.contains("a server runs on")));
        let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        assert!(matches!(address(other.local_addr().unwrap(), dir.path()), CheckFinding::Bad(_)), "another address");
        drop(running);
        assert!(matches!(address(listens, dir.path()), CheckFinding::Bad(_)), "it has ended");
        let claim = data_dir::lock(dir.path()).unwrap();
        assert!(matches!(address(listens, dir.path()), CheckFinding::Good(_)), "one whose objects are in etcd");
        let refused = data_dir::lock(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("is in use by another process"), "{refused}");
        drop(claim);
        assert!(data_dir::lock(dir.path()).is_ok() && !data_dir::is_locked(dir.path()));
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
