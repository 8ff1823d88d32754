//! Tokens of service accounts: JWTs signed with ES256, good in one logical cluster only.

use std::{collections::HashMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use parking_lot::Mutex;
use portolan_machinery::rbac::User;
use portolan_store::DynStore;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Seams};
use rcgen::PublicKeyData as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::config::ConfigError;

use super::{Identity, with_authenticated};

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
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reference {
    name: String,
    uid: String,
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
    /// Who it is meant for; the server itself when empty.
    pub audiences: Vec<String>,
    /// How long it lives, in seconds.
    pub seconds: i64,
    /// `Pod` or `Secret`, name and uid of an object that it dies with.
    pub bound: Option<(String, String, String)>,
}

/// A token that was made.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// The secret.
    pub token: String,
    /// Who it is meant for.
    pub audiences: Vec<String>,
    /// Seconds since 1970 at which it ends.
    pub expires: i64,
}

/// Makes and verifies tokens.
pub struct ServiceAccountTokens {
    issuer: String,
    key_id: String,
    signing: EncodingKey,
    verifying: DecodingKey,
    public: (String, String),
    store: DynStore,
    seams: Seams,
    /// Claims of tokens whose signature was good, by hash.
    remembered: Mutex<HashMap<[u8; 32], Arc<Claims>>>,
}

impl ServiceAccountTokens {
    /// With a private key, ECDSA P-256 in PKCS#8 PEM.
    ///
    /// # Errors
    /// When the key is none.
    pub fn new(key_pem: &str, issuer: String, store: DynStore, seams: Seams) -> Result<Self, ConfigError> {
        let crypto = |error: &dyn std::fmt::Display| ConfigError::Crypto(error.to_string());
        let pair = rcgen::KeyPair::from_pem(key_pem).map_err(|e| crypto(&e))?;
        // An uncompressed point: 4, x, y.
        let point = pair.der_bytes();
        let (x, y) = match point {
            [4, rest @ ..] if rest.len() == 64 => rest.split_at(32),
            _ => return Err(ConfigError::Crypto("the service account key is not ECDSA P-256".into())),
        };
        let public = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        Ok(Self {
            issuer,
            key_id: URL_SAFE_NO_PAD.encode(Sha256::digest(point)),
            signing: EncodingKey::from_ec_pem(key_pem.as_bytes()).map_err(|e| crypto(&e))?,
            verifying: DecodingKey::from_ec_components(&public.0, &public.1).map_err(|e| crypto(&e))?,
            public,
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
        serde_json::json!({"keys": [{
            "use": "sig", "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": self.key_id, "x": self.public.0, "y": self.public.1,
        }]})
    }

    /// Makes a token.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn issue(&self, request: &TokenRequest) -> Result<IssuedToken, TokenError> {
        let now = self.seams.clock.now().as_second();
        let audiences = match request.audiences.as_slice() {
            [] => vec![self.issuer.clone()],
            asked => asked.to_vec(),
        };
        let bound = |wanted: &str| {
            let (kind, name, uid) = request.bound.clone()?;
            (kind == wanted).then_some(Reference { name, uid })
        };
        let claims = Claims {
            iss: self.issuer.clone(),
            sub: format!("system:serviceaccount:{}:{}", request.namespace, request.name),
            aud: audiences.clone(),
            exp: now + request.seconds,
            iat: now,
            nbf: now,
            jti: self.seams.uid().to_string(),
            kubernetes: Kubernetes {
                cluster_name: request.cluster.to_string(),
                namespace: request.namespace.clone(),
                serviceaccount: Reference { name: request.name.clone(), uid: request.uid.clone() },
                pod: bound("Pod"),
                secret: bound("Secret"),
            },
        };
        let header = Header { kid: Some(self.key_id.clone()), ..Header::new(Algorithm::ES256) };
        let token = jsonwebtoken::encode(&header, &claims, &self.signing)?;
        Ok(IssuedToken { token, audiences, expires: claims.exp })
    }

    /// Whose token this is, and for which of `audiences` it is good.
    ///
    /// # Errors
    /// When it is good for nobody.
    pub async fn verify(&self, token: &str, audiences: &[String]) -> Result<(Identity, Vec<String>), TokenError> {
        let claims = self.claims(token)?;
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
        self.is_there(cluster, "serviceaccounts", of, &of.serviceaccount).await?;
        for (resource, bound) in [("pods", &of.pod), ("secrets", &of.secret)] {
            if let Some(reference) = bound {
                self.is_there(cluster, resource, of, reference).await?;
            }
        }
        Ok((Identity::local(user(&claims, cluster), cluster), good))
    }

    /// The claims, once the signature is proven good. Signatures cost far more than hashes, so good ones are remembered.
    fn claims(&self, token: &str) -> Result<Arc<Claims>, TokenError> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.remembered.lock().get(&hash) {
            return Ok(known.clone());
        }
        let mut rules = Validation::new(Algorithm::ES256);
        // Time and audience are checked against the seams, at every use.
        (rules.validate_exp, rules.validate_aud) = (false, false);
        rules.required_spec_claims.clear();
        let claims = Arc::new(jsonwebtoken::decode::<Claims>(token, &self.verifying, &rules)?.claims);
        let mut remembered = self.remembered.lock();
        if remembered.len() >= MAX_REMEMBERED {
            remembered.clear();
        }
        remembered.insert(hash, claims.clone());
        Ok(claims)
    }

    async fn is_there(
        &self,
        cluster: LogicalClusterId,
        resource: &str,
        of: &Kubernetes,
        wanted: &Reference,
    ) -> Result<(), TokenError> {
        let key = ObjectKey::namespaced(
            cluster,
            GroupResource::new("", resource),
            of.namespace.parse().map_err(|_| TokenError::Claims)?,
            wanted.name.parse().map_err(|_| TokenError::Claims)?,
        );
        let stored = self.store.get(&key).await?;
        match stored.is_some_and(|s| s.record.header.uid == wanted.uid) {
            true => Ok(()),
            false => Err(TokenError::Gone),
        }
    }
}

fn user(claims: &Claims, cluster: LogicalClusterId) -> User {
    let of = &claims.kubernetes;
    let groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{}", of.namespace)];
    let mut extra = std::collections::BTreeMap::from([
        ("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={}", claims.jti)]),
        ("authentication.kubernetes.io/cluster-name".to_owned(), vec![cluster.to_string()]),
    ]);
    if let Some(pod) = &of.pod {
        extra.insert("authentication.kubernetes.io/pod-name".into(), vec![pod.name.clone()]);
        extra.insert("authentication.kubernetes.io/pod-uid".into(), vec![pod.uid.clone()]);
    }
    User { name: claims.sub.clone(), uid: of.serviceaccount.uid.clone(), groups: with_authenticated(groups), extra }
}
