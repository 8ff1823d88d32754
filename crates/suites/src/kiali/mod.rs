//! Released Kiali over two workspaces and two mounted physical clusters, each of which it treats as a cluster.
//!
//! The team of each workspace has the namespace `town` there, and so have the administrators of both physical clusters
//! for programs of their own. Kiali gets a kubeconfig for each of the four, and an account that may only view.

mod program;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::downstream::text;
use super::workspaces::WorkspaceChecks;
use harness::clients::{ClientBundle, Clients};
use harness::cluster::{self, PhysicalCluster};
use harness::kubeconfig::UserKubeconfig;
use harness::kubectl::Kubectl;
use harness::poll;
use harness::process;
use harness::report::CheckReport;
use harness::{portolan::Portolan, tools::Tools};
use program::KialiProgram;

/// Physical clusters. Each is mounted in root under its own name.
const MEMBERS: [&str; 2] = ["east", "west"];
/// Workspaces, each with the physical cluster that runs its Deployment.
const WORKSPACES: [(&str, &str); 2] = [("shop", "east"), ("blog", "west")];
/// Namespace of the same name in all four.
const TOWN: &str = "town";
/// Account of Kiali.
const ACCOUNT: &str = "kiali";
/// Time in which Kiali shows a change.
const LIMIT: Duration = Duration::from_secs(90);
/// Rights to read through the mounts of root.
const MOUNTS: &str = "create clusterrole kiali-mounts --verb=get --resource=physicalclusters.portolan.dev/proxy";

/// Server with the workspaces, the mounts, and what runs in them.
struct KialiScene {
    workspaces: WorkspaceChecks,
    // Dropped after the server, which works on them.
    members: Vec<PhysicalCluster>,
}

/// Builds Kiali, starts the servers, and runs all checks in order.
pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) -> Result<()> {
    let clients = Clients::build([ClientBundle::Kiali])?;
    let members = cluster::start_all(tools, dir, &MEMBERS.map(str::to_owned))?;
    let server = Portolan::start(program, tools, &dir.join("portolan"))?;
    let scene = KialiScene { workspaces: WorkspaceChecks::new(tools, dir, server)?, members };
    let program = fs::canonicalize(program).context("the program is missing")?;
    if !report.check("kiali: two physical clusters join with access, and are mounted", || scene.mount(&program)) {
        return Ok(());
    }
    if !report.check("kiali: two workspaces and both physical clusters have a namespace town", || scene.settle()) {
        return Ok(());
    }
    let mut started = None;
    report.check("kiali: it starts with a kubeconfig for each of the four, and holds their objects", || {
        started = Some(KialiProgram::start(&clients.kiali(), &scene.kubeconfigs()?, dir)?);
        Ok(())
    });
    let Some(kiali) = started else { return Ok(()) };
    report.check("kiali: it knows four clusters", || knows_clusters(&kiali));
    report.check("kiali: one namespace shows from two workspaces and two mounts", || shows_namespace(&kiali));
    report.check("kiali: each has its own workloads there, which are healthy", || shows_workloads(&kiali));
    report.check("kiali: the services of each are shown", || shows_services(&kiali));
    report.check("kiali: the log of a pod is read through a workspace and through a mount", || reads_logs(&kiali));
    report.check("kiali: a change of each is shown", || scene.shows_changes(&kiali));
    report.check("kiali: no cache was given up, and the program runs", || kiali.is_whole());
    report.check("kiali: the server is still the process that was started", || scene.workspaces.server().check_alive());
    Ok(())
}

/// Returns the Deployment of a place: `shop-web` in the workspace `shop`, `east-web` on the physical cluster `east`.
fn deployment(place: &str) -> String {
    format!("{place}-web")
}

/// Returns the names of the four clusters, as Kiali knows them.
fn places() -> impl Iterator<Item = &'static str> {
    WORKSPACES.into_iter().map(|(workspace, _)| workspace).chain(MEMBERS)
}

impl KialiScene {
    fn root(&self) -> &Kubectl {
        self.workspaces.root()
    }

    /// Joins the physical clusters, with access for the account of Kiali, and mounts them.
    fn mount(&self, program: &Path) -> Result<()> {
        for member in &self.members {
            let name = member.name();
            let mut command = Command::new(program);
            command.args(["cluster", "join", name, "--kubeconfig"]).arg(member.kubeconfig_file());
            command.arg("--upstream").arg(self.root().kubeconfig_file()).arg("--access");
            command.arg(format!("--access-user=system:serviceaccount:default:{ACCOUNT}={ACCOUNT}"));
            process::output(&mut command, LIMIT).with_context(|| format!("portolan cluster join {name}"))?;
            let mounted = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "name": name});
            let workspace = json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace",
                "metadata": {"name": name}, "spec": {"mount": {"ref": mounted}}});
            self.root().run_with("apply -f -", &workspace.to_string())?;
            let view = format!("create clusterrolebinding {ACCOUNT} --clusterrole=view --user={ACCOUNT}");
            member.kubectl().run(&view)?;
        }
        self.root().run("wait physicalclusters --all --for=condition=Ready --timeout=50s").map(drop)?;
        self.root().run("create serviceaccount kiali")?;
        self.root().run(MOUNTS)?;
        self.root().run(&format!("create clusterrolebinding kiali-mounts --clusterrole=kiali-mounts {}", subject()))?;
        self.root().run(&format!("create clusterrolebinding kiali --clusterrole=view {}", subject())).map(drop)
    }

    /// Creates the namespace in all four, with a distinguishable Deployment and Service.
    fn settle(&self) -> Result<()> {
        for (name, member) in WORKSPACES {
            let kubectl = self.workspaces.make(name)?;
            kubectl.run("create serviceaccount kiali")?;
            kubectl.run(&format!("create clusterrolebinding kiali --clusterrole=view {}", subject()))?;
            deploy(&kubectl, name, Some(member))?;
        }
        self.members.iter().try_for_each(|member| deploy(member.kubectl(), member.name(), None))
    }

    /// Returns the kubeconfigs with the names that Kiali uses.
    fn kubeconfigs(&self) -> Result<Vec<(&'static str, UserKubeconfig)>> {
        let token = |workspace: &str| -> Result<String> {
            let kubectl = self.inside(workspace)?;
            Ok(kubectl.run(&format!("create token {ACCOUNT} --duration=1h"))?.trim().to_owned())
        };
        let mounts = token("root")?;
        places()
            .map(|place| {
                let path = format!("root:{place}");
                let token = if MEMBERS.contains(&place) { mounts.clone() } else { token(&path)? };
                Ok((place, self.workspaces.server().workspace(&path).with_token(&token).named(place)))
            })
            .collect()
    }

    /// Returns kubectl of the administrator in a workspace or a mount.
    fn inside(&self, path: &str) -> Result<Kubectl> {
        self.root().with_config(&self.workspaces.server().workspace(path), &path.replace(':', "-"))
    }

    /// Checks that a second replica appears in Kiali in each of the places.
    fn shows_changes(&self, kiali: &KialiProgram) -> Result<()> {
        for (name, _) in WORKSPACES {
            let kubectl = self.inside(&format!("root:{name}"))?.in_namespace(TOWN);
            kubectl.run(&format!("scale deployment {} --replicas=2", deployment(name)))?;
        }
        for member in &self.members {
            let kubectl = member.kubectl().in_namespace(TOWN);
            kubectl.run(&format!("scale deployment {} --replicas=2", deployment(member.name())))?;
        }
        places().try_for_each(|place| has_pods(kiali, place, 2))
    }
}

fn subject() -> String {
    format!("--serviceaccount=default:{ACCOUNT}")
}

/// Makes the namespace with a Deployment and its Service, and waits until the Deployment is available.
fn deploy(kubectl: &Kubectl, place: &str, pin: Option<&str>) -> Result<()> {
    let (name, labels) = (deployment(place), json!({"app": place, "version": "v1"}));
    let annotations = pin.map_or_else(|| json!({}), |member| json!({"portolan.dev/pin": member}));
    let items = json!([
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TOWN}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": TOWN, "labels": labels},
            "spec": {"selector": {"app": place}, "ports": [{"name": "http", "port": 80}]}},
        {"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": TOWN, "labels": labels, "annotations": annotations},
            "spec": {"selector": {"matchLabels": {"app": place}}, "template": {"metadata": {"labels": labels},
                "spec": {"containers": [{"name": "web", "image": "registry.example/web:1"}]}}}},
    ]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    kubectl.run_with("apply -f -", &list.to_string())?;
    let town = kubectl.in_namespace(TOWN).within(LIMIT);
    town.run(&format!("rollout status deployment/{name} --timeout=80s")).map(drop)
}

fn knows_clusters(kiali: &KialiProgram) -> Result<()> {
    let config = kiali.get("/api/config")?;
    for place in places() {
        let known = &config["clusters"][place];
        ensure!(known["accessible"] == true, "{place}: {known}");
        ensure!(text(known, "/apiEndpoint").ends_with(&format!("/clusters/root:{place}")), "{place}: {known}");
    }
    let count = config["clusters"].as_object().map_or(0, serde_json::Map::len);
    ensure!(count == places().count(), "{}", config["clusters"]);
    Ok(())
}

fn shows_namespace(kiali: &KialiProgram) -> Result<()> {
    let all = kiali.get("/api/namespaces")?;
    let named = all.as_array().context("no namespaces")?.iter().filter(|found| found["name"] == TOWN);
    let mut from: Vec<&str> = named.map(|found| text(found, "/cluster")).collect();
    from.sort_unstable();
    let mut expected: Vec<&str> = places().collect();
    expected.sort_unstable();
    ensure!(from == expected, "{TOWN} shows from {from:?} in {all}");
    Ok(())
}

fn shows_workloads(kiali: &KialiProgram) -> Result<()> {
    for place in places() {
        has_pods(kiali, place, 1)?;
        let found = list(kiali, "workloads", place)?;
        let (status, name) = (&found[0]["health"]["workloadStatus"], deployment(place));
        ensure!(found.len() == 1 && found[0]["name"] == *name, "{place}: {found:?}");
        ensure!(status["desiredReplicas"] == 1 && status["availableReplicas"] == 1, "{place}: {status}");
    }
    Ok(())
}

fn shows_services(kiali: &KialiProgram) -> Result<()> {
    for place in places() {
        let found = list(kiali, "services", place)?;
        ensure!(found.len() == 1 && found[0]["name"] == *deployment(place), "{place}: {found:?}");
    }
    Ok(())
}

fn reads_logs(kiali: &KialiProgram) -> Result<()> {
    for place in ["shop", "east"] {
        let path = format!("/api/namespaces/{TOWN}/workloads/{}?clusterName={place}", deployment(place));
        let workload = kiali.get(&path)?;
        let pod = text(&workload, "/pods/0/name").to_owned();
        let log = kiali.get(&format!("/api/namespaces/{TOWN}/pods/{pod}/logs?clusterName={place}&container=web"))?;
        ensure!(log["entries"].as_array().is_some_and(|entries| !entries.is_empty()), "{place}: {pod} says {log}");
    }
    Ok(())
}

/// Waits until Kiali shows this number of pods for a place's Deployment, and none of another place.
fn has_pods(kiali: &KialiProgram, place: &str, count: u64) -> Result<()> {
    poll::until("the pods are shown", LIMIT, || {
        let found = list(kiali, "workloads", place)?;
        let named = found.iter().find(|one| one["name"] == *deployment(place));
        let named = named.with_context(|| format!("{place}: {found:?}"))?;
        ensure!(named["podCount"] == count && named["cluster"] == place, "{place}: {named}");
        Ok(())
    })
}

/// Returns what Kiali lists of the namespace in a place, with its health.
fn list(kiali: &KialiProgram, what: &str, place: &str) -> Result<Vec<Value>> {
    let flags = "health=true&istioResources=false&rateInterval=60s";
    let found = kiali.get(&format!("/api/clusters/{what}?namespaces={TOWN}&clusterName={place}&{flags}"))?;
    Ok(found[what].as_array().cloned().unwrap_or_default())
}
