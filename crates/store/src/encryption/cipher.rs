//! Ciphers: AES-GCM and secretbox (XSalsa20-Poly1305).

use std::fmt;

use crypto_secretbox::{KeyInit as _, XSalsa20Poly1305, aead::Aead as _};
use portolan_types::Seams;
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
};
use sha2::{Digest as _, Sha256};

/// Random bytes from which the key of one record is derived. Without them a key could seal 2^32 records at most, as its
/// random nonces would repeat.
const SALT: usize = 16;
const SECRETBOX_NONCE: usize = 24;
const SECRETBOX_KEY: usize = 32;
/// Lengths of keys that AES-GCM takes, in bytes.
const AES_KEYS: [usize; 3] = [16, 24, 32];
const SHA256: usize = 32;
const DERIVATION: &[u8] = b"portolan aesgcm record key v1\0";

/// Key with its name. Its bytes are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct EncryptionKey {
    name: String,
    secret: Vec<u8>,
}

impl EncryptionKey {
    /// Creates a key.
    pub fn new(name: impl Into<String>, secret: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), secret: secret.into() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncryptionKey({})", self.name)
    }
}

/// Provider of a configuration. The first one of a resource seals; all of them open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncryptionProvider {
    /// No encryption.
    Identity,
    /// AES-GCM with a key per record, derived from the named one.
    AesGcm(Vec<EncryptionKey>),
    /// XSalsa20-Poly1305, as NaCl's secretbox.
    Secretbox(Vec<EncryptionKey>),
}

/// Cipher of a sealed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SealingCipher {
    AesGcm,
    Secretbox,
}

impl SealingCipher {
    /// Returns the name in configurations and sealed bodies.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AesGcm => "aesgcm",
            Self::Secretbox => "secretbox",
        }
    }

    pub(super) fn of(name: &str) -> Option<Self> {
        [Self::AesGcm, Self::Secretbox].into_iter().find(|cipher| cipher.name() == name)
    }
}

impl EncryptionProvider {
    /// Returns the cipher and its keys; `None` without encryption.
    pub(super) fn cipher(&self) -> Option<(SealingCipher, &[EncryptionKey])> {
        match self {
            Self::Identity => None,
            Self::AesGcm(keys) => Some((SealingCipher::AesGcm, keys)),
            Self::Secretbox(keys) => Some((SealingCipher::Secretbox, keys)),
        }
    }

    /// Checks names and lengths of the keys.
    ///
    /// # Errors
    /// The first fault; it does not quote a key.
    pub(super) fn check(&self) -> Result<(), String> {
        let Some((cipher, keys)) = self.cipher() else { return Ok(()) };
        if keys.is_empty() {
            return Err(format!("{}: keys: Required value", cipher.name()));
        }
        for (at, key) in keys.iter().enumerate() {
            let place = format!("{}: keys[{at}]", cipher.name());
            if key.name.is_empty() || key.name.contains(':') || key.name.len() > 128 {
                return Err(format!("{place}.name: Invalid value: a name has 1 to 128 characters without ':'"));
            }
            if keys[..at].iter().any(|other| other.name == key.name) {
                return Err(format!("{place}.name: Duplicate value: {:?}", key.name));
            }
            let fits = match cipher {
                SealingCipher::AesGcm => AES_KEYS.contains(&key.secret.len()),
                SealingCipher::Secretbox => key.secret.len() == SECRETBOX_KEY,
            };
            if !fits {
                let wanted = if cipher == SealingCipher::AesGcm { "16, 24 or 32" } else { "32" };
                return Err(format!(
                    "{place}.secret: Invalid value: the key has {} bytes where {wanted} are expected",
                    key.secret.len()
                ));
            }
        }
        Ok(())
    }
}

/// Seals `plain`, bound to `context`. Appends random bytes and the ciphertext to `out`.
pub(super) fn seal(cipher: SealingCipher, key: &EncryptionKey, sealing: Sealing<'_>, out: &mut Vec<u8>) {
    let Sealing { plain, context, seams } = sealing;
    match cipher {
        SealingCipher::AesGcm => {
            let mut random = [0; SALT + NONCE_LEN];
            seams.entropy.fill(&mut random);
            out.extend_from_slice(&random);
            let (salt, nonce) = random.split_at(SALT);
            let mut body = plain.to_vec();
            let nonce = Nonce::try_assume_unique_for_key(nonce).expect("its length is that of a nonce");
            record_key(key, salt)
                .seal_in_place_append_tag(nonce, Aad::from(context), &mut body)
                .expect("objects are far smaller than the limit of AES-GCM");
            out.append(&mut body);
        }
        SealingCipher::Secretbox => {
            let mut nonce = [0; SECRETBOX_NONCE];
            seams.entropy.fill(&mut nonce);
            out.extend_from_slice(&nonce);
            // Secretbox authenticates no further data, so the hash of the context is part of the message.
            let message = [&Sha256::digest(context)[..], plain].concat();
            let sealed = secretbox(key).encrypt(&nonce.into(), &*message).expect("encryption into memory succeeds");
            out.extend_from_slice(&sealed);
        }
    }
}

/// Input of [`seal`].
pub(super) struct Sealing<'a> {
    pub(super) plain: &'a [u8],
    pub(super) context: &'a [u8],
    pub(super) seams: &'a Seams,
}

/// Opens what [`seal`] has appended; `None` if it was changed, moved, or sealed with another key.
pub(super) fn open(cipher: SealingCipher, key: &EncryptionKey, sealed: &[u8], context: &[u8]) -> Option<Vec<u8>> {
    match cipher {
        SealingCipher::AesGcm => {
            let (salt, rest) = sealed.split_at_checked(SALT)?;
            let (nonce, body) = rest.split_at_checked(NONCE_LEN)?;
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut body = body.to_vec();
            let length = record_key(key, salt).open_in_place(nonce, Aad::from(context), &mut body).ok()?.len();
            body.truncate(length);
            Some(body)
        }
        SealingCipher::Secretbox => {
            let (nonce, body) = sealed.split_at_checked(SECRETBOX_NONCE)?;
            let nonce: [u8; SECRETBOX_NONCE] = nonce.try_into().ok()?;
            let mut message = secretbox(key).decrypt(&nonce.into(), body).ok()?;
            let (hash, _) = message.split_at_checked(SHA256)?;
            let is_bound = hash == &Sha256::digest(context)[..];
            is_bound.then(|| message.split_off(SHA256))
        }
    }
}

fn record_key(key: &EncryptionKey, salt: &[u8]) -> LessSafeKey {
    let secret = hmac::Key::new(hmac::HMAC_SHA256, &key.secret);
    let derived = hmac::sign(&secret, &[DERIVATION, salt].concat());
    let key = UnboundKey::new(&AES_256_GCM, derived.as_ref()).expect("a SHA-256 has the length of a key");
    LessSafeKey::new(key)
}

fn secretbox(key: &EncryptionKey) -> XSalsa20Poly1305 {
    XSalsa20Poly1305::new_from_slice(&key.secret).expect("the length was checked")
}
