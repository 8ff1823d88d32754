//! Snapshot of a whole store as one stream of bytes, for backups and for migration to another engine.
//!
//! A snapshot holds the objects of one revision and the deleted logical clusters, with checksums. It has no history,
//! and no indexes, which a restore builds again. `docs/store-format.md` describes its bytes.

mod frame;
mod restore;
mod save;
#[cfg(test)]
mod tests;

use std::{io, path::PathBuf};

use portolan_types::{ObjectKey, Record, Seams};
use serde_json::Value;

pub(crate) use self::restore::{SnapshotItem, read};
pub use self::{
    restore::{inspect, inspect_each, is_snapshot, read_partial, restore},
    save::{SnapshotSink, resume_save, save},
};
use crate::{
    api::{StoreError, damage::DamageList},
    open::{OccupiedDataDir, OpenError},
};

/// Version of the stream. A snapshot of a newer version is refused.
const FORMAT: u32 = 2;
/// Least increase of the revision by a restore, so that every write after the snapshot had a lower revision: at two
/// million writes a minute, this number of writes takes a year.
const MIN_REVISION_INCREASE: u64 = 1 << 40;
/// Further increase per millisecond of Unix time, a million a second, so that writes in an earlier restore of the same
/// snapshot had lower revisions too. Four thousand restores, each of a snapshot of the one before, use up all
/// revisions.
const INCREASE_PER_MILLISECOND: u64 = 1 << 10;
/// Returns the increase of revisions and counters by a restore at this moment.
pub(crate) fn jump(seams: &Seams) -> u64 {
    let elapsed = u64::try_from(seams.clock.now().as_millisecond()).unwrap_or_default();
    MIN_REVISION_INCREASE.saturating_add(elapsed.saturating_mul(INCREASE_PER_MILLISECOND))
}

/// Counter object whose numbers must never be assigned twice. A restore raises it like the revision.
pub struct SnapshotCounter {
    /// Address of the counter. It has neither owners nor a placement.
    pub key: ObjectKey,
    /// Function that raises the snapshot's value by a number; `None` if the value is damaged.
    pub raise: fn(Option<Value>, u64) -> Option<Record>,
}

/// Summary of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// Revision of its state.
    pub revision: u64,
    /// Time of the snapshot, RFC 3339.
    pub taken: String,
    /// Number of objects.
    pub objects: u64,
    /// Number of deleted logical clusters.
    pub gone_clusters: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Objects that were left out because they cannot be read.
    pub damaged: DamageList,
}

/// Complete frames at the start of an interrupted snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialSnapshot {
    /// Revision of its state.
    pub revision: u64,
    /// Time of its begin, RFC 3339.
    pub taken: String,
    /// Bytes of the complete frames.
    pub bytes: u64,
    /// SHA-256 of these bytes, in hex.
    pub sha256: String,
}

/// Error of taking or restoring a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The input is not a snapshot.
    #[error("this is no snapshot of Portolan")]
    NoSnapshot,
    /// A newer version took the snapshot.
    #[error("the snapshot has format {found}, this version knows formats up to {FORMAT}; use the version that took it")]
    NewerFormat {
        /// Format of the snapshot.
        found: u32,
    },
    /// The snapshot is damaged or incomplete.
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
    /// Some objects cannot be read, and the snapshot would lack them.
    #[error(
        "{0}\nthere is no snapshot of them. Delete them unread, as docs/operating.md tells, leave them out with --skip-damaged, or restore a \
         snapshot of before"
    )]
    DamagedObjects(DamageList),
    /// The interrupted snapshot cannot be completed.
    #[error("the store has changed: the snapshot of revision {0} cannot be completed")]
    Other(u64),
    /// The directory has a store already.
    #[error("there is a store in {0} already; restore into a new directory, or move it away")]
    Occupied(PathBuf),
    /// The prefix in etcd is not empty.
    #[error("there are keys under {0} in etcd already; restore under another prefix, or delete them")]
    OccupiedEtcd(String),
    /// Reading or writing the snapshot failed.
    #[error("the snapshot: {0}")]
    Io(#[from] io::Error),
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The new store could not be created.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The engine failed.
    #[error(transparent)]
    Backend(#[from] crate::api::BackendError),
}

impl From<OccupiedDataDir> for SnapshotError {
    fn from(OccupiedDataDir(dir): OccupiedDataDir) -> Self {
        Self::Occupied(dir)
    }
}

pub(crate) fn damaged(what: impl ToString) -> SnapshotError {
    SnapshotError::Damaged(what.to_string())
}
