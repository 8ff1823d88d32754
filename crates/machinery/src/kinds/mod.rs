//! The kind table: what every served type looks like, as data.
//!
//! One table feeds strict decoding, defaults, patches, server-side apply, protobuf, OpenAPI and discovery alike. The built-in
//! part is generated from the published Go types (`e2e/kindtable`) into `data/kinds.json`; Portolan's own kinds stand in
//! `data/portolan.json`, by hand and in the same format. A [`TableBuilder`] lays further kinds over a table at run time: that is
//! how custom resources get the same shape, and nothing behind this module can tell the difference.

mod build;
mod file;
mod kind;
mod surface;
mod table;
mod types;
mod zero;

#[cfg(test)]
mod tests;

pub use build::{TableBuilder, TableError};
pub use kind::{Kind, PlacedDefault, Subresource};
pub use surface::{BuiltinKinds, Kinds, Served, Surface};
pub use table::KindTable;
pub use types::{Field, FieldKind, ListType, MapType, PatchStrategy, Scalar, Special, Type, TypeId, Wire, WireTarget};
pub use zero::Zero;
