//! Quotas: usage is charged in the transaction that writes the object, so that a limit is never exceeded.

mod batcher;

use std::sync::Arc;

use portolan_store::{Expect, StoredObject, Write};
use portolan_strategy::quota::{Ask, Refusal, charge};
use portolan_types::{GroupResource, LogicalClusterId, Record, Status};
use serde_json::Value;

use crate::{
    commit::{CommitContext, CommitError, ObjectCommit},
    errors::status_for,
    hooks::{AdmissionRequest, Operation},
    storage::StorageContext,
    sync::{KeyedGuard, KeyedMutex},
};

use batcher::{ChargeOutcome, PendingCharge, QuotaBatcher};

use super::{
    AdmissionConfigCache, forbidden, lookup,
    pending_write::PendingWrite,
    usage_limits::{LimitContext, UsageLimit},
};

/// Attempts to charge while other writers, such as the recount loop, change the same quota.
const ATTEMPTS: usize = 16;
/// Limit of quotas per namespace: a write is charged to all of them in one transaction of at most 100 objects.
const MAX_QUOTAS: usize = 64;

/// Returns the resource of quotas.
fn quotas() -> GroupResource {
    GroupResource::new("", "resourcequotas")
}

/// Namespace with quotas.
pub(crate) type QuotaNamespace = (LogicalClusterId, String);

/// Context of writes that are charged to quotas.
pub(crate) struct QuotaContext {
    pub(crate) commits: Arc<CommitContext>,
    configuration: Arc<AdmissionConfigCache>,
    locks: KeyedMutex<QuotaNamespace>,
    batcher: QuotaBatcher,
}

impl QuotaContext {
    pub(crate) fn new(commits: Arc<CommitContext>, configuration: Arc<AdmissionConfigCache>) -> Self {
        Self { commits, configuration, locks: KeyedMutex::default(), batcher: QuotaBatcher::default() }
    }

    /// Returns true if a namespace has quotas.
    ///
    /// # Errors
    /// Failure of the store.
    pub(super) async fn has_quotas(&self, cluster: LogicalClusterId, namespace: &str) -> Result<bool, Status> {
        let configured = self.configuration.of(cluster).await?;
        Ok(configured.is_some_and(|configured| configured.with_quotas.contains(namespace)))
    }

    /// Waits for the lock under which the quotas of a namespace are charged: of concurrent charges all but one would
    /// fail and retry.
    pub(super) async fn lock(&self, namespace: QuotaNamespace) -> KeyedGuard<QuotaNamespace> {
        self.locks.lock(namespace).await
    }
}

/// Write that may be charged to quotas.
#[derive(Clone, Copy)]
pub(crate) struct QuotaWrite<'a> {
    pub(crate) request: &'a AdmissionRequest<'a>,
    pub(crate) object: &'a Value,
    /// Stored state; `None` for a create.
    pub(crate) old: Option<&'a Value>,
}

impl QuotaWrite<'_> {
    fn ask<'s>(&'s self, storage: &StorageContext, resource: &'s GroupResource) -> Ask<'s> {
        let Self { request, object, old } = *self;
        Ask { resource, subresource: request.subresource, object, old, now: storage.seams.clock.now() }
    }

    /// Returns true if a quota might be charged.
    async fn may_be_charged(&self, context: &QuotaContext) -> Result<bool, Status> {
        let AdmissionRequest { cluster, kind, namespace, operation, .. } = *self.request;
        let counts = matches!(operation, Operation::Create | Operation::Update) && !namespace.is_empty();
        if !counts || !self.ask(&context.commits.storage, &kind.storage.group_resource()).may_charge() {
            return Ok(false);
        }
        context.has_quotas(cluster.id, namespace).await
    }

    /// Returns the writes of quotas with the object charged.
    async fn charges(&self, storage: &StorageContext) -> Result<Vec<Write>, Status> {
        let AdmissionRequest { cluster, kind, namespace, .. } = *self.request;
        let quotas = stored(storage, cluster.id, namespace).await?;
        let trees: Vec<Value> = quotas.iter().map(|quota| quota.tree.clone()).collect();
        let resource = kind.storage.group_resource();
        let charged = charge(&trees, &self.ask(storage, &resource)).map_err(|refusal| self.refused(refusal))?;
        Ok(charged.into_iter().map(|(at, used)| with_usage(&quotas[at], used)).collect())
    }

    fn refused(&self, refusal: Refusal) -> Status {
        forbidden(self.request, Some(self.object), refusal.0)
    }
}

/// Limits the number of quotas in a namespace, also against concurrent creates.
///
/// # Errors
/// 403 beyond the limit.
pub(super) async fn check_count(context: &LimitContext, write: &mut PendingWrite<'_>) -> Result<(), CommitError> {
    let AdmissionRequest { cluster, namespace, .. } = *write.request;
    UsageLimit::Quotas.lock(context, cluster.id, write.commit).await?;
    let stored = lookup::stored_in_namespace(&context.storage, cluster.id, quotas(), namespace).await?;
    if stored.len() < MAX_QUOTAS {
        Ok(())
    } else {
        let why = format!("a namespace has at most {MAX_QUOTAS} resource quotas");
        Err(forbidden(write.request, Some(write.object), why).into())
    }
}

/// Quota as a record and as a tree.
pub(super) struct StoredQuota {
    pub(super) stored: StoredObject,
    pub(super) tree: Value,
}

/// Reads the quotas of a namespace.
pub(super) async fn stored(
    storage: &StorageContext,
    cluster: LogicalClusterId,
    namespace: &str,
) -> Result<Vec<StoredQuota>, Status> {
    let stored = lookup::stored_in_namespace(storage, cluster, quotas(), namespace).await?;
    stored.into_iter().map(|stored| lookup::tree(&stored).map(|tree| StoredQuota { stored, tree })).collect()
}

/// Returns the write of a quota with a new usage.
pub(super) fn with_usage(quota: &StoredQuota, used: Value) -> Write {
    let StoredQuota { stored, tree } = quota;
    let mut quota = tree.clone();
    quota["status"]["used"] = used;
    Write { key: stored.key.clone(), expect: Expect::At(stored.revision), record: Some(Record::of(&quota)) }
}

/// Returns true if another writer has changed one of the quotas.
async fn any_moved(storage: &StorageContext, charges: &[Write]) -> Result<bool, Status> {
    for charge in charges {
        let stored = storage.store.get(&charge.key).await.map_err(|e| status_for(&e))?;
        if stored.map(|stored| Expect::At(stored.revision)) != Some(charge.expect) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks that the write fits, and charges nothing.
///
/// # Errors
/// 403 if a quota would be exceeded.
pub(crate) async fn check(context: &QuotaContext, write: QuotaWrite<'_>) -> Result<(), Status> {
    if write.may_be_charged(context).await? {
        write.charges(&context.commits.storage).await?;
    }
    Ok(())
}

/// Commits a write together with its charges to the quotas of the namespace. `last` is the stored state before.
///
/// # Errors
/// 403 if a quota would be exceeded; failures of the store.
pub(crate) async fn commit(
    context: &QuotaContext,
    write: QuotaWrite<'_>,
    commit: ObjectCommit,
    last: Option<&StoredObject>,
) -> Result<StoredObject, CommitError> {
    let commits = &*context.commits;
    if !write.may_be_charged(context).await? {
        return commit.run(commits, last).await;
    }
    let namespace = (write.request.cluster.id, write.request.namespace.to_owned());
    if let Some(transaction) = commit.plain(commits) {
        let resource = write.request.kind.storage.group_resource();
        let asked = PendingCharge::of(&write.ask(&commits.storage, &resource));
        match context.batcher.write(context, &namespace, asked, transaction).await? {
            ChargeOutcome::Stored(revision) => return Ok(commit.stored(revision, last)),
            ChargeOutcome::Refused(refusal) => return Err(write.refused(refusal).into()),
            ChargeOutcome::Failed(status) => return Err(status.into()),
            ChargeOutcome::RetryAlone => {}
        }
    }
    let turn = context.lock(namespace).await;
    for attempt in 1.. {
        let charges = write.charges(&commits.storage).await?;
        if charges.is_empty() {
            drop(turn);
            return commit.run(commits, last).await;
        }
        let mut with_charges = commit.clone();
        with_charges.companions.extend(charges.iter().cloned());
        match with_charges.run(commits, last).await {
            // Unless another writer changed a quota, the conflict is on the object and the whole write must be
            // decided again.
            Err(CommitError::Raced(_)) if attempt < ATTEMPTS && any_moved(&commits.storage, &charges).await? => {}
            other => return other,
        }
    }
    Err(Status::internal("a quota was charged too often").into())
}
