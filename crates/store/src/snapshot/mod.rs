//! A whole store as one stream of bytes: for backups, and for going from one engine to another.
//!
//! A snapshot holds the objects of one revision and the logical clusters that are gone, with checksums; no history and no
//! indexes, which are made anew. `docs/store-format.md` describes its bytes.

mod frame;
mod restore;
mod save;
#[cfg(test)]
mod tests;

use std::{io, path::PathBuf};

use portolan_types::{ObjectKey, Record, Seams};
use serde_json::Value;

pub(crate) use self::restore::{Item, read};
pub use self::{
    restore::{begun, inspect, inspect_each, is_snapshot, restore},
    save::{Out, go_on, save},
};
use crate::{DamageList, OpenError, StoreError};

/// The version of the stream. A snapshot of a newer one is refused.
const FORMAT: u32 = 2;
/// How far a restore raises the revision at least: whatever was written after the snapshot was taken had a lower one. It takes
/// half a year to write as much at two million writes a minute.
const JUMP: u64 = 1 << 40;
/// Each millisecond raises it by so much more, a million a second: what was written in a store that was restored before, of the
/// same snapshot, had a lower one as well. Four thousand restores, each of a snapshot of the one before, use up the numbers.
const PER_MILLISECOND: u64 = 1 << 10;
/// Clients read revisions as signed numbers.
pub(crate) const HIGHEST: u64 = i64::MAX as u64;

/// How far a restore at this moment raises what is counted.
pub(crate) fn jump(seams: &Seams) -> u64 {
    let elapsed = u64::try_from(seams.clock.now().as_millisecond()).unwrap_or_default();
    JUMP.saturating_add(elapsed.saturating_mul(PER_MILLISECOND))
}

/// An object that counts what must never be given twice. A restore raises it as it does the revision.
pub struct Counter {
    /// Where it is. It has neither owners nor a placement.
    pub key: ObjectKey,
    /// What it becomes, from what the snapshot holds of it, raised by a number; `None` when it is damaged.
    pub raise: fn(Option<Value>, u64) -> Option<Record>,
}

/// What a snapshot is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The state that it holds.
    pub revision: u64,
    /// When it was taken, RFC 3339.
    pub taken: String,
    /// Objects in it.
    pub objects: u64,
    /// Logical clusters that are gone.
    pub gone_clusters: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// What was left out of it, because it could not be read.
    pub damaged: DamageList,
}

/// What there is of a snapshot that was broken off: whole frames from its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The state that it holds.
    pub revision: u64,
    /// When it was begun, RFC 3339.
    pub taken: String,
    /// How long the whole frames are.
    pub bytes: u64,
    /// Their SHA-256, in hex.
    pub sha256: String,
}

/// Why there is no snapshot, or no store made of it.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes are something else.
    #[error("this is no snapshot of Portolan")]
    NoSnapshot,
    /// Taken by a newer version.
    #[error("the snapshot has format {found}, this version knows formats up to {FORMAT}; use the version that took it")]
    NewerFormat {
        /// The format of the snapshot.
        found: u32,
    },
    /// The bytes are not what was written, or not all of it.
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
    /// Objects cannot be read, and would be missing in it.
    #[error(
        "{0}\nthere is no snapshot of them. Delete them unread, as docs/operating.md tells, leave them out with --skip-damaged, or restore a \
         snapshot of before"
    )]
    DamagedObjects(DamageList),
    /// What was begun cannot be completed.
    #[error("the store would begin the snapshot of revision {0} in another way now")]
    Other(u64),
    /// There is a store already.
    #[error("there is a store in {0} already; restore into a new directory, or move it away")]
    Occupied(PathBuf),
    /// There is something in etcd already.
    #[error("there are keys under {0} in etcd already; restore under another prefix, or delete them")]
    OccupiedEtcd(String),
    /// Reading or writing the snapshot failed.
    #[error("the snapshot: {0}")]
    Io(#[from] io::Error),
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The new store could not be made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The engine failed.
    #[error(transparent)]
    Backend(#[from] crate::BackendError),
}

pub(crate) fn damaged(what: impl ToString) -> SnapshotError {
    SnapshotError::Damaged(what.to_string())
}
