//! Parsing of key and certificate files, with errors that name the expected content.

use rustls::{crypto::ring, sign};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Unusable file of a pair, with a reason that follows its name in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnusablePair {
    /// The certificate file.
    Certificate(String),
    /// The key file.
    Key(String),
    /// Both are valid, but do not belong together.
    Together(String),
}

/// Parses the certificates in a text, at least one.
///
/// # Errors
/// The expected content, in words that follow the file's name.
pub fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let expected = || "holds no certificate: PEM is expected, from -----BEGIN CERTIFICATE----- on".to_owned();
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<_, _>>().map_err(|_| expected())?;
    let is_one = |der: &CertificateDer<'_>| X509Certificate::from_der(der).is_ok_and(|(rest, _)| rest.is_empty());
    if !found.is_empty() && found.iter().all(is_one) { Ok(found) } else { Err(expected()) }
}

/// Parses a certificate chain and the key of its first certificate for TLS.
///
/// # Errors
/// Invalid content, or a key that does not belong to the certificate.
pub fn certified(certificate: &str, key: &str) -> Result<sign::CertifiedKey, UnusablePair> {
    let chain = certificates(certificate).map_err(UnusablePair::Certificate)?;
    let expected = |_| {
        let what = "holds no private key: PEM is expected, from -----BEGIN PRIVATE KEY----- on (RSA, ECDSA or Ed25519)";
        UnusablePair::Key(what.to_owned())
    };
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| expected(()))?;
    let signing = ring::sign::any_supported_type(&key).map_err(|_| expected(()))?;
    let pair = sign::CertifiedKey::new(chain, signing);
    match pair.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(pair),
        Err(_) => Err(UnusablePair::Together("is not the key of the certificate beside it".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(["a".to_owned()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn errors_name_the_expected_content() {
        let ((certificate, key), (other, _)) = (pair(), pair());
        let twice = format!("{certificate}{other}");
        for (case, certificate, key, expected) in [
            ("a pair", &*certificate, &*key, ""),
            ("a chain", &twice, &key, ""),
            ("no text", "", &key, "Certificate(\"holds no certificate: PEM is expected"),
            ("garbage", "garbage", &key, "Certificate(\"holds no certificate"),
            ("the key in place of the certificate", &key, &key, "Certificate(\"holds no certificate"),
            ("a certificate that is cut", &certificate[..200], &key, "Certificate(\"holds no certificate"),
            (
                "PEM of something else",
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                &key,
                "Certificate(",
            ),
            ("no key", &certificate, "", "Key(\"holds no private key: PEM is expected"),
            ("garbage for a key", &certificate, "\u{0}\u{1}", "Key(\"holds no private key"),
            (
                "a key of nothing",
                &certificate,
                "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
                "Key(\"holds no private key",
            ),
            ("the certificate in place of the key", &certificate, &certificate, "Key(\"holds no private key"),
            ("another's key", &other, &key, "Together(\"is not the key of the certificate"),
        ] {
            let found = certified(certificate, key).err().map_or(String::new(), |wrong| format!("{wrong:?}"));
            assert!(found.starts_with(expected) && found.is_empty() == expected.is_empty(), "{case}: {found}");
        }
        assert_eq!(certificates(&twice).unwrap().len(), 2);
    }
}
