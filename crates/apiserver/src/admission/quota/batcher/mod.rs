//! Batching of quota charges: writes of one namespace are charged in one transaction. The writer that holds the
//! namespace's lock charges all that wait, so a namespace with quotas takes more than one write per disk sync.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use parking_lot::Mutex;
use portolan_store::{Committed, Expect, MAX_TRANSACTION_CONDITIONS, MAX_TRANSACTION_OBJECTS, StoreError, Transaction};
use portolan_strategy::quota::{Ask, Refusal, charge};
use portolan_types::{GroupResource, ObjectKey, ResourceVersion, Status};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::{admission::templates::use_more, errors::status_for, sync::KeyedGuard};

use super::{QuotaContext, QuotaNamespace, StoredQuota, stored, with_usage};

/// Size limit of the objects of one batch, in bytes. A single write may exceed it.
const GROUP_BYTES: usize = 512 << 10;

/// Queues of writes that wait to be charged. A writer that leaves removes its own entry.
#[derive(Default)]
pub(crate) struct QuotaBatcher {
    waiting: Arc<WriteQueues>,
    next_id: AtomicU64,
}

type WriteQueues = Mutex<HashMap<QuotaNamespace, VecDeque<QueuedWrite>>>;

/// Charge of one write, owned because it may outlive its request.
pub(super) struct PendingCharge {
    resource: GroupResource,
    subresource: String,
    object: Value,
    old: Option<Value>,
    now: Timestamp,
}

impl PendingCharge {
    pub(super) fn of(ask: &Ask<'_>) -> Self {
        let (resource, subresource) = (ask.resource.clone(), ask.subresource.to_owned());
        Self { resource, subresource, object: ask.object.clone(), old: ask.old.cloned(), now: ask.now }
    }

    fn quota_request(&self) -> Ask<'_> {
        let (resource, subresource) = (&self.resource, &*self.subresource);
        Ask { resource, subresource, object: &self.object, old: self.old.as_ref(), now: self.now }
    }
}

/// Outcome of a write.
pub(super) enum ChargeOutcome {
    /// Stored at this revision.
    Stored(ResourceVersion),
    /// Refused: a quota would be exceeded.
    Refused(Refusal),
    /// Failed for the whole batch.
    Failed(Status),
    /// Must be retried outside a batch: one write of the batch caused a conflict or another error.
    RetryAlone,
}

struct QueuedWrite {
    id: u64,
    pending: PendingCharge,
    transaction: Transaction,
    answer: oneshot::Sender<ChargeOutcome>,
}

/// Position in the queue, removed on drop.
struct QueuePosition<'a> {
    waiting: &'a WriteQueues,
    namespace: &'a QuotaNamespace,
    id: u64,
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock();
        if let Some(members) = waiting.get_mut(self.namespace) {
            members.retain(|member| member.id != self.id);
            if members.is_empty() {
                waiting.remove(self.namespace);
            }
        }
    }
}

impl QuotaBatcher {
    /// Commits `pending` together with its charges, in one batch with other waiting writes. Returns the revision of the
    /// first write of `transaction`.
    ///
    /// # Errors
    /// Failure to read the quotas.
    pub(super) async fn write(
        &self,
        context: &QuotaContext,
        namespace: &QuotaNamespace,
        pending: PendingCharge,
        transaction: Transaction,
    ) -> Result<ChargeOutcome, Status> {
        let (answer, mut answered) = oneshot::channel();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let member = QueuedWrite { id, pending, transaction, answer };
        self.waiting.lock().entry(namespace.clone()).or_default().push_back(member);
        let _position = QueuePosition { waiting: &self.waiting, namespace, id };
        loop {
            let turn = tokio::select! {
                biased;
                outcome = &mut answered => return Ok(outcome.unwrap_or(ChargeOutcome::Failed(status_for(&StoreError::Unknown)))),
                turn = context.lock(namespace.clone()) => turn,
            };
            self.charge_batch(context, namespace, turn).await?;
        }
    }

    /// Charges as many waiting writes as one transaction holds. The commit runs to its end even if this future is
    /// dropped.
    async fn charge_batch(
        &self,
        context: &QuotaContext,
        namespace: &QuotaNamespace,
        turn: KeyedGuard<QuotaNamespace>,
    ) -> Result<(), Status> {
        let storage = &context.commits.storage;
        let quotas = stored(storage, namespace.0, &namespace.1).await?;
        let group = ChargeBatch::charge(&quotas, self.take(namespace, quotas.len()));
        let (fitting, refused) = (group.fitting, group.refused);
        let committing = (!fitting.is_empty()).then(|| storage.store.commit(group.transaction));
        tokio::spawn(async move {
            let committed = match committing {
                Some(committing) => committing.await.map(|committed| Some(committed.into_inner())),
                None => Ok(None),
            };
            answer(&committed, fitting, refused);
            drop(turn);
        });
        Ok(())
    }

    /// Takes the oldest waiting writes that fit into one transaction with the writes of `quotas` quotas.
    fn take(&self, namespace: &QuotaNamespace, quotas: usize) -> Vec<QueuedWrite> {
        let mut waiting = self.waiting.lock();
        let Some(members) = waiting.get_mut(namespace) else { return Vec::new() };
        let mut size = TransactionSize::of(quotas);
        let mut taken = Vec::new();
        while members.front().is_some_and(|member| size.takes(&member.transaction) || taken.is_empty()) {
            taken.extend(members.pop_front());
        }
        if members.is_empty() {
            waiting.remove(namespace);
        }
        taken
    }
}

/// Size of a transaction.
struct TransactionSize {
    objects: usize,
    bytes: usize,
    written: HashSet<ObjectKey>,
    checked: Vec<WritePrecondition>,
}

/// Precondition of a key.
type WritePrecondition = (ObjectKey, Expect);

impl TransactionSize {
    fn of(quotas: usize) -> Self {
        Self { objects: quotas, bytes: 0, written: HashSet::new(), checked: Vec::new() }
    }

    /// Adds a write if it fits and depends on nothing that is written before it in the batch.
    fn takes(&mut self, more: &Transaction) -> bool {
        let bytes: usize =
            more.writes.iter().filter_map(|write| write.record.as_ref()).map(|record| record.body().len()).sum();
        let objects = self.objects + more.writes.len();
        let conditions =
            objects + self.checked.len() + more.checks.iter().filter(|check| !self.checked.contains(check)).count();
        let meets = |key: &ObjectKey| self.written.contains(key) || self.checked.iter().any(|(own, _)| own == key);
        // One precondition is the existence of the logical cluster.
        let fits = objects <= MAX_TRANSACTION_OBJECTS
            && conditions < MAX_TRANSACTION_CONDITIONS
            && self.bytes + bytes <= GROUP_BYTES
            && !more.writes.iter().any(|write| meets(&write.key))
            && !more.checks.iter().any(|(key, _)| self.written.contains(key));
        if fits {
            self.objects = objects;
            self.bytes += bytes;
            self.written.extend(more.writes.iter().map(|write| write.key.clone()));
            add_checks(&mut self.checked, more.checks.iter().cloned());
        }
        fits
    }
}

/// One transaction, and the writers that wait for it.
#[derive(Default)]
struct ChargeBatch {
    transaction: Transaction,
    /// Accepted writers, each with the index of its first write.
    fitting: Vec<(u64, oneshot::Sender<ChargeOutcome>)>,
    refused: Vec<(Refusal, oneshot::Sender<ChargeOutcome>)>,
}

impl ChargeBatch {
    /// Charges the writes in order. Each charge includes the usage of the writes before it.
    fn charge(quotas: &[StoredQuota], members: Vec<QueuedWrite>) -> Self {
        let mut group = Self::default();
        let mut trees: Vec<Value> = quotas.iter().map(|quota| quota.tree.clone()).collect();
        for member in members {
            match charge(&trees, &member.pending.quota_request()) {
                Err(refusal) => group.refused.push((refusal, member.answer)),
                Ok(charged) => {
                    use_more(&mut trees, charged);
                    group.add(member.transaction, member.answer);
                }
            }
        }
        let changed = quotas.iter().zip(&trees).filter(|(quota, after)| quota.tree != **after);
        group
            .transaction
            .writes
            .extend(changed.map(|(quota, after)| with_usage(quota, after["status"]["used"].clone())));
        group
    }

    fn add(&mut self, more: Transaction, answer: oneshot::Sender<ChargeOutcome>) {
        self.fitting.push((self.transaction.writes.len() as u64, answer));
        self.transaction.writes.extend(more.writes);
        // All writes are in one logical cluster.
        self.transaction.accounts = more.accounts;
        add_checks(&mut self.transaction.checks, more.checks);
    }
}

/// Adds preconditions that are not known yet. Most writes share the precondition that their namespace exists.
fn add_checks(known: &mut Vec<WritePrecondition>, more: impl IntoIterator<Item = WritePrecondition>) {
    for check in more {
        if !known.contains(&check) {
            known.push(check);
        }
    }
}

/// Sends the outcomes. A closed channel belongs to a writer that has left.
fn answer(
    committed: &Result<Option<Committed>, StoreError>,
    fitting: Vec<(u64, oneshot::Sender<ChargeOutcome>)>,
    refused: Vec<(Refusal, oneshot::Sender<ChargeOutcome>)>,
) {
    let outcome = |place: u64| match committed {
        Ok(committed) => {
            committed.map_or(ChargeOutcome::RetryAlone, |committed| ChargeOutcome::Stored(committed.first.plus(place)))
        }
        Err(error) if is_of_one(error) => ChargeOutcome::RetryAlone,
        Err(error) => ChargeOutcome::Failed(status_for(error)),
    };
    for (place, answer) in fitting {
        let _ = answer.send(outcome(place));
    }
    for (refusal, answer) in refused {
        // The failed transaction charged no write, so a refused write may fit now.
        let _ = answer.send(if committed.is_ok() { ChargeOutcome::Refused(refusal) } else { outcome(0) });
    }
}

/// Returns true if the error concerns one write of the transaction and the others may succeed without it.
fn is_of_one(error: &StoreError) -> bool {
    match error {
        StoreError::NotFound { .. }
        | StoreError::AlreadyExists { .. }
        | StoreError::Conflict { .. }
        | StoreError::FutureRevision { .. }
        | StoreError::TooLarge { .. }
        | StoreError::OverLimit { .. }
        | StoreError::Damaged { .. }
        | StoreError::NotDamaged { .. } => true,
        StoreError::Compacted { .. }
        | StoreError::Overloaded
        | StoreError::Full(_)
        | StoreError::Unreachable { .. }
        | StoreError::ClusterGone { .. }
        | StoreError::Unknown
        | StoreError::Backend(_) => false,
    }
}
