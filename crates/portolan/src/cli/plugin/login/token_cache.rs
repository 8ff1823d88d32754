//! File of the tokens of one client at one issuer, which only its user can read.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::PathBuf,
};

use anyhow::{Context as _, ensure};
use portolan_apiserver::pki::write_secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::provider::{OpenIdProvider, claims_of};
use crate::cli::plugin::UserEnvironment;

/// Folder of the files, in the home directory.
const FOLDER: &str = ".kube/cache/portolan-login";

/// Tokens of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CachedTokens {
    pub(super) id_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<String>,
}

impl CachedTokens {
    /// Returns the end of the ID token, in seconds since the epoch.
    ///
    /// # Errors
    /// Fails if it names none.
    pub(super) fn ends(&self) -> anyhow::Result<i64> {
        claims_of(&self.id_token).and_then(|claims| claims["exp"].as_i64()).context("the ID token has no end")
    }
}

/// File of tokens.
pub(super) struct TokenCache(PathBuf);

impl TokenCache {
    /// Returns the file of a provider.
    ///
    /// # Errors
    /// Fails without a home directory.
    pub(super) fn of(environment: &UserEnvironment, provider: &OpenIdProvider) -> anyhow::Result<Self> {
        Self::named(environment, &provider.issuer, &provider.client_id)
    }

    /// Returns the file of a client of an issuer.
    ///
    /// # Errors
    /// Fails without a home directory.
    pub(super) fn named(environment: &UserEnvironment, issuer: &str, client_id: &str) -> anyhow::Result<Self> {
        let home = environment.home.as_ref().context("there is no home directory for the tokens")?;
        let hash: String = Sha256::digest(format!("{issuer}\0{client_id}"))
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(Self(home.join(FOLDER).join(format!("{hash}.json"))))
    }

    /// Reads the tokens; `None` if there are none.
    ///
    /// # Errors
    /// Fails if the file is damaged, or others can read it.
    pub(super) fn load(&self) -> anyhow::Result<Option<CachedTokens>> {
        let shown = self.0.display();
        let text = match fs::read(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("{shown} cannot be read")),
        };
        let mode = fs::metadata(&self.0)?.permissions().mode() & 0o077;
        ensure!(mode == 0, "{shown} can be read by others; delete it, and sign in again");
        serde_json::from_slice(&text).map(Some).with_context(|| format!("{shown} is damaged; delete it"))
    }

    /// Writes the tokens.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn store(&self, tokens: &CachedTokens) -> anyhow::Result<()> {
        let shown = self.0.display();
        let folder = self.0.parent().context("the file has a folder")?;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.with_context(|| format!("{} cannot be made", folder.display()))?;
        write_secret(&self.0, &serde_json::to_vec(tokens)?).with_context(|| format!("{shown} cannot be written"))
    }
}
