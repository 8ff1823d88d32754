//! fabric8's Kubernetes client for Java, from Maven Central, and the suite that is written with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::cache::{self, CacheFingerprint};
use super::clients::{INSTALL_LIMIT, sources};
use super::process;

/// Main class of the suite.
const SUITE: &str = "ClientSuite";

/// Downloads the client with its dependencies, and compiles the suite.
pub(super) fn build() -> Result<PathBuf> {
    let folder = sources().join("java");
    let mut fingerprint = CacheFingerprint::default();
    fingerprint.feed_folder(&folder)?;
    fingerprint.feed(process::output(Command::new("javac").arg("-version"), INSTALL_LIMIT)?.as_bytes());
    cache::entry("clients-java", &fingerprint, |dir| {
        let copied = format!("-DoutputDirectory={}", dir.join("lib").display());
        let maven = ["--batch-mode", "--quiet", "dependency:copy-dependencies", &copied, "--file"];
        process::output(Command::new("mvn").args(maven).arg(folder.join("pom.xml")), INSTALL_LIMIT)?;
        let javac = ["-Werror", "-Xlint:all,-try", "-cp"];
        let mut compiler = Command::new("javac");
        compiler.args(javac).arg(class_path(dir)).arg("-d").arg(dir).arg(folder.join(format!("{SUITE}.java")));
        process::output(&mut compiler, INSTALL_LIMIT).map(drop)
    })
}

/// Returns the command that runs the suite from its folder in the cache.
pub(super) fn command(dir: &Path) -> Command {
    let mut command = Command::new("java");
    command.arg("-cp").arg(class_path(dir)).arg(SUITE);
    command
}

/// Returns the class path: the suite, and every library beside it.
fn class_path(dir: &Path) -> String {
    format!("{0}:{0}/lib/*", dir.display())
}
