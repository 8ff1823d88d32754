//! Authentication by JSON Web Tokens of configured issuers (OpenID Connect), as kube-apiserver's structured
//! authentication has it. Users of an issuer are the same in every logical cluster; RBAC decides what they may do in
//! each.

mod claims;
mod keys;
mod sign_in;
#[cfg(test)]
mod tests;

use std::{
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, jwk::KeyAlgorithm};
use parking_lot::{Mutex, RwLock};
use portolan_kinds::field::Path;
use portolan_strategy::rbac::User;
use portolan_types::Seams;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::{
    config::{AnonymousConfiguration, AuthenticationConfiguration, AuthenticationSource, ConfigError, field_lines},
    fair_cache::{CacheOwner, FairCache},
    pki::{FileStamp, file_stamp},
    webhooks::CheckedAddresses,
};

use claims::ClaimMapper;
use keys::IssuerKeys;
pub(crate) use sign_in::{PendingSignIn, SIGN_IN_SECONDS};

/// Signature algorithms of kube-apiserver.
const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
/// Time for which a verified token is not verified again, as in kube-apiserver. A key that an issuer withdraws is
/// refused after the next fetch of its keys.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Limit of remembered tokens, which their users share.
const MAX_REMEMBERED: usize = 4096;
/// Seconds by which a token may be ahead of this server's clock, as in kube-apiserver.
const NOT_BEFORE_LEEWAY: i64 = 300;
/// Largest configuration file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// Verifier of the tokens of all configured issuers.
pub(crate) struct JwtAuthenticators {
    file: Option<WatchedFile>,
    own_issuer: String,
    seams: Seams,
    current: RwLock<Arc<AuthenticatorSet>>,
}

/// Configuration file and its state when it was last read.
struct WatchedFile {
    path: PathBuf,
    read: Mutex<FileStamp>,
}

/// Tokens that were verified a moment ago.
type RememberedTokens = Mutex<FairCache<[u8; 32], VerifiedToken>>;

/// Source of a configuration, and its limits.
pub(super) struct SetContext<'a> {
    /// Issuer of the server's own tokens, which no configuration may name.
    pub(super) own_issuer: &'a str,
    /// Addresses that the issuers of a tenant may have; `None` for any.
    pub(super) allowed: Option<CheckedAddresses>,
    /// Limit of remembered tokens, which their users share.
    pub(super) remembered: usize,
}

impl<'a> SetContext<'a> {
    /// Returns the context of the server's configuration.
    fn of_server(own_issuer: &'a str) -> Self {
        Self { own_issuer, allowed: None, remembered: MAX_REMEMBERED }
    }
}

/// Authenticators of one configuration.
pub(super) struct AuthenticatorSet {
    issuers: Vec<JwtIssuer>,
    anonymous: Option<AnonymousConfiguration>,
    remembered: RememberedTokens,
}

/// Issuer with its rules.
struct JwtIssuer {
    url: String,
    audiences: Vec<String>,
    algorithms: Vec<Algorithm>,
    keys: Arc<IssuerKeys>,
    mapper: ClaimMapper,
}

/// Token that was verified a moment ago.
#[derive(Clone)]
struct VerifiedToken {
    user: User,
    expires: i64,
    at: Instant,
}

impl JwtAuthenticators {
    /// Compiles the configuration.
    ///
    /// # Errors
    /// A file that cannot be read, or the faults of the configuration.
    pub(crate) fn open(source: &AuthenticationSource, own_issuer: &str, seams: Seams) -> Result<Self, ConfigError> {
        let server = SetContext::of_server(own_issuer);
        let (file, set) = match source {
            AuthenticationSource::None => {
                let none = AuthenticatorSet::compile(&AuthenticationConfiguration::default(), &server);
                (None, none.map_err(ConfigError::Crypto)?)
            }
            AuthenticationSource::Fixed(configuration) => {
                let set = AuthenticatorSet::compile(configuration, &server);
                (None, set.map_err(|why| ConfigError::Content { path: "--oidc-issuer-url".into(), what: why })?)
            }
            AuthenticationSource::File(path) => {
                let file = WatchedFile { path: path.clone(), read: Mutex::new(file_stamp(path)?) };
                (Some(file), read_file(path, own_issuer)?)
            }
        };
        Ok(Self { file, own_issuer: own_issuer.into(), seams, current: RwLock::new(Arc::new(set)) })
    }

    /// Rereads the file if it changed. Returns true if the configuration was replaced.
    ///
    /// # Errors
    /// The errors of [`Self::open`]; a fault of the content once per state of the file. The configuration stays as it
    /// is.
    pub(crate) fn reread(&self) -> Result<bool, ConfigError> {
        let Some(file) = &self.file else { return Ok(false) };
        let stamp = file_stamp(&file.path)?;
        let before = std::mem::replace(&mut *file.read.lock(), stamp);
        if before == stamp {
            return Ok(false);
        }
        let set = read_file(&file.path, &self.own_issuer).inspect_err(|error| {
            // A file that is there and cannot be read for the moment is tried again: it may remove an issuer.
            if stamp.is_some() && matches!(error, ConfigError::File { .. }) {
                *file.read.lock() = before;
            }
        })?;
        *self.current.write() = Arc::new(set);
        Ok(true)
    }

    /// Returns true if a request without credentials may reach a path.
    pub(crate) fn allows_anonymous(&self, path: &str) -> bool {
        self.current.read().anonymous.as_ref().is_none_or(|anonymous| {
            let conditions = &anonymous.conditions;
            anonymous.enabled && (conditions.is_empty() || conditions.iter().any(|condition| condition.path == path))
        })
    }

    /// Verifies a token. Returns `None` for a token of another issuer.
    ///
    /// # Errors
    /// The reason of the refusal, for the log.
    pub(crate) async fn verify(&self, token: &str) -> Result<Option<User>, String> {
        let set = self.current.read().clone();
        set.verify(token, self.seams.clock.now().as_second()).await
    }
}

impl AuthenticatorSet {
    /// Verifies a token at a time in seconds since the epoch. Returns `None` for a token of another issuer.
    ///
    /// # Errors
    /// The reason of the refusal, for the log.
    pub(super) async fn verify(&self, token: &str, now: i64) -> Result<Option<User>, String> {
        if self.issuers.is_empty() {
            return Ok(None);
        }
        let Some(claims) = unverified_claims(token) else { return Ok(None) };
        let issuer = claims.get("iss").and_then(Value::as_str).unwrap_or_default();
        let Some(issuer) = self.issuers.iter().find(|own| own.url == issuer) else { return Ok(None) };
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let known = self.remembered.lock().get(&hash).cloned();
        if let Some(known) = known.filter(|known| known.at.elapsed() < REMEMBERED && now < known.expires) {
            return Ok(Some(known.user));
        }
        // Boxed: requests with other credentials do not carry the future of a fetch.
        let claims = Box::pin(issuer.verified_claims(token)).await?;
        let expires = issuer.check_validity(&claims, now)?;
        let user = issuer.mapper.user(&claims)?;
        let verified = VerifiedToken { user: user.clone(), expires, at: Instant::now() };
        self.remembered.lock().insert(CacheOwner::of(&user.name), hash, verified);
        Ok(Some(user))
    }

    /// Compiles a configuration.
    ///
    /// # Errors
    /// Its faults, one per line.
    pub(super) fn compile(from: &AuthenticationConfiguration, context: &SetContext<'_>) -> Result<Self, String> {
        let own_issuer = context.own_issuer;
        let mut faults = Vec::new();
        let mut issuers = Vec::new();
        for (at, one) in from.jwt.iter().enumerate() {
            let path = Path::new("jwt").index(at);
            if one.issuer.url == own_issuer {
                return Err(format!("{path}.issuer.url: {own_issuer:?} is the issuer of service account tokens"));
            }
            let keys = IssuerKeys::new(&one.issuer, context.allowed.clone())
                .map_err(|why| format!("{path}.issuer.certificateAuthority: {why}"))?;
            match ClaimMapper::compile(&path, one) {
                Err(found) => faults.extend(found),
                Ok(mapper) => issuers.push(JwtIssuer {
                    url: one.issuer.url.clone(),
                    audiences: one.issuer.audiences.clone(),
                    algorithms: if one.algorithms.is_empty() { ALGORITHMS.into() } else { one.algorithms.clone() },
                    keys: Arc::new(keys),
                    mapper,
                }),
            }
        }
        if !faults.is_empty() {
            return Err(field_lines(&faults));
        }
        Ok(Self {
            issuers,
            anonymous: from.anonymous.clone(),
            remembered: Mutex::new(FairCache::new(context.remembered)),
        })
    }
}

impl JwtIssuer {
    /// Verifies the signature and returns the claims.
    async fn verified_claims(&self, token: &str) -> Result<Value, String> {
        let header = jsonwebtoken::decode_header(token).map_err(|error| error.to_string())?;
        if !self.algorithms.contains(&header.alg) {
            return Err(format!("signature algorithm {:?} is not allowed", header.alg));
        }
        let mut rules = Validation::new(header.alg);
        // Time and audience are checked against the seams and the configuration.
        (rules.validate_exp, rules.validate_aud) = (false, false);
        rules.required_spec_claims.clear();
        let mut refused = "no key of the issuer has signed the token".to_owned();
        let wanted = KeyAlgorithm::from(header.alg);
        for key in self.keys.candidates(header.kid.as_deref()).await? {
            if key.common.key_algorithm.is_some_and(|own| own != wanted) {
                refused = format!("the key of the issuer is not for {wanted}");
                continue;
            }
            let decoded =
                DecodingKey::from_jwk(&key).and_then(|key| jsonwebtoken::decode::<Value>(token, &key, &rules));
            match decoded {
                Ok(found) => return Ok(found.claims),
                Err(error) => refused = error.to_string(),
            }
        }
        Err(refused)
    }

    /// Checks time and audience. Returns the expiry in seconds since the epoch.
    fn check_validity(&self, claims: &Value, now: i64) -> Result<i64, String> {
        let seconds = |claim: &str| claims.get(claim).and_then(Value::as_f64).map(|seconds| seconds as i64);
        let expires = seconds("exp").ok_or("the token has no expiry")?;
        if now >= expires {
            return Err("the token is expired".into());
        }
        if seconds("nbf").is_some_and(|from| now.saturating_add(NOT_BEFORE_LEEWAY) < from) {
            return Err("the token is not valid yet".into());
        }
        let is_own =
            |audience: &Value| audience.as_str().is_some_and(|text| self.audiences.iter().any(|own| own == text));
        let is_meant = match claims.get("aud") {
            Some(Value::Array(audiences)) => audiences.iter().any(is_own),
            Some(audience) => is_own(audience),
            None => false,
        };
        if is_meant { Ok(expires) } else { Err("the token is meant for another audience".into()) }
    }
}

/// Returns the issuer that a token states, before its signature is verified.
pub(super) fn issuer_of(token: &str) -> Option<String> {
    Some(unverified_claims(token)?.get("iss")?.as_str()?.to_owned())
}

/// Returns the audiences that a verified token states.
pub(super) fn audiences_of(token: &str) -> Vec<String> {
    let claims = unverified_claims(token).unwrap_or_default();
    match claims.get("aud") {
        Some(Value::String(audience)) => vec![audience.clone()],
        Some(Value::Array(audiences)) => audiences.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// Returns the claims of a token before its signature is verified; `None` for what is not a JSON Web Token.
fn unverified_claims(token: &str) -> Option<Value> {
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

fn read_file(path: &FilePath, own_issuer: &str) -> Result<AuthenticatorSet, ConfigError> {
    let wrong = |what: String| ConfigError::Content { path: path.to_owned(), what };
    if file_stamp(path)?.is_some_and(|(_, length)| length > MAX_FILE) {
        return Err(wrong(format!("has more than {MAX_FILE} bytes")));
    }
    let text = std::fs::read(path).map_err(|source| ConfigError::File { path: path.to_owned(), source })?;
    let configuration = AuthenticationConfiguration::parse(&text).map_err(wrong)?;
    AuthenticatorSet::compile(&configuration, &SetContext::of_server(own_issuer)).map_err(wrong)
}
