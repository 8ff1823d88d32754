//! Credentials of agents: bootstrap tokens, and what an identity may do as an agent.
//!
//! A bootstrap token is stored as a hash in the system's logical cluster, one per physical cluster: a new one revokes
//! the last. It is spent by the first key that gets a certificate for it. Until it expires, the same key may ask again,
//! since the answer can be lost; a thief of the token does not have the key.

use jiff::{SignedDuration, Timestamp};
use portolan_store::{DynStore, Expect, RangeRequest, RangeScope, StoreError, StoredObject, Transaction};
use portolan_strategy::rbac::User;
use portolan_types::{
    GroupResource, LogicalClusterId, ObjectKey, Record, Seams, Status, Uid,
    agent::{AGENT_BOOTSTRAPPERS, AGENTS, AgentId, BootstrapToken},
    object,
    seams::seconds_text,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::errors::{damaged, status_for};

use super::{Identity, with_authenticated};

/// Random bytes of a token.
const SECRET_BYTES: usize = 20;
/// Tokens that are looked at when one is issued, to delete those that have expired.
const SWEPT: usize = 8;

/// Permissions of an identity as an agent. They are all that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentAccess {
    /// The identity is not an agent.
    NoAgent,
    /// It has a certificate: it may open tunnels and renew the certificate.
    Certified(AgentId),
    /// It has a bootstrap token: it may get a certificate.
    Bootstrapping(AgentId),
    /// The identity claims to be an agent but is not.
    Invalid,
}

impl AgentAccess {
    /// Returns the logical cluster that has registered the physical cluster of the agent.
    pub(crate) fn workspace(&self) -> Option<LogicalClusterId> {
        match self {
            Self::Certified(agent) | Self::Bootstrapping(agent) => Some(agent.workspace),
            Self::NoAgent | Self::Invalid => None,
        }
    }
}

impl Identity {
    /// Returns its permissions as an agent.
    pub(crate) fn agent_access(&self) -> AgentAccess {
        let (is_certified, is_bootstrapping) = (self.user.is_in(AGENTS), self.user.is_in(AGENT_BOOTSTRAPPERS));
        if !is_certified && !is_bootstrapping {
            return AgentAccess::NoAgent;
        }
        match AgentId::of_user(&self.user.name, &self.user.uid) {
            Ok(id) if is_certified && !is_bootstrapping => AgentAccess::Certified(id),
            Ok(id) if is_bootstrapping && !is_certified => AgentAccess::Bootstrapping(id),
            Ok(_) | Err(_) => AgentAccess::Invalid,
        }
    }
}

/// Issuer and verifier of bootstrap tokens.
pub struct BootstrapTokens {
    store: DynStore,
    seams: Seams,
}

/// Stored token.
struct StoredToken {
    agent: AgentId,
    hash: String,
    expires: Timestamp,
    /// Hash of the public key that has spent it; empty before.
    key: String,
}

impl BootstrapTokens {
    /// Creates an issuer of tokens in `store`.
    pub fn new(store: DynStore, seams: Seams) -> Self {
        Self { store, seams }
    }

    /// Issues a token that is valid for `seconds`, in place of an earlier one for the same physical cluster. Returns it
    /// and its expiry. `pin` is the SHA-256 of the authority's certificate.
    ///
    /// # Errors
    /// A failure of the store.
    pub(crate) async fn issue(
        &self,
        agent: AgentId,
        seconds: i64,
        pin: [u8; 32],
    ) -> Result<(BootstrapToken, Timestamp), Status> {
        let mut bytes = [0; SECRET_BYTES];
        self.seams.entropy.fill(&mut bytes);
        let secret = hex(&bytes);
        let expires = self.seams.clock.now().saturating_add(SignedDuration::from_secs(seconds));
        let expires = expires.map_err(Status::internal)?;
        let stored = StoredToken { hash: hash(secret.as_bytes()), expires, key: String::new(), agent };
        let key = key(&stored.agent.uid)?;
        let write = Transaction::one(key.clone(), Expect::Anything, Some(stored.record()));
        self.store.commit(write).await.map_err(|error| status_for(&error))?;
        if let Err(error) = self.delete_expired(key).await {
            tracing::debug!(%error, "expired tokens of agents stay for a while");
        }
        Ok((BootstrapToken { uid: stored.agent.uid, secret, pin: Some(pin) }, expires))
    }

    /// Verifies a token. Returns the identity of its agent.
    ///
    /// # Errors
    /// 401 without a reason for wrong and expired tokens; a failure of the store.
    pub(super) async fn verify(&self, text: &str) -> Result<Identity, Status> {
        let token = BootstrapToken::parse(text).map_err(|_| Status::unauthorized())?;
        let (_, stored) = self.read(&token.uid).await?.ok_or_else(Status::unauthorized)?;
        // Only hashes are compared, so that the time reveals nothing about the secret.
        if stored.hash != hash(token.secret.as_bytes()) || stored.expires <= self.seams.clock.now() {
            return Err(Status::unauthorized());
        }
        let groups = with_authenticated(vec![AGENT_BOOTSTRAPPERS.to_owned()]);
        let (name, uid) = (stored.agent.user_name(), stored.agent.uid.to_string());
        Ok(Identity::global(User { name, uid, groups, ..User::default() }))
    }

    /// Spends the token of an agent for a public key (DER).
    ///
    /// # Errors
    /// 401 if another key has spent it, or it has expired; a failure of the store.
    pub(crate) async fn spend(&self, agent: &AgentId, public_key: &[u8]) -> Result<(), Status> {
        let (found, stored) = self.read(&agent.uid).await?.ok_or_else(Status::unauthorized)?;
        let wanted = hash(public_key);
        if stored.agent != *agent || stored.expires <= self.seams.clock.now() {
            return Err(Status::unauthorized());
        }
        match stored.key.as_str() {
            "" => {}
            spent if spent == wanted => return Ok(()),
            _ => return Err(Status::unauthorized()),
        }
        let spent = StoredToken { key: wanted, ..stored };
        let write = Transaction::one(key(&agent.uid)?, Expect::At(found.revision), Some(spent.record()));
        match self.store.commit(write).await {
            Ok(_) => Ok(()),
            // Another request was faster.
            Err(StoreError::Conflict { .. }) => Err(Status::unauthorized()),
            Err(error) => Err(status_for(&error)),
        }
    }

    /// Deletes tokens after a key that have expired: those of physical clusters that are gone would stay forever. The
    /// key is a random uid, so every token is eventually visited.
    async fn delete_expired(&self, after: ObjectKey) -> Result<(), StoreError> {
        let scope = RangeScope::Cluster(after.cluster, after.resource.clone());
        let request =
            RangeRequest { after: Some(after), limit: Some(SWEPT), ..RangeRequest::all(scope).skip_damaged() };
        let now = self.seams.clock.now();
        for found in self.store.range(request).await?.objects {
            let stored = found.to_value().ok().and_then(|tree| StoredToken::of(&tree));
            if stored.is_none_or(|stored| stored.expires > now) {
                continue;
            }
            match self.store.commit(Transaction::one(found.key, Expect::At(found.revision), None)).await {
                // A newer one was issued.
                Ok(_) | Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn read(&self, uid: &Uid) -> Result<Option<(StoredObject, StoredToken)>, Status> {
        let key = key(uid)?;
        let Some(found) = self.store.get(&key).await.map_err(|error| status_for(&error))? else { return Ok(None) };
        let tree = found.record.to_value(found.revision).map_err(|error| damaged(&key, &error))?;
        Ok(StoredToken::of(&tree).map(|stored| (found, stored)))
    }
}

impl StoredToken {
    fn record(&self) -> Record {
        Record::of(&json!({
            "metadata": {"name": &*self.agent.uid},
            "workspace": self.agent.workspace.to_string(),
            "cluster": &*self.agent.name,
            "hash": self.hash,
            "expires": seconds_text(self.expires),
            "key": self.key,
        }))
    }

    fn of(tree: &Value) -> Option<Self> {
        let text = |name: &str| tree.get(name).and_then(Value::as_str);
        let agent = AgentId {
            workspace: text("workspace")?.parse().ok()?,
            name: text("cluster")?.parse().ok()?,
            uid: object::name(tree).parse().ok()?,
        };
        let expires = text("expires")?.parse().ok()?;
        Some(Self { agent, hash: text("hash")?.to_owned(), expires, key: text("key")?.to_owned() })
    }
}

/// Returns the key of the token of a physical cluster.
fn key(uid: &Uid) -> Result<ObjectKey, Status> {
    let name = uid.parse().map_err(|_| Status::unauthorized())?;
    let resource = GroupResource::new("internal.portolan.dev", "agenttokens");
    Ok(ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, resource, name))
}

fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> AgentId {
        AgentId {
            workspace: LogicalClusterId::ROOT,
            name: name.parse().unwrap(),
            uid: format!("u-{name}").parse().unwrap(),
        }
    }

    #[tokio::test]
    async fn a_token_is_spent_by_one_key_and_revoked_by_the_next_token() {
        let store = portolan_store::memory();
        let at = |now: &str, seed| BootstrapTokens::new(store.clone(), Seams::seeded(seed, now.parse().unwrap()));
        let tokens = at("2026-01-01T10:00:00Z", 1);
        let (east, _) = tokens.issue(agent("east"), 3600, [0; 32]).await.unwrap();
        let (west, expires) = tokens.issue(agent("west"), 3600, [0; 32]).await.unwrap();
        assert_eq!(seconds_text(expires), "2026-01-01T11:00:00Z");
        let identity = tokens.verify(&east.text()).await.unwrap();
        assert_eq!(identity.agent_access(), AgentAccess::Bootstrapping(agent("east")));
        let swapped = BootstrapToken { secret: west.secret.clone(), ..east.clone() };
        for text in [swapped.bearer(), format!("{}x", east.bearer()), "portolan-agent_nothing_x".into()] {
            assert_eq!(tokens.verify(&text).await.unwrap_err().code(), 401, "{text}");
        }
        tokens.spend(&agent("east"), b"key").await.unwrap();
        tokens.spend(&agent("east"), b"key").await.expect("the answer may have been lost");
        assert_eq!(tokens.spend(&agent("east"), b"other").await.unwrap_err().code(), 401);
        let recreated = AgentId { name: "east2".parse().unwrap(), ..agent("east") };
        assert_eq!(tokens.spend(&recreated, b"key").await.unwrap_err().code(), 401);
        let late = at("2026-01-01T11:00:00Z", 2);
        assert_eq!(late.verify(&west.bearer()).await.unwrap_err().code(), 401, "it has expired");
        assert_eq!(late.spend(&agent("west"), b"key").await.unwrap_err().code(), 401);
        let (newer, _) = late.issue(agent("east"), 60, [0; 32]).await.unwrap();
        assert_eq!(late.verify(&east.bearer()).await.unwrap_err().code(), 401, "there is a newer one");
        late.verify(&newer.bearer()).await.unwrap();
        late.spend(&agent("east"), b"other").await.unwrap();
        let stored = late.read(&agent("east").uid).await.unwrap().unwrap().0;
        let text = String::from_utf8(stored.record.body().to_vec()).unwrap();
        assert!(!text.contains(&newer.secret), "only a hash is stored");
    }

    #[tokio::test]
    async fn expired_tokens_are_deleted_as_others_are_issued() {
        let store = portolan_store::memory();
        let at = |now: &str| BootstrapTokens::new(store.clone(), Seams::seeded(1, now.parse().unwrap()));
        let early = at("2026-01-01T10:00:00Z");
        for (name, seconds) in [("b", 60), ("c", 7200), ("d", 60)] {
            early.issue(agent(name), seconds, [0; 32]).await.unwrap();
        }
        let late = at("2026-01-01T11:00:00Z");
        late.issue(agent("a"), 60, [0; 32]).await.unwrap();
        let mut left = Vec::new();
        for name in ["a", "b", "c", "d"] {
            left.push(late.read(&agent(name).uid).await.unwrap().is_some());
        }
        assert_eq!(left, [true, false, true, false]);
    }

    #[test]
    fn only_exact_identities_are_agents() {
        let name = "system:portolan:agent:root:east";
        for (name, uid, groups, expected) in [
            (name, "u-east", vec![AGENTS], AgentAccess::Certified(agent("east"))),
            (name, "u-east", vec![AGENT_BOOTSTRAPPERS], AgentAccess::Bootstrapping(agent("east"))),
            (name, "u-east", vec![AGENTS, AGENT_BOOTSTRAPPERS], AgentAccess::Invalid),
            (name, "", vec![AGENTS], AgentAccess::Invalid),
            ("east", "u-east", vec![AGENTS], AgentAccess::Invalid),
            (name, "u-east", vec!["system:masters"], AgentAccess::NoAgent),
        ] {
            let groups = groups.into_iter().map(str::to_owned).collect();
            let user = User { name: name.into(), uid: uid.into(), groups, ..User::default() };
            assert_eq!(Identity::global(user).agent_access(), expected, "{name} {uid}");
        }
    }
}
