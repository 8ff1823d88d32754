//! Sealing of sessions: AES-256-GCM under a key that follows from the secret of the control plane.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac as _};
use jiff::Timestamp;
use portolan_strategy::rbac::User;
use portolan_types::{Seams, Status};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::pki::revoked::CertificateId;

use super::{ConsoleSession, SessionCredential, SessionUser};

/// Label of the key, which no other use of the secret has.
const LABEL: &[u8] = b"portolan console sessions, version 1";

/// Use of a sealed text. Text that was sealed for one is refused by the others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Session in a cookie.
    Session,
    /// Session behind a one-time link.
    Link,
    /// Sign-in at an issuer that is under way.
    SignIn,
}

impl Purpose {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Session => b"session",
            Self::Link => b"link",
            Self::SignIn => b"sign-in",
        }
    }
}

/// Key that seals and opens.
pub(super) struct SealKey(LessSafeKey);

impl SealKey {
    /// Derives the key from a secret.
    pub(super) fn derive(secret: &[u8]) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
        mac.update(LABEL);
        let bytes = mac.finalize().into_bytes();
        Self(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).expect("SHA-256 has as many bytes as the key")))
    }

    /// Seals bytes: nonce, ciphertext and tag in base64url.
    ///
    /// # Errors
    /// 500 for more bytes than the cipher takes.
    pub(super) fn seal(&self, purpose: Purpose, bytes: &[u8], seams: &Seams) -> Result<String, Status> {
        let mut nonce = [0; NONCE_LEN];
        seams.entropy.fill(&mut nonce);
        let mut sealed = bytes.to_vec();
        let tag = self.0.seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(purpose.label()),
            &mut sealed,
        );
        let tag = tag.map_err(|_| Status::internal("a session could not be sealed"))?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &sealed, tag.as_ref()].concat()))
    }

    /// Opens a text that was sealed for this purpose; `None` for any other text.
    pub(super) fn open(&self, purpose: Purpose, sealed: &str) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let opened = self.0.open_in_place(nonce, Aad::from(purpose.label()), &mut sealed).ok()?;
        Some(opened.to_vec())
    }
}

impl ConsoleSession {
    /// Returns the sealed form of the session.
    pub(super) fn to_value(&self) -> Value {
        let until = self.until.as_second();
        match &self.credential {
            SessionCredential::Token(token) => json!({"until": until, "token": token}),
            SessionCredential::User(user) => json!({"until": until, "user": user.to_value()}),
        }
    }

    /// Reads a session; `None` for another value.
    pub(super) fn of(value: &Value) -> Option<Self> {
        let until = Timestamp::from_second(value.get("until")?.as_i64()?).ok()?;
        let credential = match value.get("token") {
            Some(token) => SessionCredential::Token(token.as_str()?.to_owned()),
            None => SessionCredential::User(SessionUser::of(value.get("user")?)?.into()),
        };
        Some(Self { credential, until })
    }
}

impl SessionUser {
    fn to_value(&self) -> Value {
        json!({
            "name": self.user.name,
            "uid": self.user.uid,
            "groups": self.user.groups,
            "extra": self.user.extra,
            "certificate": self.certificate.as_ref().map(CertificateId::to_text),
            "until": self.until.map(Timestamp::as_second),
        })
    }

    fn of(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let user = User {
            name: text("name")?,
            uid: text("uid")?,
            groups: serde_json::from_value(value.get("groups")?.clone()).ok()?,
            extra: serde_json::from_value(value.get("extra")?.clone()).ok()?,
        };
        let certificate = match text("certificate") {
            Some(id) => Some(CertificateId::of_text(&id)?),
            None => None,
        };
        let until = match value.get("until").and_then(Value::as_i64) {
            Some(seconds) => Some(Timestamp::from_second(seconds).ok()?),
            None => None,
        };
        Some(Self { user, certificate, until })
    }
}
