//! Tokens in Secrets, valid without expiry while the Secret holds them. Claims are those of kube-apiserver, and the
//! logical cluster.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use portolan_strategy::rbac::User;
use portolan_types::{GroupResource, LogicalClusterId, NamespaceName, ObjectKey, Scope, object};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::super::{Identity, with_authenticated};
use super::{ServiceAccountTokens, TokenError};

/// `iss` of such tokens.
const ISSUER: &str = "kubernetes/serviceaccount";
/// Label that invalidates a token.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Warning for tokens in generated Secrets, which older accounts name.
const GENERATED: &str = "Use tokens from the TokenRequest API or manually created secret-based tokens instead of \
                         auto-generated secret-based tokens.";

/// Claims of such a token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SecretClaims {
    iss: String,
    sub: String,
    #[serde(rename = "kubernetes.io/serviceaccount/clusterName")]
    cluster: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
}

impl SecretClaims {
    /// Returns the claims of the token in a Secret, for an account by name and uid.
    pub fn new(cluster: LogicalClusterId, namespace: String, account: String, uid: String, secret: String) -> Self {
        let sub = subject(&namespace, &account);
        Self { iss: ISSUER.to_owned(), sub, cluster: cluster.to_string(), namespace, secret, account, uid }
    }

    /// Returns the id of the logical cluster.
    pub(super) fn cluster_name(&self) -> &str {
        &self.cluster
    }

    fn user(&self) -> User {
        let groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{}", self.namespace)];
        let groups = with_authenticated(groups);
        User { name: self.sub.clone(), uid: self.uid.clone(), groups, ..User::default() }
    }
}

fn subject(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

impl ServiceAccountTokens {
    /// Signs the token of a Secret.
    ///
    /// # Errors
    /// A failed signature.
    pub fn issue_for_secret(&self, claims: &SecretClaims) -> Result<String, TokenError> {
        self.sign(claims)
    }

    /// Verifies such a token: the account and the Secret that holds it must exist and not be terminating.
    pub(super) async fn verify_secret(
        &self,
        token: &str,
        claims: &SecretClaims,
        audiences: &[String],
    ) -> Result<(Identity, Vec<String>), TokenError> {
        if claims.iss != ISSUER || claims.sub != subject(&claims.namespace, &claims.account) {
            return Err(TokenError::BoundClaims);
        }
        // Without an audience, it is meant for this server.
        let good = self.own_audience(audiences)?;
        let cluster: LogicalClusterId = claims.cluster.parse().map_err(|_| TokenError::BoundClaims)?;
        let namespace: NamespaceName = claims.namespace.parse().map_err(|_| TokenError::BoundClaims)?;
        let get = async |resource: &str, name: &str| -> Result<Value, TokenError> {
            let name = name.parse().map_err(|_| TokenError::BoundClaims)?;
            let scope = Scope::Namespace(namespace.clone());
            let key = ObjectKey { cluster, resource: GroupResource::new("", resource), scope, name };
            let stored = self.store.get(&key).await?.ok_or(TokenError::Gone)?;
            let found = stored.to_value()?;
            if object::is_deleting(&found) { Err(TokenError::Gone) } else { Ok(found) }
        };
        let secret = get("secrets", &claims.secret).await?;
        let held = secret.pointer("/data/token").and_then(Value::as_str).unwrap_or_default();
        let is_held = BASE64.decode(held).is_ok_and(|held| Sha256::digest(held) == Sha256::digest(token.as_bytes()));
        let labels = secret.pointer("/metadata/labels");
        let is_invalid = labels.and_then(|labels| labels.get(INVALID_SINCE)).is_some_and(|since| since != "");
        if is_invalid || !is_held {
            return Err(TokenError::Gone);
        }
        let account = get("serviceaccounts", &claims.account).await?;
        if object::meta_text(&account, "uid") != claims.uid {
            return Err(TokenError::Gone);
        }
        let named = account.get("secrets").and_then(Value::as_array).into_iter().flatten();
        let is_generated = named.into_iter().any(|reference| reference["name"] == *claims.secret);
        let warning = is_generated.then_some(GENERATED);
        Ok((Identity { warning, ..Identity::local(claims.user(), cluster) }, good))
    }
}
