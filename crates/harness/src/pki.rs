//! Certificate authority of one cluster, for the time of a run.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// Certificate and its private key, in PEM.
pub struct PemPair {
    /// Certificate in PEM.
    pub certificate: String,
    /// Private key in PEM.
    pub key: String,
}

/// Issuer of serving and client certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// Creates a self-signed authority.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// Returns the authority's own certificate in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Issues a serving certificate for loopback.
    pub fn server(&self) -> Result<PemPair> {
        self.server_with(&[])
    }

    /// Issues a serving certificate for loopback and for these hosts.
    pub fn server_with(&self, hosts: &[String]) -> Result<PemPair> {
        let mut names = ["localhost", "127.0.0.1", "kubernetes.default.svc"].map(str::to_owned).to_vec();
        names.extend_from_slice(hosts);
        self.issue(CertificateParams::new(names)?, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Issues a serving certificate for a host.
    pub fn named(&self, name: &str) -> Result<PemPair> {
        self.issue(CertificateParams::new([name.to_owned()])?, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Issues a client certificate for a user in one group, as Kubernetes reads it: common name and organization.
    pub fn client(&self, user: &str, group: &str) -> Result<PemPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, group);
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<PemPair> {
        let key = KeyPair::generate()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(PemPair { certificate, key: key.serialize_pem() })
    }
}
