//! Physical cluster whose pods run: each container is a process of this machine in namespaces of its own.
//!
//! The program in `e2e/kubelet` is the kubelet of the pinned Kubernetes release with a small container runtime, so that
//! volumes, probes, restarts, status, logs and exec are Kubernetes' own. Images are only names. It needs root, and
//! mount, process and network namespaces.

mod bridge;
mod program;
mod storage;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::cluster;
use super::control_plane::{ControlPlaneOptions, Durability, KubeControlPlane, admin_file};
use super::kubeconfig::UserKubeconfig;
use super::kubectl::Kubectl;
use super::poll;
use super::process::{self, Process};
use super::tools::Tools;
use bridge::PodBridge;
pub use program::{build, test};

/// Time limit for a pod to run on a new cluster.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Parts of a cluster that its runs have in common.
pub struct ProcessClusterOptions<'a> {
    /// Programs of Kubernetes.
    pub tools: &'a Tools,
    /// Program of the kubelet, from [`build`].
    pub kubelet: &'a Path,
    /// Folder of the clusters, each in a folder of its name.
    pub dir: &'a Path,
    /// Programs of containers without a command, by the name of their image.
    pub entrypoints: &'a [(&'a str, &'a Path)],
}

/// Cluster with one ready node, on which a first pod has run. Its processes, and those of its pods, end when it is
/// dropped.
pub struct ProcessCluster {
    name: String,
    kubectl: Kubectl,
    kubelet: Mutex<Process>,
    settings: KubeletSettings,
    plane: Mutex<KubeControlPlane>,
    controllers: Vec<Process>,
    // Dropped after the processes that use it.
    bridge: PodBridge,
}

/// Command of the kubelet, for restarts.
struct KubeletSettings {
    args: Vec<String>,
    logs: PathBuf,
}

/// Starts clusters in parallel.
pub fn start_all(options: &ProcessClusterOptions<'_>, names: &[&str]) -> Result<Vec<ProcessCluster>> {
    check_namespaces()?;
    thread::scope(|scope| {
        let start = |name| scope.spawn(move || ProcessCluster::start(options, name));
        let starts: Vec<_> = names.iter().map(|&name| start(name)).collect();
        let join = |start: thread::ScopedJoinHandle<'_, _>| start.join().map_err(|_| anyhow!("a start panicked"))?;
        starts.into_iter().map(join).collect()
    })
}

/// Fails with the reason if this machine cannot isolate processes.
fn check_namespaces() -> Result<()> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--net", "--uts", "--fork", "true"]);
    process::output(&mut command, START_LIMIT).map(drop).context(
        "the process kubelet needs root with mount, process and network namespaces (unshare of util-linux, ip of iproute2)",
    )
}

impl ProcessCluster {
    fn start(options: &ProcessClusterOptions<'_>, name: &str) -> Result<Self> {
        let (tools, dir, bridge) = (options.tools, options.dir.join(name), PodBridge::claim()?);
        let plane = start_plane(tools, &dir, &bridge).with_context(|| name.to_owned())?;
        let kubectl = Kubectl::new(&tools.kubectl(), plane.kubeconfig(), &dir, "kubectl")?;
        let controllers = cluster::start_control_loops(tools, &dir)?;
        let settings = KubeletSettings::new(options, name, &bridge);
        let kubelet = Mutex::new(settings.spawn()?);
        let (name, plane) = (name.to_owned(), Mutex::new(plane));
        let cluster = Self { name, kubectl, kubelet, settings, plane, controllers, bridge };
        storage::create(&cluster.kubectl, &cluster.name, &dir.join("disks"))?;
        cluster.run_probe().with_context(|| format!("{}: {}", cluster.name, lock(&cluster.kubelet).log_tail()))?;
        Ok(cluster)
    }

    /// Waits until a pod runs, and a command in it.
    fn run_probe(&self) -> Result<()> {
        poll::until("a pod can be made", START_LIMIT, || {
            self.check_alive()?;
            let command = "run probe --image=probe --restart=Never --command -- sleep 600";
            self.kubectl.run("get pod probe").or_else(|_| self.kubectl.run(command))
        })?;
        self.kubectl.within(START_LIMIT * 2).run("wait pod/probe --for=condition=Ready --timeout=60s")?;
        self.kubectl.run("exec probe -- true")?;
        self.kubectl.run("delete pod/probe --grace-period=1").map(drop)
    }

    /// Returns the name of the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns kubectl with the administrator's kubeconfig.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Returns the administrator's kubeconfig with inline credentials.
    pub fn kubeconfig(&self) -> &UserKubeconfig {
        self.kubectl.config()
    }

    /// Returns the address of this machine that the pods reach.
    pub fn host_address(&self) -> String {
        self.bridge.address()
    }

    /// Kills the kubelet with all pods, as a power cut does, and starts it again.
    pub fn restart_node(&self) -> Result<()> {
        let mut kubelet = lock(&self.kubelet);
        kubelet.kill()?;
        *kubelet = self.settings.spawn()?;
        Ok(())
    }

    /// Kills the API server and its store with SIGKILL. Pods continue.
    pub fn kill_control_plane(&self) -> Result<()> {
        lock(&self.plane).kill()
    }

    /// Restarts the API server and its store and waits until they are ready.
    pub fn restart_control_plane(&self) -> Result<()> {
        lock(&self.plane).restart()
    }

    /// Fails with the end of the log if a process has ended.
    pub fn check_alive(&self) -> Result<()> {
        lock(&self.plane).check_alive()?;
        lock(&self.kubelet).check_alive()?;
        self.controllers.iter().try_for_each(Process::check_alive)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts an API server that pods reach by the address of their bridge and by the Service `kubernetes`.
fn start_plane(tools: &Tools, dir: &Path, bridge: &PodBridge) -> Result<KubeControlPlane> {
    let flags = [
        "--bind-address=0.0.0.0".to_owned(),
        format!("--advertise-address={}", bridge.address()),
        "--endpoint-reconciler-type=lease".to_owned(),
        format!("--service-cluster-ip-range={}", bridge.services()),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
    ];
    let names = [bridge.address(), bridge.first_service()];
    let options =
        ControlPlaneOptions { admin: "admin", durability: Durability::Unsynced, flags: &flags, names: &names };
    KubeControlPlane::start_with(tools, dir, &options)
}

impl KubeletSettings {
    fn new(options: &ProcessClusterOptions<'_>, name: &str, bridge: &PodBridge) -> Self {
        let dir = options.dir.join(name);
        // Its mounts are in a namespace of its own, so that none is left behind.
        let mut args: Vec<String> = ["--mount", "--propagation", "private", "--"].map(str::to_owned).into();
        args.extend([
            options.kubelet.display().to_string(),
            format!("--kubeconfig={}", admin_file(&dir).display()),
            format!("--dir={}", dir.join("node").display()),
            format!("--node={name}-node"),
            format!("--bridge={}", bridge.name()),
            format!("--address={}", bridge.address()),
            format!("--pod-prefix={}", bridge.pods()),
        ]);
        let entrypoints = options.entrypoints.iter();
        args.extend(entrypoints.map(|(image, program)| format!("--entrypoint={image}={}", program.display())));
        Self { args, logs: dir.join("logs") }
    }

    fn spawn(&self) -> Result<Process> {
        Process::spawn("kubelet", Path::new("unshare"), &self.args, &self.logs)
    }
}
