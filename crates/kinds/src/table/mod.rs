//! The kind table: the structure of every served type, as data.
//!
//! One table feeds strict decoding, defaults, patches, server-side apply, protobuf, OpenAPI and discovery. The built-in
//! part is generated from the published Go types (`e2e/codegen/kindtable`) into `data/kinds.json`; Portolan's own kinds
//! are in `data/portolan.json`, written by hand in the same format. A [`TableBuilder`] adds further kinds to a table at
//! run time: custom resources get the same shape, and no user of this module can see a difference.

mod build;
mod file;
mod kind;
mod kind_table;
mod surface;
mod types;
mod zero;

#[cfg(test)]
mod tests;

pub use build::{TableBuilder, TableError};
pub use kind::{Kind, PlacedDefault, Subresource};
pub use kind_table::KindTable;
pub use surface::{BuiltinKinds, Kinds, Served, Surface};
pub use types::{Field, FieldKind, ListType, MapType, PatchStrategy, Scalar, Special, Type, TypeId, Wire, WireTarget};
pub use zero::Zero;
