//! Service account tokens: JWTs signed with ES256, valid in one logical cluster only.

mod secrets;

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use parking_lot::Mutex;
use portolan_store::DynStore;
use portolan_strategy::rbac::User;
use portolan_types::{GroupResource, LogicalClusterId, NamespaceName, ObjectKey, Scope, Seams, object};
use rcgen::PublicKeyData as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    Directory,
    config::ConfigError,
    fair_cache::{CacheOwner, FairCache},
};

use super::{CLUSTER_NAME_EXTRA, Identity, with_authenticated};
pub use secrets::SecretClaims;

/// Lifetime that pods request by default, in seconds. Such a token is extended to [`EXTENDED`], for old clients that
/// never reread it.
const FROM_A_POD: i64 = 60 * 60 + 7;
/// Extended lifetime in seconds: a year.
const EXTENDED: i64 = 365 * 24 * 60 * 60;
/// Seconds for which a token stays valid after its object's deletion time.
const LEEWAY: i64 = 60;
/// Limit of cached verified signatures, which tenants share.
const MAX_REMEMBERED: usize = 4096;

/// Reason why a token is refused, for the log only.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Signed with an unknown key, malformed, or not ES256.
    #[error("the token cannot be verified: {0}")]
    Signature(#[from] jsonwebtoken::errors::Error),
    /// Not yet valid, or expired.
    #[error("the token is not valid at this time")]
    Time,
    /// Issued for another audience.
    #[error("the token is not meant for this server")]
    Audience,
    /// The account or the bound object is gone.
    #[error("the token's account or bound object was deleted")]
    Gone,
    /// Claims that no token of this server has.
    #[error("the token's claims were not written by this server")]
    BoundClaims,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] portolan_store::StoreError),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct BoundClaims {
    iss: String,
    sub: String,
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    nbf: i64,
    jti: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: KubernetesClaim,
    /// Placed object whose pods the token is for.
    #[serde(rename = "portolan.dev", default, skip_serializing_if = "Option::is_none")]
    copy: Option<CopyClaim>,
}

/// Claim of a token for the pods of a copy: it ends with the object, and when the object leaves the physical cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CopyClaim {
    /// Resource of the object, as `deployments.apps`.
    pub resource: String,
    /// Name of the object.
    pub name: String,
    /// Uid of the object.
    pub uid: String,
    /// Uid of the physical cluster.
    pub physical: String,
}

/// Claims of a verified token.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TokenClaims {
    /// Token from a TokenRequest.
    Bound(Box<BoundClaims>),
    /// Token in a Secret.
    Secret(SecretClaims),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KubernetesClaim {
    cluster_name: String,
    namespace: String,
    serviceaccount: TokenObjectRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<TokenObjectRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<TokenObjectRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<TokenObjectRef>,
    /// Time at which it would have expired without the extension.
    #[serde(default, rename = "warnafter", skip_serializing_if = "Option::is_none")]
    warn_after: Option<i64>,
}

/// Reference to an object by name and uid.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenObjectRef {
    /// Name.
    pub name: String,
    /// Uid; empty for the node of a pod if the logical cluster does not know it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// Object whose deletion invalidates a token.
#[derive(Clone, Debug)]
pub enum TokenBinding {
    /// A pod. Its node is informational.
    Pod {
        /// The pod.
        pod: TokenObjectRef,
        /// Its node.
        node: Option<TokenObjectRef>,
    },
    /// A node.
    Node(TokenObjectRef),
    /// A secret.
    Secret(TokenObjectRef),
    /// A placed object, while it is on a physical cluster.
    Copy(CopyClaim),
}

/// Request for a token.
#[derive(Clone, Debug)]
pub struct TokenRequest {
    /// Logical cluster in which it is valid.
    pub cluster: LogicalClusterId,
    /// Namespace of the account.
    pub namespace: String,
    /// Name of the account.
    pub name: String,
    /// Uid of the account.
    pub uid: String,
    /// Audiences.
    pub audiences: Vec<String>,
    /// Lifetime in seconds. A pod's default token for this server lives longer than the client sees.
    pub seconds: i64,
    /// Object it is bound to.
    pub bound: Option<TokenBinding>,
}

/// Issued token.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// The secret.
    pub token: String,
    /// Expiry that the client sees, in seconds since 1970.
    pub expires: i64,
}

/// Issuer and verifier of tokens.
pub struct ServiceAccountTokens {
    issuer: String,
    signing: EncodingKey,
    /// Verification keys; the first belongs to the signing key.
    verifying: Vec<VerificationKey>,
    store: DynStore,
    seams: Seams,
    /// Verified claims by hash of their token.
    remembered: Mutex<FairCache<[u8; 32], Arc<TokenClaims>>>,
    /// Directory with the tenants of logical clusters; without one, each is its own.
    directory: Option<Arc<Directory>>,
}

/// Public key that verifies tokens.
struct VerificationKey {
    id: String,
    key: DecodingKey,
    /// Coordinates in the form of a JSON Web Key.
    public: (String, String),
}

impl VerificationKey {
    /// Parses an uncompressed point: 4, x, y.
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
    /// Creates an issuer that signs with one key and accepts tokens of all keys.
    ///
    /// # Errors
    /// An invalid key.
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
            remembered: Mutex::new(FairCache::new(MAX_REMEMBERED)),
            directory: None,
        })
    }

    /// Returns the issuer with the directory of the logical clusters.
    #[must_use]
    pub(crate) fn within(self, directory: Arc<Directory>) -> Self {
        Self { directory: Some(directory), ..self }
    }

    /// Returns `iss` of the tokens.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns the JSON Web Key Set that verifies the tokens (RFC 7517).
    pub fn jwks(&self) -> serde_json::Value {
        let keys = self.verifying.iter().map(|key| {
            let (x, y) = &key.public;
            serde_json::json!({"use": "sig", "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": key.id, "x": x, "y": y})
        });
        serde_json::json!({"keys": keys.collect::<Vec<_>>()})
    }

    /// Issues a token.
    ///
    /// # Errors
    /// A failed signature.
    pub fn issue(&self, request: &TokenRequest) -> Result<IssuedToken, TokenError> {
        let now = self.seams.clock.now().as_second();
        let is_extended = request.seconds == FROM_A_POD
            && matches!(request.bound, Some(TokenBinding::Pod { .. }))
            && request.audiences.iter().all(|audience| *audience == self.issuer);
        let expires = now + request.seconds;
        let (pod, secret, node) = match request.bound.clone() {
            None => (None, None, None),
            Some(TokenBinding::Pod { pod, node }) => (Some(pod), None, node),
            Some(TokenBinding::Secret(secret)) => (None, Some(secret), None),
            Some(TokenBinding::Node(node)) => (None, None, Some(node)),
            // Clients see the pod as with any token of one.
            Some(TokenBinding::Copy(copy)) if copy.resource == "pods" => {
                (Some(TokenObjectRef { name: copy.name, uid: copy.uid }), None, None)
            }
            Some(TokenBinding::Copy(_)) => (None, None, None),
        };
        let copy = match &request.bound {
            Some(TokenBinding::Copy(copy)) => Some(copy.clone()),
            _ => None,
        };
        let claims = BoundClaims {
            iss: self.issuer.clone(),
            sub: format!("system:serviceaccount:{}:{}", request.namespace, request.name),
            aud: request.audiences.clone(),
            exp: if is_extended { now + EXTENDED } else { expires },
            iat: now,
            nbf: now,
            jti: self.seams.uid().to_string(),
            kubernetes: KubernetesClaim {
                cluster_name: request.cluster.to_string(),
                namespace: request.namespace.clone(),
                serviceaccount: TokenObjectRef { name: request.name.clone(), uid: request.uid.clone() },
                pod,
                secret,
                node,
                warn_after: is_extended.then_some(expires),
            },
            copy,
        };
        Ok(IssuedToken { token: self.sign(&claims)?, expires })
    }

    fn sign(&self, claims: &impl Serialize) -> Result<String, TokenError> {
        let header = Header { kid: self.verifying.first().map(|key| key.id.clone()), ..Header::new(Algorithm::ES256) };
        Ok(jsonwebtoken::encode(&header, claims, &self.signing)?)
    }

    /// Verifies a token. Returns its identity and the requested audiences that it covers.
    ///
    /// # Errors
    /// A token that is invalid, or covers none of the audiences.
    pub async fn verify(&self, token: &str, audiences: &[String]) -> Result<(Identity, Vec<String>), TokenError> {
        match &*self.claims(token)? {
            TokenClaims::Bound(claims) => self.verify_bound(claims, audiences).await,
            TokenClaims::Secret(claims) => self.verify_secret(token, claims, audiences).await,
        }
    }

    /// Verifies a token from a TokenRequest: the account and the bound object must exist.
    async fn verify_bound(
        &self,
        claims: &BoundClaims,
        audiences: &[String],
    ) -> Result<(Identity, Vec<String>), TokenError> {
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
        let cluster: LogicalClusterId = of.cluster_name.parse().map_err(|_| TokenError::BoundClaims)?;
        let namespace: NamespaceName = of.namespace.parse().map_err(|_| TokenError::BoundClaims)?;
        let own = || Scope::Namespace(namespace.clone());
        self.check_exists(cluster, "serviceaccounts", own(), &of.serviceaccount).await?;
        // The node of a pod is informational; the token is bound to the pod.
        let node = of.node.as_ref().filter(|_| of.pod.is_none());
        for (resource, scope, bound) in
            [("pods", own(), of.pod.as_ref()), ("secrets", own(), of.secret.as_ref()), ("nodes", Scope::Cluster, node)]
        {
            if let Some(reference) = bound {
                self.check_exists(cluster, resource, scope, reference).await?;
            }
        }
        if let Some(copy) = &claims.copy {
            self.check_placed(cluster, own(), copy).await?;
        }
        Ok((Identity::local(user(claims, cluster), cluster), good))
    }

    /// Checks that an object exists and is on the physical cluster that the token was issued for.
    async fn check_placed(&self, cluster: LogicalClusterId, scope: Scope, copy: &CopyClaim) -> Result<(), TokenError> {
        let name = copy.name.parse().map_err(|_| TokenError::BoundClaims)?;
        let (resource, group) = copy.resource.split_once('.').unwrap_or((&copy.resource, ""));
        let key = ObjectKey { cluster, resource: GroupResource::new(group, resource), scope, name };
        let stored = self.store.get(&key).await?.ok_or(TokenError::Gone)?;
        let header = &stored.record.header;
        let is_there = header.uid == copy.uid && header.placed_on.contains(&copy.physical);
        if is_there { Ok(()) } else { Err(TokenError::Gone) }
    }

    /// Returns the requested audiences that mean this server; its own if none were requested.
    ///
    /// # Errors
    /// None of the audiences means this server.
    pub(super) fn own_audience(&self, audiences: &[String]) -> Result<Vec<String>, TokenError> {
        if audiences.is_empty() || audiences.contains(&self.issuer) {
            Ok(vec![self.issuer.clone()])
        } else {
            Err(TokenError::Audience)
        }
    }

    /// Returns the number of cached signatures.
    pub(crate) fn remembered(&self) -> usize {
        self.remembered.lock().len()
    }

    /// Verifies the signature and returns the claims. Signatures cost far more than hashes, so good ones are cached.
    fn claims(&self, token: &str) -> Result<Arc<TokenClaims>, TokenError> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.remembered.lock().get(&hash) {
            return Ok(known.clone());
        }
        let mut rules = Validation::new(Algorithm::ES256);
        // Time and audience are checked against the seams at each use.
        (rules.validate_exp, rules.validate_aud) = (false, false);
        rules.required_spec_claims.clear();
        let claims = Arc::new(self.decode(token, &rules)?);
        self.remembered.lock().insert(self.owner(&claims), hash, claims.clone());
        Ok(claims)
    }

    /// Returns the owner of a cached signature: the tenant of the token's logical cluster.
    fn owner(&self, claims: &TokenClaims) -> CacheOwner {
        let name = match claims {
            TokenClaims::Bound(claims) => claims.kubernetes.cluster_name.as_str(),
            TokenClaims::Secret(claims) => claims.cluster_name(),
        };
        let cluster: Option<LogicalClusterId> = name.parse().ok();
        let known = self.directory.as_ref().zip(cluster);
        let tenant = known.and_then(|(directory, id)| Some(directory.tenant(&*directory.by_id(id)?)));
        CacheOwner::of(&tenant.or(cluster))
    }

    /// Verifies the signature with the key that the token names, or with each key if it names none.
    fn decode(&self, token: &str, rules: &Validation) -> Result<TokenClaims, TokenError> {
        let id = jsonwebtoken::decode_header(token)?.kid;
        let mut refused = jsonwebtoken::errors::ErrorKind::InvalidSignature.into();
        for key in self.verifying.iter().filter(|key| id.as_ref().is_none_or(|id| *id == key.id)) {
            match jsonwebtoken::decode::<TokenClaims>(token, &key.key, rules) {
                Ok(found) => return Ok(found.claims),
                Err(error) => refused = error,
            }
        }
        Err(TokenError::Signature(refused))
    }

    async fn check_exists(
        &self,
        cluster: LogicalClusterId,
        resource: &str,
        scope: Scope,
        wanted: &TokenObjectRef,
    ) -> Result<(), TokenError> {
        let name = wanted.name.parse().map_err(|_| TokenError::BoundClaims)?;
        let key = ObjectKey { cluster, resource: GroupResource::new("", resource), scope, name };
        let stored = self.store.get(&key).await?.filter(|found| found.record.header.uid == wanted.uid);
        let stored = stored.ok_or(TokenError::Gone)?;
        // A terminating object invalidates its tokens, even if a finalizer keeps it forever.
        if stored.record.header.is_deleting {
            let ends = object::deletion_time(&stored.to_value()?).ok_or(TokenError::Gone)?;
            if ends.as_second() + LEEWAY < self.seams.clock.now().as_second() {
                return Err(TokenError::Gone);
            }
        }
        Ok(())
    }
}

fn user(claims: &BoundClaims, cluster: LogicalClusterId) -> User {
    let of = &claims.kubernetes;
    let groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{}", of.namespace)];
    let mut extra = std::collections::BTreeMap::from([
        ("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={}", claims.jti)]),
        (CLUSTER_NAME_EXTRA.to_owned(), vec![cluster.to_string()]),
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

#[cfg(test)]
mod tests;
