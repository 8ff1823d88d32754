//! Private keys of ECDSA P-256 in their two forms: PKCS#8 (`PRIVATE KEY`) and SEC 1 (`EC PRIVATE KEY`, RFC 5915).

use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer, pem::PemObject as _};
use x509_parser::der_parser::asn1_rs::{Any, FromDer as _, Integer, OctetString, Sequence};

/// Bytes of the private number and of the uncompressed public point.
const SCALAR: usize = 32;
const POINT: usize = 65;
/// `SEQUENCE { INTEGER 1, OCTET STRING (32) …`, to the private number.
const SEC1_HEAD: [u8; 7] = [0x30, 0x77, 0x02, 0x01, 0x01, 0x04, 0x20];
/// `[0] OID prime256v1, [1] BIT STRING (65)`, to the public point.
const SEC1_CURVE: [u8; 17] =
    [0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0xa1, 0x44, 0x03, 0x42, 0x00];
/// `SEQUENCE { INTEGER 0, SEQUENCE { OID ecPublicKey, OID prime256v1 }, OCTET STRING { SEQUENCE { INTEGER 1, OCTET
/// STRING (32) …`.
const PKCS8_HEAD: [u8; 36] = [
    0x30, 0x81, 0x87, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08,
    0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x6d, 0x30, 0x6b, 0x02, 0x01, 0x01, 0x04, 0x20,
];
/// `[1] BIT STRING (65)`.
const PKCS8_POINT: [u8; 5] = [0xa1, 0x44, 0x03, 0x42, 0x00];
/// The algorithm of such keys in PKCS#8.
const P256: [u8; 19] =
    [0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];

/// ECDSA P-256 private key with its public point.
pub(crate) struct P256Key {
    scalar: [u8; SCALAR],
    point: [u8; POINT],
}

impl P256Key {
    /// Parses PEM in either form; `None` for anything else, and for a key without its public point.
    pub(crate) fn from_pem(pem: &str) -> Option<Self> {
        match PrivateKeyDer::from_pem_slice(pem.as_bytes()).ok()? {
            PrivateKeyDer::Sec1(key) => Self::from_sec1(key.secret_sec1_der()),
            PrivateKeyDer::Pkcs8(key) => Self::from_pkcs8(key.secret_pkcs8_der()),
            _ => None,
        }
    }

    fn from_pkcs8(der: &[u8]) -> Option<Self> {
        let (_, outer) = Sequence::from_der(der).ok()?;
        let (rest, _version) = Integer::from_der(&outer.content).ok()?;
        let (rest, algorithm) = Sequence::from_der(rest).ok()?;
        if algorithm.content.as_ref() != P256 {
            return None;
        }
        let (_, key) = OctetString::from_der(rest).ok()?;
        Self::from_sec1(key.as_cow())
    }

    /// Parses `ECPrivateKey`. The curve may be omitted, as within PKCS#8.
    fn from_sec1(der: &[u8]) -> Option<Self> {
        let (_, outer) = Sequence::from_der(der).ok()?;
        let (rest, _version) = Integer::from_der(&outer.content).ok()?;
        let (mut rest, scalar) = OctetString::from_der(rest).ok()?;
        let scalar = scalar.as_cow().as_ref().try_into().ok()?;
        while !rest.is_empty() {
            let (next, part) = Any::from_der(rest).ok()?;
            match (part.tag().0, part.data) {
                (0, curve) if curve != &P256[9..] => return None,
                (1, [0x03, 0x42, 0x00, point @ ..]) => {
                    return Some(Self { scalar, point: point.try_into().ok().filter(|p: &[u8; POINT]| p[0] == 4)? });
                }
                _ => rest = next,
            }
        }
        None
    }

    /// Returns the public point: 4 and its two coordinates.
    pub(crate) fn point(&self) -> &[u8; POINT] {
        &self.point
    }

    /// Formats the key as `EC PRIVATE KEY`: clients based on fabric8 take each `PRIVATE KEY` for RSA.
    pub(crate) fn sec1_pem(&self) -> String {
        let der = [&SEC1_HEAD[..], &self.scalar, &SEC1_CURVE, &self.point].concat();
        pem("EC PRIVATE KEY", PrivateSec1KeyDer::from(der).secret_sec1_der())
    }

    /// Formats the key as `PRIVATE KEY`.
    pub(crate) fn pkcs8_pem(&self) -> String {
        let der = [&PKCS8_HEAD[..], &self.scalar, &PKCS8_POINT, &self.point].concat();
        pem("PRIVATE KEY", PrivatePkcs8KeyDer::from(der).secret_pkcs8_der())
    }
}

pub(super) fn pem(label: &str, der: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, PublicKeyData as _};

    use super::*;

    /// Made by `openssl ecparam -name prime256v1 -genkey -noout`.
    const OPENSSL: &str = include_str!("testdata/openssl-ec.key");

    #[test]
    fn a_key_is_the_same_in_both_forms() {
        let made = KeyPair::generate().unwrap();
        let key = P256Key::from_pem(&made.serialize_pem()).unwrap();
        assert_eq!(key.point()[..], *made.der_bytes());
        let sec1 = key.sec1_pem();
        assert!(sec1.starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
        let again = P256Key::from_pem(&sec1).unwrap().pkcs8_pem();
        assert_eq!(KeyPair::from_pem(&again).unwrap().der_bytes(), made.der_bytes());
        rustls::crypto::ring::sign::any_supported_type(&PrivateKeyDer::from_pem_slice(sec1.as_bytes()).unwrap())
            .unwrap();
    }

    #[test]
    fn keys_of_openssl_are_read_and_written_as_they_were() {
        let key = P256Key::from_pem(OPENSSL).unwrap();
        assert_eq!(key.sec1_pem(), OPENSSL);
        let other = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap().serialize_pem();
        for text in ["", "garbage", &other] {
            assert!(P256Key::from_pem(text).is_none(), "{text}");
        }
    }
}
