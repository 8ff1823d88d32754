//! The `Store` trait: the contract of every engine.

use std::sync::Arc;

use portolan_types::{BoxFuture, LogicalClusterId, ObjectKey, ResourceVersion};

use super::{
    Committed, Durable, EventStream, RangePage, RangeRequest, StoreError, StoredObject, StoredUsage, Transaction,
    WatchScope, damage::DamagedObject, hold::RevisionHold,
};

/// Store of all objects of all logical clusters, in one commit order.
///
/// Not promised: fairness between writers, or an order of the answers to concurrent writes (their revisions tell the
/// order).
pub trait Store: Send + Sync {
    /// Commits all of `txn` or nothing. Returns after it is durable; its events are readable before this returns.
    /// Dropping the future does not cancel the commit: it happens entirely or not at all.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists` or `Conflict` if a precondition does not hold. `TooLarge`. `Overloaded` if the queue
    /// is full and `Full` if the disk is full (nothing was written). `Unknown` if the engine did not answer in time (it
    /// may have been written).
    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>>;

    /// Reads the latest durable state of an object.
    ///
    /// # Errors
    /// `Damaged` if the object exists and cannot be read.
    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>>;

    /// Reads a page of objects in key order, at one revision.
    ///
    /// # Errors
    /// `Compacted` or `FutureRevision` for a revision that cannot be read; `Damaged` unless the request skips damaged
    /// objects.
    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>>;

    /// Watches a scope: events strictly after `after`, or from now on if it is `None`.
    ///
    /// # Errors
    /// `Compacted` or `FutureRevision` for a revision that cannot be watched from.
    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>>;

    /// Returns the usage of a logical cluster and all its descendants; `None` if nothing was counted.
    ///
    /// # Errors
    /// Fails if the counts cannot be read.
    fn usage(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Option<StoredUsage>, StoreError>> {
        let _ = cluster;
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Records the parent of a logical cluster, for an engine that cannot derive it from stored data.
    fn record_parent(&self, cluster: LogicalClusterId, parent: LogicalClusterId) {
        let _ = (cluster, parent);
    }

    /// Returns the boundary of the latest committed transaction.
    fn current(&self) -> ResourceVersion;

    /// Checks that the store takes writes. Reads continue if it does not.
    ///
    /// # Errors
    /// `Full` while the disk has no space. `Unreachable` while a remote service is unreachable. `Backend` permanently
    /// after a failure, or once the store is closed.
    fn health(&self) -> Result<(), StoreError>;

    /// Returns the oldest revision after which every event is kept.
    fn oldest(&self) -> ResourceVersion;

    /// Returns the revision that is `revisions` before the current one, or the oldest possible one. On etcd, whose
    /// revisions are transactions, it counts the transactions of all clients of that etcd.
    fn back(&self, revisions: u64) -> ResourceVersion;

    /// Compacts history up to `upto`, or up to the oldest hold, in slices. Never removes the latest state.
    fn compact(&self, upto: ResourceVersion) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Returns the bytes of superseded objects that history keeps; `None` if the engine does not count them.
    fn history_bytes(&self) -> Option<u64> {
        None
    }

    /// Compacts history until it keeps at most `most` bytes of superseded objects, or up to what is held.
    ///
    /// # Errors
    /// Returns the errors of [`Store::compact`].
    fn shrink_history(&self, most: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        let _ = most;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Checks a transaction as [`Store::commit`] does, limits included, and writes nothing.
    ///
    /// # Errors
    /// Returns the errors of [`Store::commit`].
    fn dry_run(&self, txn: Transaction) -> BoxFuture<'_, Result<(), StoreError>> {
        let _ = txn;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Deletes a logical cluster and all its objects with one durable tombstone; keys are removed later, in slices.
    /// Watchers of its resources see the deletions. Its ID accepts no further writes.
    fn delete_cluster(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Durable<Committed>, StoreError>>;

    /// Keeps a state (or the latest one) readable until the hold is dropped, as long as its history exists. The hold
    /// binds every server that compacts, as far as the engine can inform them. On a disk that is nearly full it keeps
    /// no more than a part of the reserve; reads of the held state then end with `Compacted`.
    fn hold(&self, at: Option<ResourceVersion>) -> BoxFuture<'_, RevisionHold>;

    /// Returns the damaged objects that reads have found since the start and that still exist, up to a limit.
    fn known_damage(&self) -> Vec<DamagedObject>;

    /// Returns descriptions of damaged or unreadable parts of the store other than objects, found by reads, up to a
    /// limit.
    fn known_faults(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns every logical cluster that was ever deleted.
    fn deleted_clusters(&self) -> BoxFuture<'_, Result<Vec<LogicalClusterId>, StoreError>>;

    /// Finishes accepted writes, syncs, and stops taking writes.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Shared handle of a store.
pub type DynStore = Arc<dyn Store>;
