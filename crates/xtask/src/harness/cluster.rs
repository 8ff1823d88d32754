//! A whole physical cluster on loopback: control plane, controllers, scheduler and fake nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::control_plane::{ControlPlane, Durability, admin_file};
use super::fake_kubelet::FakeKubelet;
use super::kubeconfig::Kubeconfig;
use super::kubectl::Kubectl;
use super::{fake_nodes, poll, process::Process, tools::Tools};

const NODES: usize = 3;
const VOLUMES: usize = 30;

/// A cluster with ready nodes, on which a pod has been seen to run. Its processes die with it.
pub(crate) struct PhysicalCluster {
    name: String,
    plane: Mutex<ControlPlane>,
    kubeconfig: Kubeconfig,
    kubectl: Kubectl,
    controllers: Vec<Process>,
    kubelet: FakeKubelet,
}

/// Starts clusters side by side, each in `<dir>/<name>`.
pub(crate) fn start_all(tools: &Tools, dir: &Path, names: &[String]) -> Result<Vec<PhysicalCluster>> {
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
    /// Starts everything under `dir` and waits until a pod has run.
    pub(crate) fn start(tools: &Tools, dir: &Path, name: &str) -> Result<Self> {
        let plane = ControlPlane::start(tools, dir, Durability::Unsynced).with_context(|| name.to_owned())?;
        let kubectl = Kubectl::new(&tools.kubectl(), plane.kubeconfig(), dir, "kubectl")?;
        let kubelet = FakeKubelet::new(dir)?;
        let controllers = start_controllers(tools, dir, &kubelet)?;
        let kubeconfig = plane.kubeconfig().clone();
        let (name, plane) = (name.to_owned(), Mutex::new(plane));
        let cluster = Self { name, plane, kubeconfig, kubectl, controllers, kubelet };
        cluster.make_usable().with_context(|| format!("{}: {}", cluster.name, cluster.log_tails()))?;
        Ok(cluster)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// As its administrator, everything inline.
    pub(crate) fn kubeconfig(&self) -> &Kubeconfig {
        &self.kubeconfig
    }

    /// Takes the API server and its store away for a while, without a farewell.
    pub(crate) fn interrupt(&self, pause: Duration) -> Result<()> {
        self.kill_control_plane()?;
        thread::sleep(pause);
        self.restart_control_plane()
    }

    /// kill -9 of the API server and its store. Controllers and nodes live on.
    pub(crate) fn kill_control_plane(&self) -> Result<()> {
        self.plane().kill()
    }

    /// Starts the API server and its store again and waits until they are ready.
    pub(crate) fn restart_control_plane(&self) -> Result<()> {
        self.plane().restart()
    }

    fn plane(&self) -> MutexGuard<'_, ControlPlane> {
        self.plane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn kubeconfig_file(&self) -> PathBuf {
        self.kubectl.kubeconfig_file().to_owned()
    }

    /// What its nodes answer in place of containers.
    pub(crate) fn kubelet(&self) -> &FakeKubelet {
        &self.kubelet
    }

    pub(crate) fn kubectl(&self) -> &Kubectl {
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

fn start_controllers(tools: &Tools, dir: &Path, kubelet: &FakeKubelet) -> Result<Vec<Process>> {
    let path = |name: &str| dir.join(name).display().to_string();
    let kubeconfig = format!("--kubeconfig={}", admin_file(dir).display());
    let manager = vec![
        kubeconfig.clone(),
        "--secure-port=0".to_owned(),
        "--leader-elect=false".to_owned(),
        format!("--root-ca-file={}", path("pki/ca.crt")),
        format!("--service-account-private-key-file={}", path("pki/service-accounts.key")),
        // Two cores carry several clusters here: a late heartbeat is no dead node, and a burst is no attack.
        "--node-monitor-grace-period=600s".to_owned(),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ];
    let scheduler = vec![
        kubeconfig.clone(),
        "--secure-port=0".to_owned(),
        "--leader-elect=false".to_owned(),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ];
    fs::write(dir.join("pods-that-end.yaml"), fake_nodes::PODS_THAT_END).context("cannot write a stage for kwok")?;
    let mut kwok = vec![
        kubeconfig,
        format!("--config={}", tools.kwok_stages().display()),
        format!("--config={}", path("pods-that-end.yaml")),
        "--manage-all-nodes=false".to_owned(),
        format!("--manage-nodes-with-annotation-selector={}", fake_nodes::ANNOTATION),
        "--cidr=10.0.0.0/16".to_owned(),
    ];
    kwok.extend(kubelet.flags());
    let logs = dir.join("logs");
    [
        ("kube-controller-manager", tools.kube_controller_manager(), manager),
        ("kube-scheduler", tools.kube_scheduler(), scheduler),
        ("kwok", tools.kwok(), kwok),
    ]
    .into_iter()
    .map(|(name, program, args)| Process::spawn(name, &program, args, &logs))
    .collect()
}
