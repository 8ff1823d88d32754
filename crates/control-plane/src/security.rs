//! Configuration of the security of a control plane.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context as _;
use portolan_apiserver::{
    ApiServerConfig,
    audit::AuditConfig,
    config::{AccessConfig, ServingConfig, read_encryption_config},
    hooks::ReadyCheck,
};
use portolan_store::{DynStore, EncryptedStore, Keyring};
use portolan_types::Seams;

/// Audit, encryption, identities and certificates.
#[derive(Clone, Debug, Default)]
pub struct SecurityConfig {
    /// Audit of requests; `None` writes no events.
    pub audit: Option<AuditConfig>,
    /// File of the keys that encrypt objects at rest; `None` encrypts nothing.
    pub encryption: Option<PathBuf>,
    /// Identities and authorization from outside.
    pub access: AccessConfig,
    /// Certificate files and TLS.
    pub serving: ServingConfig,
}

impl SecurityConfig {
    /// Sets the parts that the API server holds.
    pub(crate) fn apply(&self, config: &mut ApiServerConfig) {
        config.audit.clone_from(&self.audit);
        config.access.clone_from(&self.access);
        config.serving.clone_from(&self.serving);
    }

    /// Reads the keys that encrypt objects at rest.
    ///
    /// # Errors
    /// An unusable file.
    pub(crate) fn keyring(&self) -> anyhow::Result<Keyring> {
        let read = self.encryption.as_deref().map(read_encryption_config).transpose();
        Ok(read.context("--encryption-provider-config")?.unwrap_or_default())
    }
}

/// Puts the encryption above a store, also without keys: encrypted objects must not be taken for damaged ones. Objects
/// that cannot be decrypted are reported by `/readyz`.
pub(crate) async fn encrypted(
    store: DynStore,
    keyring: Keyring,
    config: &mut ApiServerConfig,
    seams: &Seams,
) -> anyhow::Result<DynStore> {
    let layer = EncryptedStore::new(store.clone(), keyring, seams.clone());
    layer.probe().await.context("the first objects cannot be read")?;
    config.hooks.ready.push(Arc::new(EncryptionCheck(layer.clone())));
    config.stored = Some(store);
    Ok(Arc::new(layer))
}

/// Ready check that fails once an object could not be decrypted.
struct EncryptionCheck(EncryptedStore);

impl ReadyCheck for EncryptionCheck {
    fn name(&self) -> &str {
        "encryption"
    }

    fn check(&self) -> Result<(), String> {
        self.0.failure().map_or(Ok(()), Err)
    }
}
