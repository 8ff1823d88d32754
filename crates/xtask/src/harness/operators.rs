//! Operators of other people, unmodified: each a Go module of its own below `e2e/operators/`, so that it is built with the
//! libraries that it is released with.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::cache::{self, Fingerprint};
use super::go;
use super::tools::repository;

const PROMETHEUS_OPERATOR: &str = "github.com/prometheus-operator/prometheus-operator";
/// `go.mod` requires the same.
const PROMETHEUS_OPERATOR_VERSION: &str = "v0.85.0";
/// The folder of its definitions, in its module and in the cache.
const DEFINITIONS: &str = "prometheus-operator-crd";

const CERT_MANAGER: &str = "github.com/cert-manager/cert-manager";
/// `go.mod` requires the same.
const CERT_MANAGER_VERSION: &str = "v1.11.5";
/// What the chart in its repository has where the release tool writes the version.
const UNVERSIONED: &str = "v0.1.0";

/// Everything built.
pub(crate) struct Operators {
    prometheus: PathBuf,
    cert_manager: PathBuf,
}

impl Operators {
    /// Finds the operators in the cache or builds them there.
    pub(super) fn build() -> Result<Self> {
        Ok(Self { prometheus: build_prometheus_operator()?, cert_manager: build_cert_manager()? })
    }

    pub(super) fn folders(&self) -> [&Path; 2] {
        [&self.prometheus, &self.cert_manager]
    }

    /// prometheus-operator, and the folder of its definitions.
    pub(crate) fn prometheus_operator(&self) -> (PathBuf, PathBuf) {
        (self.prometheus.join("operator"), self.prometheus.join(DEFINITIONS))
    }

    /// prometheus-operator's own end-to-end tests, and the folder of its module that they read files of.
    pub(crate) fn prometheus_operator_tests(&self) -> Result<(PathBuf, PathBuf)> {
        let module = go::fetched(&format!("{PROMETHEUS_OPERATOR}@{PROMETHEUS_OPERATOR_VERSION}"))?;
        Ok((self.prometheus.join("e2e.test"), module))
    }

    /// Of cert-manager: `controller`, `webhook`, `cainjector` and `chart`; its own tests `e2e.test` and `ginkgo`, which runs
    /// them.
    pub(crate) fn cert_manager(&self, name: &str) -> PathBuf {
        self.cert_manager.join(name)
    }
}

/// The program, its definitions, and its own end-to-end tests.
fn build_prometheus_operator() -> Result<PathBuf> {
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

/// Its programs, its chart with its definitions, and its own end-to-end tests with what runs them.
fn build_cert_manager() -> Result<PathBuf> {
    build("cert-manager", "cert-manager", &[CERT_MANAGER_VERSION, UNVERSIONED], |module, dir| {
        let listed = go::run(module, &["list", "-m", "-f", "{{.Version}}", CERT_MANAGER])?;
        ensure!(listed.trim() == CERT_MANAGER_VERSION, "go.mod requires {listed}, not {CERT_MANAGER_VERSION}");
        let (out, tests) = (format!("{}/", dir.display()), format!("{CERT_MANAGER}/test/e2e"));
        go::run(module, &["test", "-c", "-tags", "e2e_test", "-ldflags", "-s -w", "-o", &out, &tests])?;
        chart(&source(module, CERT_MANAGER)?.join("deploy"), &dir.join("chart"))
    })
}

/// The chart as its release tool makes it: named and numbered, with the definitions among its templates.
fn chart(deploy: &Path, to: &Path) -> Result<()> {
    let from = deploy.join("charts/cert-manager");
    copy(&from, to)?;
    copy(&from.join("templates"), &to.join("templates"))?;
    copy(&deploy.join("crds"), &to.join("templates"))?;
    fs::remove_file(to.join("templates/README.md")).context("the definitions have no README any more")?;
    let about = fs::read_to_string(to.join("Chart.template.yaml")).context("the chart says nothing of itself")?;
    fs::write(to.join("Chart.yaml"), about.replace(UNVERSIONED, CERT_MANAGER_VERSION)).context("cannot name the chart")
}

/// Builds the tools of the module `e2e/operators/<module>` and lets `more` add to them.
fn build(module: &str, entry: &str, inputs: &[&str], more: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<PathBuf> {
    let module = repository().join("e2e/operators").join(module);
    let mut fingerprint = Fingerprint::new();
    fingerprint.feed_folder(&module)?;
    fingerprint.feed(go::run(&module, &["version"])?.as_bytes());
    inputs.iter().for_each(|input| fingerprint.feed(input.as_bytes()));
    cache::entry(&format!("clients-{entry}"), &fingerprint, |dir| {
        go::run(&module, &["build", "-ldflags", "-s -w", "-o", &format!("{}/", dir.display()), "tool"])?;
        more(&module, dir)
    })
}

/// Where Go keeps the sources of a module.
fn source(module: &Path, name: &str) -> Result<PathBuf> {
    let listed = go::run(module, &["list", "-m", "-f", "{{.Dir}}", name])?;
    Ok(Path::new(listed.trim()).to_owned())
}

/// Copies the files of a folder. Go keeps modules read-only, and so would be a copy that keeps modes.
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
