//! All objects of all logical clusters, in one order of writes.
//!
//! This crate knows keys, records and revisions. It does not know paths of logical clusters, kinds, schemas or HTTP.
//!
//! - `api` is the [`Store`] trait: what every engine promises.
//! - `open` opens an embedded engine, or looks at its store, `load` reads its bookkeeping, `opening` tells how far it has come; `embedded` is the
//!   trait on it, `gate` says whether it takes writes, `room` how much there is for them.
//! - `etcd` is the trait on etcd, whose MVCC is the history; it shares `hub`, `value` and `plan`'s rules with the others.
//! - `committer` (or `inline`), `plan`, `upkeep` and `chores` write: one thread, batches, slices of compaction and deletion.
//! - `keep` tells when history is forgotten.
//! - `snapshot` writes all of a store as one stream, and makes a store of it.
//! - `damage` tells of objects that cannot be read, `lost` deletes them; `faults` is what else cannot be read.
//! - `audit` reads all of a store and tells what is wrong with it, `inspection` does so from time to time while it is in use.
//! - `read`, `range`, `merge` and `history` read one state, the latest or an older one; `passed` is what of it is damaged.
//! - `holds` keep a state readable; `hub` tells watchers.
//! - `keys`, `value` and `resources` are the layout on disk; `kv` is what it needs of an engine.
//! - `objects` and `worklist` help loops: trees instead of bytes, changes that are tried again, keys to work on.

mod accounts;
mod api;
mod audit;
mod blocking;
mod chores;
mod committer;
mod core;
mod damage;
mod embedded;
mod etcd;
mod faults;
#[cfg(test)]
mod fixtures;
mod gate;
mod history;
mod holds;
mod hub;
mod inline;
mod inspection;
mod keep;
mod keys;
mod kv;
mod load;
mod lost;
mod merge;
mod metrics;
mod objects;
mod open;
mod opening;
mod passed;
mod plan;
mod range;
mod read;
mod reclaim;
mod resources;
mod room;
mod snapshot;
mod spread;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod upkeep;
mod value;
mod worklist;

pub use api::*;
pub use audit::Audit;
pub use damage::{DamageList, Damaged, Findings, MOST_KNOWN};
pub use etcd::{EtcdConfig, EtcdMember, EtcdMemberState, Hidden, Roles, Term, open_etcd, probe_etcd, restore_etcd};
pub use holds::Hold;
pub use keep::{Compaction, HistoryBounds, HistoryMetrics, keep_history};
pub use metrics::{cache_bytes, cache_entries};
pub use objects::{Modified, Objects, Step, commit_noting, retried};
pub use open::{
    Engine, OpenError, StoreConfig, Survey, find, found_in, is_in_use, memory, memory_with, open, open_to_read, survey,
    verify, verify_each,
};
pub use opening::Opening;
pub use room::{Shortage, free_room};
pub use snapshot::{
    Begun, Counter, Out, Snapshot, SnapshotError, begun, go_on, inspect, inspect_each, is_snapshot, restore, save,
};
pub use value::Damage;
pub use worklist::{QueueMetrics, WorkMetrics, Worklist};
