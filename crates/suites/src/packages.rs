//! Packages: the units, the charts and the Debian package, as an administrator uses them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use harness::cluster::PhysicalCluster;
use harness::process::{self, Process};
use harness::report::CheckReport;
use harness::tools::{Tools, repository};
use harness::{cargo::cargo, poll, ports::free_port};

const LIMIT: Duration = Duration::from_secs(60);
/// Time in which cargo-deb is installed or packs.
const BUILD_LIMIT: Duration = Duration::from_secs(900);
const START_LIMIT: Duration = Duration::from_secs(30);
/// Version of cargo-deb, as it is on crates.io.
const CARGO_DEB: &str = "3.8.0";

/// Values with which the charts are rendered.
const RENDERINGS: [(&str, &str, &[&str]); 3] = [
    ("one server on redb", "portolan", &[]),
    (
        "three servers on etcd",
        "portolan",
        &["--set", "replicas=3,server.store=etcd", "--set", "server.etcdEndpoints={https://etcd.example.com:2379}"],
    ),
    ("an agent", "portolan-agent", &["--set", "server=https://plane.example.com,token=abc"]),
];
/// Values that a chart refuses.
const REFUSED: [(&str, &str, &[&str]); 4] = [
    ("several servers on an embedded store", "portolan", &["--set", "replicas=2"]),
    ("an unknown value", "portolan", &["--set", "replica=2"]),
    ("etcd without an address", "portolan", &["--set", "server.store=etcd"]),
    ("an agent without a server", "portolan-agent", &["--set", "token=abc"]),
];

/// Programs and folders of the suite.
struct Packaging<'a> {
    program: &'a Path,
    helm: PathBuf,
    dir: PathBuf,
}

/// Runs the suite.
pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, helm: PathBuf, dir: &Path) {
    let packaging = Packaging { program, helm, dir: dir.to_owned() };
    if let Err(error) = fs::create_dir_all(dir) {
        report.check("packages: the folder of the suite", || Err(error.into()));
        return;
    }
    report.check("packages: systemd accepts the units", || packaging.units());
    for (says, chart, values) in REFUSED {
        report.check(&format!("packages: the chart refuses {says}"), || {
            ensure!(packaging.render(chart, values).is_err(), "it was rendered");
            Ok(())
        });
    }
    report.check("packages: the server starts with the rendered command", || packaging.starts());
    charts(report, &packaging, tools);
    report.check("packages: the Debian package has the program, its links, units and settings", || packaging.debian());
}

/// Renders the charts and lets a real kube-apiserver judge them.
fn charts(report: &mut CheckReport, packaging: &Packaging, tools: &Tools) {
    let cluster = PhysicalCluster::start(tools, &packaging.dir.join("kube"), "kube");
    if !report.check("packages: kube-apiserver starts", || cluster.as_ref().map(drop).map_err(super::scene::copy)) {
        return;
    }
    let Ok(cluster) = cluster else { return };
    report.check("packages: a namespace of Pod Security restricted", || {
        cluster.kubectl().run("create namespace portolan")?;
        cluster.kubectl().run("label namespace portolan pod-security.kubernetes.io/enforce=restricted").map(drop)
    });
    for (says, chart, values) in RENDERINGS {
        report.check(&format!("packages: kube-apiserver accepts {says}"), || {
            let manifests = packaging.render(chart, values)?;
            let answer = cluster.kubectl().call("apply --dry-run=server -f -", &manifests)?;
            ensure!(answer.code == Some(0) && !answer.stderr.contains("Warning"), "{answer}");
            Ok(())
        });
    }
}

impl Packaging<'_> {
    fn render(&self, chart: &str, values: &[&str]) -> Result<String> {
        let chart = repository().join("manifests/charts").join(chart);
        let mut helm = Command::new(&self.helm);
        helm.arg("template").arg("portolan").arg(chart).args(["--namespace", "portolan"]).args(values);
        process::output(helm.env("HOME", &self.dir), LIMIT)
    }

    /// Verifies the units with the path of the program that is there.
    fn units(&self) -> Result<()> {
        let folder = self.dir.join("units");
        fs::create_dir_all(&folder)?;
        let program = fs::canonicalize(self.program)?;
        let mut units = Vec::new();
        for entry in fs::read_dir(repository().join("manifests/systemd"))? {
            let entry = entry?;
            let text = fs::read_to_string(entry.path())?;
            let text = text.replace("ExecStart=portolan ", &format!("ExecStart={} ", program.display()));
            let unit = folder.join(entry.file_name());
            fs::write(&unit, text)?;
            units.push(unit);
        }
        let said = process::run(Command::new("systemd-analyze").arg("verify").args(&units), "", LIMIT)
            .context("systemd-analyze is needed")?;
        let about_ours = |line: &&str| line.contains("portolan");
        let complaints: Vec<&str> = said.stderr.lines().filter(about_ours).collect();
        ensure!(complaints.is_empty() && units.len() == 3, "{}", complaints.join("\n"));
        Ok(())
    }

    /// Starts the server as the pod of the chart does, with another folder and port.
    fn starts(&self) -> Result<()> {
        let manifests = self.render("portolan", &[])?;
        let container = container(&manifests)?;
        let port = free_port()?;
        let data = self.dir.join("data/portolan");
        fs::create_dir_all(self.dir.join("data"))?;
        let args: Vec<String> = strings(&container["args"])
            .into_iter()
            .map(|arg| {
                arg.replace("/data/portolan", &data.display().to_string())
                    .replace("0.0.0.0:6443", &format!("127.0.0.1:{port}"))
            })
            .collect();
        let process = Process::spawn("chart", self.program, &args, &self.dir.join("logs"))?;
        let status = |_: ()| {
            let mut asked = Command::new(self.program);
            process::output(asked.arg("status").arg("--data-dir").arg(&data), LIMIT).map(drop)
        };
        poll::until("the server", START_LIMIT, || {
            process.check_alive()?;
            status(())
        })?;
        process.terminate()
    }

    /// Packs the program under test, and inspects what an installation would unpack.
    fn debian(&self) -> Result<()> {
        let root = repository().join("target/cargo-deb").join(CARGO_DEB);
        if !root.join("bin/cargo-deb").exists() {
            let mut install = cargo();
            install.args(["install", "cargo-deb", "--locked", "--debug", "--version", CARGO_DEB, "--root"]).arg(&root);
            process::output(&mut install, BUILD_LIMIT)?;
        }
        let package = self.dir.join("portolan.deb");
        let mut pack = Command::new(root.join("bin/cargo-deb"));
        pack.current_dir(repository()).args(["deb", "--package", "portolan", "--no-build", "--no-strip", "--output"]);
        process::output(pack.arg(&package), BUILD_LIMIT)?;
        let unpacked = self.dir.join("unpacked");
        process::output(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unpacked), LIMIT)?;
        for file in
            ["etc/portolan/portolan.env", "usr/lib/systemd/system/portolan.service", "usr/share/doc/portolan/copyright"]
        {
            ensure!(unpacked.join(file).exists(), "{file} is missing");
        }
        for link in ["portolan", "kubectl-portolan", "kubectl-ws", "kubectl-create-workspace"] {
            let said = process::output(Command::new(unpacked.join("usr/bin").join(link)).arg("--version"), LIMIT)?;
            ensure!(said.starts_with(link), "{link} says {said}");
        }
        let fields = process::output(Command::new("dpkg-deb").arg("-I").arg(&package), LIMIT)?;
        ensure!(["conffiles", "postinst", "prerm"].iter().all(|part| fields.contains(part)), "{fields}");
        Ok(())
    }
}

/// Returns the container of the only StatefulSet.
fn container(manifests: &str) -> Result<Value> {
    for document in manifests.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).context("a rendered manifest")?;
        if object["kind"] == "StatefulSet" {
            return Ok(object["spec"]["template"]["spec"]["containers"][0].clone());
        }
    }
    bail!("the chart has no StatefulSet")
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn manifest(path: &str) -> String {
        fs::read_to_string(repository().join("manifests").join(path)).unwrap()
    }

    #[test]
    fn the_chart_of_the_agent_has_the_rights_of_a_syncer() {
        let rights = |text: &str| -> BTreeSet<String> {
            let lines = text.lines().map(str::trim);
            lines.filter(|line| line.starts_with("resources: [")).map(str::to_owned).collect()
        };
        let chart = rights(&manifest("charts/portolan-agent/templates/agent.yaml"));
        let missing: Vec<String> = rights(&manifest("syncer/rbac.yaml")).difference(&chart).cloned().collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_chart_of_the_agent_has_the_flags_and_the_service_of_the_manifest() {
        let wanted = |text: &str| -> BTreeSet<String> {
            let lines = text.lines().map(str::trim);
            lines
                .filter(|line| line.starts_with("- --") || line.starts_with("targetPort:"))
                .map(str::to_owned)
                .collect()
        };
        let chart = wanted(&manifest("charts/portolan-agent/templates/agent.yaml"));
        let agent = manifest("agent/agent.yaml").replace("PORTOLAN_SERVER", "{{ .Values.server }}");
        let missing: Vec<String> = wanted(&agent).difference(&chart).cloned().collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_rules_of_the_chart_are_those_of_the_guide() {
        let alerts = |text: &str| -> Vec<String> {
            let lines = text.lines().map(str::trim);
            lines.filter(|line| line.starts_with("- alert:") || line.starts_with("expr:")).map(str::to_owned).collect()
        };
        let guide = fs::read_to_string(repository().join("docs/operating.md")).unwrap();
        let rules = alerts(&manifest("charts/portolan/files/rules.yaml"));
        assert!(rules.len() > 10);
        assert_eq!(rules, alerts(&guide));
    }

    #[test]
    fn the_dashboard_shows_metrics_of_the_reference() {
        let dashboard: Value = serde_json::from_str(&manifest("charts/portolan/files/dashboard.json")).unwrap();
        let reference = fs::read_to_string(repository().join("docs/reference/metrics.md")).unwrap();
        let mut count = 0;
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let expression = target["expr"].as_str().unwrap();
                for name in expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
                    let family = name.trim_end_matches("_bucket");
                    let is_known = reference.contains(&format!("| `{family}` |"));
                    assert!(!family.starts_with("portolan_") || is_known, "{name} of {}", panel["title"]);
                    count += 1;
                }
            }
        }
        assert!(count > 30);
    }

    #[test]
    fn the_versions_of_the_charts_are_the_workspaces() {
        let workspace = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
        let version = workspace.lines().find_map(|line| line.strip_prefix("version = ")).unwrap().trim_matches('"');
        for chart in ["portolan", "portolan-agent"] {
            let text = manifest(&format!("charts/{chart}/Chart.yaml"));
            assert!(text.contains(&format!("\nversion: {version}\nappVersion: {version}\n")), "{chart}");
        }
    }
}
