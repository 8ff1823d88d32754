//! All objects of all logical clusters, in one order of writes.
//!
//! This crate knows keys, records and revisions. It does not know paths of logical clusters, kinds, schemas or HTTP.
//!
//! - `api` is the [`Store`] trait: what every engine promises.
//! - `open` opens an embedded engine; `embedded` is the trait on it.
//! - `committer` (or `inline`), `plan`, `upkeep` and `chores` write: one thread, batches, slices of compaction and deletion.
//! - `read`, `range`, `merge` and `history` read one state, the latest or an older one.
//! - `hub` tells watchers.
//! - `keys`, `value` and `resources` are the layout on disk; `kv` is what it needs of an engine.
//! - `objects` and `worklist` help loops: trees instead of bytes, changes that are tried again, keys to work on.

mod api;
mod blocking;
mod chores;
mod committer;
mod core;
mod embedded;
mod history;
mod hub;
mod inline;
mod keys;
mod kv;
mod merge;
mod metrics;
mod objects;
mod open;
mod plan;
mod range;
mod read;
mod resources;
mod upkeep;
mod value;
mod worklist;

pub use api::*;
pub use objects::{Modified, Objects, Step, keep_history, retried};
pub use open::{Engine, OpenError, StoreConfig, memory, memory_with, open};
pub use worklist::Worklist;
