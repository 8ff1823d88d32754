//! kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, etcd and kwok, built from the Go modules under
//! `e2e/` into a cache folder outside the clone.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::cache::{self, Fingerprint};
use super::go;

/// The version the Kubernetes tools report; `e2e/go.mod` requires the same.
pub(super) const KUBERNETES: &str = "v1.36.3";

/// What decides about a rebuild. No source of our own is compiled into the tools.
const INPUTS: [&str; 4] = ["go.mod", "go.sum", "kwok/go.mod", "kwok/go.sum"];

/// The stages of kwok that make its nodes ready and its pods run, finish and go, within its module.
const STAGES: [&str; 5] = [
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
];

/// A folder with all tools, complete.
pub(crate) struct Tools {
    dir: PathBuf,
    etcd: PathBuf,
}

impl Tools {
    /// Finds the tools in the cache or builds them there (about ten minutes on two cores when nothing is cached).
    pub(crate) fn build() -> Result<Self> {
        let modules = repository().join("e2e");
        let dir = cache::entry("tools", &fingerprint(&modules)?, |dir| build_into(&modules, dir))?;
        Ok(Self { etcd: dir.join("etcd"), dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn kubectl(&self) -> PathBuf {
        self.dir.join("kubectl")
    }

    pub(crate) fn kube_apiserver(&self) -> PathBuf {
        self.dir.join("kube-apiserver")
    }

    pub(crate) fn kube_controller_manager(&self) -> PathBuf {
        self.dir.join("kube-controller-manager")
    }

    pub(crate) fn kube_scheduler(&self) -> PathBuf {
        self.dir.join("kube-scheduler")
    }

    pub(crate) fn etcd(&self) -> PathBuf {
        self.etcd.clone()
    }

    /// The same tools with another program for etcd.
    pub(crate) fn with_etcd(&self, etcd: PathBuf) -> Self {
        Self { dir: self.dir.clone(), etcd }
    }

    pub(crate) fn kwok(&self) -> PathBuf {
        self.dir.join("kwok")
    }

    /// kwok's stages, one file with several documents.
    pub(crate) fn kwok_stages(&self) -> PathBuf {
        self.dir.join("kwok-stages.yaml")
    }
}

/// The root of this clone.
pub(crate) fn repository() -> &'static Path {
    const CRATE: &str = env!("CARGO_MANIFEST_DIR");
    Path::new(CRATE).ancestors().nth(2).unwrap_or(Path::new(CRATE))
}

fn fingerprint(modules: &Path) -> Result<Fingerprint> {
    let mut fingerprint = Fingerprint::new();
    for name in INPUTS {
        fingerprint.feed_file(&modules.join(name))?;
    }
    fingerprint.feed(linker_flags().as_bytes());
    fingerprint.feed(STAGES.join(" ").as_bytes());
    fingerprint.feed(go::run(modules, &["version"])?.as_bytes());
    Ok(fingerprint)
}

fn linker_flags() -> String {
    let package = "k8s.io/component-base/version";
    format!(
        "-s -w -X {package}.gitVersion={KUBERNETES} -X {package}.gitMajor=1 -X {package}.gitMinor=36 \
         -X {package}.gitTreeState=clean"
    )
}

/// `go build tool` builds what the `tool` directives of a go.mod name. kwok has a module of its own, because its
/// requirements would lift libraries of kube-apiserver above the versions it is released with.
fn build_into(modules: &Path, dir: &Path) -> Result<()> {
    let listed = go::run(modules, &["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"])?;
    ensure!(listed.trim() == KUBERNETES, "e2e/go.mod requires k8s.io/kubernetes {listed}, not {KUBERNETES}");
    let out = format!("{}/", dir.display());
    go::run(modules, &["build", "-ldflags", &linker_flags(), "-o", &out, "tool"])?;
    let kwok = modules.join("kwok");
    go::run(&kwok, &["build", "-ldflags", "-s -w", "-o", &out, "tool"])?;
    // etcd's main package is its module's root; go names the binary after the folder.
    fs::rename(dir.join("server"), dir.join("etcd")).context("cannot name etcd")?;
    fs::write(dir.join("kwok-stages.yaml"), stages(&kwok)?).context("cannot write kwok's stages")
}

fn stages(kwok: &Path) -> Result<String> {
    let module = go::run(kwok, &["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"])?;
    let folder = Path::new(module.trim()).join("kustomize/stage");
    let documents = STAGES.iter().map(|name| {
        let path = folder.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    });
    Ok(documents.collect::<Result<Vec<_>>>()?.join("\n---\n"))
}
