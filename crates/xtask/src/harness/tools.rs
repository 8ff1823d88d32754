//! kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, etcd and kwok, built from the Go modules under
//! `e2e/` into a cache folder outside the clone.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::process;

/// The version the Kubernetes tools report; `e2e/go.mod` requires the same.
const KUBERNETES: &str = "v1.36.3";

/// Ten minutes on two idle cores; far more when they are not.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

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
}

impl Tools {
    /// Finds the tools in the cache or builds them there (about ten minutes on two cores when nothing is cached).
    ///
    /// The cache is `$PORTOLAN_E2E_CACHE`, else `portolan-e2e` under `$XDG_CACHE_HOME` or `~/.cache`. A lock file
    /// makes a second caller wait for the first.
    pub(crate) fn build() -> Result<Self> {
        let modules = repository().join("e2e");
        let cache = cache_dir()?;
        fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
        let lock = File::create(cache.join("lock")).context("cannot make the lock file of the tools")?;
        lock.lock().context("cannot lock the cache of the tools")?;

        let dir = cache.join(format!("tools-{:016x}", fingerprint(&modules)?));
        if !dir.exists() {
            eprintln!("building kube-apiserver, kubectl, etcd and kwok into {}", dir.display());
            let unfinished = cache.join("unfinished");
            if unfinished.exists() {
                fs::remove_dir_all(&unfinished).context("cannot remove an unfinished build")?;
            }
            build_into(&modules, &unfinished)?;
            fs::rename(&unfinished, &dir).context("cannot move the finished build in place")?;
        }
        Ok(Self { dir })
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
        self.dir.join("etcd")
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

fn cache_dir() -> Result<PathBuf> {
    let from = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    from("PORTOLAN_E2E_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|dir| dir.join("portolan-e2e")))
        .or_else(|| from("HOME").map(|dir| dir.join(".cache/portolan-e2e")))
        .context("none of PORTOLAN_E2E_CACHE, XDG_CACHE_HOME and HOME is set")
}

/// FNV-1a over everything that decides what the tools are. A cache key, not a proof of anything.
fn fingerprint(modules: &Path) -> Result<u64> {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes.iter().chain(&[0]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for name in INPUTS {
        let path = modules.join(name);
        feed(&fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    feed(linker_flags().as_bytes());
    feed(STAGES.join(" ").as_bytes());
    feed(go(modules, &["version"])?.as_bytes());
    Ok(hash)
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
    let listed = go(modules, &["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"])?;
    ensure!(listed.trim() == KUBERNETES, "e2e/go.mod requires k8s.io/kubernetes {listed}, not {KUBERNETES}");
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let out = format!("{}/", dir.display());
    go(modules, &["build", "-ldflags", &linker_flags(), "-o", &out, "tool"])?;
    let kwok = modules.join("kwok");
    go(&kwok, &["build", "-ldflags", "-s -w", "-o", &out, "tool"])?;
    // etcd's main package is its module's root; go names the binary after the folder.
    fs::rename(dir.join("server"), dir.join("etcd")).context("cannot name etcd")?;
    fs::write(dir.join("kwok-stages.yaml"), stages(&kwok)?).context("cannot write kwok's stages")
}

fn stages(kwok: &Path) -> Result<String> {
    let module = go(kwok, &["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"])?;
    let folder = Path::new(module.trim()).join("kustomize/stage");
    let documents = STAGES.iter().map(|name| {
        let path = folder.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    });
    Ok(documents.collect::<Result<Vec<_>>>()?.join("\n---\n"))
}

fn go(dir: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new("go");
    command.args(args).current_dir(dir).env("GOFLAGS", "-buildvcs=false -mod=readonly").env("GOTOOLCHAIN", "local");
    let ended = process::run(&mut command, "", BUILD_LIMIT).context("the end-to-end tools are built with go")?;
    if !ended.status.success() {
        let from = ended.stderr.char_indices().rev().nth(4000).map_or(0, |(index, _)| index);
        bail!("go {} failed:\n{}", args.join(" "), &ended.stderr[from..]);
    }
    Ok(ended.stdout)
}
