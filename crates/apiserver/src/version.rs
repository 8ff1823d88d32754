//! Which Kubernetes the server is, and on what it runs: `/version` and `kubernetes_build_info` tell the same.

use portolan_machinery::kinds::KindTable;

/// The version of Kubernetes, and of the build.
pub(crate) struct Version {
    pub(crate) major: String,
    pub(crate) minor: String,
    /// `v<major>.<minor>.<patch>+<build>`.
    pub(crate) git_version: String,
}

impl Version {
    pub(crate) const COMPILER: &str = "rustc";

    /// That of the built-in kinds, as a build of this name serves them.
    pub(crate) fn new(build: &str) -> Self {
        let base = KindTable::builtin().version();
        let base = if base.is_empty() { "v1.36.3" } else { base };
        let mut parts = base.trim_start_matches('v').split('.');
        let mut part = |otherwise: &str| parts.next().unwrap_or(otherwise).to_owned();
        Self { major: part("1"), minor: part("36"), git_version: format!("{base}+{build}") }
    }

    /// The system and the machine in Go's words, which clients compare.
    pub(crate) fn platform() -> String {
        let machine = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        format!("{}/{machine}", std::env::consts::OS)
    }
}
