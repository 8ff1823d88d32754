//! controller-runtime's own integration tests, compiled from its published module. They run against the server of a
//! kubeconfig.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::cache::{self, CacheFingerprint};
use super::go;
use super::tools::repository;

const MODULE: &str = "sigs.k8s.io/controller-runtime";
/// Version that `go.mod` requires.
const VERSION: &str = "v0.25.2";

/// Compiled tests with the folder of the module: they read files beside their sources.
pub struct Envtests {
    programs: PathBuf,
    sources: PathBuf,
}

impl Envtests {
    /// Finds the tests of the packages in the cache or compiles them there.
    pub fn build(packages: &[&str]) -> Result<Self> {
        let module = repository().join("e2e/clients/controller-runtime");
        let listed = go::run(&module, &["list", "-m", "-f", "{{.Version}}", MODULE])?;
        ensure!(listed.trim() == VERSION, "go.mod requires {listed}, not {VERSION}");
        go::run(&module, &["mod", "download", MODULE])?;
        let sources = go::run(&module, &["list", "-m", "-f", "{{.Dir}}", MODULE])?;
        let mut fingerprint = CacheFingerprint::default();
        fingerprint.feed_folder(&module)?;
        fingerprint.feed(go::run(&module, &["version"])?.as_bytes());
        packages.iter().for_each(|package| fingerprint.feed(package.as_bytes()));
        let programs = cache::entry("clients-controller-runtime", &fingerprint, |dir| {
            packages.iter().try_for_each(|package| compile(&module, package, &dir.join(program(package))))
        })?;
        Ok(Self { programs, sources: PathBuf::from(sources.trim()) })
    }

    /// Returns the test program of a package.
    pub fn tests(&self, package: &str) -> Command {
        let mut command = Command::new(self.programs.join(program(package)));
        command.current_dir(self.sources.join("pkg").join(package));
        command
    }
}

fn compile(module: &Path, package: &str, to: &Path) -> Result<()> {
    let package = format!("{MODULE}/pkg/{package}");
    go::run(module, &["test", "-c", "-vet=off", "-ldflags", "-s -w", "-o", go::text(to)?, &package]).map(drop)
}

/// Two packages have the same last name.
fn program(package: &str) -> String {
    format!("{}.test", package.replace('/', "-"))
}
