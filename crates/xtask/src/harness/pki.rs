//! A certificate authority for one cluster, living as long as its run.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// A certificate and its private key, PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Issues serving and client certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// The authority's own certificate, PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A serving certificate for loopback.
    pub(crate) fn server(&self) -> Result<Pair> {
        let names = ["localhost", "127.0.0.1", "kubernetes.default.svc"].map(str::to_owned);
        self.issue(CertificateParams::new(names)?, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A serving certificate for a host.
    pub(crate) fn named(&self, name: &str) -> Result<Pair> {
        self.issue(CertificateParams::new([name.to_owned()])?, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client certificate for a user in one group, as Kubernetes reads it: common name and organization.
    pub(crate) fn client(&self, user: &str, group: &str) -> Result<Pair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, group);
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Pair> {
        let key = KeyPair::generate()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }
}
