//! Commit: each transaction is one etcd transaction, conditioned on the revisions that were read, and retried after a
//! conflict.

use std::collections::BTreeMap;

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey};

use super::{
    EtcdCore,
    accounts::CountDelta,
    layout::{RevisionMapping, range_of},
    proto::{
        Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
        response_op::Response,
    },
};
use crate::{
    api::{AccountLimit, Committed, Expect, MAX_TRANSACTION_CONDITIONS, StoreError, StoredObject, damage::Damage},
    engine::failed,
    layout::record::EncodedObject,
    read::state::{backend, revision},
    write::{
        accounts::is_bounded,
        precondition::{PreconditionFacts, check},
        transaction::{PreparedTransaction, PreparedWrite},
    },
};

/// Attempts at a transaction that others conflict with.
const MAX_ATTEMPTS: usize = 64;
/// Operations of one etcd transaction by default. A nested one has what the outer one leaves: this limit minus the
/// conditions or operations of the outer one, whichever are more.
const OPERATIONS: usize = 128;
/// Nested transactions that an outer one may have without reducing that limit.
const NESTED: usize = 20;
/// Conditions of one transaction, which cannot be nested: those of the store's transaction, that the store is the one
/// that was opened, and that an index still names a missing object.
const CONDITIONS: usize = MAX_TRANSACTION_CONDITIONS + 2;
// The rest is for nested operations.
const _: () = assert!(CONDITIONS < OPERATIONS);

/// Builds the condition that a key does not exist.
pub(super) fn is_absent(key: Vec<u8>) -> Compare {
    let target_union = Some(TargetUnion::CreateRevision(0));
    Compare { result: CompareResult::Equal.into(), target: CompareTarget::Create.into(), key: key.into(), target_union }
}

/// Builds the condition that a key exists.
pub(super) fn is_there(key: Vec<u8>) -> Compare {
    Compare { result: CompareResult::Greater.into(), ..is_absent(key) }
}

/// Builds the condition that a key was last written at an etcd revision; 0 means never.
pub(super) fn is_at(key: Vec<u8>, at: i64) -> Compare {
    let target_union = Some(TargetUnion::ModRevision(at));
    Compare { result: CompareResult::Equal.into(), target: CompareTarget::Mod.into(), key: key.into(), target_union }
}

pub(super) fn put(key: Vec<u8>, value: Bytes) -> RequestOp {
    RequestOp { request: Some(Request::RequestPut(PutRequest { key: key.into(), value, lease: 0 })) }
}

pub(super) fn delete(key: Vec<u8>) -> RequestOp {
    let request = DeleteRangeRequest { key: key.into(), range_end: Bytes::new() };
    RequestOp { request: Some(Request::RequestDeleteRange(request)) }
}

/// Builds the deletion of all keys with a prefix.
pub(super) fn delete_all(prefix: Vec<u8>) -> RequestOp {
    let (key, range_end) = range_of(prefix);
    RequestOp {
        request: Some(Request::RequestDeleteRange(DeleteRangeRequest { key: key.into(), range_end: range_end.into() })),
    }
}

pub(super) fn read_key(key: Vec<u8>) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(RangeRequest { key: key.into(), ..RangeRequest::default() })) }
}

/// Nests operations so that etcd accepts them in a transaction with `conditions` conditions.
pub(super) fn nested(conditions: usize, operations: Vec<RequestOp>) -> Vec<RequestOp> {
    if operations.len() <= OPERATIONS {
        return operations;
    }
    let each = OPERATIONS.saturating_sub(conditions.max(NESTED)).max(1);
    let mut rest = operations.into_iter().peekable();
    let mut chunks = Vec::new();
    while rest.peek().is_some() {
        let success = rest.by_ref().take(each).collect();
        let request = TxnRequest { success, ..TxnRequest::default() };
        chunks.push(RequestOp { request: Some(Request::RequestTxn(request)) });
    }
    chunks
}

/// Returns the result of each read of a transaction, in order.
pub(super) fn read_results(response: TxnResponse) -> Vec<Option<KeyValue>> {
    let found = |response: super::proto::ResponseOp| match response.response {
        Some(Response::ResponseRange(range)) => vec![range.kvs.into_iter().next()],
        Some(Response::ResponseTxn(nested)) => read_results(nested),
        Some(Response::ResponsePut(_) | Response::ResponseDeleteRange(_)) | None => Vec::new(),
    };
    response.responses.into_iter().flat_map(found).collect()
}

/// Encodes the positions of deletions in their transaction: the number of writes that follow, and the key.
pub(super) fn encode_places<'a>(deletions: impl Iterator<Item = (u64, &'a [u8])>) -> Bytes {
    let mut out = Vec::new();
    for (remaining, key) in deletions {
        out.push(u8::try_from(remaining).unwrap_or(u8::MAX));
        out.extend_from_slice(&u32::try_from(key.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(key);
    }
    out.into()
}

/// Decodes the output of [`encode_places`]; `None` for other bytes.
pub(super) fn decode_places(mut bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut places = Vec::new();
    while let Some((remaining, rest)) = bytes.split_first() {
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        places.push((u64::from(*remaining), rest.get(..length)?));
        bytes = &rest[length..];
    }
    Some(places)
}

/// Checks a transaction, and writes nothing.
pub(super) async fn dry_run(inner: &EtcdCore, txn: PreparedTransaction) -> Result<(), StoreError> {
    let attempt = TransactionAttempt::new(inner, txn);
    let seen = attempt.observe().await?;
    let found = attempt.check(&seen, &attempt.missing(&seen).await?)?;
    inner.accounts.charge(attempt.limits(&found), attempt.changes(&seen)).map(drop)
}

/// Commits a transaction.
pub(super) async fn commit(inner: &EtcdCore, txn: PreparedTransaction) -> Result<Committed, StoreError> {
    let attempt = TransactionAttempt::new(inner, txn);
    let mut seen = match attempt.assumed_keys() {
        Some(guess) => guess,
        None => attempt.observe().await?,
    };
    for _ in 0..MAX_ATTEMPTS {
        let missing = attempt.missing(&seen).await?;
        let found = attempt.check(&seen, &missing)?;
        if attempt.writes.is_empty() {
            let now = revision(inner.layout.numbering.boundary(seen.at))?;
            inner.reach(seen.at).await?;
            return Ok(Committed { first: now, last: now });
        }
        let lost = attempt.lost_indexes(&found, missing).await?;
        // The charge counts until its events have arrived.
        let _pending = inner.accounts.charge(attempt.limits(&found), attempt.changes(&seen))?;
        let request = attempt.request(&seen, &found, lost);
        let count = attempt.writes.len();
        portolan_types::failpoint!("etcd/commit-planned");
        let written = inner.metrics.time_commit(count, inner.client.write(request, inner.patience)).await;
        portolan_types::failpoint!("etcd/commit-answered");
        let response = written.map_err(|fault| inner.write_fault(fault))?;
        let at = at(&response);
        if response.succeeded {
            // Deletions succeed also in a full database.
            if attempt.puts() {
                inner.mark_healthy(|standing| matches!(standing, super::EtcdHealth::Full));
            }
            attempt.writes.iter().for_each(|write| inner.damage.remove(&write.key));
            // The events must be readable before the answer.
            inner.reach(at).await.map_err(|_| StoreError::Unknown)?;
            portolan_types::failpoint!("etcd/commit-seen");
            return inner.committed(at, count);
        }
        seen = attempt.observed_keys(response)?;
    }
    Err(StoreError::Overloaded)
}

/// Returns the etcd revision of a transaction.
pub(super) fn at(response: &TxnResponse) -> i64 {
    response.header.as_ref().map_or(0, |header| header.revision)
}

impl EtcdCore {
    pub(super) fn committed(&self, at: i64, writes: usize) -> Result<Committed, StoreError> {
        let numbering = self.layout.numbering;
        let first = numbering.number(at, writes.saturating_sub(1) as u64);
        Ok(Committed { first: revision(first)?, last: revision(numbering.boundary(at))? })
    }

    /// Builds the condition that this is the store that was opened, not one restored in its place.
    pub(super) fn is_same_store(&self) -> Compare {
        is_at(self.layout.meta(), self.founded)
    }

    /// Stops taking writes if the store is another one.
    pub(super) fn check_same_store(&self, meta: Option<&KeyValue>) -> Result<(), StoreError> {
        if meta.is_some_and(|meta| meta.mod_revision == self.founded) {
            return Ok(());
        }
        self.stop(failed("etcd holds another store under this prefix than the one that was opened"));
        self.check_open()
    }
}

/// State of a transaction's keys.
struct ObservedKeys {
    /// True if the state is assumed, not read.
    is_assumed: bool,
    at: i64,
    /// Values of the writes' keys, then of the checks' keys.
    keys: Vec<Option<KeyValue>>,
    gone: Vec<LogicalClusterId>,
}

/// Object that a write replaces.
enum ObservedObject {
    Absent,
    Whole(StoredObject),
    Damaged(Damage),
}

impl ObservedObject {
    fn whole(&self) -> Option<&StoredObject> {
        match self {
            Self::Whole(stored) => Some(stored),
            Self::Absent | Self::Damaged(_) => None,
        }
    }

    fn found(&self) -> Option<Result<PreconditionFacts, Damage>> {
        match self {
            Self::Absent => None,
            Self::Whole(stored) => {
                let StoredObject { revision, created, .. } = *stored;
                Some(Ok(PreconditionFacts { revision, created, is_deleting: stored.record.header.is_deleting }))
            }
            Self::Damaged(why) => Some(Err(*why)),
        }
    }
}

/// Missing objects that are named in indexes, and the index keys.
type MissingObjects = BTreeMap<ObjectKey, Vec<Vec<u8>>>;

struct TransactionAttempt<'a> {
    inner: &'a EtcdCore,
    /// Limits that the transaction must not exceed.
    accounts: Vec<AccountLimit>,
    checks: Vec<(ObjectKey, Expect)>,
    writes: Vec<PreparedWrite>,
    /// Logical clusters that are written to.
    clusters: Vec<LogicalClusterId>,
}

impl<'a> TransactionAttempt<'a> {
    fn new(inner: &'a EtcdCore, txn: PreparedTransaction) -> Self {
        let PreparedTransaction { accounts, checks, writes, .. } = txn;
        let mut clusters: Vec<LogicalClusterId> = writes.iter().map(|write| write.key.cluster).collect();
        clusters.sort_unstable();
        clusters.dedup();
        Self { inner, accounts, checks, writes, clusters }
    }

    fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.writes.iter().map(|write| &write.key).chain(self.checks.iter().map(|(key, _)| key))
    }

    /// Returns the limits that apply to the writes.
    fn limits(&self, found: &[ObservedObject]) -> &[AccountLimit] {
        let is_deleting =
            |before: &ObservedObject| before.whole().is_some_and(|stored| stored.record.header.is_deleting);
        let mut writes = self.writes.iter().zip(found);
        if writes.any(|(write, before)| is_bounded(write, is_deleting(before))) { &self.accounts } else { &[] }
    }

    /// Computes how the writes change the usage of logical clusters.
    fn changes(&self, seen: &ObservedKeys) -> impl Iterator<Item = (LogicalClusterId, CountDelta)> {
        self.writes.iter().zip(&seen.keys).map(|(write, kv)| {
            let before = kv.as_ref().map(|kv| kv.value.len());
            (write.key.cluster, CountDelta::of(before, write.record.as_ref().map(EncodedObject::len)))
        })
    }

    fn puts(&self) -> bool {
        self.writes.iter().any(|write| write.record.is_some())
    }

    /// Assumes the state of keys that are to be created, and of checks at a revision that was read: a checked object
    /// may be large, such as a definition, and is not fetched. A wrong assumption costs one more attempt, which assumes
    /// nothing.
    fn assumed_keys(&self) -> Option<ObservedKeys> {
        let creates = |write: &PreparedWrite| write.expect == Expect::Absent && write.record.is_some();
        if self.writes.is_empty() || !self.writes.iter().all(creates) {
            return None;
        }
        let numbering = self.inner.layout.numbering;
        let as_read = |(_, expect): &(ObjectKey, Expect)| match expect {
            // A transaction writes a key once, so the etcd revision identifies the write. Revisions before a restore do
            // not exist.
            Expect::At(revision) | Expect::Lives { written: revision, .. } => {
                match numbering.transaction(revision.get()) {
                    mod_revision @ 1.. => Some(Some(KeyValue { mod_revision, ..KeyValue::default() })),
                    _ => None,
                }
            }
            Expect::Absent => Some(None),
            Expect::Present | Expect::Anything | Expect::Damaged => None,
        };
        let of_checks: Vec<_> = self.checks.iter().map(as_read).collect::<Option<_>>()?;
        let keys = std::iter::repeat_n(None, self.writes.len()).chain(of_checks);
        Some(ObservedKeys { is_assumed: true, at: 0, keys: keys.collect(), gone: Vec::new() })
    }

    fn conditions(&self) -> usize {
        self.writes.len() + self.checks.len() + self.clusters.len() + 1
    }

    fn key_reads(&self) -> Vec<RequestOp> {
        let layout = &self.inner.layout;
        let keys = self.keys().map(|key| layout.object(key));
        let tombstones = self.clusters.iter().map(|cluster| layout.tombstone(*cluster));
        nested(self.conditions(), keys.chain(tombstones).chain([layout.meta()]).map(read_key).collect())
    }

    async fn observe(&self) -> Result<ObservedKeys, StoreError> {
        let request = TxnRequest { success: self.key_reads(), ..TxnRequest::default() };
        let response = self.inner.client.read(request, self.inner.patience).await;
        self.observed_keys(response.map_err(|fault| self.inner.read_fault(fault))?)
    }

    fn observed_keys(&self, response: TxnResponse) -> Result<ObservedKeys, StoreError> {
        let at = at(&response);
        let mut found = read_results(response);
        if found.len() != self.conditions() {
            return Err(backend(failed("etcd answered a transaction with less than it was asked for")));
        }
        self.inner.check_same_store(found.pop().flatten().as_ref())?;
        let tombstones = found.split_off(self.writes.len() + self.checks.len());
        let gone = self.clusters.iter().zip(tombstones).filter(|(_, found)| found.is_some()).map(|(id, _)| *id);
        Ok(ObservedKeys { is_assumed: false, at, gone: gone.collect(), keys: found })
    }

    /// Checks all preconditions, and returns the objects that the writes replace.
    fn check(&self, seen: &ObservedKeys, missing: &MissingObjects) -> Result<Vec<ObservedObject>, StoreError> {
        if seen.is_assumed {
            return Ok(self.writes.iter().map(|_| ObservedObject::Absent).collect());
        }
        let (of_writes, of_checks) = seen.keys.split_at(self.writes.len());
        for ((key, expect), kv) in self.checks.iter().zip(of_checks) {
            check(key, *expect, self.before(kv.as_ref())?.found())?;
        }
        let mut found = Vec::with_capacity(self.writes.len());
        for (write, kv) in self.writes.iter().zip(of_writes) {
            if seen.gone.contains(&write.key.cluster) {
                return Err(StoreError::ClusterGone { cluster: write.key.cluster });
            }
            let before = match self.before(kv.as_ref())? {
                ObservedObject::Absent if missing.contains_key(&write.key) => ObservedObject::Damaged(Damage::Missing),
                before => before,
            };
            check(&write.key, write.expect, before.found())?;
            match (&write.record, &before) {
                (None, ObservedObject::Absent) => return Err(StoreError::NotFound { key: write.key.clone() }),
                // A write that expects a damaged object can only delete it.
                (Some(_), ObservedObject::Damaged(why)) => {
                    return Err(StoreError::Damaged { key: write.key.clone(), why: *why });
                }
                (None | Some(_), _) => found.push(before),
            }
        }
        Ok(found)
    }

    fn before(&self, kv: Option<&KeyValue>) -> Result<ObservedObject, StoreError> {
        match kv.map(|kv| self.inner.layout.stored(kv)) {
            None => Ok(ObservedObject::Absent),
            Some(Ok(stored)) => Ok(ObservedObject::Whole(stored)),
            Some(Err(StoreError::Damaged { why, .. })) => Ok(ObservedObject::Damaged(why)),
            Some(Err(error)) => Err(error),
        }
    }

    /// Finds objects to be deleted unread that are missing and only named in indexes. Writing a placeholder first would
    /// take space, and might stay. The deleted index entries produce the event: see [`EtcdCore::index_only_deletions`].
    async fn missing(&self, seen: &ObservedKeys) -> Result<MissingObjects, StoreError> {
        let mut missing = MissingObjects::new();
        for (PreparedWrite { key, expect, .. }, kv) in self.writes.iter().zip(&seen.keys) {
            if *expect == Expect::Damaged && kv.is_none() {
                let entries = self.inner.index_keys_of(key.cluster, std::slice::from_ref(key)).await?;
                missing.extend((!entries.is_empty()).then(|| (key.clone(), entries)));
            }
        }
        Ok(missing)
    }

    /// Returns the index keys that name damaged objects to be deleted; those of missing objects come first.
    async fn lost_indexes(
        &self,
        found: &[ObservedObject],
        missing: MissingObjects,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut indexes: Vec<_> = missing.into_values().flatten().collect();
        let stored =
            |before: &ObservedObject| matches!(before, ObservedObject::Damaged(why) if *why != Damage::Missing);
        for (write, _) in self.writes.iter().zip(found).filter(|(_, before)| stored(before)) {
            indexes.extend(self.inner.index_keys_of(write.key.cluster, std::slice::from_ref(&write.key)).await?);
        }
        Ok(indexes)
    }

    fn request(&self, seen: &ObservedKeys, found: &[ObservedObject], lost: Vec<Vec<u8>>) -> TxnRequest {
        let layout = &self.inner.layout;
        let keys = self.keys().zip(&seen.keys);
        let unchanged = keys.map(|(key, kv)| is_at(layout.object(key), kv.as_ref().map_or(0, |kv| kv.mod_revision)));
        let there = self.clusters.iter().map(|cluster| is_absent(layout.tombstone(*cluster)));
        // The condition prevents a second deletion: each deleted entry gives the transaction a revision of its own.
        let is_missing = |before: &ObservedObject| matches!(before, ObservedObject::Damaged(Damage::Missing));
        let named = lost.first().filter(|_| found.iter().any(is_missing)).map(|entry| is_there(entry.clone()));
        let compare: Vec<_> = unchanged.chain(there).chain([self.inner.is_same_store()]).chain(named).collect();
        let success = nested(compare.len(), self.operations(found, lost));
        TxnRequest { compare, success, failure: self.key_reads() }
    }

    /// Builds the writes in their order, then the index changes.
    fn operations(&self, found: &[ObservedObject], lost: Vec<Vec<u8>>) -> Vec<RequestOp> {
        let layout = &self.inner.layout;
        let (mut operations, mut indexes, mut deletions) = (Vec::new(), Vec::new(), Vec::new());
        for ((write, before), remaining) in self.writes.iter().zip(found).zip((0..self.writes.len() as u64).rev()) {
            let key = layout.object(&write.key);
            let before = before.whole();
            let old = before.map_or_else(Vec::new, |old| layout.indexes(&write.key, &old.record.header));
            let new = match &write.record {
                Some(record) => {
                    let created = before.map(|old| old.created);
                    operations.push(put(key, RevisionMapping::sealed(&write.key, record.clone(), remaining, created)));
                    layout.indexes(&write.key, record.header())
                }
                None => {
                    operations.push(delete(key.clone()));
                    deletions.push((remaining, key));
                    Vec::new()
                }
            };
            indexes.extend(old.iter().filter(|key| !new.contains(key)).cloned().map(delete));
            indexes.extend(new.into_iter().filter(|key| !old.contains(key)).map(|key| put(key, Bytes::new())));
        }
        if self.writes.len() > 1 && !deletions.is_empty() {
            let places = deletions.iter().map(|(remaining, key)| (*remaining, key.as_slice()));
            operations.push(put(layout.deletions(), encode_places(places)));
        }
        operations.append(&mut indexes);
        operations.extend(lost.into_iter().map(delete));
        operations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_as_they_went() {
        let places = [(0, &b"a"[..]), (99, b""), (3, b"o\0b")];
        let bytes = encode_places(places.into_iter());
        assert_eq!(decode_places(&bytes), Some(places.to_vec()));
        for cut in [1, 4, bytes.len() - 1] {
            assert_eq!(decode_places(&bytes[..cut]), None);
        }
    }

    #[test]
    fn many_operations_are_nested_in_their_order() {
        for (conditions, count, outer) in [(0, 0, 0), (102, 128, 128), (1, 129, 2), (102, 130, 5), (118, 1000, 100)] {
            let operations: Vec<_> = (0..count).map(|n: u32| read_key(n.to_be_bytes().to_vec())).collect();
            let request = nested(conditions, operations.clone());
            assert_eq!(request.len(), outer);
            let flat = request.into_iter().flat_map(|operation| match operation.request {
                Some(Request::RequestTxn(inner)) => inner.success,
                other => vec![RequestOp { request: other }],
            });
            assert_eq!(flat.collect::<Vec<_>>(), operations);
        }
    }
}
