//! The `Store` trait: what every engine promises.

use std::sync::Arc;

use crate::{Damage, Damaged, Hold, Shortage};
use portolan_types::{
    BoxFuture, GroupResource, LabelSelector, LogicalClusterId, NamespaceName, ObjectKey, Record, ResourceVersion,
};

/// Most objects that one transaction may write.
pub const MAX_TRANSACTION_OBJECTS: usize = 100;
/// Most conditions of one transaction: its writes, its checks, and the logical clusters that it writes to. What etcd takes at
/// once holds for every engine, so that none refuses what another one accepts.
pub const MAX_TRANSACTION_CONDITIONS: usize = 117;
/// Most bytes that one transaction may write.
pub const MAX_TRANSACTION_BYTES: usize = 1_572_864;

/// What must hold of a key for its write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// There is no such object.
    Absent,
    /// There is one, at whatever revision.
    Present,
    /// There is one, last written at this revision.
    At(ResourceVersion),
    /// There is one that is not being deleted, and it is the one that was created at this revision.
    Lives {
        /// When it was created, which no other object of its name was.
        created: ResourceVersion,
        /// A write of it that was read, after which it lived. It may have been written since; an engine that has to ask tries this first,
        /// and believes it.
        written: ResourceVersion,
    },
    /// Nothing; but what is damaged is not written over.
    Anything,
    /// There is one that cannot be read. Only for deletions.
    Damaged,
}

/// One write of a transaction.
#[derive(Clone, Debug)]
pub struct Write {
    /// What is written.
    pub key: ObjectKey,
    /// What must hold before.
    pub expect: Expect,
    /// The new object; `None` deletes. Deleting what is absent under `Anything` writes nothing and fails with `NotFound`.
    pub record: Option<Record>,
}

/// Objects, and bytes of them as they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Objects.
    pub objects: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The limit of a logical cluster with all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Logical cluster that the limit is for.
    pub cluster: LogicalClusterId,
    /// The logical cluster that it is below; it stays so.
    pub parent: Option<LogicalClusterId>,
    /// Most that it may store. What it stores beyond that already may stay, and shrink.
    pub most: Usage,
}

/// Of what a logical cluster would have too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
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
    /// Bytes of a disk that is nearly full: what is left is for those who store less.
    Share {
        /// Current bytes.
        held: u64,
        /// Sum of all logical clusters.
        all: u64,
    },
}

/// Writes that happen all or not at all.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Keys that are not written but must be as expected; [`MAX_TRANSACTION_CONDITIONS`] bounds them. What is expected at a revision
    /// was read at it: that of another write in the same transaction may be taken for it.
    pub checks: Vec<(ObjectKey, Expect)>,
    /// The writes, in the order of their revisions. No key twice.
    pub writes: Vec<Write>,
    /// Logical clusters that must not grow beyond their limits by it: those that are written to, and their ancestors. Writes to others
    /// are counted, and not limited.
    pub accounts: Vec<Account>,
}

impl Transaction {
    /// A transaction of one write.
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

/// The revisions of a transaction: write `i` has `first + i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Revision of the first write.
    pub first: ResourceVersion,
    /// Revision of the last write: the transaction's boundary.
    pub last: ResourceVersion,
}

/// Proof that something was synced to disk before it was handed out. Only the sync step of an engine can make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable<T>(T);

impl<T> Durable<T> {
    /// Called right after the sync step, that of etcd included, and nowhere else.
    pub(crate) fn after_sync(value: T) -> Self {
        Self(value)
    }

    /// The durable thing.
    pub fn into_inner(self) -> T {
        self.0
    }
}

/// A stored object as of its last write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// Its address.
    pub key: ObjectKey,
    /// Its last write.
    pub revision: ResourceVersion,
    /// Its first write.
    pub created: ResourceVersion,
    /// Header and body.
    pub record: Arc<Record>,
}

/// Which objects a range reads, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeScope {
    /// Every object of all logical clusters.
    All,
    /// A resource of all logical clusters, by cluster.
    AllClusters(GroupResource),
    /// A resource of one logical cluster.
    Cluster(LogicalClusterId, GroupResource),
    /// A resource in one namespace.
    Namespace(LogicalClusterId, GroupResource, NamespaceName),
    /// Every object of one logical cluster.
    Everything(LogicalClusterId),
    /// Every object placed on the physical cluster of this uid: the syncer's index. Only at the latest state.
    PlacedOn(String),
    /// Every object of one logical cluster that names this uid as an owner. Only at the latest state.
    OwnedBy(LogicalClusterId, String),
}

/// A read of many objects.
#[derive(Clone, Debug)]
pub struct RangeRequest {
    /// Which objects.
    pub scope: RangeScope,
    /// The state to read; `None` is the latest one.
    pub at: Option<ResourceVersion>,
    /// Start after this key.
    pub after: Option<ObjectKey>,
    /// At most this many matching objects; `None` is all.
    pub limit: Option<usize>,
    /// At most about this many bytes, but one object at least. Such a page may be shorter still, as it suits the engine.
    pub bytes: Option<usize>,
    /// Labels, read from headers only.
    pub labels: LabelSelector,
    /// What becomes of damaged objects among them.
    pub on_damage: OnDamage,
    /// Bytes of one object, about, where something is known of them: how many to ask a storage service for at once.
    pub each: Option<usize>,
}

/// What a read of many objects does about one that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// It fails, and names the first.
    Fail,
    /// It goes on, and names each in [`RangePage::damaged`], whatever its labels. Whoever reads so must not take what is left
    /// out for what is gone.
    Skip,
}

/// Bytes of objects that are read at once where a reader needs few of them at a time.
pub const SLICE_BYTES: usize = 256 * 1024;

impl RangeRequest {
    /// All of a scope at the latest state.
    pub fn all(scope: RangeScope) -> Self {
        Self {
            scope,
            at: None,
            after: None,
            limit: None,
            bytes: None,
            labels: LabelSelector::everything(),
            on_damage: OnDamage::Fail,
            each: None,
        }
    }

    /// The same request, which goes on past damaged objects.
    #[must_use]
    pub fn past_damage(self) -> Self {
        Self { on_damage: OnDamage::Skip, ..self }
    }

    /// A scope at the latest state, in slices of [`SLICE_BYTES`]; [`RangeRequest::next`] goes on.
    pub fn slices(scope: RangeScope) -> Self {
        Self { bytes: Some(SLICE_BYTES), ..Self::all(scope) }
    }

    /// The request for what `page`, the answer to this one, has left, at the state that it shows. Not for scopes that are
    /// read at the latest state only.
    pub fn next(&self, page: &RangePage) -> Option<Self> {
        let last = page.last.as_ref().filter(|_| page.more)?;
        let each = page.each().or(self.each);
        Some(Self { at: Some(page.revision), after: Some(last.clone()), each, ..self.clone() })
    }
}

/// A page of objects.
#[derive(Clone, Debug)]
pub struct RangePage {
    /// The state that was read: a transaction's boundary, and where a watch goes on without gap.
    pub revision: ResourceVersion,
    /// The objects, in key order.
    pub objects: Vec<StoredObject>,
    /// What cannot be read, where the request goes on past it. Counts to its bounds as other objects do, but for what has no address
    /// ([`Damage::Key`](crate::Damage::Key)): of that the first thousand are here.
    pub damaged: Vec<Damaged>,
    /// How many more there are without an address.
    pub unnamed: usize,
    /// The last object, damaged or not.
    pub last: Option<ObjectKey>,
    /// Whether a bound cut it: go on after `last`.
    pub more: bool,
    /// How many more there are, when `limit` cut it, no selector was given and the engine can count them cheaply.
    pub remaining: Option<u64>,
}

impl RangePage {
    /// Bytes of one of its objects, about.
    fn each(&self) -> Option<usize> {
        let bytes: usize = self.objects.iter().map(|object| object.record.body().len()).sum();
        bytes.checked_div(self.objects.len())
    }
}

/// Whose events a watch gets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WatchScope {
    /// A resource in one logical cluster, or in all.
    Resource(GroupResource, Option<LogicalClusterId>),
    /// Objects whose placement record names this physical cluster, before or after the write: the syncer's index.
    PlacedOn(String),
}

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object is new.
    Created,
    /// It was there before.
    Updated,
    /// It is gone.
    Deleted,
}

/// One write, as watchers see it. Shares the commit's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Place of the write.
    pub revision: ResourceVersion,
    /// What it did.
    pub change: Change,
    /// To which object.
    pub key: ObjectKey,
    /// The object after the write; for a deletion its last state.
    pub record: Arc<Record>,
    /// The object before the write, for selectors that it may have left; `None` when it was created, and for `Deleted`.
    pub previous: Option<Arc<Record>>,
}

/// Events of whole transactions.
#[derive(Clone, Debug)]
pub struct EventBatch {
    /// Matching events, in order; empty for mere progress.
    pub events: Vec<Arc<Event>>,
    /// All events up to here have been delivered: a transaction's boundary.
    pub revision: ResourceVersion,
}

/// A cursor into the order of writes. Dropping it ends the watch.
pub trait EventStream: Send {
    /// Waits for the next batch: events in order, none twice, none left out.
    ///
    /// # Errors
    /// `Compacted` when the cursor fell behind what is kept; `Damaged` when what comes next cannot be read, such as the last state
    /// of a damaged object that was deleted. The stream is over then, and can be resumed by a new list.
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>>;

    /// The revision up to which everything has been delivered, advanced also while nothing matches.
    fn progress(&self) -> ResourceVersion;
}

/// Why a store did not do as asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The object is not there.
    #[error("{key} not found")]
    NotFound {
        /// What was asked for.
        key: ObjectKey,
    },
    /// The object is there already.
    #[error("{key} already exists")]
    AlreadyExists {
        /// What was to be created.
        key: ObjectKey,
    },
    /// The object was written since it was read.
    #[error("{key} is at resourceVersion {actual}, the write expected {expected}")]
    Conflict {
        /// What was to be written.
        key: ObjectKey,
        /// What the writer had read.
        expected: ResourceVersion,
        /// What is there.
        actual: ResourceVersion,
    },
    /// The history asked for is gone.
    #[error("resourceVersion {asked} is compacted, the oldest kept is {oldest}")]
    Compacted {
        /// What was asked for.
        asked: ResourceVersion,
        /// What is kept.
        oldest: ResourceVersion,
    },
    /// The revision asked for has not happened.
    #[error("too large resource version: {asked}, current: {current}")]
    FutureRevision {
        /// What was asked for.
        asked: ResourceVersion,
        /// The latest there is.
        current: ResourceVersion,
    },
    /// The transaction is larger than the stated bounds.
    #[error("the transaction is too large: {what}")]
    TooLarge {
        /// Which bound, and by how much.
        what: String,
    },
    /// The queue is full; nothing was written.
    #[error("the store is overloaded")]
    Overloaded,
    /// The logical cluster is being deleted or gone; nothing was written.
    #[error("logical cluster {cluster} is gone")]
    ClusterGone {
        /// Which one.
        cluster: LogicalClusterId,
    },
    /// A logical cluster would store more than it may; nothing was written.
    #[error("logical cluster {cluster} would store more than it may: {excess:?}")]
    OverLimit {
        /// Logical cluster at its limit.
        cluster: LogicalClusterId,
        /// Of what.
        excess: Excess,
    },
    /// A time-out: it may have been written. Never retried blindly.
    #[error("the outcome of the write is unknown")]
    Unknown,
    /// A storage service elsewhere cannot be reached at present; nothing was written.
    #[error("the storage cannot be reached: {why}")]
    Unreachable {
        /// The last failure.
        why: String,
    },
    /// There is no room left; nothing was written. Reads go on, and writes once there is room again.
    #[error("{0}")]
    Full(Shortage),
    /// The object is there and cannot be read.
    #[error("{key} is damaged: {why}")]
    Damaged {
        /// Which one.
        key: ObjectKey,
        /// What is wrong.
        why: Damage,
    },
    /// The object can be read, and was to be deleted as one that cannot.
    #[error("{key} is not damaged")]
    NotDamaged {
        /// Which one.
        key: ObjectKey,
    },
    /// The engine failed; after a failed sync no write is taken any more.
    #[error("the storage backend failed: {0}")]
    Backend(Arc<BackendError>),
}

/// A failure inside an engine, for the log.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct BackendError {
    /// What was being done.
    pub context: String,
    /// The engine's own words.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl BackendError {
    /// Whether the disk had no room, which may come back, unlike what a failed sync may have lost.
    pub(crate) fn is_full(&self) -> bool {
        let io = self.source.as_ref().and_then(|source| source.downcast_ref::<std::io::Error>());
        io.is_some_and(|error| means_full(error.kind()))
    }
}

/// Whether a failure of this kind says that there is no room.
pub(crate) fn means_full(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(kind, StorageFull | QuotaExceeded | FileTooLarge)
}

/// All objects of all logical clusters, in one order of writes.
///
/// Not promised: fairness between writers, and any order of the answers to concurrent writes (their revisions tell).
pub trait Store: Send + Sync {
    /// Commits all of `txn` or nothing. Returns after it is durable; its events are readable before this returns.
    /// Dropping the future does not undo the commit: it happens wholly or not at all.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists`, `Conflict` when an expectation does not hold; `TooLarge`; `Overloaded` when the queue is
    /// full, `Full` when the disk is (nothing was written); `Unknown` when the engine did not answer in time (it may have
    /// been written).
    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>>;

    /// The latest durable state of an object.
    ///
    /// # Errors
    /// `Damaged` when it is there and cannot be read.
    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>>;

    /// Objects in key order, at one state.
    ///
    /// # Errors
    /// `Compacted` and `FutureRevision` for a state that is not there; `Damaged` unless the request goes on past that.
    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>>;

    /// Events strictly after `after`; `None` is from now on.
    ///
    /// # Errors
    /// `Compacted` and `FutureRevision` for a place that is not there.
    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>>;

    /// Returns what a logical cluster stores now, with all below it; `None` where nothing was counted.
    ///
    /// # Errors
    /// Counts that cannot be read.
    fn usage(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Option<Usage>, StoreError>> {
        let _ = cluster;
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Notes what a logical cluster is below, for an engine that cannot tell from what it stores.
    fn know_parent(&self, cluster: LogicalClusterId, parent: LogicalClusterId) {
        let _ = (cluster, parent);
    }

    /// The latest committed transaction's boundary.
    fn current(&self) -> ResourceVersion;

    /// Whether writes are taken. Reads go on also where they are not.
    ///
    /// # Errors
    /// `Full` while the disk has no room; `Unreachable` while a service elsewhere is; `Backend` for good after a failure, or
    /// once it is closed.
    fn health(&self) -> Result<(), StoreError>;

    /// The oldest revision after which every event is kept.
    fn oldest(&self) -> ResourceVersion;

    /// The state of so many revisions ago; the first there can be where there were fewer. On etcd, whose revisions are
    /// transactions, so many of those ago, whoever wrote them.
    fn back(&self, revisions: u64) -> ResourceVersion;

    /// Forgets history up to `upto`, or up to what is held, in slices. Never the latest state.
    fn compact(&self, upto: ResourceVersion) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Deletes a logical cluster and all that is in it, as one durable tombstone; keys go in slices afterwards. Watchers of its
    /// resources see the deletions. Its id takes no write any more.
    fn delete_cluster(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Durable<Committed>, StoreError>>;

    /// Keeps a state readable for as long as its history is there, or the present one, until the hold is dropped: whichever server
    /// compacts, as far as the engine can tell all of them.
    fn hold(&self, at: Option<ResourceVersion>) -> BoxFuture<'_, Hold>;

    /// The damaged objects that reads have come across since the start and that are still there, up to a bound.
    fn known_damage(&self) -> Vec<Damaged>;

    /// What of the store beside its objects is damaged or cannot be read, in words, as far as reads have come across it, up to a bound.
    fn known_faults(&self) -> Vec<String> {
        Vec::new()
    }

    /// The logical clusters that were ever deleted.
    fn gone_clusters(&self) -> BoxFuture<'_, Result<Vec<LogicalClusterId>, StoreError>>;

    /// Finishes what was accepted, syncs, and takes no write any more.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A store that any part of the plane can share.
pub type DynStore = Arc<dyn Store>;
