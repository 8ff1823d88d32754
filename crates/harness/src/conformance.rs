//! Kubernetes' own end-to-end tests, compiled from the published module of the release that the tools are built from.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use super::cache::{self, CacheFingerprint};
use super::go;
use super::tools::{KUBERNETES, repository};

/// Package of the tests.
const TESTS: &str = "k8s.io/kubernetes/test/e2e";

/// Folder in the cache with `e2e.test` and `ginkgo`, which runs it in several processes.
pub struct ConformanceTests(PathBuf);

impl ConformanceTests {
    /// Finds the tests in the cache or compiles them there.
    pub fn build() -> Result<Self> {
        let module = repository().join("e2e/conformance");
        let listed = go::run(&module, &["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"])?;
        ensure!(listed.trim() == KUBERNETES, "go.mod requires {listed}, not {KUBERNETES}");
        let mut fingerprint = CacheFingerprint::default();
        fingerprint.feed_folder(&module)?;
        fingerprint.feed(go::run(&module, &["version"])?.as_bytes());
        let folder = cache::entry("conformance", &fingerprint, |dir| {
            let out = format!("{}/", dir.display());
            go::run(&module, &["build", "-ldflags", "-s -w", "-o", &out, "github.com/onsi/ginkgo/v2/ginkgo"])?;
            go::run(&module, &["test", "-c", "-vet=off", "-ldflags", "-s -w", "-o", &out, TESTS]).map(drop)
        })?;
        Ok(Self(folder))
    }

    /// Command that runs the tests with these arguments of Ginkgo, followed by those of the tests.
    pub fn command(&self, ginkgo: &[String], tests: &[String]) -> Command {
        let mut command = Command::new(self.0.join("ginkgo"));
        command.args(ginkgo).arg(self.0.join("e2e.test")).arg("--").args(tests);
        command
    }
}
