//! Accounts: how many objects, and bytes of them, each logical cluster stores with all logical clusters below it.
//!
//! An entry per logical cluster that was ever written to changes in the batch that changes its objects, so it is exact and as durable
//! as they are. A missing entry, as in a store of an older version, is counted from the objects at the next write. Nothing of it is
//! kept in memory.

use std::collections::HashMap;

use bytes::Bytes;
use portolan_types::LogicalClusterId;

use crate::{
    Account, Excess, StoreError, Usage,
    keys::{self, meta},
    kv::View,
    plan::{Before, Plan, PreparedTransaction, PreparedWrite},
    read::backend,
    value::Prepared,
};

/// Most levels of logical clusters that a change is added to: more than a path can have.
const MAX_LEVELS: usize = 4096;
/// On a disk that is nearly full, a workspace in root that stores more than one of so many parts of all does not grow.
const SHARES: u64 = 4;
/// Bytes of an entry.
const ENTRY: usize = 41;

/// The entry of a logical cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccountEntry {
    /// Of its own objects.
    own: Usage,
    /// With those of all logical clusters that have named it as their parent.
    pub(crate) total: Usage,
    parent: Option<LogicalClusterId>,
    /// An object was lost, nobody knows of how many bytes: its own objects are to be counted anew.
    is_stale: bool,
}

/// Difference between two usages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Change {
    objects: i64,
    bytes: i64,
}

impl Change {
    fn between(before: Usage, after: Usage) -> Self {
        let difference = |before: u64, after: u64| after.cast_signed().wrapping_sub(before.cast_signed());
        Self { objects: difference(before.objects, after.objects), bytes: difference(before.bytes, after.bytes) }
    }
}

impl Usage {
    fn plus(self, change: Change) -> Self {
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
        let mut out = Vec::with_capacity(ENTRY);
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.push(u8::from(self.is_stale));
        out.into()
    }

    /// Reads what [`AccountEntry::encode`] wrote; `None` for bytes that are something else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let &[own_objects, own_bytes, objects, bytes, parent] = numbers else { return None };
        let &[is_stale] = rest else { return None };
        let [own_objects, own_bytes, objects, bytes, parent] =
            [own_objects, own_bytes, objects, bytes, parent].map(u64::from_le_bytes);
        Some(Self {
            own: Usage { objects: own_objects, bytes: own_bytes },
            total: Usage { objects, bytes },
            parent: (parent != 0).then(|| LogicalClusterId::new(parent)),
            is_stale: is_stale != 0,
        })
    }
}

/// Entries by logical cluster; `None` for one that is gone.
pub(crate) type AccountEntries = HashMap<LogicalClusterId, Option<AccountEntry>>;

/// The entries of a batch.
#[derive(Default)]
pub(crate) struct BatchAccounts {
    /// As the batch has found them, and as it leaves them so far.
    known: AccountEntries,
    /// Those that differ from what is stored.
    changed: AccountEntries,
}

impl BatchAccounts {
    /// Takes over what a transaction makes of entries.
    pub(crate) fn apply(&mut self, entries: AccountEntries) {
        self.known.extend(entries.iter().map(|(cluster, entry)| (*cluster, *entry)));
        self.changed.extend(entries);
    }

    /// The keys that a batch changes, with their new values; `None` removes.
    pub(crate) fn changes(&mut self) -> Vec<(Vec<u8>, Option<Bytes>)> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        changed.map(|(cluster, entry)| (meta::account(cluster), entry.map(AccountEntry::encode))).collect()
    }
}

/// Entries as a transaction would leave them.
struct Draft<'p, 'v> {
    plan: &'p mut Plan<'v>,
    entries: AccountEntries,
}

impl Draft<'_, '_> {
    fn entry(&mut self, cluster: LogicalClusterId) -> Result<Option<AccountEntry>, StoreError> {
        match self.entries.get(&cluster) {
            Some(entry) => Ok(*entry),
            None => self.plan.account(cluster),
        }
    }

    /// Adds a change to a logical cluster's total and to those of its ancestors.
    fn add(&mut self, cluster: LogicalClusterId, change: Change) -> Result<(), StoreError> {
        let mut next = Some(cluster);
        for _ in 0..MAX_LEVELS {
            let Some(at) = next else { return Ok(()) };
            let Some(mut entry) = self.entry(at)? else { return Ok(()) };
            entry.total = entry.total.plus(change);
            next = entry.parent;
            self.entries.insert(at, Some(entry));
        }
        Ok(())
    }

    fn add_own(&mut self, cluster: LogicalClusterId, change: Change, is_lost: bool) -> Result<(), StoreError> {
        let Some(mut entry) = self.entry(cluster)? else { return Ok(()) };
        entry.own = entry.own.plus(change);
        entry.is_stale |= is_lost;
        self.entries.insert(cluster, Some(entry));
        self.add(cluster, change)
    }

    /// Notes the parent of a logical cluster, and adds what it has stored so far to the ancestors.
    fn link(&mut self, account: &Account) -> Result<(), StoreError> {
        let (Some(parent), Some(mut entry)) = (account.parent, self.entry(account.cluster)?) else { return Ok(()) };
        if entry.parent.is_some() {
            return Ok(());
        }
        entry.parent = Some(parent);
        self.entries.insert(account.cluster, Some(entry));
        self.add(parent, Change::between(Usage::default(), entry.total))
    }
}

impl Plan<'_> {
    /// The entries as a transaction would leave them. Plans nothing.
    ///
    /// # Errors
    /// `OverLimit` when it would have a logical cluster grow beyond what its account says.
    pub(crate) fn charged(
        &mut self,
        txn: &PreparedTransaction,
        befores: &[Before],
    ) -> Result<AccountEntries, StoreError> {
        let is_bounded = txn.writes.iter().zip(befores).any(|(write, before)| is_bounded(write, before.is_deleting()));
        let mut draft = Draft { plan: self, entries: AccountEntries::new() };
        txn.accounts.iter().rev().try_for_each(|account| draft.link(account))?;
        let held: Vec<Option<AccountEntry>> =
            txn.accounts.iter().map(|account| draft.entry(account.cluster)).collect::<Result<_, _>>()?;
        for (write, before) in txn.writes.iter().zip(befores) {
            if write.key.cluster == LogicalClusterId::SYSTEM {
                continue;
            }
            let (stored, is_lost) = before.stored();
            let after = write.record.as_ref().map_or(Usage::default(), |record| Usage::of_one(record.len()));
            draft.add_own(write.key.cluster, Change::between(stored, after), is_lost)?;
        }
        for (account, held) in txn.accounts.iter().zip(held).filter(|_| is_bounded) {
            if let (Some(held), Some(wanted)) = (held, draft.entry(account.cluster)?) {
                account.check(held.total, wanted.total)?;
                let is_growth = wanted.total.bytes > held.total.bytes;
                if draft.plan.is_tight && is_growth && account.parent == Some(LogicalClusterId::ROOT) {
                    let all = draft.entry(LogicalClusterId::ROOT)?.unwrap_or_default().total.bytes;
                    account.check_share(held.total.bytes, all)?;
                }
            }
        }
        Ok(draft.entries)
    }

    /// The entries as the end of a logical cluster would leave them. Plans nothing.
    pub(crate) fn closed(&mut self, cluster: LogicalClusterId) -> Result<AccountEntries, StoreError> {
        let mut draft = Draft { plan: self, entries: AccountEntries::new() };
        if let Some(entry) = draft.entry(cluster)? {
            draft.add(cluster, Change::between(entry.total, Usage::default()))?;
        }
        draft.entries.insert(cluster, None);
        Ok(draft.entries)
    }

    /// The entry of a logical cluster; `None` when it is gone.
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
                let total = before.total.plus(Change::between(before.own, own));
                Some(AccountEntry { own, total, parent: before.parent, is_stale: false })
            }
        };
        self.accounts.known.insert(cluster, entry);
        Ok(entry)
    }
}

/// Returns true for a write that is held to limits: all but deletions and the mark of one, which makes its object a little larger.
pub(crate) fn is_bounded(write: &PreparedWrite, was_deleting: bool) -> bool {
    let may_grow = |record: &Prepared| !record.header().is_deleting || was_deleting;
    write.key.cluster != LogicalClusterId::SYSTEM && write.record.as_ref().is_some_and(may_grow)
}

/// The stored entry of a logical cluster.
pub(crate) fn stored_account(view: &dyn View, cluster: LogicalClusterId) -> Result<Option<AccountEntry>, StoreError> {
    let found = view.get(&meta::account(cluster)).map_err(backend)?;
    Ok(found.and_then(|bytes| AccountEntry::decode(&bytes)))
}

/// Counts the objects of a logical cluster, as far as they can be read.
fn count(view: &dyn View, cluster: LogicalClusterId) -> Usage {
    let mut found = Usage::default();
    let counted = || {
        let prefix = keys::joined(b'o', &[&keys::cluster_prefix(cluster)]);
        let mut cursor = view.scan(&prefix, &keys::end_of(&prefix))?;
        while cursor.key().is_some() {
            found.objects += 1;
            found.bytes += cursor.value().len() as u64;
            cursor.advance()?;
        }
        Ok::<_, crate::BackendError>(())
    };
    if let Err(error) = { counted }() {
        tracing::error!(%cluster, %error, "the objects of a logical cluster could not all be counted");
    }
    found
}

impl Usage {
    /// One object of so many bytes.
    pub(crate) fn of_one(bytes: usize) -> Self {
        Self { objects: 1, bytes: bytes as u64 }
    }
}

impl Account {
    /// # Errors
    /// `OverLimit` when it stores more than its share of all that is stored, on a disk that is nearly full.
    fn check_share(&self, held: u64, all: u64) -> Result<(), StoreError> {
        if held > all / SHARES {
            return Err(StoreError::OverLimit { cluster: self.cluster, excess: Excess::Share { held, all } });
        }
        Ok(())
    }

    /// # Errors
    /// `OverLimit` when it grows beyond its limits.
    pub(crate) fn check(&self, held: Usage, wanted: Usage) -> Result<(), StoreError> {
        let excess = if wanted.objects > held.objects && wanted.objects > self.most.objects {
            Excess::Objects { held: held.objects, most: self.most.objects }
        } else if wanted.bytes > held.bytes && wanted.bytes > self.most.bytes {
            Excess::Bytes { held: held.bytes, wanted: wanted.bytes, most: self.most.bytes }
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
        Expect, Transaction,
        core::Core,
        fixtures::Shared,
        gate::Purpose,
        kv::{Batch, MemoryKv, OrderedKv as _, read},
    };

    #[test]
    fn entries_survive_their_stored_form() {
        let usage = |objects, bytes| Usage { objects, bytes };
        for (parent, is_stale) in [(None, false), (Some(LogicalClusterId::ROOT), true)] {
            let entry = AccountEntry { own: usage(1, 2), total: usage(u64::MAX, 4), parent, is_stale };
            assert_eq!(AccountEntry::decode(&entry.encode()), Some(entry));
        }
        for bytes in [&[][..], &[0; ENTRY - 1], &[0; ENTRY + 8]] {
            assert_eq!(AccountEntry::decode(bytes), None);
        }
    }

    #[test]
    fn only_growth_beyond_a_limit_is_refused() {
        let account = Account { cluster: LogicalClusterId::ROOT, parent: None, most: Usage { objects: 3, bytes: 100 } };
        for (case, held, wanted, accepted) in [
            ("up to the limit", (2, 50), (3, 100), true),
            ("one object more", (3, 50), (4, 60), false),
            ("a byte more", (3, 100), (3, 101), false),
            ("less than there is, and still too much", (9, 500), (9, 400), true),
            ("fewer objects and more bytes", (9, 90), (8, 101), false),
        ] {
            let usage = |(objects, bytes)| Usage { objects, bytes };
            assert_eq!(account.check(usage(held), usage(wanted)).is_ok(), accepted, "{case}");
        }
    }

    struct Disk(u64);

    impl crate::room::Disk for Disk {
        fn free(&self) -> std::io::Result<u64> {
            Ok(self.0)
        }

        fn taken(&self) -> std::io::Result<u64> {
            Ok(0)
        }
    }

    #[test]
    fn what_is_left_of_a_disk_is_for_those_who_store_little() {
        let kv = Shared(Arc::new(MemoryKv::default()));
        let mut core = Core::on(kv);
        let (boats, unlimited) = (GroupResource::new("example.org", "boats"), u64::MAX);
        let write = |core: &Core, number: u64, name: &str, size: usize| {
            let at = LogicalClusterId::new(number);
            let key = ObjectKey::cluster_scoped(at, boats.clone(), name.parse().unwrap());
            let record = Record::of(&json!({"metadata": {}, "data": "x".repeat(size)}));
            let txn = Transaction::one(key, Expect::Anything, Some(record));
            let most = Usage { objects: unlimited, bytes: unlimited };
            let accounts = vec![Account { cluster: at, parent: Some(LogicalClusterId::ROOT), most }];
            let txn = PreparedTransaction::new(Transaction { accounts, ..txn }).unwrap();
            let done = core.admit(Purpose::Any).unwrap().commit(|plan| (vec![plan.transaction(txn)], ()));
            done.unwrap().0.pop().unwrap().map(drop)
        };
        write(&core, 7, "large", 10_000).unwrap();
        write(&core, 8, "small", 100).unwrap();
        const RESERVE: u64 = 1 << 20;
        core.room = crate::room::Room::on(Disk(2 * RESERVE - 1), RESERVE);
        let refused = write(&core, 7, "more", 10);
        assert!(matches!(refused, Err(StoreError::OverLimit { excess: Excess::Share { .. }, .. })), "{refused:?}");
        write(&core, 7, "large", 9_000).unwrap();
        write(&core, 8, "more", 100).unwrap();
        core.room = crate::room::Room::on(Disk(2 * RESERVE), RESERVE);
        write(&core, 7, "more", 10).unwrap();
    }

    #[test]
    fn a_store_without_accounts_counts_what_it_has_once() {
        let kv = Shared(Arc::new(MemoryKv::default()));
        let core = Core::on(kv.clone());
        let (boats, at) = (GroupResource::new("example.org", "boats"), LogicalClusterId::new(7));
        let write = |name: &str, most: u64| {
            let key = ObjectKey::cluster_scoped(at, boats.clone(), name.parse().unwrap());
            let txn = Transaction::one(key, Expect::Absent, Some(Record::of(&json!({"metadata": {}}))));
            let most = Usage { objects: most, bytes: u64::MAX };
            let accounts = vec![Account { cluster: at, parent: Some(LogicalClusterId::ROOT), most }];
            let txn = PreparedTransaction::new(Transaction { accounts, ..txn }).unwrap();
            let done = core.admit(Purpose::Any).unwrap().commit(|plan| (vec![plan.transaction(txn)], ()));
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
}
