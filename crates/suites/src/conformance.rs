//! Kubernetes' own conformance specs of the API machinery, in a workspace with simulated physical clusters.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::ginkgo::Specs;
use super::workspaces::WorkspaceChecks;
use harness::conformance::ConformanceTests;
use harness::kubectl::Kubectl;
use harness::report::CheckReport;
use harness::{portolan::Portolan, process, tools::Tools};

/// Limit of all specs together, and of the report that follows.
const LIMIT: Duration = Duration::from_secs(900);
const REPORTED: Duration = Duration::from_secs(30);

/// Specs that run at once. Those marked `[Serial]` run alone.
const PROCESSES: usize = 4;
/// Specs that run at least.
const SPECS: usize = 72;

const FOCUS: &str = r"\[sig-api-machinery\].*\[Conformance\]";
/// Specs that need a server in a pod, and simulated pods serve nothing: webhooks, conversion webhooks (also in the spec
/// of field selectors) and an aggregated API.
const NEEDS_SERVING_POD: [&str; 4] = [
    "AdmissionWebhook",
    "CustomResourceConversionWebhook",
    "CustomResourceFieldSelectors",
    "Sample API Server using the current Aggregator",
];
/// Spec that gives a pod of a ReplicationController a second owner. Its physical cluster made the pod and deletes it
/// with the first one, so that Portolan refuses the write.
const REFUSED: &str = "should not delete dependents that have both valid owner and owner that's waiting for dependents";

/// Seconds of history: one spec waits until the first page of a list is compacted.
const HISTORY: &str = "--history=60";

/// Simulated physical clusters, and the Service that each kube-apiserver makes for itself.
const CLUSTERS: &str = "
{apiVersion: portolan.dev/v1alpha1, kind: PhysicalCluster, metadata: {name: one}, spec: {connection: {simulated: {nodes: 2}}}}
---
{apiVersion: portolan.dev/v1alpha1, kind: PhysicalCluster, metadata: {name: two}, spec: {connection: {simulated: {nodes: 2}}}}
";

/// Runs the specs, each outermost group of them a check.
pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let server = Portolan::start_with(program, tools, &dir.join("portolan"), &[HISTORY])?;
    let workspaces = WorkspaceChecks::new(tools, dir, server)?;
    let mut specs = None;
    report.check("conformance: the specs run to their end", || {
        let tests = ConformanceTests::build()?;
        specs = Some(run_specs(&tests, &workspaces, tools, dir)?);
        Ok(())
    });
    for group in specs.iter().flat_map(Specs::groups) {
        let says = format!("conformance: {}, {} specs", group.name, group.ran);
        report.record(&says, group.seconds, group.outcome());
    }
    report.check("conformance: the server is still the process that was started", || workspaces.server().check_alive());
    Ok(())
}

fn run_specs(tests: &ConformanceTests, workspaces: &WorkspaceChecks, tools: &Tools, dir: &Path) -> Result<Specs> {
    workspaces.root().run_with("apply -f -", CLUSTERS)?;
    workspaces.root().run("wait physicalclusters --all --for=condition=Ready --timeout=50s")?;
    let kubectl = workspaces.make("conformance")?;
    furnish(&kubectl)?;
    let name = "conformance.json";
    let mut ginkgo = vec![
        format!("--procs={PROCESSES}"),
        format!("--timeout={}s", LIMIT.as_secs()),
        "--no-color".to_owned(),
        format!("--focus={FOCUS}"),
        format!("--output-dir={}", dir.display()),
        format!("--json-report={name}"),
    ];
    ginkgo.extend(NEEDS_SERVING_POD.into_iter().chain([REFUSED]).map(|specs| format!("--skip={specs}")));
    let kubeconfig = kubectl.kubeconfig_file().display();
    let mut command = tests.command(&ginkgo, &[format!("--kubeconfig={kubeconfig}"), "--provider=skeleton".to_owned()]);
    // Some specs run kubectl.
    let path = std::env::join_paths(
        std::iter::once(tools.dir().to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    )?;
    command.env("PATH", path).env("HOME", dir).current_dir(dir);
    let ended = process::run(&mut command, "", LIMIT + REPORTED)?;
    let report =
        std::fs::read(dir.join(name)).with_context(|| format!("no report: {}\n{}", ended.stdout, ended.stderr))?;
    Specs::read(&serde_json::from_slice::<Value>(&report)?, SPECS)
}

/// Makes the Service that each kube-apiserver makes for itself: the tests read its address.
fn furnish(kubectl: &Kubectl) -> Result<()> {
    kubectl.run("create service clusterip kubernetes --tcp=443 --namespace=default").map(drop)
}
