//! Layout on disk: keys, records and history entries as bytes. Knows no engine.

pub(crate) mod history_entry;
pub(crate) mod keys;
pub(crate) mod record;

/// Highest revision: clients read revisions as signed numbers.
pub(crate) const MAX_REVISION: u64 = i64::MAX as u64;
