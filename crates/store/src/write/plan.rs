//! Plan of a batch: the pure part of the committer. Every transaction is checked against the state after its
//! predecessors in the batch, gets its own revisions, and fails alone.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, record::RecordHeader};

use crate::{
    api::{ChangeKind, Committed, Event, Expect, StoreError, StoredUsage, damage::Damage},
    engine::{Batch, KvView},
    layout::{
        history_entry::{HistoryChange, HistoryEntry},
        keys::{self, KeySuffix, meta},
        record::{EncodedObject, ObjectVersion, decode},
    },
    read::{
        resources::{self, MAX_RESOURCES, ResourceRegistry},
        state::{StoreMarks, backend, damaged, marks, revision, superseded_bytes},
    },
    watch::PublishedEvent,
    write::precondition::{PreconditionFacts, check},
    write::transaction::PreparedTransaction,
    write::{
        accounts::BatchAccounts,
        discard::{DiscardedObject, IndexedHeaders},
        disk_space::estimated_write,
    },
};

/// Batch under construction.
pub(crate) struct BatchPlan<'a> {
    pub(crate) view: &'a dyn KvView,
    pub(crate) resources: &'a ResourceRegistry,
    pub(crate) batch: Batch,
    events: Vec<PublishedEvent>,
    new_resources: HashMap<GroupResource, u32>,
    /// Resource numbers that are reclaimed.
    pub(crate) retired: Vec<u32>,
    pub(crate) before: StoreMarks,
    pub(crate) now: StoreMarks,
    gone: HashMap<LogicalClusterId, bool>,
    replaced: u64,
    /// Bytes of all superseded objects in the history, before and after the batch.
    superseded_before: u64,
    pub(crate) superseded: u64,
    /// Approximate bytes of the engine's file that the batch frees.
    pub(crate) freed: u64,
    /// Bytes of all values that were put.
    bytes: u64,
    pub(crate) accounts: BatchAccounts,
    /// True when the rest of the disk is reserved for logical clusters that store little.
    pub(crate) is_nearly_full: bool,
}

/// Batch that is ready to be committed.
pub(crate) struct PlannedBatch {
    pub(crate) batch: Batch,
    pub(crate) events: Vec<PublishedEvent>,
    pub(crate) marks: StoreMarks,
    pub(crate) new_resources: HashMap<GroupResource, u32>,
    pub(crate) retired: Vec<u32>,
    /// Bytes of all superseded objects in the history after the batch.
    pub(crate) superseded: u64,
    /// Approximate bytes of the engine's file that the batch frees.
    pub(crate) freed: u64,
}

/// Object that a write replaces.
pub(crate) struct ReplacedObject {
    suffix: Option<KeySuffix>,
    content: Option<StoredContent>,
    /// Index entries of a damaged object that is to be deleted.
    indexed: IndexedHeaders,
}

impl ReplacedObject {
    /// Returns true for an object that is marked for deletion.
    pub(crate) fn is_deleting(&self) -> bool {
        matches!(&self.content, Some(StoredContent::Whole(state)) if state.header().is_deleting)
    }

    /// Returns the usage of the stored object, and true if it is missing.
    pub(crate) fn stored(&self) -> (StoredUsage, bool) {
        match &self.content {
            None => (StoredUsage::default(), false),
            Some(StoredContent::Damaged(_, Damage::Missing)) => (StoredUsage::default(), true),
            Some(content) => (StoredUsage::of_one(content.bytes()), false),
        }
    }

    fn found(&self) -> Option<Result<PreconditionFacts, Damage>> {
        self.content.as_ref().map(|content| match content {
            StoredContent::Whole(state) => Ok(state.met()),
            StoredContent::Damaged(_, why) => Err(*why),
        })
    }
}

/// State of an object, encoded and decoded.
#[derive(Clone)]
pub(crate) struct State {
    value: Bytes,
    version: ObjectVersion,
}

impl State {
    pub(crate) fn header(&self) -> &RecordHeader {
        &self.version.record.header
    }

    fn met(&self) -> PreconditionFacts {
        let ObjectVersion { revision, created, .. } = self.version;
        PreconditionFacts { revision, created, is_deleting: self.header().is_deleting }
    }
}

/// Content of an object's key.
pub(crate) enum StoredContent {
    Whole(State),
    Damaged(Bytes, Damage),
}

impl StoredContent {
    pub(crate) fn of(suffix: &[u8], value: Bytes) -> Self {
        match decode(suffix, &value) {
            Ok(version) => Self::Whole(State { value, version }),
            Err(why) => Self::Damaged(value, why),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Whole(State { value, .. }) | Self::Damaged(value, _) => value.len(),
        }
    }
}

/// Revision of a write in its transaction.
#[derive(Clone, Copy)]
pub(crate) struct WritePosition {
    pub(crate) revision: u64,
    pub(crate) boundary: u64,
}

impl WritePosition {
    fn remaining(self) -> u16 {
        u16::try_from(self.boundary - self.revision).unwrap_or(u16::MAX)
    }
}

impl<'a> BatchPlan<'a> {
    pub(crate) fn new(view: &'a dyn KvView, resources: &'a ResourceRegistry) -> Result<Self, StoreError> {
        let (before, superseded) = (marks(view)?, superseded_bytes(view)?);
        Ok(Self {
            view,
            resources,
            batch: Batch::new(),
            events: Vec::new(),
            new_resources: HashMap::new(),
            retired: Vec::new(),
            before,
            now: before,
            gone: HashMap::new(),
            replaced: 0,
            superseded_before: superseded,
            superseded,
            freed: 0,
            bytes: 0,
            accounts: BatchAccounts::default(),
            is_nearly_full: false,
        })
    }

    /// Returns the finished batch, with its bookkeeping.
    pub(crate) fn finish(mut self) -> PlannedBatch {
        for (key, entry) in self.accounts.changes() {
            match entry {
                Some(entry) => self.put(key, entry),
                None => self.remove(key),
            }
        }
        for (key, before, now) in [
            (meta::LAST, self.before.last, self.now.last),
            (meta::FLOOR, self.before.floor, self.now.floor),
            (meta::SUPERSEDED, self.superseded_before, self.superseded),
        ] {
            if now != before {
                self.put(key.to_vec(), now.to_le_bytes().to_vec());
            }
        }
        PlannedBatch {
            batch: self.batch,
            events: self.events,
            marks: self.now,
            new_resources: self.new_resources,
            retired: self.retired,
            superseded: self.superseded,
            freed: self.freed,
        }
    }

    /// Adds a transaction, or leaves the batch unchanged on an error.
    pub(crate) fn transaction(&mut self, txn: PreparedTransaction) -> Result<Committed, StoreError> {
        for (key, expect) in &txn.checks {
            let before = self.before(key)?;
            check(key, *expect, before.found())?;
        }
        let mut befores: Vec<ReplacedObject> = Vec::with_capacity(txn.writes.len());
        for write in &txn.writes {
            if self.is_gone(write.key.cluster)? {
                return Err(StoreError::ClusterGone { cluster: write.key.cluster });
            }
            let before = match write.expect {
                Expect::Damaged => self.lost_before(&write.key)?,
                _ => self.before(&write.key)?,
            };
            check(&write.key, write.expect, before.found())?;
            if write.record.is_none() && before.content.is_none() {
                return Err(StoreError::NotFound { key: write.key.clone() });
            }
            // A write that expects a damaged object can only delete it.
            if let (Some(_), Some(Err(why))) = (&write.record, before.found()) {
                return Err(StoreError::Damaged { key: write.key.clone(), why });
            }
            befores.push(self.with_indexes(write.key.cluster, before)?);
        }
        let charged = self.charge_accounts(&txn, &befores)?;
        // From here on nothing is read, so that no transaction is planned only in part.
        let unknown = befores.iter().filter(|before| before.suffix.is_none()).count();
        if unknown > 0 && self.resources.len() + self.new_resources.len() + unknown > MAX_RESOURCES {
            let what = format!("it writes a new resource, and the store knows {MAX_RESOURCES} already");
            return Err(StoreError::TooLarge { what });
        }
        self.accounts.apply(charged);
        let (first, boundary) = (self.now.last + 1, self.now.last + txn.writes.len() as u64);
        let places = (first..=boundary).map(|revision| WritePosition { revision, boundary });
        for ((write, before), place) in txn.writes.into_iter().zip(befores).zip(places) {
            let suffix = match before.suffix {
                Some(suffix) => suffix,
                None => self.new_suffix(&write.key),
            };
            match (write.record, before.content) {
                (Some(record), None) => self.write(write.key, &suffix, record, None, place)?,
                (Some(record), Some(StoredContent::Whole(state))) => {
                    self.write(write.key, &suffix, record, Some(state), place)?;
                }
                (None, Some(StoredContent::Whole(state))) => self.delete(write.key, &suffix, state, place)?,
                (None, Some(StoredContent::Damaged(value, why))) => {
                    let mut indexed = before.indexed;
                    self.discard_unreadable(
                        DiscardedObject { key: write.key, suffix, value, why },
                        place,
                        &mut indexed,
                    )?;
                }
                (Some(_), Some(StoredContent::Damaged(..))) | (None, None) => {}
            }
        }
        self.now.last = boundary;
        Ok(Committed { first: revision(first.min(boundary))?, last: revision(boundary)? })
    }

    /// Returns the bytes of the values that the batch replaces or deletes.
    pub(crate) fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Returns the bytes of all superseded objects in the history, with this batch.
    pub(crate) fn superseded(&self) -> u64 {
        self.superseded
    }

    /// Returns the bytes written so far, as [`crate::write::disk_space::estimated_write`] counts them: new, kept and
    /// removed ones.
    pub(crate) fn written(&self) -> u64 {
        estimated_write(self.batch.len(), self.bytes)
    }

    /// Returns true if a logical cluster was deleted.
    pub(crate) fn is_gone(&mut self, cluster: LogicalClusterId) -> Result<bool, StoreError> {
        if let Some(gone) = self.gone.get(&cluster) {
            return Ok(*gone);
        }
        let gone = self.get(&meta::tombstone(cluster))?.is_some();
        self.gone.insert(cluster, gone);
        Ok(gone)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        match self.batch.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.view.get(key).map_err(backend),
        }
    }

    pub(crate) fn put(&mut self, key: Vec<u8>, value: impl Into<Bytes>) {
        let value = value.into();
        self.bytes += value.len() as u64;
        self.batch.insert(key, Some(value));
    }

    pub(crate) fn remove(&mut self, key: Vec<u8>) {
        self.batch.insert(key, None);
    }

    fn before(&self, key: &ObjectKey) -> Result<ReplacedObject, StoreError> {
        let id = self.new_resources.get(&key.resource).copied().or_else(|| self.resources.id(&key.resource));
        let Some(id) = id else {
            return Ok(ReplacedObject { suffix: None, content: None, indexed: IndexedHeaders::default() });
        };
        let suffix = KeySuffix::new(key.cluster, id, &key.scope, &key.name);
        let content = self.get(&suffix.object())?.map(|value| StoredContent::of(suffix.as_bytes(), value));
        Ok(ReplacedObject { suffix: Some(suffix), content, indexed: IndexedHeaders::default() })
    }

    /// Adds the index entries to a damaged object.
    fn with_indexes(&self, cluster: LogicalClusterId, before: ReplacedObject) -> Result<ReplacedObject, StoreError> {
        let indexed = match &before {
            ReplacedObject { suffix: Some(suffix), content: Some(StoredContent::Damaged(..)), .. } => {
                self.indexed(cluster, std::iter::once(suffix))?
            }
            _ => IndexedHeaders::default(),
        };
        Ok(ReplacedObject { indexed, ..before })
    }

    /// Reads the object that a deletion of a damaged one meets: perhaps only an index names it.
    fn lost_before(&self, key: &ObjectKey) -> Result<ReplacedObject, StoreError> {
        let mut before = self.before(key)?;
        if let ReplacedObject { suffix: Some(suffix), content: content @ None, .. } = &mut before
            && self.is_indexed(key.cluster, suffix)?
        {
            *content = Some(StoredContent::Damaged(Bytes::new(), Damage::Missing));
        }
        Ok(before)
    }

    /// Returns the suffix of a key whose resource had no number when the transaction was checked.
    fn new_suffix(&mut self, key: &ObjectKey) -> KeySuffix {
        let id = match self.new_resources.get(&key.resource) {
            Some(id) => *id,
            None => {
                let id = self.resources.next() + u32::try_from(self.new_resources.len()).unwrap_or(u32::MAX);
                self.put(meta::resource(id), resources::encode(&key.resource));
                self.new_resources.insert(key.resource.clone(), id);
                id
            }
        };
        KeySuffix::new(key.cluster, id, &key.scope, &key.name)
    }

    fn write(
        &mut self,
        key: ObjectKey,
        suffix: &KeySuffix,
        record: EncodedObject,
        before: Option<State>,
        place: WritePosition,
    ) -> Result<(), StoreError> {
        let this = revision(place.revision)?;
        let created = before.as_ref().map_or(this, |state| state.version.created);
        self.reindex(suffix, before.as_ref().map(|state| &state.version.record.header), Some(record.header()));
        let (value, version) = record.seal(suffix, this, created);
        self.put(suffix.object(), value);
        let (change, previous) = match before {
            None => (ChangeKind::Created, None),
            Some(state) => {
                self.keep(suffix, state.value, place);
                (ChangeKind::Updated, Some(state.version.record))
            }
        };
        self.record(suffix, place, Event { revision: this, change, key, record: version.record, previous }, None);
        Ok(())
    }

    pub(crate) fn delete(
        &mut self,
        key: ObjectKey,
        suffix: &KeySuffix,
        before: State,
        place: WritePosition,
    ) -> Result<(), StoreError> {
        self.reindex(suffix, Some(&before.version.record.header), None);
        self.remove(suffix.object());
        self.keep(suffix, before.value, place);
        let (revision, record) = (revision(place.revision)?, before.version.record);
        self.record(suffix, place, Event { revision, change: ChangeKind::Deleted, key, record, previous: None }, None);
        Ok(())
    }

    /// Keeps a replaced or deleted state as history.
    pub(crate) fn keep(&mut self, suffix: &KeySuffix, value: Bytes, place: WritePosition) {
        self.replaced += value.len() as u64;
        self.superseded += value.len() as u64;
        self.put(suffix.version(place.revision), value);
    }

    /// Adds an event to the history and to the published events.
    pub(crate) fn record(&mut self, suffix: &KeySuffix, place: WritePosition, event: Event, lost: Option<Damage>) {
        let what = HistoryChange::Object(event.change, suffix.as_bytes());
        let placed = crate::read::history::placed_on(&event).next().is_some();
        let entry = HistoryEntry { what, remaining: place.remaining(), placed };
        self.put(keys::history(place.revision), entry.encode(place.revision));
        self.events.push(PublishedEvent { event: Arc::new(event), boundary: place.boundary, lost });
    }

    pub(crate) fn record_cluster_gone(&mut self, cluster: LogicalClusterId, place: WritePosition) {
        let what = HistoryChange::ClusterGone(cluster);
        let entry = HistoryEntry { what, remaining: place.remaining(), placed: false };
        self.put(keys::history(place.revision), entry.encode(place.revision));
        self.gone.insert(cluster, true);
    }

    /// Updates the indexes by the difference of two headers.
    fn reindex(&mut self, suffix: &KeySuffix, before: Option<&RecordHeader>, after: Option<&RecordHeader>) {
        let owners = |header: Option<&RecordHeader>| index_keys(header.map(|h| &h.owners), |uid| suffix.owner(uid));
        let placed = |header: Option<&RecordHeader>| index_keys(header.map(|h| &h.placed_on), |uid| suffix.placed(uid));
        for (old, new) in [(owners(before), owners(after)), (placed(before), placed(after))] {
            old.iter().filter(|key| !new.contains(key)).for_each(|key| self.remove(key.clone()));
            new.into_iter().filter(|key| !old.contains(key)).for_each(|key| self.put(key, Bytes::new()));
        }
    }
}

fn index_keys(uids: Option<&Vec<String>>, key: impl Fn(&str) -> Option<Vec<u8>>) -> Vec<Vec<u8>> {
    uids.into_iter().flatten().filter_map(|uid| key(uid)).collect()
}

/// Decodes two numbers of the bookkeeping.
pub(crate) fn two_numbers(bytes: &[u8]) -> Result<(u64, u64), StoreError> {
    let (first, rest) = bytes.split_first_chunk::<8>().ok_or(Damage::Key).map_err(damaged)?;
    let second = rest.try_into().map_err(|_| damaged(Damage::Key))?;
    Ok((u64::from_le_bytes(*first), u64::from_le_bytes(second)))
}

#[cfg(test)]
mod tests {
    use portolan_types::{Record, Seams};
    use serde_json::json;

    use super::*;
    use crate::{
        api::{Transaction, Write},
        engine::{MemoryKv, OrderedKv as _, read},
        read::bookkeeping::initialize,
    };

    fn create(resource: &str, name: &str) -> Write {
        let resource = GroupResource::new("example.org", resource);
        let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name.parse().unwrap());
        Write { key, expect: Expect::Absent, record: Some(Record::of(&json!({"metadata": {}}))) }
    }

    #[test]
    fn a_store_knows_a_bounded_number_of_resources() {
        let kv = MemoryKv::default();
        initialize(&kv, &Seams::system()).unwrap();
        let resources = ResourceRegistry::default();
        (1..MAX_RESOURCES as u32).for_each(|id| resources.add(id, GroupResource::new("example.org", format!("r{id}"))));
        let planned = read(&kv, |view| {
            let mut plan = BatchPlan::new(view, &resources).unwrap();
            for (writes, accepted) in [
                (vec![create("r1", "a")], true),
                (vec![create("one", "a"), create("two", "a")], false),
                (vec![create("last", "a")], true),
                (vec![create("last", "b"), create("r2", "a")], true),
                (vec![create("more", "a")], false),
            ] {
                let txn = PreparedTransaction::new(Transaction { writes, ..Transaction::default() }).unwrap();
                let done = plan.transaction(txn);
                assert!(
                    matches!((&done, accepted), (Ok(_), true) | (Err(StoreError::TooLarge { .. }), false)),
                    "{done:?}"
                );
            }
            plan.finish()
        });
        let planned = planned.unwrap();
        assert_eq!((planned.events.len(), planned.new_resources.len()), (4, 1));
        kv.close();
    }
}
