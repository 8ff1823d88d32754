//! Whom webhooks are trusted by: their own bundle of certificates, else those of the system.

use std::{io, path::PathBuf, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, ring},
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};
use x509_parser::{
    oid_registry::{
        OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA, OID_SIG_ECDSA_WITH_SHA256,
        OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ED25519,
    },
    prelude::{FromDer as _, ParsedExtension, X509Certificate},
};

/// Where systems keep the certificates that they trust.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A client's side of TLS that trusts a bundle in PEM; an empty one stands for the system's.
///
/// # Errors
/// When there is nothing to trust.
pub(super) fn config(bundle: &[u8]) -> Result<ClientConfig, String> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let trusted: Vec<CertificateDer<'static>> = match bundle.is_empty() {
        false => CertificateDer::pem_slice_iter(bundle).flatten().collect(),
        true => CertificateDer::pem_slice_iter(&of_system()).flatten().collect(),
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    if roots.is_empty() {
        return Err("tls: failed to verify certificate: x509: certificate signed by unknown authority".into());
    }
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let usual = usual.build().map_err(|e| e.to_string())?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { usual, trusted }))
        .with_no_client_auth();
    Ok(config)
}

fn of_system() -> Vec<u8> {
    let told = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let files = told.into_iter().chain(SYSTEM.iter().map(PathBuf::from));
    files.filter_map(|file| std::fs::read(file).ok()).find(|bytes| !bytes.is_empty()).unwrap_or_default()
}

/// As usual, and as Go does, a certificate that could sign others is good as well where it is itself in the bundle, or where the
/// bundle has its issuer: webhooks that make their own certificate have such ones, and so does `openssl req -x509 -CA`.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn is_good_though_it_could_sign(
        &self,
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let itself = self.trusted.iter().any(|own| own.as_ref() == certificate.as_ref());
        let parsed = parsed(certificate)?;
        if !itself && !issuers(&self.trusted, &parsed).any(|issuer| has_signed(&issuer, &parsed, now)) {
            return Err(CertificateError::UnknownIssuer.into());
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        match is_valid(&parsed, now) {
            true => Ok(()),
            false => Err(CertificateError::Expired.into()),
        }
    }
}

fn parsed<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, rustls::Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    Ok(parsed)
}

fn is_valid(certificate: &X509Certificate<'_>, now: UnixTime) -> bool {
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = certificate.validity();
    (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now)
}

/// Issuers of a name that are asked for one signature, as many as rustls asks.
const MAX_ISSUERS: usize = 100;

/// The trusted certificates that may vouch for one of a server.
fn issuers<'a>(
    trusted: &'a [CertificateDer<'_>],
    of: &X509Certificate<'_>,
) -> impl Iterator<Item = X509Certificate<'a>> {
    let is_of_name = |issuer: &X509Certificate<'_>| issuer.subject().as_raw() == of.issuer().as_raw();
    trusted.iter().filter_map(|issuer| parsed(issuer).ok()).filter(is_of_name).take(MAX_ISSUERS)
}

/// Whether a trusted certificate vouches for one of a server that could sign others, which the usual way refuses whoever signed it.
/// What it would have to heed and does not know, it takes for a no.
fn has_signed(issuer: &X509Certificate<'_>, certificate: &X509Certificate<'_>, now: UnixTime) -> bool {
    let signs = issuer.key_usage().is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
    certificate.is_ca()
        && issuer.is_ca()
        && signs
        && is_valid(issuer, now)
        && [certificate, issuer].into_iter().all(|each| is_for_servers(each) && is_understood(each))
        && is_strong(certificate)
        && certificate.verify_signature(Some(issuer.public_key())).is_ok()
}

fn is_for_servers(certificate: &X509Certificate<'_>) -> bool {
    match certificate.extended_key_usage() {
        Ok(None) => true,
        Ok(Some(usage)) => usage.value.server_auth || usage.value.any,
        Err(_) => false,
    }
}

/// Whether its signature is of a kind that Go's `crypto/x509` takes: none of SHA-1.
fn is_strong(certificate: &X509Certificate<'_>) -> bool {
    let strong = [
        OID_PKCS1_SHA256WITHRSA,
        OID_PKCS1_SHA384WITHRSA,
        OID_PKCS1_SHA512WITHRSA,
        OID_SIG_ECDSA_WITH_SHA256,
        OID_SIG_ECDSA_WITH_SHA384,
        OID_SIG_ED25519,
    ];
    strong.contains(&certificate.signature_algorithm.algorithm)
}

/// Whether every extension that must be heeded is one that is.
fn is_understood(certificate: &X509Certificate<'_>) -> bool {
    let is_heeded = |parsed: &ParsedExtension<'_>| {
        use ParsedExtension::{BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAlternativeName};
        matches!(parsed, BasicConstraints(_) | KeyUsage(_) | ExtendedKeyUsage(_) | SubjectAlternativeName(_))
    };
    certificate.extensions().iter().all(|extension| {
        // Names that an issuer is kept to bind it also where nothing says that they must.
        let binds = extension.critical || matches!(extension.parsed_extension(), ParsedExtension::NameConstraints(_));
        !binds || is_heeded(extension.parsed_extension())
    })
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let usual = self.usual.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        usual.or_else(|failure| match self.is_good_though_it_could_sign(end_entity, server_name, now) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(_) => Err(failure),
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// A failed handshake in Go's words.
pub(super) fn told(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(why)) = cause else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => "EOF".into(),
            _ => format!("tls: {error}"),
        };
    };
    let why = match why {
        // A bad signature is that of somebody whose namesake is trusted.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "x509: certificate signed by unknown authority".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "x509: certificate has expired or is not yet valid".to_owned()
        }
        other => format!("x509: {other}"),
    };
    format!("tls: failed to verify certificate: {why}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
        KeyPair, NameConstraints, date_time_ymd,
    };

    use super::*;

    type Change = fn(&mut CertificateParams);

    fn params(name: &str, change: Change) -> CertificateParams {
        let mut params = CertificateParams::new(vec!["hook.example".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2027, 1, 1));
        change(&mut params);
        params
    }

    /// Whether a certificate is good that could sign others, where another one that signed it is trusted.
    fn is_good(root: Change, leaf: Change, host: &str, trusted: &str) -> bool {
        let issuer = |name| CertifiedIssuer::self_signed(params(name, root), KeyPair::generate().unwrap()).unwrap();
        let (own, namesake) = (issuer("root"), issuer("root"));
        let other = issuer("other");
        let leaf = params("leaf", leaf).signed_by(&KeyPair::generate().unwrap(), &own).unwrap();
        let bundle = match trusted {
            "its issuer" => own.pem(),
            "a namesake of its issuer" => namesake.pem(),
            _ => other.pem(),
        };
        let trusted: Vec<_> = CertificateDer::pem_slice_iter(bundle.as_bytes()).flatten().collect();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(trusted.iter().cloned());
        let provider = Arc::new(ring::default_provider());
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        // In the middle of 2026.
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1_782_000_000));
        let name = ServerName::try_from(host).unwrap();
        Verifier { usual, trusted }.verify_server_cert(leaf.der(), &[], &name, &[], now).is_ok()
    }

    #[test]
    fn a_certificate_that_could_sign_is_good_where_its_issuer_is_trusted() {
        let (same, host, own): (Change, _, _) = (|_| {}, "hook.example", "its issuer");
        assert!(is_good(same, same, host, own));
        assert!(is_good(same, |leaf| leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth], host, own));
        let cases: [(&str, Change, Change, &str, &str); 8] = [
            ("another name", same, same, "other.example", own),
            ("another issuer", same, same, host, "another"),
            ("a namesake", same, same, host, "a namesake of its issuer"),
            ("ended", same, |leaf| leaf.not_after = date_time_ymd(2026, 2, 1), host, own),
            ("of an issuer that ended", |root| root.not_after = date_time_ymd(2026, 2, 1), same, host, own),
            (
                "for clients",
                same,
                |leaf| leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
                host,
                own,
            ),
            (
                "of an issuer for clients",
                |root| root.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
                same,
                host,
                own,
            ),
            (
                "of an issuer that is kept to names",
                |root| {
                    let permitted = vec![GeneralSubtree::DnsName("elsewhere.example".to_owned())];
                    root.name_constraints =
                        Some(NameConstraints { permitted_subtrees: permitted, excluded_subtrees: Vec::new() });
                },
                same,
                host,
                own,
            ),
        ];
        for (case, root, leaf, host, trusted) in cases {
            assert!(!is_good(root, leaf, host, trusted), "{case}");
        }
    }
}
