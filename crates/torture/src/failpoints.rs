//! A server that ends at every `failpoint!` of the sources, as by kill -9, while a workspace is created, used and
//! deleted. After a restart it must continue: acknowledged writes exist, and every step completes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use harness::etcd::Etcd;
use harness::kubectl::Kubectl;
use harness::portolan::Portolan;
use harness::report::CheckReport;
use harness::tools::{self, Tools};

/// Time limit of a step, crashes included.
const LIMIT: Duration = Duration::from_secs(150);
/// Final wait for failpoints that an idle server passes.
const QUIET: Duration = Duration::from_secs(15);

/// Step that is safe to repeat: arguments and input of kubectl, in `root` or in the workspace.
struct Step {
    place: Failpoint,
    args: &'static str,
    input: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Failpoint {
    Root,
    Workspace,
}

const fn root(args: &'static str, input: &'static str) -> Step {
    Step { place: Failpoint::Root, args, input }
}

const fn step_within(args: &'static str, input: &'static str) -> Step {
    Step { place: Failpoint::Workspace, args, input }
}

const CLUSTERS: &str = "
{apiVersion: portolan.dev/v1alpha1, kind: PhysicalCluster, metadata: {name: east}, spec: {connection: {simulated: {nodes: 2}}}}
---
{apiVersion: portolan.dev/v1alpha1, kind: PhysicalCluster, metadata: {name: west}, spec: {connection: {simulated: {nodes: 2}}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: kept, namespace: default}, data: {by: root}}
";
const WORKSPACE: &str = "{apiVersion: tenancy.kcp.io/v1alpha1, kind: Workspace, metadata: {name: fp}}";
const APP: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: app, annotations: {portolan.dev/pin: east}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: app}, data: {mode: calm}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: app}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: nginx, envFrom: [{configMapRef: {name: settings}}]}
";

/// Steps of the run: a workspace with a workload that starts, changes, moves and ends, and then the deletion of the
/// workspace.
const STEPS: &[Step] = &[
    root("apply -f -", CLUSTERS),
    root("wait physicalcluster/east physicalcluster/west --for=condition=Ready --timeout=10s", ""),
    root("apply -f -", WORKSPACE),
    root("wait workspace/fp --for=jsonpath={.status.phase}=Ready --timeout=10s", ""),
    step_within("apply -f -", APP),
    step_within("rollout status deployment/web -n app --timeout=20s", ""),
    step_within("scale deployment/web -n app --replicas=3", ""),
    step_within("rollout status deployment/web -n app --timeout=20s", ""),
    step_within("annotate namespace/app portolan.dev/pin=west --overwrite", ""),
    step_within(
        "wait deployment/web -n app --for=jsonpath={.metadata.annotations.portolan\\.dev/clusters}=west --timeout=20s",
        "",
    ),
    step_within("rollout status deployment/web -n app --timeout=20s", ""),
    step_within("delete deployment/web -n app --ignore-not-found --timeout=20s", ""),
    step_within("delete namespace/app --ignore-not-found --timeout=30s", ""),
    root("delete workspace/fp --ignore-not-found --timeout=30s", ""),
];

/// Returns all failpoints of the sources.
pub fn points() -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![tools::repository().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path)?;
                let names = text.split("failpoint!(\"").skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(names.filter(|name| is_point(name)).map(str::to_owned));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn is_point(name: &str) -> bool {
    name.contains('/') && name.chars().all(|letter| letter.is_ascii_lowercase() || "/-".contains(letter))
}

/// Ends a server at each failpoint, or at every `stride`th.
pub fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path, stride: usize) {
    let mut points = Vec::new();
    report.check("failpoints: the sources name 45 places at least, each with a name of its own", || {
        points = self::points()?;
        ensure!(points.len() >= 45 && points.windows(2).all(|pair| pair[0] != pair[1]), "{points:?}");
        Ok(())
    });
    for (number, point) in points.iter().enumerate().step_by(stride) {
        let name = format!("failpoints: ended at {point}, it goes on where it was");
        report.check(&name, || {
            let place = dir.join(format!("{number}"));
            ends_and_goes_on(program, tools, &place, point)?;
            // Keeps the files of a failed run.
            fs::remove_dir_all(place).context("cannot clean up")
        });
    }
}

fn ends_and_goes_on(program: &Path, tools: &Tools, dir: &Path, point: &str) -> Result<()> {
    fs::create_dir_all(dir)?;
    let etcd = if point.starts_with("etcd/") { Some(Etcd::start(tools, &dir.join("etcd"))?) } else { None };
    let engine = match (&etcd, point.starts_with("sled/")) {
        (Some(etcd), _) => vec!["--store=etcd".to_owned(), format!("--etcd-endpoints={}", etcd.url())],
        (None, true) => vec!["--store=sled".to_owned()],
        (None, false) => vec!["--store=redb".to_owned()],
    };
    let flags: Vec<&str> = engine.iter().map(String::as_str).chain(["--history=1"]).collect();
    let mut victim = CrashingServer::start(program, tools, dir, &flags, point)?;
    for step in STEPS {
        victim.until_done(step).with_context(|| format!("{}: {}", step.args, victim.course()))?;
    }
    victim.wait_for_the_end()?;
    victim.kept()
}

/// Server that ends once at its failpoint, and is then restarted.
struct CrashingServer {
    server: Portolan,
    root: Kubectl,
    workspace: Kubectl,
    ended: bool,
}

impl CrashingServer {
    fn start(program: &Path, tools: &Tools, dir: &Path, flags: &[&str], point: &str) -> Result<Self> {
        let armed = armed(program, dir, point)?;
        let mut ended = false;
        // The server may end before it is ready.
        let mut server = match Portolan::start_with(&armed, tools, dir, flags) {
            Ok(server) => server,
            Err(_) => {
                ended = true;
                Portolan::start_with(program, tools, dir, flags)?
            }
        };
        server.run_from_now_on(program);
        let root = Kubectl::new(&tools.kubectl(), &server.workspace("root"), dir, "root")?;
        let workspace = Kubectl::new(&tools.kubectl(), &server.workspace("root:fp"), dir, "fp")?;
        Ok(Self { server, root, workspace, ended })
    }

    fn course(&self) -> &'static str {
        if self.ended { "after it ended" } else { "before it ended" }
    }

    /// Restarts the server if it has ended.
    fn revive(&mut self) -> Result<()> {
        if let Err(end) = self.server.check_alive() {
            ensure!(!self.ended, "it ended a second time: {end:#}");
            self.ended = true;
            self.server.restart()?;
        }
        Ok(())
    }

    fn until_done(&mut self, step: &Step) -> Result<()> {
        let start = Instant::now();
        loop {
            self.revive()?;
            let kubectl = if step.place == Failpoint::Root { &self.root } else { &self.workspace };
            match kubectl.run_with(step.args, step.input) {
                Ok(_) => return Ok(()),
                Err(error) if start.elapsed() > LIMIT => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    fn wait_for_the_end(&mut self) -> Result<()> {
        let start = Instant::now();
        while !self.ended {
            self.revive()?;
            if start.elapsed() > QUIET {
                bail!("the place was never passed");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn kept(&self) -> Result<()> {
        let by = self.root.run("get configmap/kept -n default -o jsonpath={.data.by}")?;
        ensure!(by.trim() == "root", "what was acknowledged is {by:?}");
        let left = self.root.run("get placements,deployments -A --ignore-not-found -o name")?;
        ensure!(left.trim().is_empty(), "this is left: {left}");
        Ok(())
    }
}

/// Returns a wrapper of `program` with an active failpoint.
fn armed(program: &Path, dir: &Path, point: &str) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join("armed");
    fs::write(&path, format!("#!/bin/sh\nPORTOLAN_FAILPOINT={point} exec '{}' \"$@\"\n", program.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}
