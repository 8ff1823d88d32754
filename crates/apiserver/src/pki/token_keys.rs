//! Keys of service account tokens from files that the administrator names: one signs, any number verify.

use std::path::Path;

use rustls_pki_types::{SubjectPublicKeyInfoDer, pem::PemObject as _};

use super::{
    ec::P256Key,
    files::{check_private_file, read_text},
};
use crate::config::ConfigError;

/// Bytes of an uncompressed point of P-256.
const POINT: usize = 65;
/// DER prefix of a P-256 SubjectPublicKeyInfo, up to the point.
const PUBLIC_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Public key that verifies tokens: 4 and the two coordinates of its point.
pub type TokenVerificationKey = [u8; POINT];

/// Reads the private key that signs tokens, as PKCS#8 PEM.
///
/// # Errors
/// A file that others can read, or that holds no ECDSA P-256 key.
pub(super) fn signing_key(path: &Path) -> Result<String, ConfigError> {
    check_private_file(path)?;
    let key = P256Key::from_pem(&read_text(path)?);
    key.map(|key| key.pkcs8_pem()).ok_or_else(|| wrong(path, "a private key"))
}

/// Reads the keys that verify tokens: public keys, or a private key whose public part is used.
///
/// # Errors
/// A file without an ECDSA P-256 key, or with another key beside it.
pub(super) fn verification_keys(path: &Path) -> Result<Vec<TokenVerificationKey>, ConfigError> {
    let text = read_text(path)?;
    if let Some(key) = P256Key::from_pem(&text) {
        return Ok(vec![*key.point()]);
    }
    let keys = SubjectPublicKeyInfoDer::pem_slice_iter(text.as_bytes()).map(|der| point_of(&der.ok()?));
    let keys: Option<Vec<_>> = keys.collect();
    keys.filter(|keys| !keys.is_empty()).ok_or_else(|| wrong(path, "public keys or a private key"))
}

fn point_of(der: &SubjectPublicKeyInfoDer<'_>) -> Option<TokenVerificationKey> {
    der.strip_prefix(&PUBLIC_HEAD)?.try_into().ok().filter(|point: &TokenVerificationKey| point[0] == 4)
}

fn wrong(path: &Path, expected: &str) -> ConfigError {
    let what = format!("holds no key for tokens: PEM of {expected} of ECDSA P-256 is expected");
    ConfigError::Content { path: path.to_owned(), what }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use rcgen::{KeyPair, PublicKeyData as _};

    use super::*;

    #[test]
    fn keys_are_read_from_private_and_public_pem() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let (first, second) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let sec1 = P256Key::from_pem(&first.serialize_pem()).unwrap().sec1_pem();
        for private in [&first.serialize_pem(), &sec1] {
            let path = file("private", private);
            assert_eq!(verification_keys(&path).unwrap(), [first.der_bytes()]);
            assert_eq!(KeyPair::from_pem(&signing_key(&path).unwrap()).unwrap().der_bytes(), first.der_bytes());
        }
        let public = file("public", &format!("{}{}", first.public_key_pem(), second.public_key_pem()));
        assert_eq!(verification_keys(&public).unwrap(), [first.der_bytes(), second.der_bytes()]);
        assert!(signing_key(&public).unwrap_err().to_string().contains("a private key of ECDSA P-256"));
        let other = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        for text in ["", "garbage", &other.public_key_pem(), &other.serialize_pem()] {
            assert!(verification_keys(&file("other", text)).is_err(), "{text}");
        }
        let open = file("open", &sec1);
        fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(signing_key(&open), Err(ConfigError::TooOpen { .. })));
        verification_keys(&open).expect("that it can be read by others is a matter of its signing");
    }
}
