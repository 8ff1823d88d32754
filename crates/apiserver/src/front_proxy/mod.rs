//! Certificate by which aggregated API servers know that a request comes from this server, so that they believe its
//! `X-Remote-*` headers. Each logical cluster has its own, which its `extension-apiserver-authentication` names: who
//! may impersonate anyone in one workspace is believed by the API servers of that workspace only.
//!
//! Keys are derived from a secret that all servers on one store share, so nothing is stored.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use hmac::{Hmac, Mac as _};
use portolan_types::LogicalClusterId;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::Sha256;

/// Common name in certificates.
pub(crate) const NAME: &str = "portolan-front-proxy";
/// Purpose of the derived keys.
const PURPOSE: &[u8] = b"front proxy of a logical cluster";
/// DER of an Ed25519 key in PKCS#8 up to its 32 bytes (RFC 8410).
const KEY_HEAD: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// Most cached certificates.
const MAX_CACHED: usize = 256;

/// Certificate of a logical cluster, with its key.
pub(crate) struct ProxyIdentity {
    pem: String,
    der: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl ProxyIdentity {
    /// Returns the certificate in PEM. It is its own authority.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the certificate and key for TLS.
    pub(crate) fn for_tls(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (vec![self.der.clone()], PrivateKeyDer::Pkcs8(self.key.clone_key()))
    }
}

/// Source of the certificates of logical clusters.
pub(crate) struct FrontProxies {
    secret: Vec<u8>,
    cached: Mutex<HashMap<LogicalClusterId, Arc<ProxyIdentity>>>,
}

impl FrontProxies {
    /// Creates a source. `secret` is the same in all servers on one store.
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self { secret: secret.to_vec(), cached: Mutex::default() }
    }

    /// Returns the certificate of a logical cluster; `None` if it cannot be made.
    pub(crate) fn of(&self, cluster: LogicalClusterId) -> Option<Arc<ProxyIdentity>> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = cached.get(&cluster) {
            return Some(known.clone());
        }
        let made = self.make(cluster).inspect_err(|error| tracing::error!(%error, "no certificate of a front proxy"));
        let made = Arc::new(made.ok()?);
        if cached.len() >= MAX_CACHED {
            cached.clear();
        }
        cached.insert(cluster, made.clone());
        Some(made)
    }

    fn make(&self, cluster: LogicalClusterId) -> Result<ProxyIdentity, rcgen::Error> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length");
        mac.update(PURPOSE);
        mac.update(&cluster.get().to_be_bytes());
        let key = PrivatePkcs8KeyDer::from([&KEY_HEAD[..], &mac.finalize().into_bytes()].concat());
        let pair = KeyPair::try_from(&key)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, NAME);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.self_signed(&pair)?;
        Ok(ProxyIdentity { pem: certificate.pem(), der: certificate.der().clone(), key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_logical_cluster_has_its_own_and_all_servers_the_same() {
        let (one, two) = (FrontProxies::new(b"secret"), FrontProxies::new(b"secret"));
        let pem = |proxies: &FrontProxies, id| proxies.of(LogicalClusterId::new(id)).unwrap().pem().to_owned();
        assert_eq!(pem(&one, 7), pem(&two, 7));
        assert_ne!(pem(&one, 7), pem(&one, 8));
        assert_ne!(pem(&one, 7), pem(&FrontProxies::new(b"other"), 7));
        for id in 0..1000 {
            one.of(LogicalClusterId::new(id)).unwrap();
        }
        assert!(one.cached.lock().unwrap().len() <= MAX_CACHED);
    }
}
