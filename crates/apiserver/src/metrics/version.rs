//! Kubernetes version and platform of the server, as `/version` and `kubernetes_build_info` show them.

use portolan_kinds::KindTable;

/// Version of Kubernetes and of the build.
pub(crate) struct ServerVersion {
    pub(crate) major: String,
    pub(crate) minor: String,
    /// `v<major>.<minor>.<patch>+<build>`.
    pub(crate) git_version: String,
}

impl ServerVersion {
    pub(crate) const COMPILER: &str = "rustc";

    /// Returns the version of the built-in kinds with the name of a build.
    pub(crate) fn new(build: &str) -> Self {
        let base = KindTable::builtin().version();
        let base = if base.is_empty() { "v1.36.3" } else { base };
        let mut parts = base.trim_start_matches('v').split('.');
        let mut part = |otherwise: &str| parts.next().unwrap_or(otherwise).to_owned();
        Self { major: part("1"), minor: part("36"), git_version: format!("{base}+{build}") }
    }

    /// Returns operating system and architecture in Go's words, which clients compare.
    pub(crate) fn platform() -> String {
        let machine = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        format!("{}/{machine}", std::env::consts::OS)
    }
}
