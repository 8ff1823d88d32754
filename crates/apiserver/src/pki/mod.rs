//! Keys and certificates that the server creates for itself, and the administrator's kubeconfig.
//!
//! Files in the data directory: `pki/ca.{crt,key}`, `pki/server.{crt,key}`, `pki/admin.{crt,key}`,
//! `pki/service-accounts.key`, `pki/continue.key` and `admin.kubeconfig`; and `pki/revoked-certificates`, if the
//! administrator has created it. Files have mode 0600, directories 0700; the server does not start if others can read
//! them.

mod agents;
mod certificates;
pub(crate) mod ec;
mod files;
mod inspection;
mod kubeconfig;
mod organizations;
mod pem;
pub(crate) mod revoked;
#[cfg(test)]
mod tests;
mod token_keys;
mod users;

use std::{net::SocketAddr, sync::Arc};

use portolan_types::Seams;

pub(crate) use agents::AgentCertificateRequest;
pub use certificates::CertifiedKey;
pub use files::{check_private, write_secret};
pub use inspection::{CertificateFacts, InspectedPair, inspect_certificate};
pub use kubeconfig::{Kubeconfig, kubeconfig};
pub use pem::{UnusablePair, certificates, certified};
pub use token_keys::TokenVerificationKey;
pub use users::{CertificateUser, IssuedUserCertificate, issue_user_certificate};

use crate::config::{ApiServerConfig, ConfigError, reachable};
use certificates::{CertificateAuthority, Lifetime};
use files::KeyFolder;
use revoked::{CertificateId, RevokedCertificates};
pub(crate) use revoked::{FileStamp, file_stamp};

const CONTINUE_KEY_BYTES: usize = 32;

/// Keys and certificates of a server.
pub struct Pki {
    /// Certificate of the authority, PEM.
    pub ca: String,
    authority: CertificateAuthority,
    /// Server certificate.
    pub server: CertifiedKey,
    /// Client certificate in `system:masters`.
    pub admin: CertifiedKey,
    /// Private key that signs service account tokens: ECDSA P-256, PKCS#8 PEM.
    pub service_accounts: String,
    /// Further keys that verify such tokens.
    pub verification_keys: Vec<TokenVerificationKey>,
    pub(crate) revoked: Arc<RevokedCertificates>,
    /// HMAC key of continue tokens.
    pub continue_key: Vec<u8>,
}

impl Pki {
    /// Loads existing keys, creates missing ones, and writes `admin.kubeconfig`.
    ///
    /// # Errors
    /// Files that cannot be read or written, are open to others, or do not belong together.
    pub fn open(config: &ApiServerConfig) -> Result<Self, ConfigError> {
        let folder = KeyFolder::open(config.data_dir.as_deref())?;
        let authority = authority(&folder, &config.seams)?;
        let server = server(&folder, &authority, config)?;
        let revoked = Arc::new(RevokedCertificates::open(config.data_dir.as_ref().map(|dir| dir.join(REVOKED)))?);
        let admin = admin(&folder, &authority, &revoked, config)?;
        let own = service_accounts(&folder)?;
        let named = config.token_signing_key.as_deref().map(token_keys::signing_key).transpose()?;
        let service_accounts = named.unwrap_or(own);
        let keys = config.token_keys.iter().map(|path| token_keys::verification_keys(path));
        let verification_keys = keys.collect::<Result<Vec<_>, _>>()?.concat();
        let continue_key = continue_key(&folder, &config.seams)?;
        let ca = authority.pair.certificate.clone();
        Ok(Self { ca, authority, server, admin, service_accounts, verification_keys, revoked, continue_key })
    }

    /// Renews certificates that expire soon: the server's, and in the data directory the administrator's with its
    /// kubeconfig. Returns `None` if the server certificate `shown` is still good.
    ///
    /// # Errors
    /// The errors of [`Pki::open`].
    pub fn renewed(&self, shown: &CertifiedKey, config: &ApiServerConfig) -> Result<Option<CertifiedKey>, ConfigError> {
        let folder = KeyFolder::open(config.data_dir.as_deref())?;
        if config.data_dir.is_some() {
            admin(&folder, &self.authority, &self.revoked, config)?;
        }
        if shown.is_valid(&self.authority.pair, &server_names(config), Lifetime::LEAF, &config.seams) {
            return Ok(None);
        }
        server(&folder, &self.authority, config).map(Some)
    }

    /// Issues a client certificate for a user with groups.
    ///
    /// # Errors
    /// A failure to sign.
    pub fn client(&self, user: &str, groups: &[&str], seams: &Seams) -> Result<CertifiedKey, ConfigError> {
        self.authority.client((user, groups), Lifetime::LEAF, seams)
    }

    /// Issues a client certificate for a user, with her groups and for her time.
    ///
    /// # Errors
    /// A failure to sign.
    pub(crate) fn user(&self, user: &CertificateUser<'_>, seams: &Seams) -> Result<CertifiedKey, ConfigError> {
        let seconds = i64::try_from(user.lifetime.as_secs()).unwrap_or(i64::MAX);
        self.authority.user((user.name, user.groups), seconds, seams)
    }

    /// Returns the administrator's kubeconfig for a server at `address`.
    pub fn admin_kubeconfig(&self, address: SocketAddr) -> String {
        admin_kubeconfig(
            &self.ca,
            &self.admin,
            &KubeconfigServer { authority: reachable(address).to_string(), name: None },
        )
    }
}

/// Denylist of client certificates, in the data directory.
const REVOKED: &str = "pki/revoked-certificates";
/// Name of the administrator in certificates and kubeconfigs.
const ADMIN: &str = "portolan-admin";

/// Server in a kubeconfig.
struct KubeconfigServer<'a> {
    /// Host and port.
    authority: String,
    /// Name; the authority if unset.
    name: Option<&'a str>,
}

/// Formats the kubeconfig with names that identify the server, since kubeconfigs get merged. `ca` may be several
/// certificates.
fn admin_kubeconfig(ca: &str, client: &CertifiedKey, server: &KubeconfigServer<'_>) -> String {
    let KubeconfigServer { authority, name } = server;
    let name = name.unwrap_or(authority);
    kubeconfig(&Kubeconfig {
        server: format!("https://{authority}/clusters/root"),
        context: &format!("root@{name}"),
        user: &format!("{ADMIN}@{name}"),
        ca,
        client,
    })
}

fn authority(folder: &KeyFolder, seams: &Seams) -> Result<CertificateAuthority, ConfigError> {
    if let Some(pair) = folder.pair("pki/ca")? {
        let unusable =
            |error: ConfigError| folder.wrong("pki/ca.crt", format!("holds no authority's certificate: {error}"));
        return CertificateAuthority::load(pair).map_err(unusable);
    }
    folder.refuse_half("pki/ca", &["pki/server.crt", "pki/admin.crt", "pki/service-accounts.key"])?;
    let authority = CertificateAuthority::create(seams)?;
    folder.write_pair("pki/ca", &authority.pair)?;
    Ok(authority)
}

/// Returns the server certificate: the existing one, unless its names differ or it expires soon.
fn server(
    folder: &KeyFolder,
    authority: &CertificateAuthority,
    config: &ApiServerConfig,
) -> Result<CertifiedKey, ConfigError> {
    let names = server_names(config);
    match folder.leaf("pki/server")? {
        Some(pair) if pair.is_valid(&authority.pair, &names, Lifetime::LEAF, &config.seams) => Ok(pair),
        _ => create_pair(folder, "pki/server", authority.server(&names, &config.seams)?),
    }
}

/// Returns the administrator's certificate, and writes its kubeconfig.
fn admin(
    folder: &KeyFolder,
    authority: &CertificateAuthority,
    revoked: &RevokedCertificates,
    config: &ApiServerConfig,
) -> Result<CertifiedKey, ConfigError> {
    let is_revoked = |pair: &CertifiedKey| {
        let certificates = certificates(&pair.certificate).unwrap_or_default();
        certificates.first().and_then(|der| CertificateId::of(der)).is_some_and(|id| revoked.contains(&id))
    };
    let is_good =
        |pair: &CertifiedKey| pair.is_valid(&authority.pair, &[], Lifetime::ADMIN, &config.seams) && !is_revoked(pair);
    let admin = match folder.leaf("pki/admin")? {
        Some(pair) if is_good(&pair) => pair,
        _ => {
            let made_now = authority.client((ADMIN, &["system:masters"]), Lifetime::ADMIN, &config.seams)?;
            create_pair(folder, "pki/admin", made_now)?
        }
    };
    let server = KubeconfigServer { authority: config.public_authority(), name: config.name.as_deref() };
    let ca = format!("{}{}", authority.pair.certificate, served_chain(config));
    let kubeconfig = admin_kubeconfig(&ca, &admin, &server);
    // An unchanged file is not written, so a start needs no free disk space; one that others can read is replaced.
    if folder.text("admin.kubeconfig").ok().flatten().as_ref() != Some(&kubeconfig) {
        folder.write("admin.kubeconfig", kubeconfig.as_bytes())?;
    }
    Ok(admin)
}

/// Returns the chain of the administrator's certificate, which the server may present at its external URL: clients have
/// to trust its issuer as they trust the server's own authority. Empty without an external URL.
fn served_chain(config: &ApiServerConfig) -> String {
    let files = config.serving.external_url.as_ref().and(config.serving.files.as_ref());
    // An unusable file ends the start later, with a better message.
    files.and_then(|files| std::fs::read_to_string(&files.certificate).ok()).unwrap_or_default()
}

fn service_accounts(folder: &KeyFolder) -> Result<String, ConfigError> {
    const FILE: &str = "pki/service-accounts.key";
    if let Some(text) = folder.text(FILE)? {
        certificates::check_signing_key(&text).map_err(|what| folder.wrong(FILE, what))?;
        return Ok(text);
    }
    if folder.bytes("pki/continue.key")?.is_some() {
        tracing::warn!("pki/service-accounts.key was missing and is recreated: all earlier tokens are invalid");
    }
    let key = certificates::signing_key()?;
    folder.write(FILE, key.as_bytes())?;
    Ok(key)
}

fn continue_key(folder: &KeyFolder, seams: &Seams) -> Result<Vec<u8>, ConfigError> {
    const FILE: &str = "pki/continue.key";
    match folder.bytes(FILE)? {
        Some(key) if key.len() == CONTINUE_KEY_BYTES => Ok(key),
        Some(key) => {
            let what = format!(
                "holds {} bytes where {CONTINUE_KEY_BYTES} are expected; put it back, or remove it: then lists that are read in \
                 pages begin anew",
                key.len()
            );
            Err(folder.wrong(FILE, what))
        }
        None => {
            let key = random_key(seams);
            folder.write(FILE, &key)?;
            Ok(key)
        }
    }
}

fn create_pair(folder: &KeyFolder, name: &str, pair: CertifiedKey) -> Result<CertifiedKey, ConfigError> {
    folder.write_pair(name, &pair)?;
    Ok(pair)
}

fn random_key(seams: &Seams) -> Vec<u8> {
    let mut key = vec![0; CONTINUE_KEY_BYTES];
    seams.entropy.fill(&mut key);
    key
}

fn server_names(config: &ApiServerConfig) -> Vec<String> {
    let address = config.bind_address.ip();
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1", "kubernetes.default.svc"].map(str::to_owned).into();
    if !address.is_unspecified() {
        names.push(address.to_string());
    }
    names.extend(config.tls_sans.iter().cloned());
    names.extend(config.serving.external_url.iter().map(|url| url.host().to_owned()));
    names.sort();
    names.dedup();
    names
}
