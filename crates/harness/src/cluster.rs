//! Complete physical cluster on loopback: control plane, controllers, scheduler and fake nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::control_plane::{Durability, KubeControlPlane, admin_file};
use super::fake_kubelet::FakeKubelet;
use super::kubeconfig::UserKubeconfig;
use super::kubectl::Kubectl;
use super::{fake_nodes, poll, process::Process, tools::Tools};

const NODES: usize = 3;
const VOLUMES: usize = 30;

/// Cluster with ready nodes on which a pod has run. Its processes end when it is dropped.
pub struct PhysicalCluster {
    name: String,
    plane: Mutex<KubeControlPlane>,
    kubeconfig: UserKubeconfig,
    kubectl: Kubectl,
    controllers: Vec<Process>,
    kubelet: FakeKubelet,
}

/// Starts clusters in parallel, each in `<dir>/<name>`.
pub fn start_all(tools: &Tools, dir: &Path, names: &[String]) -> Result<Vec<PhysicalCluster>> {
    thread::scope(|scope| {
        let starts: Vec<_> = names
            .iter()
            .map(|name| scope.spawn(move || PhysicalCluster::start(tools, &dir.join(name), name)))
            .collect();
        let join = |start: thread::ScopedJoinHandle<'_, _>| start.join().map_err(|_| anyhow!("a start panicked"))?;
        starts.into_iter().map(join).collect()
    })
}

impl PhysicalCluster {
    /// Starts all processes under `dir` and waits until a pod has run.
    pub fn start(tools: &Tools, dir: &Path, name: &str) -> Result<Self> {
        let plane = KubeControlPlane::start(tools, dir, Durability::Unsynced).with_context(|| name.to_owned())?;
        let kubectl = Kubectl::new(&tools.kubectl(), plane.kubeconfig(), dir, "kubectl")?;
        let kubelet = FakeKubelet::new(dir)?;
        let mut controllers = start_control_loops(tools, dir)?;
        controllers.push(start_fake_nodes(tools, dir, &kubelet)?);
        let kubeconfig = plane.kubeconfig().clone();
        let (name, plane) = (name.to_owned(), Mutex::new(plane));
        let cluster = Self { name, plane, kubeconfig, kubectl, controllers, kubelet };
        cluster.make_usable().with_context(|| format!("{}: {}", cluster.name, cluster.log_tails()))?;
        Ok(cluster)
    }

    /// Returns the name of the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the ids of all processes: API server, store, controllers, scheduler and nodes.
    pub fn pids(&self) -> Vec<u32> {
        self.plane().pids().into_iter().chain(self.controllers.iter().map(Process::pid)).collect()
    }

    /// Returns the administrator's kubeconfig with inline credentials.
    pub fn kubeconfig(&self) -> &UserKubeconfig {
        &self.kubeconfig
    }

    /// Suspends the API server and its store, without closing connections.
    pub fn interrupt(&self, pause: Duration) -> Result<()> {
        self.kill_control_plane()?;
        thread::sleep(pause);
        self.restart_control_plane()
    }

    /// Kills the API server and its store with SIGKILL. Controllers and nodes continue.
    pub fn kill_control_plane(&self) -> Result<()> {
        self.plane().kill()
    }

    /// Restarts the API server and its store and waits until they are ready.
    pub fn restart_control_plane(&self) -> Result<()> {
        self.plane().restart()
    }

    fn plane(&self) -> MutexGuard<'_, KubeControlPlane> {
        self.plane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the file with the kubeconfig of the administrator.
    pub fn kubeconfig_file(&self) -> PathBuf {
        self.kubectl.kubeconfig_file().to_owned()
    }

    /// Returns the kubelet that answers for the cluster's nodes.
    pub fn kubelet(&self) -> &FakeKubelet {
        &self.kubelet
    }

    /// Returns kubectl with the administrator's kubeconfig.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    fn make_usable(&self) -> Result<()> {
        self.kubectl.run_with("create -f -", &fake_nodes::manifest(&self.name, NODES, VOLUMES))?;
        self.check_alive()?;
        self.kubectl.run("wait nodes --all --for=condition=Ready --timeout=60s")?;
        poll::until("a pod can be made", Duration::from_secs(60), || {
            self.check_alive()?;
            self.kubectl.run("run probe --image=probe --restart=Never")
        })?;
        self.kubectl.within(Duration::from_secs(70)).run("wait pod/probe --for=condition=Ready --timeout=60s")?;
        self.kubectl.run("delete pod/probe").map(drop)
    }

    fn check_alive(&self) -> Result<()> {
        self.plane().check_alive()?;
        self.controllers.iter().try_for_each(Process::check_alive)
    }

    fn log_tails(&self) -> String {
        self.controllers.iter().map(Process::log_tail).collect::<Vec<_>>().join("\n")
    }
}

/// Starts kube-controller-manager and kube-scheduler for the control plane under `dir`.
pub(super) fn start_control_loops(tools: &Tools, dir: &Path) -> Result<Vec<Process>> {
    let path = |name: &str| dir.join(name).display().to_string();
    let kubeconfig = format!("--kubeconfig={}", admin_file(dir).display());
    let manager = vec![
        kubeconfig.clone(),
        "--secure-port=0".to_owned(),
        "--leader-elect=false".to_owned(),
        format!("--root-ca-file={}", path("pki/ca.crt")),
        format!("--service-account-private-key-file={}", path("pki/service-accounts.key")),
        // Several clusters share two cores here: a late heartbeat does not mean a dead node, and a burst is not an
        // attack.
        "--node-monitor-grace-period=7200s".to_owned(),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ];
    let scheduler = vec![
        kubeconfig,
        "--secure-port=0".to_owned(),
        "--leader-elect=false".to_owned(),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ];
    let logs = dir.join("logs");
    Ok(vec![
        Process::spawn("kube-controller-manager", &tools.kube_controller_manager(), manager, &logs)?,
        Process::spawn("kube-scheduler", &tools.kube_scheduler(), scheduler, &logs)?,
    ])
}

/// Starts kwok, which simulates the nodes.
fn start_fake_nodes(tools: &Tools, dir: &Path, kubelet: &FakeKubelet) -> Result<Process> {
    fs::write(dir.join("pods-that-end.yaml"), fake_nodes::PODS_THAT_END).context("cannot write a stage for kwok")?;
    let mut kwok = vec![
        format!("--kubeconfig={}", admin_file(dir).display()),
        format!("--config={}", tools.kwok_stages().display()),
        format!("--config={}", dir.join("pods-that-end.yaml").display()),
        "--manage-all-nodes=false".to_owned(),
        format!("--manage-nodes-with-annotation-selector={}", fake_nodes::ANNOTATION),
        "--cidr=10.0.0.0/16".to_owned(),
    ];
    kwok.extend(kubelet.flags());
    Process::spawn("kwok", &tools.kwok(), kwok, &dir.join("logs"))
}
