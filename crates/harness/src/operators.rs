//! Unmodified third-party operators. Each is a Go module of its own below `e2e/operators/`, so that it is built with
//! the libraries of its release.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::cache::{self, CacheFingerprint};
use super::go;
use super::tools::repository;

const PROMETHEUS_OPERATOR: &str = "github.com/prometheus-operator/prometheus-operator";
/// Version that `go.mod` requires.
const PROMETHEUS_OPERATOR_VERSION: &str = "v0.85.0";
/// Folder of its definitions, in its module and in the cache.
const DEFINITIONS: &str = "prometheus-operator-crd";

const CERT_MANAGER: &str = "github.com/cert-manager/cert-manager";
/// Version that `go.mod` requires.
const CERT_MANAGER_VERSION: &str = "v1.11.5";
/// Version in the repository's chart that the release tool replaces.
const UNVERSIONED: &str = "v0.1.0";

const MONGODB: &str = "github.com/mongodb/mongodb-kubernetes-operator";
/// Version that `go.mod` requires.
const MONGODB_VERSION: &str = "v0.9.0";
/// Packages of its own end-to-end tests below `test/e2e`. Each becomes a program named after the last part of its path.
pub const MONGODB_TESTS: [&str; 24] = [
    "feature_compatibility_version",
    "replica_set",
    "replica_set_arbiter",
    "replica_set_authentication",
    "replica_set_change_version",
    "replica_set_connection_string_options",
    "replica_set_cross_namespace_deploy",
    "replica_set_custom_annotations_test",
    "replica_set_custom_persistent_volume",
    "replica_set_custom_role",
    "replica_set_enterprise_upgrade_4_5",
    "replica_set_enterprise_upgrade_5_6",
    "replica_set_enterprise_upgrade_6_7",
    "replica_set_mongod_config",
    "replica_set_mongod_port_change_with_arbiters",
    "replica_set_mongod_readiness",
    "replica_set_mount_connection_string",
    "replica_set_multiple",
    "replica_set_recovery",
    "replica_set_scale",
    "replica_set_scale_down",
    "statefulset_arbitrary_config",
    "statefulset_arbitrary_config_update",
    "statefulset_delete",
];

/// Metadata of the chart of MongoDB's operator.
const MONGODB_CHART: &str = "apiVersion: v2\nname: community-operator\nversion: 0.9.0\n";
/// Value that the tests need if the operator runs outside of the cluster, as its developers run it locally.
const MONGODB_SCALE: (&str, &str) = ("replicas: 1", "replicas: {{ .Values.operator.replicas }}");

/// Folder of prometheus-operator in the cache.
pub struct PrometheusOperator<'a>(pub(super) &'a Path);

impl PrometheusOperator<'_> {
    /// Returns the program and the folder of its definitions.
    pub fn program(&self) -> (PathBuf, PathBuf) {
        (self.0.join("operator"), self.0.join(DEFINITIONS))
    }

    /// Returns its own end-to-end tests and the folder of its module, whose files they read.
    pub fn tests(&self) -> Result<(PathBuf, PathBuf)> {
        let module = go::fetched(&format!("{PROMETHEUS_OPERATOR}@{PROMETHEUS_OPERATOR_VERSION}"))?;
        Ok((self.0.join("e2e.test"), module))
    }
}

/// Builds the program, its definitions, and its own end-to-end tests.
pub(super) fn build_prometheus_operator() -> Result<PathBuf> {
    build("prometheus-operator", "operators", &[PROMETHEUS_OPERATOR_VERSION], |module, dir| {
        let listed = go::run(module, &["list", "-m", "-f", "{{.Version}}", PROMETHEUS_OPERATOR])?;
        ensure!(
            listed.trim() == PROMETHEUS_OPERATOR_VERSION,
            "go.mod requires {listed}, not {PROMETHEUS_OPERATOR_VERSION}"
        );
        let (out, tests) = (format!("{}/", dir.display()), format!("{PROMETHEUS_OPERATOR}/test/e2e"));
        go::run(module, &["test", "-c", "-vet=off", "-ldflags", "-s -w", "-o", &out, &tests])?;
        let from = source(module, PROMETHEUS_OPERATOR)?.join("example").join(DEFINITIONS);
        copy(&from, &dir.join(DEFINITIONS))
    })
}

/// Builds its programs, its chart with its definitions, and its own end-to-end tests with their runner.
pub(super) fn build_cert_manager() -> Result<PathBuf> {
    build("cert-manager", "cert-manager", &[CERT_MANAGER_VERSION, UNVERSIONED], |module, dir| {
        let listed = go::run(module, &["list", "-m", "-f", "{{.Version}}", CERT_MANAGER])?;
        ensure!(listed.trim() == CERT_MANAGER_VERSION, "go.mod requires {listed}, not {CERT_MANAGER_VERSION}");
        let (out, tests) = (format!("{}/", dir.display()), format!("{CERT_MANAGER}/test/e2e"));
        go::run(module, &["test", "-c", "-tags", "e2e_test", "-ldflags", "-s -w", "-o", &out, &tests])?;
        chart(&source(module, CERT_MANAGER)?.join("deploy"), &dir.join("chart"))
    })
}

/// Creates the chart as its release tool does: with name and version, and the definitions among its templates.
fn chart(deploy: &Path, to: &Path) -> Result<()> {
    let from = deploy.join("charts/cert-manager");
    copy(&from, to)?;
    copy(&from.join("templates"), &to.join("templates"))?;
    copy(&deploy.join("crds"), &to.join("templates"))?;
    fs::remove_file(to.join("templates/README.md")).context("the definitions have no README any more")?;
    let about = fs::read_to_string(to.join("Chart.template.yaml")).context("the chart says nothing of itself")?;
    fs::write(to.join("Chart.yaml"), about.replace(UNVERSIONED, CERT_MANAGER_VERSION)).context("cannot name the chart")
}

/// Builds the program, its definitions and roles, a chart, and its own end-to-end tests.
pub(super) fn build_mongodb_operator() -> Result<PathBuf> {
    let inputs = [&[MONGODB_VERSION, MONGODB_CHART, MONGODB_SCALE.1][..], &MONGODB_TESTS].concat();
    build("mongodb-operator", "mongodb-operator", &inputs, |module, dir| {
        let listed = go::run(module, &["list", "-m", "-f", "{{.Version}}", MONGODB])?;
        ensure!(listed.trim() == MONGODB_VERSION, "go.mod requires {listed}, not {MONGODB_VERSION}");
        let (out, tests) =
            (format!("{}/", dir.display()), MONGODB_TESTS.map(|test| format!("{MONGODB}/test/e2e/{test}")));
        let flags = ["test", "-c", "-vet=off", "-ldflags", "-s -w", "-o", &out];
        go::run(module, &flags.into_iter().chain(tests.iter().map(String::as_str)).collect::<Vec<_>>())?;
        let from = source(module, MONGODB)?;
        copy(&from.join("config/crd/bases"), &dir.join("definitions"))?;
        copy(&from.join("deploy/clusterwide"), &dir.join("clusterwide"))?;
        mongodb_chart(&from.join("config"), &dir.join("chart"))
    })
}

/// The tests install a chart from another repository. This chart has the objects of their `make deploy`.
fn mongodb_chart(config: &Path, to: &Path) -> Result<()> {
    let templates = to.join("templates");
    copy(&config.join("rbac"), &templates)?;
    fs::remove_file(templates.join("kustomization.yaml")).context("the roles have no list any more")?;
    let manager = fs::read_to_string(config.join("manager/manager.yaml")).context("no Deployment of the operator")?;
    ensure!(manager.contains(MONGODB_SCALE.0), "the Deployment has another scale");
    fs::write(templates.join("manager.yaml"), manager.replace(MONGODB_SCALE.0, MONGODB_SCALE.1))?;
    fs::write(to.join("Chart.yaml"), MONGODB_CHART).context("cannot name the chart")
}

/// Builds the tools of the module `e2e/operators/<module>`; `more` adds files to them.
fn build(module: &str, entry: &str, inputs: &[&str], more: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<PathBuf> {
    let module = repository().join("e2e/operators").join(module);
    let mut fingerprint = CacheFingerprint::default();
    fingerprint.feed_folder(&module)?;
    fingerprint.feed(go::run(&module, &["version"])?.as_bytes());
    inputs.iter().for_each(|input| fingerprint.feed(input.as_bytes()));
    cache::entry(&format!("clients-{entry}"), &fingerprint, |dir| {
        go::run(&module, &["build", "-ldflags", "-s -w", "-o", &format!("{}/", dir.display()), "tool"])?;
        more(&module, dir)
    })
}

/// Returns the folder with the sources of a module.
fn source(module: &Path, name: &str) -> Result<PathBuf> {
    let listed = go::run(module, &["list", "-m", "-f", "{{.Dir}}", name])?;
    Ok(Path::new(listed.trim()).to_owned())
}

/// Copies the files of a folder. Go's module cache is read-only, and a copy with its modes would be too.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        if path.is_file() {
            let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            fs::write(to.join(path.file_name().unwrap_or_default()), text).context("cannot write a copy")?;
        }
    }
    Ok(())
}
