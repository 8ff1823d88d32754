//! The Helm program with a chart that contains a definition in `crds/` and objects of its kind.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::ClientStage;
use super::helm::Helm;
use harness::clients::Clients;
use harness::report::CheckReport;

const NAMESPACE: &str = "buoys";
const DEFINITION: &str = "crd/buoys.charts.portolan.dev.example";
const LIMIT: Duration = Duration::from_secs(150);

type HelmKindCheck = (&'static str, fn(&Helm<'_>) -> Result<()>);

const CHECKS: [HelmKindCheck; 6] = [
    ("install brings the kind first, then its objects", installs),
    ("kubectl knows the kind by its short name and category, and shows its columns", shows),
    ("an upgrade changes and removes objects", upgrades),
    ("an upgrade to what the schema refuses fails, and says why", fails),
    ("rollback brings the first revision back", rolls_back),
    ("uninstall takes the objects and leaves the kind", uninstalls),
];

/// Runs all checks in order. Each builds on those before it.
pub(super) fn run(report: &mut CheckReport, stage: &ClientStage<'_>) {
    let helm = Helm::new(stage, NAMESPACE, Clients::chart_with_kind());
    for (name, check) in CHECKS {
        report.check(&format!("helm, own kind: {name}"), || check(&helm));
    }
}

fn installs(helm: &Helm<'_>) -> Result<()> {
    helm.says("install bay CHART --create-namespace --wait --timeout 60s", &["STATUS: deployed"])?;
    helm.path_is(DEFINITION, "{.status.conditions[?(@.type==\"Established\")].status}", "True")?;
    helm.path_is("buoy/bay-north", "{.spec.colour} {.spec.lit} {.spec.marks[0].depth}", "red true 12")
}

fn shows(helm: &Helm<'_>) -> Result<()> {
    for kind in ["by", "marks", "buoys.v1.charts.portolan.dev.example"] {
        let table = helm.kubectl().run(&format!("get {kind}"))?;
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        ensure!(lines.len() == 3 && lines[0] == ["NAME", "COLOUR"], "get {kind}:\n{table}");
        ensure!(lines[1] == ["bay-north", "red"], "get {kind}:\n{table}");
    }
    let explained = helm.kubectl().run("explain buoy.spec.marks")?;
    ensure!(explained.contains("depth\t<integer>"), "{explained}");
    Ok(())
}

fn upgrades(helm: &Helm<'_>) -> Result<()> {
    helm.says("upgrade bay CHART --set colour=green,names={north} --wait", &["STATUS: deployed"])?;
    helm.path_is("buoy/bay-north", "{.spec.colour} {.metadata.generation}", "green 2")?;
    helm.absent("buoy/bay-south")
}

fn fails(helm: &Helm<'_>) -> Result<()> {
    helm.refuses(
        "upgrade bay CHART --set colour=blue,names={north}",
        "spec.colour: Unsupported value: \"blue\": supported values: \"red\", \"green\", \"yellow\"",
    )?;
    helm.path_is("buoy/bay-north", "{.spec.colour}", "green")
}

fn rolls_back(helm: &Helm<'_>) -> Result<()> {
    helm.says("rollback bay 1 --wait", &["Rollback was a success"])?;
    helm.path_is("buoy/bay-south", "{.spec.colour}", "red")
}

fn uninstalls(helm: &Helm<'_>) -> Result<()> {
    helm.says("uninstall bay --wait --timeout 60s", &["release \"bay\" uninstalled"])?;
    helm.absent("buoys")?;
    let kubectl = helm.kubectl().within(LIMIT);
    let gone = kubectl.run(&format!("delete {DEFINITION} --timeout=60s")).context("the kind is not there any more")?;
    ensure!(gone.contains("deleted"), "{gone}");
    kubectl.run(&format!("delete namespace {NAMESPACE} --timeout=120s")).map(drop)
}
