//! Reads of one state, the latest or an older one: objects, ranges, history and the store's bookkeeping.

pub(crate) mod bookkeeping;
pub(crate) mod cluster_index;
pub(crate) mod history;
mod merge;
pub(crate) mod range;
pub(crate) mod resources;
pub(crate) mod skipped;
pub(crate) mod state;
