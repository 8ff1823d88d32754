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

/// Static binary of `manifests/release.sh`.
const STATIC: &str = "target/x86_64-unknown-linux-musl/dist/portolan";
/// User of the chart's containers.
const USER: u32 = 65532;
/// Scripts that need a mount namespace of their own.
const INSTALL: &str = include_str!("install.sh");
const CONTAINER: &str = include_str!("container.sh");

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
    let has_package = report
        .check("packages: the Debian package has the program, its links, units and settings", || packaging.debian());
    if has_package {
        report
            .check("packages: the Debian package is installed, upgraded, removed and purged", || packaging.installs());
    }
    if repository().join(STATIC).exists() {
        report.check("packages: the static binary runs as the chart's container, in a root with nothing else", || {
            packaging.starts_in_empty_root()
        });
    } else {
        println!("not run: packages: the static binary in an empty root; manifests/release.sh builds it");
    }
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
        let container = container(&self.render("portolan", &[])?)?;
        let port = free_port()?;
        let data = self.dir.join("data/portolan");
        fs::create_dir_all(self.dir.join("data"))?;
        let args: Vec<String> = arguments(&container, port)
            .into_iter()
            .map(|arg| arg.replace("/data/portolan", &data.display().to_string()))
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

    /// Starts the static binary with the command, the environment and the volumes of the chart's container.
    fn starts_in_empty_root(&self) -> Result<()> {
        let container = container(&self.render("portolan", &[])?)?;
        let (port, root) = (free_port()?, self.dir.join("container"));
        for folder in ["data", "tmp"] {
            fs::create_dir_all(root.join(folder))?;
            std::os::unix::fs::chown(root.join(folder), Some(USER), Some(USER)).context("this check needs root")?;
        }
        fs::copy(repository().join(STATIC), root.join("portolan"))?;
        let mounts = container["volumeMounts"].as_array().map_or(0, Vec::len);
        ensure!(mounts == 2, "the chart mounts other volumes than /data and /tmp: {container}");
        // The environment of the Dockerfile, and that of the chart.
        let mut environment = vec!["HOME=/data".to_owned(), "PATH=/".to_owned()];
        for variable in container["env"].as_array().into_iter().flatten() {
            let text = |key: &str| variable[key].as_str().unwrap_or_default();
            environment.push(format!("{}={}", text("name"), text("value")));
        }
        let mut args = ["--mount", "sh", "-c", CONTAINER, "container.sh"].map(str::to_owned).to_vec();
        args.push(root.display().to_string());
        args.extend(environment);
        args.push("/portolan".to_owned());
        args.extend(arguments(&container, port));
        let process = Process::spawn("container", Path::new("unshare"), &args, &self.dir.join("logs"))?;
        poll::until("the server of the container", START_LIMIT, || {
            process.check_alive()?;
            let mut asked = Command::new("chroot");
            asked.arg("--userspec=65532:65532").arg(&root).args([
                "/portolan",
                "status",
                "--data-dir",
                "/data/portolan",
            ]);
            process::output(&mut asked, LIMIT).map(drop)
        })?;
        ensure!(fs::read_dir(&root)?.count() == 3, "it wrote outside its volumes");
        process.terminate()
    }

    /// Installs the package on a copy of this system.
    fn installs(&self) -> Result<()> {
        let folder = self.dir.join("installed");
        fs::create_dir_all(&folder)?;
        let mut install = Command::new("unshare");
        install.args(["--mount", "sh", "-c", INSTALL, "install.sh"]).arg(&folder).arg(self.dir.join("portolan.deb"));
        let said = process::output(&mut install, BUILD_LIMIT).context("this check needs root, dpkg and overlays")?;
        ensure!(said.ends_with("installed, upgraded, removed and purged\n"), "{said}");
        Ok(())
    }

    /// Packages the program under test, and inspects the files that an installation would unpack.
    fn debian(&self) -> Result<()> {
        let root = repository().join("target/cargo-deb").join(CARGO_DEB);
        if !root.join("bin/cargo-deb").exists() {
            let mut install = cargo();
            install.args(["install", "cargo-deb", "--locked", "--debug", "--version", CARGO_DEB, "--root"]).arg(&root);
            process::output(&mut install, BUILD_LIMIT)?;
        }
        let package = self.dir.join("portolan.deb");
        let mut pack = Command::new(root.join("bin/cargo-deb"));
        pack.current_dir(repository()).args(["deb", "--package", "portolan", "--no-build", "--no-strip", "--fast"]);
        pack.args(profile_of(self.program)?).arg("--output").arg(&package);
        process::output(&mut pack, BUILD_LIMIT)?;
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

/// Returns the arguments of a container, with an address of this machine.
fn arguments(container: &Value, port: u16) -> Vec<String> {
    let address = format!("127.0.0.1:{port}");
    strings(&container["args"]).into_iter().map(|arg| arg.replace("0.0.0.0:6443", &address)).collect()
}

/// Returns the flags by which cargo-deb packs a program in a target directory: `target/[TARGET/]PROFILE/portolan`.
fn profile_of(program: &Path) -> Result<Vec<String>> {
    let mut folders = program.ancestors().skip(1).filter_map(|path| path.file_name()?.to_str());
    let profile = folders.next().context("the program is in no target directory")?;
    let profile = if profile == "debug" { "dev" } else { profile };
    let mut flags = vec!["--profile".to_owned(), profile.to_owned()];
    if let Some(target) = folders.next().filter(|name| name.contains("-linux-")) {
        flags.extend(["--target".to_owned(), target.to_owned()]);
    }
    Ok(flags)
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
    fn the_packed_program_is_the_one_under_test() {
        for (program, expected) in [
            ("/a/target/release/portolan", "--profile release"),
            ("/a/target/debug/portolan", "--profile dev"),
            ("/a/target/x86_64-unknown-linux-musl/dist/portolan", "--profile dist --target x86_64-unknown-linux-musl"),
        ] {
            assert_eq!(profile_of(Path::new(program)).unwrap().join(" "), expected, "{program}");
        }
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
