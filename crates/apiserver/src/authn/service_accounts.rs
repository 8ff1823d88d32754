//! Tokens of service accounts: JWTs signed with ES256, good in one logical cluster only.

mod secrets;

use std::{collections::HashMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use parking_lot::Mutex;
use portolan_machinery::rbac::User;
use portolan_store::DynStore;
use portolan_types::{GroupResource, LogicalClusterId, NamespaceName, ObjectKey, Scope, Seams, object};
use rcgen::PublicKeyData as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::config::ConfigError;

use super::{Identity, with_authenticated};
pub use secrets::SecretClaims;

/// What pods ask for by default. A pod that keeps such a token for longer goes on for [`EXTENDED`]: clients that never read it
/// anew are from before tokens ended.
const FROM_A_POD: i64 = 60 * 60 + 7;
/// The life of such a token, in seconds: a year.
const EXTENDED: i64 = 365 * 24 * 60 * 60;
/// A token is good for so many seconds after the time at which what it belongs to was to be gone.
const LEEWAY: i64 = 60;
/// Verified signatures that are remembered.
const MAX_REMEMBERED: usize = 4096;

/// Why a token is refused; for the log only.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Not ours, not whole, or not ES256.
    #[error("the token cannot be verified: {0}")]
    Signature(#[from] jsonwebtoken::errors::Error),
    /// Too early or too late.
    #[error("the token is not valid at this time")]
    Time,
    /// Meant for somebody else.
    #[error("the token is not meant for this server")]
    Audience,
    /// The account, or what the token is bound to, is gone.
    #[error("the token's account or bound object is gone")]
    Gone,
    /// Claims that no token of ours has.
    #[error("the token's claims are none of ours")]
    Claims,
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] portolan_store::StoreError),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    nbf: i64,
    jti: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Kubernetes,
}

/// What a token says that is verified.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum AnyClaims {
    /// One that was asked for.
    Bound(Box<Claims>),
    /// One that a Secret holds.
    Secret(SecretClaims),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kubernetes {
    cluster_name: String,
    namespace: String,
    serviceaccount: Reference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<Reference>,
    /// When it would have ended, had it not been extended.
    #[serde(default, rename = "warnafter", skip_serializing_if = "Option::is_none")]
    warn_after: Option<i64>,
}

/// An object by its name and uid.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reference {
    /// Its name.
    pub name: String,
    /// Its uid; empty for a node of a pod that the logical cluster does not know.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// What a token dies with.
#[derive(Clone, Debug)]
pub enum Bound {
    /// A pod. The node it runs on is only told.
    Pod {
        /// The pod.
        pod: Reference,
        /// Its node.
        node: Option<Reference>,
    },
    /// A node.
    Node(Reference),
    /// A secret.
    Secret(Reference),
}

/// What a token is asked to be.
#[derive(Clone, Debug)]
pub struct TokenRequest {
    /// The only logical cluster where it counts.
    pub cluster: LogicalClusterId,
    /// Namespace of the account.
    pub namespace: String,
    /// Name of the account.
    pub name: String,
    /// Uid of the account.
    pub uid: String,
    /// Who it is meant for.
    pub audiences: Vec<String>,
    /// How long it lives, in seconds. What a pod asks for by default, for this server, lives longer than the client is told.
    pub seconds: i64,
    /// An object that it dies with.
    pub bound: Option<Bound>,
}

/// A token that was made.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// The secret.
    pub token: String,
    /// Seconds since 1970 at which the client has to have another one.
    pub expires: i64,
}

/// Makes and verifies tokens.
pub struct ServiceAccountTokens {
    issuer: String,
    signing: EncodingKey,
    /// The first is that of the key that signs.
    verifying: Vec<VerificationKey>,
    store: DynStore,
    seams: Seams,
    /// Claims of tokens whose signature was good, by hash.
    remembered: Mutex<HashMap<[u8; 32], Arc<AnyClaims>>>,
}

/// Public key that verifies tokens.
struct VerificationKey {
    id: String,
    key: DecodingKey,
    /// Its coordinates, in the form of a key set.
    public: (String, String),
}

impl VerificationKey {
    /// Reads an uncompressed point: 4, x, y.
    fn of_point(point: &[u8]) -> Result<Self, ConfigError> {
        let (x, y) = match point {
            [4, rest @ ..] if rest.len() == 64 => rest.split_at(32),
            _ => return Err(ConfigError::Crypto("the service account key is not ECDSA P-256".into())),
        };
        let public = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let key = DecodingKey::from_ec_components(&public.0, &public.1);
        let key = key.map_err(|error| ConfigError::Crypto(error.to_string()))?;
        Ok(Self { id: URL_SAFE_NO_PAD.encode(Sha256::digest(point)), key, public })
    }
}

/// Keys of service account tokens: one signs, all verify.
pub struct TokenKeys<'a> {
    /// Private key that signs, ECDSA P-256 in PKCS#8 PEM.
    pub signing: &'a str,
    /// Further public keys, whose tokens are accepted too.
    pub verifying: &'a [crate::pki::TokenVerificationKey],
}

impl ServiceAccountTokens {
    /// Makes tokens with the key that signs, and accepts those of all keys.
    ///
    /// # Errors
    /// An error for a key that is none.
    pub fn new(keys: &TokenKeys<'_>, issuer: String, store: DynStore, seams: Seams) -> Result<Self, ConfigError> {
        let key_pem = keys.signing;
        let crypto = |error: &dyn std::fmt::Display| ConfigError::Crypto(error.to_string());
        let pair = rcgen::KeyPair::from_pem(key_pem).map_err(|e| crypto(&e))?;
        let mut verifying = vec![VerificationKey::of_point(pair.der_bytes())?];
        for point in keys.verifying {
            let key = VerificationKey::of_point(point)?;
            if verifying.iter().all(|known| known.id != key.id) {
                verifying.push(key);
            }
        }
        Ok(Self {
            issuer,
            signing: EncodingKey::from_ec_pem(key_pem.as_bytes()).map_err(|e| crypto(&e))?,
            verifying,
            store,
            seams,
            remembered: Mutex::default(),
        })
    }

    /// `iss` of the tokens.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The key set that verifies the tokens (RFC 7517).
    pub fn jwks(&self) -> serde_json::Value {
        let keys = self.verifying.iter().map(|key| {
            let (x, y) = &key.public;
            serde_json::json!({"use": "sig", "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": key.id, "x": x, "y": y})
        });
        serde_json::json!({"keys": keys.collect::<Vec<_>>()})
    }

    /// Makes a token.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn issue(&self, request: &TokenRequest) -> Result<IssuedToken, TokenError> {
        let now = self.seams.clock.now().as_second();
        let is_extended = request.seconds == FROM_A_POD
            && matches!(request.bound, Some(Bound::Pod { .. }))
            && request.audiences.iter().all(|audience| *audience == self.issuer);
        let expires = now + request.seconds;
        let (pod, secret, node) = match request.bound.clone() {
            None => (None, None, None),
            Some(Bound::Pod { pod, node }) => (Some(pod), None, node),
            Some(Bound::Secret(secret)) => (None, Some(secret), None),
            Some(Bound::Node(node)) => (None, None, Some(node)),
        };
        let claims = Claims {
            iss: self.issuer.clone(),
            sub: format!("system:serviceaccount:{}:{}", request.namespace, request.name),
            aud: request.audiences.clone(),
            exp: if is_extended { now + EXTENDED } else { expires },
            iat: now,
            nbf: now,
            jti: self.seams.uid().to_string(),
            kubernetes: Kubernetes {
                cluster_name: request.cluster.to_string(),
                namespace: request.namespace.clone(),
                serviceaccount: Reference { name: request.name.clone(), uid: request.uid.clone() },
                pod,
                secret,
                node,
                warn_after: is_extended.then_some(expires),
            },
        };
        Ok(IssuedToken { token: self.sign(&claims)?, expires })
    }

    fn sign(&self, claims: &impl Serialize) -> Result<String, TokenError> {
        let header = Header { kid: self.verifying.first().map(|key| key.id.clone()), ..Header::new(Algorithm::ES256) };
        Ok(jsonwebtoken::encode(&header, claims, &self.signing)?)
    }

    /// Whose token this is, and for which of `audiences` it is good.
    ///
    /// # Errors
    /// When it is good for nobody.
    pub async fn verify(&self, token: &str, audiences: &[String]) -> Result<(Identity, Vec<String>), TokenError> {
        match &*self.claims(token)? {
            AnyClaims::Bound(claims) => self.verify_bound(claims, audiences).await,
            AnyClaims::Secret(claims) => self.verify_secret(token, claims, audiences).await,
        }
    }

    /// Whose token this is: the account and what the token is bound to are there.
    async fn verify_bound(&self, claims: &Claims, audiences: &[String]) -> Result<(Identity, Vec<String>), TokenError> {
        let now = self.seams.clock.now().as_second();
        if now < claims.nbf.saturating_sub(10) || now >= claims.exp {
            return Err(TokenError::Time);
        }
        let wanted = if audiences.is_empty() { std::slice::from_ref(&self.issuer) } else { audiences };
        let good: Vec<String> = wanted.iter().filter(|a| claims.aud.contains(a)).cloned().collect();
        if claims.iss != self.issuer || good.is_empty() {
            return Err(TokenError::Audience);
        }
        let of = &claims.kubernetes;
        let cluster: LogicalClusterId = of.cluster_name.parse().map_err(|_| TokenError::Claims)?;
        let namespace: NamespaceName = of.namespace.parse().map_err(|_| TokenError::Claims)?;
        let own = || Scope::Namespace(namespace.clone());
        self.is_there(cluster, "serviceaccounts", own(), &of.serviceaccount).await?;
        // The node of a pod is told, and not what the token is bound to.
        let node = of.node.as_ref().filter(|_| of.pod.is_none());
        for (resource, scope, bound) in
            [("pods", own(), of.pod.as_ref()), ("secrets", own(), of.secret.as_ref()), ("nodes", Scope::Cluster, node)]
        {
            if let Some(reference) = bound {
                self.is_there(cluster, resource, scope, reference).await?;
            }
        }
        Ok((Identity::local(user(claims, cluster), cluster), good))
    }

    /// Which of `audiences` is this server: all that a token is good for which names none; the server's own, when none are asked for.
    ///
    /// # Errors
    /// When it is none of them.
    pub(super) fn own_audience(&self, audiences: &[String]) -> Result<Vec<String>, TokenError> {
        match audiences.is_empty() || audiences.contains(&self.issuer) {
            true => Ok(vec![self.issuer.clone()]),
            false => Err(TokenError::Audience),
        }
    }

    /// How many tokens are known to be good.
    pub(crate) fn remembered(&self) -> usize {
        self.remembered.lock().len()
    }

    /// The claims, once the signature is proven good. Signatures cost far more than hashes, so good ones are remembered.
    fn claims(&self, token: &str) -> Result<Arc<AnyClaims>, TokenError> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.remembered.lock().get(&hash) {
            return Ok(known.clone());
        }
        let mut rules = Validation::new(Algorithm::ES256);
        // Time and audience are checked against the seams, at every use.
        (rules.validate_exp, rules.validate_aud) = (false, false);
        rules.required_spec_claims.clear();
        let claims = Arc::new(self.decode(token, &rules)?);
        let mut remembered = self.remembered.lock();
        if remembered.len() >= MAX_REMEMBERED {
            remembered.clear();
        }
        remembered.insert(hash, claims.clone());
        Ok(claims)
    }

    /// Verifies the signature by the key that the token names; by each of them, if it names none.
    fn decode(&self, token: &str, rules: &Validation) -> Result<AnyClaims, TokenError> {
        let id = jsonwebtoken::decode_header(token)?.kid;
        let mut refused = jsonwebtoken::errors::ErrorKind::InvalidSignature.into();
        for key in self.verifying.iter().filter(|key| id.as_ref().is_none_or(|id| *id == key.id)) {
            match jsonwebtoken::decode::<AnyClaims>(token, &key.key, rules) {
                Ok(found) => return Ok(found.claims),
                Err(error) => refused = error,
            }
        }
        Err(TokenError::Signature(refused))
    }

    async fn is_there(
        &self,
        cluster: LogicalClusterId,
        resource: &str,
        scope: Scope,
        wanted: &Reference,
    ) -> Result<(), TokenError> {
        let name = wanted.name.parse().map_err(|_| TokenError::Claims)?;
        let key = ObjectKey { cluster, resource: GroupResource::new("", resource), scope, name };
        let stored = self.store.get(&key).await?.filter(|found| found.record.header.uid == wanted.uid);
        let stored = stored.ok_or(TokenError::Gone)?;
        // What never goes, because of a finalizer, has no tokens for that.
        if stored.record.header.is_deleting {
            let ends = object::deletion_time(&stored.to_value()?).ok_or(TokenError::Gone)?;
            if ends.as_second() + LEEWAY < self.seams.clock.now().as_second() {
                return Err(TokenError::Gone);
            }
        }
        Ok(())
    }
}

fn user(claims: &Claims, cluster: LogicalClusterId) -> User {
    let of = &claims.kubernetes;
    let groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{}", of.namespace)];
    let mut extra = std::collections::BTreeMap::from([
        ("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={}", claims.jti)]),
        ("authentication.kubernetes.io/cluster-name".to_owned(), vec![cluster.to_string()]),
    ]);
    for (what, reference) in [("pod", &of.pod), ("node", &of.node)] {
        let Some(reference) = reference else { continue };
        for (part, text) in [("name", &reference.name), ("uid", &reference.uid)] {
            if !text.is_empty() {
                extra.insert(format!("authentication.kubernetes.io/{what}-{part}"), vec![text.clone()]);
            }
        }
    }
    User { name: claims.sub.clone(), uid: of.serviceaccount.uid.clone(), groups: with_authenticated(groups), extra }
}
