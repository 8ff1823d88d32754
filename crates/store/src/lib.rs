//! All objects of all logical clusters, in one order of writes.
//!
//! This crate knows keys, records and revisions. It does not know paths of logical clusters, kinds, schemas or HTTP.

mod api;

pub use api::*;
