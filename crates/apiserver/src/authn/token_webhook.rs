//! Bearer tokens that a webhook reviews (`TokenReview` of `authentication.k8s.io/v1`).

use std::time::Duration;

use parking_lot::Mutex;
use portolan_strategy::rbac::User;
use portolan_types::agent::{AGENT_BOOTSTRAPPERS, AGENTS};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::{
    config::{ConfigError, TokenWebhookConfig},
    fair_cache::{CacheOwner, FairCache},
    webhooks::{ConfiguredWebhook, WebhookCallError},
};

use super::with_authenticated;

/// Time for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of remembered tokens, which their users share. All refused tokens together have the share of one user.
const MAX_REMEMBERED: usize = 4096;

/// Webhook that reviews tokens, and its answers of a moment ago.
pub(crate) struct TokenWebhook {
    webhook: ConfiguredWebhook,
    cache: Duration,
    remembered: Mutex<FairCache<TokenHash, RememberedReview>>,
}

/// Hash of a token.
type TokenHash = [u8; 32];
/// Time of a review, and its user; `None` for a refused token.
type RememberedReview = (Instant, Option<User>);

#[derive(Deserialize)]
struct ReviewAnswer {
    #[serde(default)]
    status: ReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    authenticated: bool,
    user: ReviewedUser,
    audiences: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedUser {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: std::collections::BTreeMap<String, Vec<String>>,
}

impl TokenWebhook {
    /// # Errors
    /// An unusable kubeconfig.
    pub(crate) fn open(config: &TokenWebhookConfig) -> Result<Self, ConfigError> {
        let webhook = ConfiguredWebhook::open(&config.kubeconfig)?;
        Ok(Self { webhook, cache: config.cache, remembered: Mutex::new(FairCache::new(MAX_REMEMBERED)) })
    }

    /// Returns the user of a token; `None` if the webhook does not know it. `audience` is this server.
    ///
    /// # Errors
    /// The failure of the webhook, for the log.
    pub(crate) async fn review(&self, token: &str, audience: &str) -> Result<Option<User>, String> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some((at, user)) = self.remembered.lock().get(&hash)
            && at.elapsed() < self.cache
        {
            return Ok(user.clone());
        }
        let user = self.ask(token, audience).await?;
        let owner = CacheOwner::of(&user.as_ref().map(|user| &user.name));
        self.remembered.lock().insert(owner, hash, (Instant::now(), user.clone()));
        Ok(user)
    }

    async fn ask(&self, token: &str, audience: &str) -> Result<Option<User>, String> {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        });
        let answer = self.webhook.post(review.to_string().into(), TIMEOUT).await;
        let answer = answer.map_err(|error: WebhookCallError| error.to_string())?;
        let ReviewAnswer { status } =
            serde_json::from_slice(&answer).map_err(|_| "the answer is not a TokenReview".to_owned())?;
        let ReviewStatus { authenticated, user: ReviewedUser { username, uid, groups, extra }, audiences } = status;
        if !authenticated {
            return Ok(None);
        }
        if username.is_empty() {
            return Err("the review has a user without a name".into());
        }
        if !audiences.is_empty() && !audiences.iter().any(|one| one == audience) {
            return Err("the token is meant for another audience".into());
        }
        if groups.iter().any(|group| group == AGENTS || group == AGENT_BOOTSTRAPPERS) {
            return Err("the review has a group of agents".into());
        }
        Ok(Some(User { name: username, uid, groups: with_authenticated(groups), extra }))
    }
}
