//! Discovery documents, made from lists of kinds.
//!
//! A logical cluster's list is the built-in kinds it serves (see [`Kind::served`]) followed by those of its custom
//! resources; both are treated alike. Groups are sorted by their first kind, versions by preference
//! ([`version_order`]), resources by name. The documents are plain values: the caller keeps their bytes and hashes.

mod aggregated;
mod legacy;
mod order;

#[cfg(test)]
mod tests;

pub use aggregated::{aggregated_core, aggregated_groups};
pub use legacy::{api_group, api_group_list, api_resource_list, api_versions};
pub use order::version_order;

#[cfg(doc)]
use crate::Kind;
