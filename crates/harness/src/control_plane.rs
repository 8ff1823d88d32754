//! etcd and kube-apiserver on loopback, for physical clusters and as the peer of benchmarks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::gateway::Gateway;
use super::kubeconfig::UserKubeconfig;
use super::pki::Authority;
use super::process::Process;
use super::{ports::free_port, tools::Tools};
use crate::client;

/// Durability of etcd: it syncs its log before it answers, or never.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// As in production, for benchmarks.
    Synced,
    /// Lost with the machine, but faster: sufficient for tests.
    Unsynced,
}

/// Settings of a control plane that differ between its uses.
pub struct ControlPlaneOptions<'a> {
    /// Name of the administrator.
    pub admin: &'a str,
    /// Durability of etcd.
    pub durability: Durability,
    /// Further flags of kube-apiserver. The last one of a name holds.
    pub flags: &'a [String],
    /// Further hosts of the serving certificate.
    pub names: &'a [String],
}

/// Ready API server with its store.
pub struct KubeControlPlane {
    kubeconfig: UserKubeconfig,
    settings: ControlPlaneSettings,
    etcd: Process,
    apiserver: Process,
}

/// Folders, ports and flags for restarts on the same data.
struct ControlPlaneSettings {
    etcd: PathBuf,
    /// Host and port of etcd's clients.
    etcd_address: String,
    etcd_args: Vec<String>,
    apiserver: PathBuf,
    apiserver_args: Vec<String>,
    logs: PathBuf,
}

impl KubeControlPlane {
    /// Starts both under `dir` (`pki/`, `etcd/`, `logs/`) and waits until the API server is ready.
    pub fn start(tools: &Tools, dir: &Path, durability: Durability) -> Result<Self> {
        Self::start_as("admin", tools, dir, durability, &[])
    }

    /// Starts as [`Self::start`], with another name for the administrator and further flags of kube-apiserver.
    pub fn start_as(admin: &str, tools: &Tools, dir: &Path, durability: Durability, flags: &[&str]) -> Result<Self> {
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        Self::start_with(tools, dir, &ControlPlaneOptions { admin, durability, flags: &flags, names: &[] })
    }

    /// Starts as [`Self::start`], with these settings.
    pub fn start_with(tools: &Tools, dir: &Path, options: &ControlPlaneOptions<'_>) -> Result<Self> {
        let pki = dir.join("pki");
        fs::create_dir_all(&pki).with_context(|| format!("cannot make {}", pki.display()))?;
        let authority = Authority::new("e2e")?;
        let serving = authority.server_with(options.names)?;
        let tokens = authority.client("service-accounts", "none")?;
        for (name, text) in [
            ("ca.crt", authority.certificate()),
            ("server.crt", &serving.certificate),
            ("server.key", &serving.key),
            ("service-accounts.crt", &tokens.certificate),
            ("service-accounts.key", &tokens.key),
        ] {
            fs::write(pki.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        let port = free_port()?;
        let admin = authority.client(options.admin, "system:masters")?;
        let kubeconfig = UserKubeconfig::new(&format!("https://127.0.0.1:{port}"), authority.certificate(), &admin);
        kubeconfig.write(&admin_file(dir))?;
        let mut settings = ControlPlaneSettings::new(tools, dir, port, options.durability)?;
        settings.apiserver_args.extend_from_slice(options.flags);
        let (etcd, apiserver) = settings.spawn()?;
        let plane = Self { kubeconfig, settings, etcd, apiserver };
        plane.wait_ready()?;
        Ok(plane)
    }

    /// Stops both cleanly.
    pub fn stop(&self) -> Result<()> {
        self.apiserver.terminate()?;
        self.etcd.terminate()
    }

    /// Kills both with SIGKILL.
    pub fn kill(&self) -> Result<()> {
        self.apiserver.kill()?;
        self.etcd.kill()
    }

    /// Restarts both on the same data and ports and waits until they are ready.
    pub fn restart(&mut self) -> Result<()> {
        (self.etcd, self.apiserver) = self.settings.spawn()?;
        self.wait_ready()
    }

    fn wait_ready(&self) -> Result<()> {
        client::wait_ready(&self.kubeconfig, Duration::from_secs(120), || self.check_alive())
            .with_context(|| format!("kube-apiserver:\n{}", self.apiserver.log_tail()))
    }

    /// Fails with the end of the log if one of the two has ended.
    pub fn check_alive(&self) -> Result<()> {
        self.etcd.check_alive()?;
        self.apiserver.check_alive()
    }

    /// Returns the kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> &UserKubeconfig {
        &self.kubeconfig
    }

    /// Returns the client of etcd itself.
    pub fn gateway(&self) -> Gateway {
        Gateway::new(self.settings.etcd_address.clone())
    }

    /// Returns the process ids of etcd and the API server.
    pub fn pids(&self) -> Vec<u32> {
        vec![self.etcd.pid(), self.apiserver.pid()]
    }
}

/// Returns the file of the administrator's kubeconfig of a control plane under `dir`.
pub fn admin_file(dir: &Path) -> PathBuf {
    dir.join("admin.kubeconfig")
}

impl ControlPlaneSettings {
    fn new(tools: &Tools, dir: &Path, port: u16, durability: Durability) -> Result<Self> {
        let etcd_address = format!("127.0.0.1:{}", free_port()?);
        let client_url = format!("http://{etcd_address}");
        let peer_url = format!("http://127.0.0.1:{}", free_port()?);
        let path = |name: &str| dir.join(name).display().to_string();
        let mut etcd_args = vec![
            "--name=e2e".to_owned(),
            format!("--data-dir={}", path("etcd")),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=e2e={peer_url}"),
            "--log-level=warn".to_owned(),
        ];
        if durability == Durability::Unsynced {
            etcd_args.push("--unsafe-no-fsync".to_owned());
        }
        let apiserver_args = vec![
            format!("--etcd-servers={client_url}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            // No client outside this machine needs the `kubernetes` Service, and endpoints must not be loopback
            // addresses.
            "--advertise-address=127.0.0.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--cert-dir={}", path("pki")),
            format!("--client-ca-file={}", path("pki/ca.crt")),
            format!("--tls-cert-file={}", path("pki/server.crt")),
            format!("--tls-private-key-file={}", path("pki/server.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", path("pki/service-accounts.crt")),
            format!("--service-account-signing-key-file={}", path("pki/service-accounts.key")),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--allow-privileged=true".to_owned(),
        ];
        Ok(Self {
            etcd: tools.etcd(),
            etcd_address,
            etcd_args,
            apiserver: tools.kube_apiserver(),
            apiserver_args,
            logs: dir.join("logs"),
        })
    }

    fn spawn(&self) -> Result<(Process, Process)> {
        let etcd = Process::spawn("etcd", &self.etcd, &self.etcd_args, &self.logs)?;
        let apiserver = Process::spawn("kube-apiserver", &self.apiserver, &self.apiserver_args, &self.logs)?;
        Ok((etcd, apiserver))
    }
}
