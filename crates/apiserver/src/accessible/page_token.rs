//! Tokens that continue an answer. They are sealed: the last logical cluster that was decided on may be one that the
//! caller may not enter.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac as _};
use portolan_types::{LogicalClusterId, Seams, Status};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::Sha256;

/// Label of the key, which no other use of the secret has.
const LABEL: &[u8] = b"portolan access reviews, version 1";
/// Longest token that is opened, in bytes.
const MAX_TOKEN: usize = 128;

/// Key that seals and opens tokens.
pub(super) struct TokenKey(LessSafeKey);

impl TokenKey {
    /// Derives the key from the secret of the control plane.
    pub(super) fn derive(secret: &[u8]) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
        mac.update(LABEL);
        let bytes = mac.finalize().into_bytes();
        Self(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).expect("SHA-256 has as many bytes as the key")))
    }

    /// Seals a position in the answer to a question.
    ///
    /// # Errors
    /// 500 if the cipher fails.
    pub(super) fn seal(&self, last: LogicalClusterId, about: &str, seams: &Seams) -> Result<String, Status> {
        let mut nonce = [0; NONCE_LEN];
        seams.entropy.fill(&mut nonce);
        let mut sealed = last.get().to_be_bytes().to_vec();
        let sealing = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(sealing, Aad::from(about.as_bytes()), &mut sealed);
        let tag = tag.map_err(|_| Status::internal("a token could not be sealed"))?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &sealed, tag.as_ref()].concat()))
    }

    /// Opens a token of the same question; `None` for any other text.
    pub(super) fn open(&self, token: &str, about: &str) -> Option<LogicalClusterId> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let opened = self.0.open_in_place(nonce, Aad::from(about.as_bytes()), &mut sealed).ok()?;
        Some(LogicalClusterId::new(u64::from_be_bytes((&*opened).try_into().ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_continues_its_own_question_only() {
        let (key, seams) = (TokenKey::derive(b"secret"), Seams::system());
        let last = LogicalClusterId::new(42);
        let token = key.seal(last, "ann\0", &seams).unwrap();
        assert_eq!(key.open(&token, "ann\0"), Some(last));
        assert_ne!(token, key.seal(last, "ann\0", &seams).unwrap(), "tokens of one position cannot be compared");
        for (token, about) in [(&*token, "bob\0"), (&token[1..], "ann\0"), ("", "ann\0"), ("!", "ann\0")] {
            assert_eq!(key.open(token, about), None, "{token} {about}");
        }
        assert_eq!(TokenKey::derive(b"other").open(&token, "ann\0"), None);
        assert_eq!(key.open(&"a".repeat(10_000), "ann\0"), None);
    }
}
