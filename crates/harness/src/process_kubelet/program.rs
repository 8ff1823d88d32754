//! Build of the program in `e2e/kubelet`.

use std::path::PathBuf;

use anyhow::Result;

use crate::cache::{self, CacheFingerprint};
use crate::go;
use crate::tools::{linker_flags, repository};

fn module() -> PathBuf {
    repository().join("e2e/kubelet")
}

/// Runs the tests of the program, without vet, which would check all of Kubernetes.
pub fn test() -> Result<()> {
    go::run(&module(), &["test", "-vet=off", "-count=1", "."]).map(drop)
}

/// Finds the program in the cache or builds it there (about ten minutes on two cores with an empty cache).
pub fn build() -> Result<PathBuf> {
    let module = module();
    let mut fingerprint = CacheFingerprint::default();
    fingerprint.feed_folder(&module)?;
    fingerprint.feed(linker_flags().as_bytes());
    fingerprint.feed(go::run(&module, &["version"])?.as_bytes());
    let dir = cache::entry("process-kubelet", &fingerprint, |dir| {
        let out = format!("{}/kubelet", dir.display());
        go::run(&module, &["build", "-ldflags", &linker_flags(), "-o", &out, "."]).map(drop)
    })?;
    Ok(dir.join("kubelet"))
}
