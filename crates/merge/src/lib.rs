//! Changes that are applied to objects.
//!
//! - [`patch`]: JSON, merge and strategic merge patches.
//! - [`mod@apply`]: server-side apply, and the record of field managers.
//! - [`scale`]: reads and writes through the scale subresource.
//! - [`preconditions`]: the conflicts that failed preconditions of a write cause.
//!
//! The crate does no IO. Its results are not canonical and not validated yet.

pub mod apply;
pub mod patch;
pub mod preconditions;
pub mod scale;
