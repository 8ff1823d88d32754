//! Flags of the security of a server.

use std::path::PathBuf;

use clap::Args;
use portolan_control_plane::SecurityConfig;

use super::{access::AccessArgs, audit::AuditArgs};

/// Flags of security.
#[derive(Args, Debug, Default)]
#[group(skip)]
pub(super) struct SecurityArgs {
    #[command(flatten)]
    audit: AuditArgs,
    #[command(flatten)]
    access: AccessArgs,
    /// File with an EncryptionConfiguration of apiserver.config.k8s.io/v1: the resources that are encrypted at rest,
    /// and the keys (aesgcm, secretbox). Mode 0600. `portolan encryption` rewrites and verifies what is stored.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
}

impl SecurityArgs {
    /// Returns the configuration.
    ///
    /// # Errors
    /// Flags that contradict each other.
    pub(super) fn config(self) -> anyhow::Result<SecurityConfig> {
        Ok(SecurityConfig {
            access: self.access.access(),
            serving: self.access.serving(),
            audit: self.audit.config()?,
            encryption: self.encryption_provider_config,
        })
    }
}
