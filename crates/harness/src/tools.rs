//! kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, etcd and kwok, built from the Go modules under
//! `e2e/` into a cache folder outside the clone.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::cache::{self, CacheFingerprint};
use super::go;

/// Version that the Kubernetes tools report; `e2e/go.mod` requires it.
pub(super) const KUBERNETES: &str = "v1.36.3";

/// Files whose change requires a rebuild. No source of this repository is compiled into the tools.
const INPUTS: [&str; 4] = ["go.mod", "go.sum", "kwok/go.mod", "kwok/go.sum"];

/// Stages of kwok that make its nodes ready and run, complete and delete its pods, within its module.
const STAGES: [&str; 5] = [
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
];

/// Complete folder of tools.
pub struct Tools {
    dir: PathBuf,
    etcd: PathBuf,
}

impl Tools {
    /// Finds the tools in the cache or builds them there (about ten minutes on two cores with an empty cache).
    pub fn build() -> Result<Self> {
        let modules = repository().join("e2e");
        let dir = cache::entry("tools", &fingerprint(&modules)?, |dir| build_into(&modules, dir))?;
        Ok(Self { etcd: dir.join("etcd"), dir })
    }

    /// Returns the folder of the tools.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the program kubectl.
    pub fn kubectl(&self) -> PathBuf {
        self.dir.join("kubectl")
    }

    /// Returns the program kube-apiserver.
    pub fn kube_apiserver(&self) -> PathBuf {
        self.dir.join("kube-apiserver")
    }

    /// Returns the program kube-controller-manager.
    pub fn kube_controller_manager(&self) -> PathBuf {
        self.dir.join("kube-controller-manager")
    }

    /// Returns the program kube-scheduler.
    pub fn kube_scheduler(&self) -> PathBuf {
        self.dir.join("kube-scheduler")
    }

    /// Returns the program etcd.
    pub fn etcd(&self) -> PathBuf {
        self.etcd.clone()
    }

    /// Returns the same tools with another program for etcd.
    pub fn with_etcd(&self, etcd: PathBuf) -> Self {
        Self { dir: self.dir.clone(), etcd }
    }

    /// Returns the program kwok.
    pub fn kwok(&self) -> PathBuf {
        self.dir.join("kwok")
    }

    /// Returns kwok's stages, one file with several documents.
    pub fn kwok_stages(&self) -> PathBuf {
        self.dir.join("kwok-stages.yaml")
    }
}

/// Returns the root of this clone.
pub fn repository() -> &'static Path {
    const CRATE: &str = env!("CARGO_MANIFEST_DIR");
    Path::new(CRATE).ancestors().nth(2).unwrap_or(Path::new(CRATE))
}

fn fingerprint(modules: &Path) -> Result<CacheFingerprint> {
    let mut fingerprint = CacheFingerprint::default();
    for name in INPUTS {
        fingerprint.feed_file(&modules.join(name))?;
    }
    fingerprint.feed(linker_flags().as_bytes());
    fingerprint.feed(STAGES.join(" ").as_bytes());
    fingerprint.feed(go::run(modules, &["version"])?.as_bytes());
    Ok(fingerprint)
}

pub(super) fn linker_flags() -> String {
    let package = "k8s.io/component-base/version";
    format!(
        "-s -w -X {package}.gitVersion={KUBERNETES} -X {package}.gitMajor=1 -X {package}.gitMinor=36 \
         -X {package}.gitTreeState=clean"
    )
}

/// `go build tool` builds the `tool` directives of a go.mod. kwok has a module of its own, because its requirements
/// would raise libraries of kube-apiserver above the versions of its release.
fn build_into(modules: &Path, dir: &Path) -> Result<()> {
    let listed = go::run(modules, &["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"])?;
    ensure!(listed.trim() == KUBERNETES, "e2e/go.mod requires k8s.io/kubernetes {listed}, not {KUBERNETES}");
    let out = format!("{}/", dir.display());
    go::run(modules, &["build", "-ldflags", &linker_flags(), "-o", &out, "tool"])?;
    let kwok = modules.join("kwok");
    go::run(&kwok, &["build", "-ldflags", "-s -w", "-o", &out, "tool"])?;
    // etcd's main package is the root of its module; go names the binary after the folder.
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
