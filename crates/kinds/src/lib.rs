//! Kinds as data: the structure of every served type, and the documents that describe it to clients.
//!
//! - The kind table ([`KindTable`], [`Kind`]), generated from the published Go types, and [`Surface`], the tables that
//!   one logical cluster serves.
//! - [`custom`]: CustomResourceDefinitions compiled to the same table, with their structural schemas and CEL rules.
//! - [`discovery`] and [`openapi`]: the documents that describe kinds.
//! - [`field`]: paths of fields, and the errors about them.
//!
//! The crate does no IO, and knows objects only as JSON trees. Crates that use it treat built-in and custom resources
//! alike.

pub mod custom;
pub mod discovery;
pub mod field;
pub mod openapi;
mod table;

pub use table::{
    BuiltinKinds, Field, FieldKind, Kind, KindTable, Kinds, ListType, MapType, PatchStrategy, PlacedDefault, Scalar,
    Served, Special, Subresource, Surface, TableBuilder, TableError, Type, TypeId, Wire, WireTarget, Zero,
};
