//! Accounts: the number of objects, and their bytes, that each logical cluster stores with its descendants.
//!
//! The entry of a logical cluster changes in the batch that changes its objects, so it is exact and as durable as they
//! are. Nothing is kept in memory. A store of a format that lacks entries is counted when it is opened, and its logical
//! clusters are linked to their parents as soon as these are known.

mod count;
mod links;

use std::collections::HashMap;

use bytes::Bytes;
use portolan_types::LogicalClusterId;

use crate::{
    api::{AccountLimit, LimitExcess, StoreError, StoredUsage},
    engine::KvView,
    layout::{
        keys::{self, meta},
        record::EncodedObject,
    },
    read::state::backend,
    write::{
        plan::{BatchPlan, ReplacedObject},
        transaction::{PreparedTransaction, PreparedWrite},
    },
};

pub(crate) use self::{
    count::CountedUsage,
    links::{PendingLinks, lacks_parent},
};

/// Most ancestors that a change is added to: more than a path can have.
const MAX_ANCESTORS: usize = 4096;
/// Divisor of all bytes that gives the fair share of a workspace in root. On a nearly full disk, larger ones cannot
/// grow.
const FAIR_SHARE_DIVISOR: u64 = 4;
/// Bytes of an encoded entry.
const ENTRY_BYTES: usize = 41;
/// Entries that one batch writes when a store is counted or linked.
const ENTRIES_PER_BATCH: usize = 512;

/// Account of one logical cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccountEntry {
    /// Usage by its own objects.
    own: StoredUsage,
    /// Usage by its own objects and those of all linked descendants.
    pub(crate) total: StoredUsage,
    parent: Option<LogicalClusterId>,
    /// True after the loss of an object of unknown size: `own` must be counted again.
    is_stale: bool,
}

/// Difference between two usages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UsageDelta {
    objects: i64,
    bytes: i64,
}

impl UsageDelta {
    fn between(before: StoredUsage, after: StoredUsage) -> Self {
        let difference = |before: u64, after: u64| after.cast_signed().wrapping_sub(before.cast_signed());
        Self { objects: difference(before.objects, after.objects), bytes: difference(before.bytes, after.bytes) }
    }
}

impl StoredUsage {
    fn plus(self, change: UsageDelta) -> Self {
        Self {
            objects: self.objects.saturating_add_signed(change.objects),
            bytes: self.bytes.saturating_add_signed(change.bytes),
        }
    }
}

impl AccountEntry {
    pub(crate) fn encode(self) -> Bytes {
        let numbers = [
            self.own.objects,
            self.own.bytes,
            self.total.objects,
            self.total.bytes,
            self.parent.map_or(0, LogicalClusterId::get),
        ];
        let mut out = Vec::with_capacity(ENTRY_BYTES);
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.push(u8::from(self.is_stale));
        out.into()
    }

    /// Decodes an entry; `None` for malformed bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let &[own_objects, own_bytes, objects, bytes, parent] = numbers else { return None };
        let &[is_stale] = rest else { return None };
        let [own_objects, own_bytes, objects, bytes, parent] =
            [own_objects, own_bytes, objects, bytes, parent].map(u64::from_le_bytes);
        Some(Self {
            own: StoredUsage { objects: own_objects, bytes: own_bytes },
            total: StoredUsage { objects, bytes },
            parent: (parent != 0).then(|| LogicalClusterId::new(parent)),
            is_stale: is_stale != 0,
        })
    }
}

/// Entries by logical cluster; `None` for a deleted one.
pub(crate) type AccountEntries = HashMap<LogicalClusterId, Option<AccountEntry>>;

/// Account entries of a batch.
#[derive(Default)]
pub(crate) struct BatchAccounts {
    /// Entries as the batch leaves them so far.
    known: AccountEntries,
    /// Entries that differ from the stored ones.
    changed: AccountEntries,
}

impl BatchAccounts {
    /// Applies the entries of a transaction.
    pub(crate) fn apply(&mut self, entries: AccountEntries) {
        self.known.extend(entries.iter().map(|(cluster, entry)| (*cluster, *entry)));
        self.changed.extend(entries);
    }

    /// Takes the changed keys with their new values; `None` removes.
    pub(crate) fn changes(&mut self) -> Vec<(Vec<u8>, Option<Bytes>)> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        changed.map(|(cluster, entry)| (meta::account(cluster), entry.map(AccountEntry::encode))).collect()
    }
}

/// Draft of the entries that a transaction changes.
struct AccountDraft<'p, 'v> {
    plan: &'p mut BatchPlan<'v>,
    entries: AccountEntries,
}

impl AccountDraft<'_, '_> {
    fn entry(&mut self, cluster: LogicalClusterId) -> Result<Option<AccountEntry>, StoreError> {
        match self.entries.get(&cluster) {
            Some(entry) => Ok(*entry),
            None => self.plan.account(cluster),
        }
    }

    /// Adds a change to the totals of a logical cluster and its ancestors.
    fn add(&mut self, cluster: LogicalClusterId, change: UsageDelta) -> Result<(), StoreError> {
        let mut next = Some(cluster);
        for _ in 0..MAX_ANCESTORS {
            let Some(at) = next else { return Ok(()) };
            let Some(mut entry) = self.entry(at)? else { return Ok(()) };
            entry.total = entry.total.plus(change);
            next = entry.parent;
            self.entries.insert(at, Some(entry));
        }
        Ok(())
    }

    fn add_own(&mut self, cluster: LogicalClusterId, change: UsageDelta, is_lost: bool) -> Result<(), StoreError> {
        let Some(mut entry) = self.entry(cluster)? else { return Ok(()) };
        entry.own = entry.own.plus(change);
        entry.is_stale |= is_lost;
        self.entries.insert(cluster, Some(entry));
        self.add(cluster, change)
    }

    /// Links a logical cluster to its parent, and adds its total to those of the ancestors.
    fn link(&mut self, account: &AccountLimit) -> Result<(), StoreError> {
        let (Some(parent), Some(mut entry)) = (account.parent, self.entry(account.cluster)?) else { return Ok(()) };
        if entry.parent.is_some() {
            return Ok(());
        }
        entry.parent = Some(parent);
        self.entries.insert(account.cluster, Some(entry));
        self.add(parent, UsageDelta::between(StoredUsage::default(), entry.total))
    }
}

impl BatchPlan<'_> {
    /// Returns the entries as a transaction changes them. Plans nothing.
    ///
    /// # Errors
    /// `OverLimit` if a logical cluster would grow beyond its limit.
    pub(crate) fn charge_accounts(
        &mut self,
        txn: &PreparedTransaction,
        befores: &[ReplacedObject],
    ) -> Result<AccountEntries, StoreError> {
        let is_bounded = txn.writes.iter().zip(befores).any(|(write, before)| is_bounded(write, before.is_deleting()));
        let mut draft = AccountDraft { plan: self, entries: AccountEntries::new() };
        txn.accounts.iter().rev().try_for_each(|account| draft.link(account))?;
        let held: Vec<Option<AccountEntry>> =
            txn.accounts.iter().map(|account| draft.entry(account.cluster)).collect::<Result<_, _>>()?;
        for (write, before) in txn.writes.iter().zip(befores) {
            if write.key.cluster == LogicalClusterId::SYSTEM {
                continue;
            }
            let (stored, is_lost) = before.stored();
            let after =
                write.record.as_ref().map_or(StoredUsage::default(), |record| StoredUsage::of_one(record.len()));
            draft.add_own(write.key.cluster, UsageDelta::between(stored, after), is_lost)?;
        }
        for (account, held) in txn.accounts.iter().zip(held).filter(|_| is_bounded) {
            if let (Some(held), Some(wanted)) = (held, draft.entry(account.cluster)?) {
                account.check(held.total, wanted.total)?;
                let is_growth = wanted.total.bytes > held.total.bytes;
                if draft.plan.is_nearly_full && is_growth && account.parent == Some(LogicalClusterId::ROOT) {
                    let all = draft.entry(LogicalClusterId::ROOT)?.unwrap_or_default().total.bytes;
                    account.check_share(held.total.bytes, all)?;
                }
            }
        }
        Ok(draft.entries)
    }

    /// Returns the entries as the deletion of a logical cluster changes them. Plans nothing.
    pub(crate) fn close_account(&mut self, cluster: LogicalClusterId) -> Result<AccountEntries, StoreError> {
        let mut draft = AccountDraft { plan: self, entries: AccountEntries::new() };
        if let Some(entry) = draft.entry(cluster)? {
            draft.add(cluster, UsageDelta::between(entry.total, StoredUsage::default()))?;
        }
        draft.entries.insert(cluster, None);
        Ok(draft.entries)
    }

    /// Returns the entry of a logical cluster; `None` for a deleted one.
    fn account(&mut self, cluster: LogicalClusterId) -> Result<Option<AccountEntry>, StoreError> {
        if let Some(known) = self.accounts.known.get(&cluster) {
            return Ok(*known);
        }
        let found = stored_account(self.view, cluster)?;
        let entry = match found {
            Some(entry) if !entry.is_stale => Some(entry),
            _ if self.is_gone(cluster)? => None,
            found => {
                let (before, own) = (found.unwrap_or_default(), count(self.view, cluster));
                let total = before.total.plus(UsageDelta::between(before.own, own));
                Some(AccountEntry { own, total, parent: before.parent, is_stale: false })
            }
        };
        self.accounts.known.insert(cluster, entry);
        Ok(entry)
    }
}

/// Returns true for a write that limits apply to: all but deletions and the deletion mark, which grows its object a
/// little.
pub(crate) fn is_bounded(write: &PreparedWrite, was_deleting: bool) -> bool {
    let may_grow = |record: &EncodedObject| !record.header().is_deleting || was_deleting;
    write.key.cluster != LogicalClusterId::SYSTEM && write.record.as_ref().is_some_and(may_grow)
}

/// Reads the stored entry of a logical cluster.
pub(crate) fn stored_account(view: &dyn KvView, cluster: LogicalClusterId) -> Result<Option<AccountEntry>, StoreError> {
    let found = view.get(&meta::account(cluster)).map_err(backend)?;
    Ok(found.and_then(|bytes| AccountEntry::decode(&bytes)))
}

/// Counts the readable objects of a logical cluster.
fn count(view: &dyn KvView, cluster: LogicalClusterId) -> StoredUsage {
    let mut found = StoredUsage::default();
    let counted = || {
        let prefix = keys::joined(b'o', &[&keys::cluster_prefix(cluster)]);
        let mut cursor = view.scan(&prefix, &keys::end_of(&prefix))?;
        while cursor.key().is_some() {
            found.objects += 1;
            found.bytes += cursor.value().len() as u64;
            cursor.advance()?;
        }
        Ok::<_, crate::api::BackendError>(())
    };
    if let Err(error) = { counted }() {
        tracing::error!(%cluster, %error, "the objects of a logical cluster could not all be counted");
    }
    found
}

impl StoredUsage {
    /// Returns the usage by one object.
    pub(crate) fn of_one(bytes: usize) -> Self {
        Self { objects: 1, bytes: bytes as u64 }
    }
}

impl AccountLimit {
    /// # Errors
    /// `OverLimit` if it stores more than its fair share of all bytes.
    fn check_share(&self, held: u64, all: u64) -> Result<(), StoreError> {
        if held > all / FAIR_SHARE_DIVISOR {
            return Err(StoreError::OverLimit { cluster: self.cluster, excess: LimitExcess::Share { held, all } });
        }
        Ok(())
    }

    /// # Errors
    /// `OverLimit` if it grows beyond its limits.
    pub(crate) fn check(&self, held: StoredUsage, wanted: StoredUsage) -> Result<(), StoreError> {
        let excess = if wanted.objects > held.objects && wanted.objects > self.most.objects {
            LimitExcess::Objects { held: held.objects, most: self.most.objects }
        } else if wanted.bytes > held.bytes && wanted.bytes > self.most.bytes {
            LimitExcess::Bytes { held: held.bytes, wanted: wanted.bytes, most: self.most.bytes }
        } else {
            return Ok(());
        };
        Err(StoreError::OverLimit { cluster: self.cluster, excess })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_types::{GroupResource, ObjectKey, Record};
    use serde_json::json;

    use super::*;
    use crate::{
        api::{Expect, Transaction},
        engine::{Batch, MemoryKv, OrderedKv as _, read},
        fixtures::SharedKv,
        write::{core::StoreCore, gate::WritePurpose},
    };

    #[test]
    fn entries_survive_their_stored_form() {
        let usage = |objects, bytes| StoredUsage { objects, bytes };
        for (parent, is_stale) in [(None, false), (Some(LogicalClusterId::ROOT), true)] {
            let entry = AccountEntry { own: usage(1, 2), total: usage(u64::MAX, 4), parent, is_stale };
            assert_eq!(AccountEntry::decode(&entry.encode()), Some(entry));
        }
        for bytes in [&[][..], &[0; ENTRY_BYTES - 1], &[0; ENTRY_BYTES + 8]] {
            assert_eq!(AccountEntry::decode(bytes), None);
        }
    }

    #[test]
    fn only_growth_beyond_a_limit_is_refused() {
        let account = AccountLimit {
            cluster: LogicalClusterId::ROOT,
            parent: None,
            most: StoredUsage { objects: 3, bytes: 100 },
        };
        for (case, held, wanted, accepted) in [
            ("up to the limit", (2, 50), (3, 100), true),
            ("one object more", (3, 50), (4, 60), false),
            ("a byte more", (3, 100), (3, 101), false),
            ("less than there is, and still too much", (9, 500), (9, 400), true),
            ("fewer objects and more bytes", (9, 90), (8, 101), false),
        ] {
            let usage = |(objects, bytes)| StoredUsage { objects, bytes };
            assert_eq!(account.check(usage(held), usage(wanted)).is_ok(), accepted, "{case}");
        }
    }

    struct Disk(u64);

    impl crate::write::disk_space::StorageDisk for Disk {
        fn free(&self) -> std::io::Result<u64> {
            Ok(self.0)
        }

        fn taken(&self) -> std::io::Result<u64> {
            Ok(0)
        }
    }

    #[test]
    fn on_a_nearly_full_disk_large_workspaces_cannot_grow() {
        let kv = SharedKv(Arc::new(MemoryKv::default()));
        let mut core = StoreCore::on(kv);
        let (boats, unlimited) = (GroupResource::new("example.org", "boats"), u64::MAX);
        let write = |core: &StoreCore, number: u64, name: &str, size: usize| {
            let at = LogicalClusterId::new(number);
            let key = ObjectKey::cluster_scoped(at, boats.clone(), name.parse().unwrap());
            let record = Record::of(&json!({"metadata": {}, "data": "x".repeat(size)}));
            let txn = Transaction::one(key, Expect::Anything, Some(record));
            let most = StoredUsage { objects: unlimited, bytes: unlimited };
            let accounts = vec![AccountLimit { cluster: at, parent: Some(LogicalClusterId::ROOT), most }];
            let txn = PreparedTransaction::new(Transaction { accounts, ..txn }).unwrap();
            let done = core.admit(WritePurpose::Any).unwrap().commit(|plan| (vec![plan.transaction(txn)], ()));
            done.unwrap().0.pop().unwrap().map(drop)
        };
        write(&core, 7, "large", 10_000).unwrap();
        write(&core, 8, "small", 100).unwrap();
        const RESERVE: u64 = 1 << 20;
        core.room = crate::write::disk_space::DiskSpace::on(Disk(2 * RESERVE - 1), RESERVE);
        let refused = write(&core, 7, "more", 10);
        assert!(matches!(refused, Err(StoreError::OverLimit { excess: LimitExcess::Share { .. }, .. })), "{refused:?}");
        write(&core, 7, "large", 9_000).unwrap();
        write(&core, 8, "more", 100).unwrap();
        core.room = crate::write::disk_space::DiskSpace::on(Disk(2 * RESERVE), RESERVE);
        write(&core, 7, "more", 10).unwrap();
    }

    #[test]
    fn a_store_without_accounts_counts_what_it_has_once() {
        let kv = SharedKv(Arc::new(MemoryKv::default()));
        let core = StoreCore::on(kv.clone());
        let (boats, at) = (GroupResource::new("example.org", "boats"), LogicalClusterId::new(7));
        let write = |name: &str, most: u64| {
            let key = ObjectKey::cluster_scoped(at, boats.clone(), name.parse().unwrap());
            let txn = Transaction::one(key, Expect::Absent, Some(Record::of(&json!({"metadata": {}}))));
            let most = StoredUsage { objects: most, bytes: u64::MAX };
            let accounts = vec![AccountLimit { cluster: at, parent: Some(LogicalClusterId::ROOT), most }];
            let txn = PreparedTransaction::new(Transaction { accounts, ..txn }).unwrap();
            let done = core.admit(WritePurpose::Any).unwrap().commit(|plan| (vec![plan.transaction(txn)], ()));
            done.unwrap().0.pop().unwrap().map(drop)
        };
        ["a", "b"].iter().for_each(|name| write(name, 9).unwrap());
        let removals = [at, LogicalClusterId::ROOT].map(|cluster| (meta::account(cluster), None));
        kv.commit(Batch::from(removals)).unwrap();
        kv.publish();
        assert!(matches!(write("c", 2), Err(StoreError::OverLimit { .. })));
        write("c", 3).unwrap();
        let total = |cluster| read(&kv, |view| stored_account(view, cluster).unwrap().unwrap().total.objects).unwrap();
        assert_eq!([total(at), total(LogicalClusterId::ROOT)], [3, 3]);
    }

    #[tokio::test]
    async fn a_store_without_accounts_is_counted_when_it_is_opened_and_linked_when_parents_are_known() {
        use crate::{
            open::{Engine, StoreConfig, StoreParts, start},
            read::bookkeeping::initialize,
        };
        let kv = SharedKv(Arc::new(MemoryKv::default()));
        initialize(&kv, &portolan_types::Seams::system()).unwrap();
        let opened = || {
            let base = StoreParts::in_memory(Box::new(kv.clone()));
            start(base, &StoreConfig::new(Engine::Memory, None)).unwrap_or_else(|_| panic!("it starts"))
        };
        let store = opened();
        let write = async |store: &crate::api::DynStore, cluster: u64, name: &str, size: usize| {
            let resource = GroupResource::new("example.org", "boats");
            let key = ObjectKey::cluster_scoped(LogicalClusterId::new(cluster), resource, name.parse().unwrap());
            let record = Record::of(&json!({"metadata": {}, "data": "x".repeat(size)}));
            store.commit(Transaction::one(key, Expect::Anything, Some(record))).await.unwrap();
        };
        for (cluster, name, size) in [(7, "a", 10), (7, "b", 20), (8, "a", 30), (9, "a", 40), (7, "a", 50)] {
            write(&store, cluster, name, size).await;
        }
        store.delete_cluster(LogicalClusterId::new(9)).await.unwrap();
        let usage =
            async |store: &crate::api::DynStore, cluster| store.usage(LogicalClusterId::new(cluster)).await.unwrap();
        let (before, history) = ([usage(&store, 7).await, usage(&store, 8).await], store.history_bytes());
        store.close().await;
        // As a store of format 4, which knows of no accounts.
        let mut older: Batch = [7, 8].map(|of| (meta::account(LogicalClusterId::new(of)), None)).into();
        older.insert(meta::SUPERSEDED.to_vec(), None);
        older.insert(meta::FORMAT.to_vec(), Some(Bytes::copy_from_slice(&4_u32.to_le_bytes())));
        kv.commit(older).unwrap();
        kv.publish();
        let store = opened();
        assert_eq!([usage(&store, 7).await, usage(&store, 8).await], before, "without any write");
        assert_eq!((usage(&store, 9).await, store.history_bytes()), (None, history));
        // Nothing is written to 8 any more, whose parent is 7.
        for _ in 0..2 {
            store.record_parent(LogicalClusterId::new(8), LogicalClusterId::new(7));
        }
        let [of_7, of_8] = before.map(Option::unwrap);
        let both = StoredUsage { objects: of_7.objects + of_8.objects, bytes: of_7.bytes + of_8.bytes };
        assert_eq!((usage(&store, 7).await, usage(&store, 8).await), (Some(both), Some(of_8)));
        store.close().await;
    }
}
