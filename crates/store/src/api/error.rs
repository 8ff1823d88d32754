//! Errors of a store.

use std::sync::Arc;

use portolan_types::{LogicalClusterId, ObjectKey, ResourceVersion};

use super::{LimitExcess, damage::Damage, shortage::SpaceShortage};

/// Error of a store.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The object does not exist.
    #[error("{key} not found")]
    NotFound {
        /// Address that was requested.
        key: ObjectKey,
    },
    /// The object exists already.
    #[error("{key} already exists")]
    AlreadyExists {
        /// Address of the object to create.
        key: ObjectKey,
    },
    /// The object was written after the caller read it.
    #[error("{key} is at resourceVersion {actual}, the write expected {expected}")]
    Conflict {
        /// Address of the object.
        key: ObjectKey,
        /// Revision that the caller had read.
        expected: ResourceVersion,
        /// Current revision.
        actual: ResourceVersion,
    },
    /// The requested history was compacted.
    #[error("resourceVersion {asked} is compacted, the oldest kept is {oldest}")]
    Compacted {
        /// Requested revision.
        asked: ResourceVersion,
        /// Oldest revision that is kept.
        oldest: ResourceVersion,
    },
    /// The requested revision is in the future.
    #[error("too large resource version: {asked}, current: {current}")]
    FutureRevision {
        /// Requested revision.
        asked: ResourceVersion,
        /// Latest revision.
        current: ResourceVersion,
    },
    /// The transaction exceeds a limit.
    #[error("the transaction is too large: {what}")]
    TooLarge {
        /// Limit, and by how much it was exceeded.
        what: String,
    },
    /// The queue is full; nothing was written.
    #[error("the store is overloaded")]
    Overloaded,
    /// The logical cluster is being deleted, or was deleted; nothing was written.
    #[error("logical cluster {cluster} is gone")]
    ClusterGone {
        /// Logical cluster that is being deleted or was deleted.
        cluster: LogicalClusterId,
    },
    /// The write would exceed the limit of a logical cluster; nothing was written.
    #[error("logical cluster {cluster} would store more than it may: {excess:?}")]
    OverLimit {
        /// Logical cluster at its limit.
        cluster: LogicalClusterId,
        /// Limit that would be exceeded.
        excess: LimitExcess,
    },
    /// The engine timed out: the transaction may have been written. Never retried blindly.
    #[error("the outcome of the write is unknown")]
    Unknown,
    /// A remote storage service is unreachable; nothing was written.
    #[error("the storage cannot be reached: {why}")]
    Unreachable {
        /// Last failure.
        why: String,
    },
    /// The disk is full; nothing was written. Reads continue; writes resume when there is space.
    #[error("{0}")]
    Full(SpaceShortage),
    /// The object exists and cannot be read.
    #[error("{key} is damaged: {why}")]
    Damaged {
        /// Address of the object.
        key: ObjectKey,
        /// Kind of damage.
        why: Damage,
    },
    /// The object is readable, but the deletion expected a damaged one.
    #[error("{key} is not damaged")]
    NotDamaged {
        /// Address of the object.
        key: ObjectKey,
    },
    /// The engine failed. After a failed sync the store takes no further writes.
    #[error("the storage backend failed: {0}")]
    Backend(Arc<BackendError>),
}

/// Failure inside an engine, for the log.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct BackendError {
    /// Operation that failed.
    pub context: String,
    /// Error of the engine.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl BackendError {
    /// Returns true if the disk was full. A full disk may get space again; a failed sync may have lost data.
    pub(crate) fn is_full(&self) -> bool {
        let io = self.source.as_ref().and_then(|source| source.downcast_ref::<std::io::Error>());
        io.is_some_and(|error| is_out_of_space(error.kind()))
    }
}

/// Returns true if an I/O error of this kind means that there is no space.
fn is_out_of_space(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(kind, StorageFull | QuotaExceeded | FileTooLarge)
}
