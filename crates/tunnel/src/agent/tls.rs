//! TLS to the server: it is recognized by its authority, from an earlier certificate, a file, or the pin of a token.

use std::sync::Arc;

use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _};
use sha2::{Digest as _, Sha256};

use super::{AgentCredential, AgentError, credential::certificate_der};

/// Proof of the server's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerTrust {
    /// SHA-256 of the authority's certificate, which the server shows in its chain.
    Pin([u8; 32]),
    /// Authority's certificate, PEM.
    Authority(String),
}

/// Returns the TLS configuration: TLS 1.2 or 1.3, HTTP/2, and the client certificate of `credential`.
///
/// # Errors
/// Certificates or keys that cannot be used.
pub(super) fn client_config(
    trust: &ServerTrust,
    credential: Option<&AgentCredential>,
) -> Result<ClientConfig, AgentError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(AgentError::credential)?;
    let builder = match trust {
        ServerTrust::Authority(pem) => builder.with_root_certificates(roots(certificate_der(pem)?)?),
        ServerTrust::Pin(pin) => {
            let verifier = PinnedAuthority { pin: *pin, provider };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    let mut config = match credential {
        None => builder.with_no_client_auth(),
        Some(credential) => {
            let chain = vec![certificate_der(&credential.certificate)?];
            let key = PrivateKeyDer::from_pem_slice(credential.key.as_bytes()).map_err(AgentError::credential)?;
            builder.with_client_auth_cert(chain, key).map_err(AgentError::credential)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn roots(authority: CertificateDer<'static>) -> Result<RootCertStore, AgentError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority).map_err(AgentError::credential)?;
    Ok(roots)
}

/// Verifier that accepts servers of one authority, known by its hash only.
#[derive(Debug)]
struct PinnedAuthority {
    pin: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_pinned = |der: &&CertificateDer<'_>| <[u8; 32]>::from(Sha256::digest(der)) == self.pin;
        let authority = intermediates.iter().find(is_pinned);
        let authority =
            authority.ok_or_else(|| Error::General("the server is not the one that the token names".into()))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone()).build();
        let verifier = verifier.map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
