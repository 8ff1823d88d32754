//! What a batch writes: the pure part of the committer. Every transaction is checked against the state after those before it
//! in the batch, gets its own revisions, and fails alone.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, ResourceVersion, record::RecordHeader};

use crate::{
    Account, Change, Committed, Event, Expect, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_CONDITIONS,
    MAX_TRANSACTION_OBJECTS, StoreError, Transaction, Usage,
    accounts::BatchAccounts,
    gate::Purpose,
    history::{Entry, What},
    hub::Published,
    keys::{self, Suffix, meta},
    kv::{Batch, View},
    lost::{Indexed, Lost},
    read::{Marks, backend, damaged, marks, revision},
    resources::{self, MAX_RESOURCES, Resources},
    room::written,
    value::{Damage, Prepared, Version, decode},
};

/// A transaction with its objects encoded, which the caller's thread did.
pub(crate) struct PreparedTransaction {
    pub(crate) accounts: Vec<Account>,
    pub(crate) checks: Vec<(ObjectKey, Expect)>,
    pub(crate) writes: Vec<PreparedWrite>,
    bytes: usize,
}

pub(crate) struct PreparedWrite {
    pub(crate) key: ObjectKey,
    pub(crate) expect: Expect,
    pub(crate) record: Option<Prepared>,
}

impl PreparedTransaction {
    /// # Errors
    /// `TooLarge` for more objects, conditions or bytes than a transaction may have, and for a key that is written twice.
    pub(crate) fn new(txn: Transaction) -> Result<Self, StoreError> {
        let count = txn.writes.len();
        if count > MAX_TRANSACTION_OBJECTS {
            let what = format!("{count} objects, at most {MAX_TRANSACTION_OBJECTS} are possible");
            return Err(StoreError::TooLarge { what });
        }
        let clusters: BTreeSet<LogicalClusterId> = txn.writes.iter().map(|write| write.key.cluster).collect();
        let conditions = count + txn.checks.len() + clusters.len();
        if conditions > MAX_TRANSACTION_CONDITIONS {
            let what = format!("{conditions} conditions, at most {MAX_TRANSACTION_CONDITIONS} are possible");
            return Err(StoreError::TooLarge { what });
        }
        let mut keys: Vec<&ObjectKey> = txn.writes.iter().map(|write| &write.key).collect();
        keys.sort_unstable();
        if let Some(twice) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(StoreError::TooLarge { what: format!("it writes {} twice", twice[0]) });
        }
        let prepare = |write: crate::Write| PreparedWrite {
            key: write.key,
            expect: write.expect,
            record: write.record.map(Prepared::new),
        };
        let writes: Vec<PreparedWrite> = txn.writes.into_iter().map(prepare).collect();
        let bytes = writes.iter().map(|write| 64 + write.record.as_ref().map_or(0, Prepared::len)).sum();
        if bytes > MAX_TRANSACTION_BYTES {
            let what = format!("{bytes} bytes, at most {MAX_TRANSACTION_BYTES} are possible");
            return Err(StoreError::TooLarge { what });
        }
        Ok(Self { accounts: txn.accounts, checks: txn.checks, writes, bytes })
    }

    /// What it does to the room on the disk. Deleting an object often begins with changing it: what is being deleted may be
    /// changed until it is gone.
    pub(crate) fn purpose(&self) -> Purpose {
        let each = self.writes.iter().map(|write| match &write.record {
            None => Purpose::MakeRoom,
            Some(record) if record.header().is_deleting => Purpose::Leave,
            Some(_) => Purpose::Any,
        });
        each.min().unwrap_or(Purpose::MakeRoom)
    }

    /// Bytes that it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A batch in the making.
pub(crate) struct Plan<'a> {
    pub(super) view: &'a dyn View,
    pub(super) resources: &'a Resources,
    pub(super) batch: Batch,
    events: Vec<Published>,
    new_resources: HashMap<GroupResource, u32>,
    /// Numbers that are taken back.
    pub(super) retired: Vec<u32>,
    pub(super) before: Marks,
    pub(super) now: Marks,
    gone: HashMap<LogicalClusterId, bool>,
    replaced: u64,
    /// Bytes of all values that were put.
    bytes: u64,
    pub(super) accounts: BatchAccounts,
    /// True when the rest of the disk is reserved for logical clusters that store little.
    pub(crate) is_tight: bool,
}

/// A batch that is ready to be committed.
pub(crate) struct Planned {
    pub(crate) batch: Batch,
    pub(crate) events: Vec<Published>,
    pub(crate) marks: Marks,
    pub(crate) new_resources: HashMap<GroupResource, u32>,
    pub(crate) retired: Vec<u32>,
}

/// What an expectation is held against, of an object that can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub(crate) revision: ResourceVersion,
    pub(crate) created: ResourceVersion,
    pub(crate) is_deleting: bool,
}

/// What a write meets.
pub(crate) struct Before {
    suffix: Option<Suffix>,
    content: Option<Content>,
    /// Of something damaged that is to be deleted.
    indexed: Indexed,
}

impl Before {
    /// Returns true for an object that is marked for deletion.
    pub(crate) fn is_deleting(&self) -> bool {
        matches!(&self.content, Some(Content::Whole(state)) if state.header().is_deleting)
    }

    /// Returns what is stored of it, and whether something stored is lost.
    pub(crate) fn stored(&self) -> (Usage, bool) {
        match &self.content {
            None => (Usage::default(), false),
            Some(Content::Damaged(_, Damage::Missing)) => (Usage::default(), true),
            Some(content) => (Usage::of_one(content.bytes()), false),
        }
    }

    fn found(&self) -> Option<Result<Met, Damage>> {
        self.content.as_ref().map(|content| match content {
            Content::Whole(state) => Ok(state.met()),
            Content::Damaged(_, why) => Err(*why),
        })
    }
}

/// The state of an object, as bytes and taken apart.
#[derive(Clone)]
pub(super) struct State {
    value: Bytes,
    version: Version,
}

impl State {
    pub(super) fn header(&self) -> &RecordHeader {
        &self.version.record.header
    }

    fn met(&self) -> Met {
        let Version { revision, created, .. } = self.version;
        Met { revision, created, is_deleting: self.header().is_deleting }
    }
}

/// What there is under an object's key.
pub(crate) enum Content {
    Whole(State),
    Damaged(Bytes, Damage),
}

impl Content {
    pub(super) fn of(suffix: &[u8], value: Bytes) -> Self {
        match decode(suffix, &value) {
            Ok(version) => Self::Whole(State { value, version }),
            Err(why) => Self::Damaged(value, why),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Whole(State { value, .. }) | Self::Damaged(value, _) => value.len(),
        }
    }
}

/// A place in a transaction.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) revision: u64,
    pub(super) boundary: u64,
}

impl Place {
    fn remaining(self) -> u16 {
        u16::try_from(self.boundary - self.revision).unwrap_or(u16::MAX)
    }
}

impl<'a> Plan<'a> {
    pub(crate) fn new(view: &'a dyn View, resources: &'a Resources) -> Result<Self, StoreError> {
        let before = marks(view)?;
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
            bytes: 0,
            accounts: BatchAccounts::default(),
            is_tight: false,
        })
    }

    /// The batch with the marks in it.
    pub(crate) fn finish(mut self) -> Planned {
        for (key, entry) in self.accounts.changes() {
            match entry {
                Some(entry) => self.put(key, entry),
                None => self.remove(key),
            }
        }
        for (key, before, now) in
            [(meta::LAST, self.before.last, self.now.last), (meta::FLOOR, self.before.floor, self.now.floor)]
        {
            if now != before {
                self.put(key.to_vec(), now.to_le_bytes().to_vec());
            }
        }
        Planned {
            batch: self.batch,
            events: self.events,
            marks: self.now,
            new_resources: self.new_resources,
            retired: self.retired,
        }
    }

    /// Adds a transaction, or leaves the batch as it is.
    pub(crate) fn transaction(&mut self, txn: PreparedTransaction) -> Result<Committed, StoreError> {
        for (key, expect) in &txn.checks {
            let before = self.before(key)?;
            check(key, *expect, before.found())?;
        }
        let mut befores: Vec<Before> = Vec::with_capacity(txn.writes.len());
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
            // One that is expected to be damaged can only be deleted.
            if let (Some(_), Some(Err(why))) = (&write.record, before.found()) {
                return Err(StoreError::Damaged { key: write.key.clone(), why });
            }
            befores.push(self.with_indexes(write.key.cluster, before)?);
        }
        let charged = self.charged(&txn, &befores)?;
        // From here on nothing is read, so that nothing fails which is planned by half.
        let unknown = befores.iter().filter(|before| before.suffix.is_none()).count();
        if unknown > 0 && self.resources.len() + self.new_resources.len() + unknown > MAX_RESOURCES {
            let what = format!("it writes a new resource, and the store knows {MAX_RESOURCES} already");
            return Err(StoreError::TooLarge { what });
        }
        self.accounts.apply(charged);
        let (first, boundary) = (self.now.last + 1, self.now.last + txn.writes.len() as u64);
        let places = (first..=boundary).map(|revision| Place { revision, boundary });
        for ((write, before), place) in txn.writes.into_iter().zip(befores).zip(places) {
            let suffix = match before.suffix {
                Some(suffix) => suffix,
                None => self.new_suffix(&write.key),
            };
            match (write.record, before.content) {
                (Some(record), None) => self.write(write.key, &suffix, record, None, place)?,
                (Some(record), Some(Content::Whole(state))) => {
                    self.write(write.key, &suffix, record, Some(state), place)?;
                }
                (None, Some(Content::Whole(state))) => self.delete(write.key, &suffix, state, place)?,
                (None, Some(Content::Damaged(value, why))) => {
                    let mut indexed = before.indexed;
                    self.lose(Lost { key: write.key, suffix, value, why }, place, &mut indexed)?;
                }
                (Some(_), Some(Content::Damaged(..))) | (None, None) => {}
            }
        }
        self.now.last = boundary;
        Ok(Committed { first: revision(first.min(boundary))?, last: revision(boundary)? })
    }

    /// Bytes of the states that it replaces or deletes.
    pub(crate) fn replaced(&self) -> u64 {
        self.replaced
    }

    /// How much it writes so far, as [`crate::room::written`] counts it: what is new, what is kept, and what is removed.
    pub(crate) fn written(&self) -> u64 {
        written(self.batch.len(), self.bytes)
    }

    /// Whether a logical cluster takes no writes any more.
    pub(super) fn is_gone(&mut self, cluster: LogicalClusterId) -> Result<bool, StoreError> {
        if let Some(gone) = self.gone.get(&cluster) {
            return Ok(*gone);
        }
        let gone = self.get(&meta::tombstone(cluster))?.is_some();
        self.gone.insert(cluster, gone);
        Ok(gone)
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        match self.batch.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.view.get(key).map_err(backend),
        }
    }

    pub(super) fn put(&mut self, key: Vec<u8>, value: impl Into<Bytes>) {
        let value = value.into();
        self.bytes += value.len() as u64;
        self.batch.insert(key, Some(value));
    }

    pub(super) fn remove(&mut self, key: Vec<u8>) {
        self.batch.insert(key, None);
    }

    fn before(&self, key: &ObjectKey) -> Result<Before, StoreError> {
        let id = self.new_resources.get(&key.resource).copied().or_else(|| self.resources.id(&key.resource));
        let Some(id) = id else {
            return Ok(Before { suffix: None, content: None, indexed: Indexed::default() });
        };
        let suffix = Suffix::new(key.cluster, id, &key.scope, &key.name);
        let content = self.get(&suffix.object())?.map(|value| Content::of(suffix.as_bytes(), value));
        Ok(Before { suffix: Some(suffix), content, indexed: Indexed::default() })
    }

    /// What a write meets, and of something damaged what the indexes say of it.
    fn with_indexes(&self, cluster: LogicalClusterId, before: Before) -> Result<Before, StoreError> {
        let indexed = match &before {
            Before { suffix: Some(suffix), content: Some(Content::Damaged(..)), .. } => {
                self.indexed(cluster, std::iter::once(suffix))?
            }
            _ => Indexed::default(),
        };
        Ok(Before { indexed, ..before })
    }

    /// What a deletion of something damaged meets, which may be no more than what an index says.
    fn lost_before(&self, key: &ObjectKey) -> Result<Before, StoreError> {
        let mut before = self.before(key)?;
        if let Before { suffix: Some(suffix), content: content @ None, .. } = &mut before
            && self.is_indexed(key.cluster, suffix)?
        {
            *content = Some(Content::Damaged(Bytes::new(), Damage::Missing));
        }
        Ok(before)
    }

    /// The suffix of a key whose resource had no number when the transaction was checked.
    fn new_suffix(&mut self, key: &ObjectKey) -> Suffix {
        let id = match self.new_resources.get(&key.resource) {
            Some(id) => *id,
            None => {
                let id = self.resources.next() + u32::try_from(self.new_resources.len()).unwrap_or(u32::MAX);
                self.put(meta::resource(id), resources::encode(&key.resource));
                self.new_resources.insert(key.resource.clone(), id);
                id
            }
        };
        Suffix::new(key.cluster, id, &key.scope, &key.name)
    }

    fn write(
        &mut self,
        key: ObjectKey,
        suffix: &Suffix,
        record: Prepared,
        before: Option<State>,
        place: Place,
    ) -> Result<(), StoreError> {
        let this = revision(place.revision)?;
        let created = before.as_ref().map_or(this, |state| state.version.created);
        self.reindex(suffix, before.as_ref().map(|state| &state.version.record.header), Some(record.header()));
        let (value, version) = record.seal(suffix, this, created);
        self.put(suffix.object(), value);
        let (change, previous) = match before {
            None => (Change::Created, None),
            Some(state) => {
                self.keep(suffix, state.value, place);
                (Change::Updated, Some(state.version.record))
            }
        };
        self.record(suffix, place, Event { revision: this, change, key, record: version.record, previous }, None);
        Ok(())
    }

    pub(super) fn delete(
        &mut self,
        key: ObjectKey,
        suffix: &Suffix,
        before: State,
        place: Place,
    ) -> Result<(), StoreError> {
        self.reindex(suffix, Some(&before.version.record.header), None);
        self.remove(suffix.object());
        self.keep(suffix, before.value, place);
        let (revision, record) = (revision(place.revision)?, before.version.record);
        self.record(suffix, place, Event { revision, change: Change::Deleted, key, record, previous: None }, None);
        Ok(())
    }

    /// Keeps a state that is replaced or deleted, as history.
    fn keep(&mut self, suffix: &Suffix, value: Bytes, place: Place) {
        self.replaced += value.len() as u64;
        self.put(suffix.version(place.revision), value);
    }

    /// Adds an event to the history and to what is published.
    pub(super) fn record(&mut self, suffix: &Suffix, place: Place, event: Event, lost: Option<Damage>) {
        let what = What::Object(event.change, suffix.as_bytes());
        let placed = crate::history::placed_on(&event).next().is_some();
        let entry = Entry { what, remaining: place.remaining(), placed };
        self.put(keys::history(place.revision), entry.encode(place.revision));
        self.events.push(Published { event: Arc::new(event), boundary: place.boundary, lost });
    }

    pub(super) fn record_cluster_gone(&mut self, cluster: LogicalClusterId, place: Place) {
        let what = What::ClusterGone(cluster);
        let entry = Entry { what, remaining: place.remaining(), placed: false };
        self.put(keys::history(place.revision), entry.encode(place.revision));
        self.gone.insert(cluster, true);
    }

    /// Changes the indexes by what differs between two headers.
    fn reindex(&mut self, suffix: &Suffix, before: Option<&RecordHeader>, after: Option<&RecordHeader>) {
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

/// Whether an expectation holds of an object, or of one that is damaged.
pub(crate) fn check(key: &ObjectKey, expect: Expect, found: Option<Result<Met, Damage>>) -> Result<(), StoreError> {
    match (expect, found) {
        (Expect::Anything | Expect::Absent, None) | (Expect::Damaged, Some(Err(_))) => Ok(()),
        (Expect::Anything | Expect::Present, Some(Ok(_))) => Ok(()),
        (Expect::At(expected), Some(Ok(met))) if expected == met.revision => Ok(()),
        (Expect::Lives { created, .. }, Some(Ok(met))) if created == met.created && !met.is_deleting => Ok(()),
        (Expect::At(expected) | Expect::Lives { written: expected, .. }, Some(Ok(met))) => {
            Err(conflict(key, expected, met.revision))
        }
        (Expect::Absent, Some(_)) => Err(StoreError::AlreadyExists { key: key.clone() }),
        (Expect::Present | Expect::At(_) | Expect::Lives { .. } | Expect::Damaged, None) => {
            Err(StoreError::NotFound { key: key.clone() })
        }
        (Expect::Damaged, Some(Ok(_))) => Err(StoreError::NotDamaged { key: key.clone() }),
        (Expect::Anything | Expect::Present | Expect::At(_) | Expect::Lives { .. }, Some(Err(why))) => {
            Err(StoreError::Damaged { key: key.clone(), why })
        }
    }
}

fn conflict(key: &ObjectKey, expected: ResourceVersion, actual: ResourceVersion) -> StoreError {
    StoreError::Conflict { key: key.clone(), expected, actual }
}

/// Bytes of bookkeeping that are two numbers.
pub(super) fn two_numbers(bytes: &[u8]) -> Result<(u64, u64), StoreError> {
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
        Write,
        kv::{MemoryKv, OrderedKv as _, read},
        open::initialize,
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
        let resources = Resources::default();
        (1..MAX_RESOURCES as u32).for_each(|id| resources.add(id, GroupResource::new("example.org", format!("r{id}"))));
        let planned = read(&kv, |view| {
            let mut plan = Plan::new(view, &resources).unwrap();
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
