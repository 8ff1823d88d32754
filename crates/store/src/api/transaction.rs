//! Transactions: writes that are committed all or not at all, and their limits.

use portolan_types::{LogicalClusterId, ObjectKey, Record, ResourceVersion};

/// Most objects that one transaction may write.
pub const MAX_TRANSACTION_OBJECTS: usize = 100;

/// Most conditions of one transaction: its writes, its checks and the logical clusters that it writes to. The limit
/// follows from etcd and holds for every engine, so that all engines accept the same transactions.
pub const MAX_TRANSACTION_CONDITIONS: usize = 117;

/// Most bytes that one transaction may write.
pub const MAX_TRANSACTION_BYTES: usize = 1_572_864;

/// Precondition of a write: the state that its key must be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No object has this key.
    Absent,
    /// An object exists, at any revision.
    Present,
    /// An object exists and was last written at this revision.
    At(ResourceVersion),
    /// An object exists, is not being deleted, and was created at this revision.
    Lives {
        /// Revision of its creation, which identifies it among objects of the same name.
        created: ResourceVersion,
        /// Revision of a write at which a reader saw the object alive. It may have been written since. An engine that
        /// has to make a remote call tries this revision first and trusts it.
        written: ResourceVersion,
    },
    /// Any state, but a damaged object is not overwritten.
    Anything,
    /// An object exists and cannot be read. Only for deletions.
    Damaged,
}

/// Write of one object in a transaction.
#[derive(Clone, Debug)]
pub struct Write {
    /// Address of the object.
    pub key: ObjectKey,
    /// State that the key must be in.
    pub expect: Expect,
    /// New object; `None` deletes. Deleting an absent object under `Anything` writes nothing and fails with `NotFound`.
    pub record: Option<Record>,
}

/// Count of objects and of their bytes as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredUsage {
    /// Objects.
    pub objects: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Limit of a logical cluster and all its descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountLimit {
    /// Logical cluster that the limit applies to.
    pub cluster: LogicalClusterId,
    /// Parent of the logical cluster; it never changes.
    pub parent: Option<LogicalClusterId>,
    /// Most that it may store. Data beyond a lowered limit may stay and shrink.
    pub most: StoredUsage,
}

/// Limit that a write would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitExcess {
    /// Objects.
    Objects {
        /// Current number.
        held: u64,
        /// Limit.
        most: u64,
    },
    /// Bytes.
    Bytes {
        /// Current bytes.
        held: u64,
        /// Bytes after the write.
        wanted: u64,
        /// Limit.
        most: u64,
    },
    /// Bytes of a nearly full disk: the rest of the disk is for logical clusters that store less.
    Share {
        /// Current bytes.
        held: u64,
        /// Sum of all logical clusters.
        all: u64,
    },
}

/// Writes that are committed all or not at all.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Keys that are not written but must meet a precondition; [`MAX_TRANSACTION_CONDITIONS`] bounds their number. A
    /// key expected at a revision was read at that revision, so another write of the same transaction may use it as
    /// well.
    pub checks: Vec<(ObjectKey, Expect)>,
    /// Writes in the order of their revisions. No key twice.
    pub writes: Vec<Write>,
    /// Logical clusters whose limits the transaction must not exceed: those that it writes to, and their ancestors.
    /// Writes to other logical clusters are counted but not limited.
    pub accounts: Vec<AccountLimit>,
}

impl Transaction {
    /// Builds a transaction of one write.
    pub fn one(key: ObjectKey, expect: Expect, record: Option<Record>) -> Self {
        Self { writes: vec![Write { key, expect, record }], ..Self::default() }
    }

    /// Adds a write.
    #[must_use]
    pub fn and(mut self, key: ObjectKey, expect: Expect, record: Option<Record>) -> Self {
        self.writes.push(Write { key, expect, record });
        self
    }
}

/// Revisions of a transaction: write `i` has `first + i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Revision of the first write.
    pub first: ResourceVersion,
    /// Revision of the last write: the transaction's boundary.
    pub last: ResourceVersion,
}

/// Proof that a value was synced to disk before it was returned. Only an engine's sync step can build one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable<T>(T);

impl<T> Durable<T> {
    /// Wraps a value right after a sync step (that of etcd included). Called nowhere else.
    pub(crate) fn after_sync(value: T) -> Self {
        Self(value)
    }

    /// Returns the durable value.
    pub fn into_inner(self) -> T {
        self.0
    }
}
