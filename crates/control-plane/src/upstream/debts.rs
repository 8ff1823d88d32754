//! Debts: copies still to be deleted on physical clusters that were unreachable. They are stored until they are paid.

use std::sync::Arc;

use portolan_store::{Expect, RangeScope, Transaction, Write};
use portolan_types::{
    GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, Record, Scope, Uid,
    placement::ProjectionSource,
    upstream::{Debt, UpstreamError},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{StoreUpstream, failed, release};

/// Stored form of a debt.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredDebt {
    physical: Uid,
    cluster: String,
    group: String,
    resource: String,
    namespace: Option<String>,
    name: String,
    version: String,
    kind: String,
    uid: Uid,
    epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    below: Option<ProjectionSource>,
    #[serde(default, skip_serializing_if = "is_false")]
    is_orphan: bool,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

fn resource() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "debts")
}

fn key(physical: &Uid, debt: &Debt) -> Result<ObjectKey, UpstreamError> {
    let name = format!("{physical}.{}.{}", debt.uid, debt.epoch);
    let name = name.parse().map_err(|error| failed(&error))?;
    Ok(ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, resource(), name))
}

impl StoredDebt {
    fn of(physical: &Uid, debt: &Debt) -> Self {
        Self {
            physical: physical.clone(),
            cluster: debt.key.cluster.to_string(),
            group: debt.key.resource.group.to_string(),
            resource: debt.key.resource.resource.to_string(),
            namespace: debt.key.namespace().map(ToString::to_string),
            name: debt.key.name.to_string(),
            version: debt.kind.version.to_string(),
            kind: debt.kind.kind.to_string(),
            uid: debt.uid.clone(),
            epoch: debt.epoch,
            below: debt.source.clone(),
            is_orphan: debt.is_orphan,
        }
    }

    fn into_debt(self) -> Option<Debt> {
        let namespace = match self.namespace {
            Some(text) => Some(text.parse().ok()?),
            None => None,
        };
        let key = ObjectKey {
            cluster: self.cluster.parse().ok()?,
            resource: GroupResource::new(self.group.as_str(), self.resource),
            scope: Scope::from(namespace),
            name: self.name.parse().ok()?,
        };
        let kind = GroupVersionKind::new(self.group, self.version, self.kind);
        let (source, uid, epoch, is_orphan) = (self.below, self.uid, self.epoch, self.is_orphan);
        Some(Debt { key, source, kind, uid, epoch, is_orphan })
    }
}

/// Lists the debts of one physical cluster.
pub(super) async fn list(upstream: &StoreUpstream, physical: &Uid) -> Result<Vec<Debt>, UpstreamError> {
    let scope = RangeScope::Cluster(LogicalClusterId::SYSTEM, resource());
    // A damaged debt is not paid, and does not stop the others.
    let found = upstream.plane.list_skipping_damaged(scope, None).await.map_err(|error| failed(&error))?.found;
    let parse = |object: &Value| serde_json::from_value::<StoredDebt>(object["debt"].clone()).ok();
    let own = found.iter().filter_map(|found| parse(&found.object)).filter(|debt| debt.physical == *physical);
    Ok(own.filter_map(StoredDebt::into_debt).collect())
}

/// Writes off all debts of a deleted physical cluster.
pub(super) async fn forget_all(upstream: &StoreUpstream, physical: &Uid) -> Result<(), UpstreamError> {
    for debt in list(upstream, physical).await? {
        settle(upstream, physical, &debt).await?;
    }
    Ok(())
}

/// Removes a paid debt.
pub(super) async fn settle(upstream: &StoreUpstream, physical: &Uid, debt: &Debt) -> Result<(), UpstreamError> {
    let key = key(physical, debt)?;
    match upstream.commit(Transaction::one(key, Expect::Anything, None)).await {
        Err(UpstreamError::Conflict) => Ok(()), // settled already
        other => other,
    }
}

/// Stores a debt and removes the copy from the record, in one transaction.
pub(super) async fn record(upstream: &StoreUpstream, physical: &Uid, debt: Arc<Debt>) -> Result<(), UpstreamError> {
    let key = key(physical, &debt)?;
    let stored = serde_json::to_value(StoredDebt::of(physical, &debt)).map_err(|error| failed(&error))?;
    let object = json!({"metadata": {"name": &*key.name}, "debt": stored});
    let mut txn = Transaction::default();
    if upstream.read(&key).await?.is_none() {
        txn.writes.push(Write { key, expect: Expect::Absent, record: Some(Record::of(&object)) });
    }
    let leaving = release::CopyAddress { key: &debt.key, uid: &debt.uid, physical, epoch: debt.epoch };
    release::release(upstream, leaving, txn).await
}
