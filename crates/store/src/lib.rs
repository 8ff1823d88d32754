//! Store of all objects of all logical clusters, in one commit order.
//!
//! This crate knows keys, records and revisions. It does not know paths of logical clusters, kinds, schemas or HTTP.
//!
//! Modules, each of which uses only those before it (`docs/decisions/0006-floors-of-the-store.md`):
//!
//! - `api`: the [`Store`] trait, the contract of every engine, with its requests, answers and errors.
//! - `layout`: keys and records as bytes.
//! - `engine`: the ordered map that the layout needs, on redb, sled and in memory.
//! - `metrics`: metrics of a store.
//! - `read`: reads of one state, the latest or an older one.
//! - `integrity`: damage, known and found by verification.
//! - `reader_pool`: threads for long reads.
//! - `watch`: recent events and the watchers that wait for the next ones.
//! - `write`: the plan of a batch, limits, disk space, and the step that makes a batch durable and then visible.
//! - `maintenance`: compaction, sweeps of deleted logical clusters, retention of history, background verification.
//! - `embedded`: the trait on an embedded engine, and its committer.
//! - `encryption`: a layer over the trait that encrypts objects before the engine sees them.
//! - `open`: the data directory; opening, verifying and surveying a store.
//! - `snapshot`: a whole store as one stream, saved and restored.
//! - `etcd`: the trait on etcd, whose MVCC is the history.
//! - `object_client`, `workqueue`: helpers for controllers, above `api`.

mod api;
mod embedded;
mod encryption;
mod engine;
mod etcd;
#[cfg(test)]
mod fixtures;
mod integrity;
mod layout;
mod maintenance;
mod metrics;
mod object_client;
mod open;
mod read;
mod reader_pool;
mod snapshot;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod watch;
mod workqueue;
mod write;

pub use api::damage::{Damage, DamageList, DamageReport, DamagedObject};
pub use api::hold::RevisionHold;
pub use api::open_progress::OpenProgress;
pub use api::shortage::SpaceShortage;
pub use api::*;
pub use encryption::{
    EncryptedStore, EncryptionKey, EncryptionProvider, EncryptionReport, EncryptionRule, Keyring, ReplaceError,
    ResealedStore, ResourcePattern, examine_encryption, interrupted_rewrite, rewrite_embedded,
};
pub use engine::files::free_disk_space;
pub use etcd::{
    EtcdConfig, EtcdMember, EtcdMemberState, LeaderElection, LeadershipTerm, SecretString, open_etcd, probe_etcd,
    restore_etcd,
};
pub use integrity::audit::StoreAudit;
pub use integrity::damage::MAX_KNOWN_DAMAGE;
pub use maintenance::retention::{CompactionOutcome, HistoryBounds, HistoryMetrics, run_history_retention};
pub use metrics::{cache_bytes, cache_entries};
pub use object_client::{ModifyOutcome, ObjectClient, Step, commit_with_notes, retry_on_conflict};
pub use open::{
    Engine, OpenError, StoreConfig, StoreSurvey, engine_in, find_engine, is_in_use, memory, memory_with, open,
    open_to_read, survey, verify, verify_each,
};
pub use snapshot::{
    PartialSnapshot, SnapshotCounter, SnapshotError, SnapshotSink, SnapshotSummary, inspect, inspect_each, is_snapshot,
    read_partial, restore, resume_save, save,
};
pub use workqueue::{AsyncWorkQueue, QueueMetrics, WorkMetrics};
