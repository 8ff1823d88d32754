//! One-time links: a code that stands for a session, for some time and one use on any server.
//!
//! The session is stored, sealed, under the hash of its code in the system's logical cluster. Its deletion is
//! conditional on the revision that was read, so that of several uses one succeeds.

use jiff::{SignedDuration, Timestamp};
use portolan_store::{Expect, RangeRequest, RangeScope, StoreError, Transaction};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Status, seams::seconds_text};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::errors::{damaged, status_for};

use super::{ConsoleSession, ConsoleSessions, Purpose};

/// Life of a code, unless the request has another one.
pub(crate) const LINK_SECONDS: i64 = 60;
/// Longest life of a code.
pub(crate) const MAX_LINK_SECONDS: i64 = 600;
/// Random bytes of a code.
const CODE_BYTES: usize = 24;
/// Longest code that is looked up, in bytes.
const MAX_CODE: usize = 128;
/// Codes that are looked at when one is issued, to delete those that have expired.
const SWEPT: usize = 16;

impl ConsoleSessions {
    /// Issues a code that leads to a session once, within so many seconds.
    ///
    /// # Errors
    /// A failure of the store.
    pub(crate) async fn issue_link(&self, session: &ConsoleSession, seconds: i64) -> Result<String, Status> {
        let mut bytes = [0; CODE_BYTES];
        self.seams.entropy.fill(&mut bytes);
        let code = hex(&bytes);
        let key = key(&code)?;
        let expires = self.seams.clock.now().saturating_add(SignedDuration::from_secs(seconds));
        let sealed = self.key.seal(Purpose::Link, session.to_value().to_string().as_bytes(), &self.seams)?;
        let record = Record::of(&json!({
            "metadata": {"name": &*key.name},
            "expires": seconds_text(expires.map_err(Status::internal)?),
            "session": sealed,
        }));
        let write = Transaction::one(key.clone(), Expect::Absent, Some(record));
        self.store.commit(write).await.map_err(|error| status_for(&error))?;
        if let Err(error) = self.delete_expired_links(key).await {
            tracing::debug!(%error, "expired links of the console stay for a while");
        }
        Ok(code)
    }

    /// Uses a code, and returns its session.
    ///
    /// # Errors
    /// 401 for a code that is unknown, used or expired; a failure of the store.
    pub(crate) async fn use_link(&self, code: &str) -> Result<ConsoleSession, Status> {
        if code.len() > MAX_CODE {
            return Err(Status::unauthorized());
        }
        let key = key(code)?;
        let found = self.store.get(&key).await.map_err(|error| status_for(&error))?;
        let found = found.ok_or_else(Status::unauthorized)?;
        let tree = found.record.to_value(found.revision).map_err(|error| damaged(&key, &error))?;
        match self.store.commit(Transaction::one(key, Expect::At(found.revision), None)).await {
            Ok(_) => {}
            // Another request was faster.
            Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => return Err(Status::unauthorized()),
            Err(error) => return Err(status_for(&error)),
        }
        let now = self.seams.clock.now();
        if expiry(&tree).is_none_or(|expires| expires <= now) {
            return Err(Status::unauthorized());
        }
        let sealed = tree.get("session").and_then(Value::as_str).unwrap_or_default();
        let opened = self.key.open(Purpose::Link, sealed).ok_or_else(Status::unauthorized)?;
        let value: Value = serde_json::from_slice(&opened).map_err(|_| Status::unauthorized())?;
        ConsoleSession::of(&value).filter(|session| session.until > now).ok_or_else(Status::unauthorized)
    }

    /// Deletes expired codes after a key. Their names are hashes, so that each one is looked at sooner or later.
    async fn delete_expired_links(&self, after: ObjectKey) -> Result<(), StoreError> {
        let scope = RangeScope::Cluster(after.cluster, after.resource.clone());
        let request =
            RangeRequest { after: Some(after), limit: Some(SWEPT), ..RangeRequest::all(scope).skip_damaged() };
        let now = self.seams.clock.now();
        for found in self.store.range(request).await?.objects {
            let expires = found.to_value().ok().and_then(|tree| expiry(&tree));
            if expires.is_some_and(|expires| expires > now) {
                continue;
            }
            match self.store.commit(Transaction::one(found.key, Expect::At(found.revision), None)).await {
                // It was used or swept meanwhile.
                Ok(_) | Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn expiry(tree: &Value) -> Option<Timestamp> {
    tree.get("expires").and_then(Value::as_str)?.parse().ok()
}

/// Returns the key of a code: its hash, so that the store reveals none.
fn key(code: &str) -> Result<ObjectKey, Status> {
    let name = hex(&Sha256::digest(code)).parse().map_err(|_| Status::unauthorized())?;
    let resource = GroupResource::new("internal.portolan.dev", "consolelinks");
    Ok(ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, resource, name))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
