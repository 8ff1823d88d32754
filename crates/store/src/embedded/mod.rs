//! The `Store` trait on an embedded engine, and the committer, its only writer.

pub(crate) mod committer;
pub(crate) mod inline;
pub(crate) mod store;
