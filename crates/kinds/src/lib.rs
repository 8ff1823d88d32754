//! Kinds as data: the structure of every served type, and the documents from which clients learn of it.
//!
//! - The kind table ([`KindTable`], [`Kind`]), generated from the published Go types, and [`Surface`], the tables that
//!   one logical cluster serves.
//! - [`custom`]: CustomResourceDefinitions compiled to the same table, with their structural schemas and CEL rules.
//! - [`discovery`] and [`openapi`]: the documents that describe kinds.
//! - [`field`]: paths of fields, and the errors about them.
//!
//! The crate does no IO and knows no encoding of objects but their JSON tree. No crate that uses it asks whether a
//! resource is built in or custom.

pub mod custom;
pub mod discovery;
pub mod field;
pub mod openapi;
mod table;

pub use table::{
    BuiltinKinds, Field, FieldKind, Kind, KindTable, Kinds, ListType, MapType, PatchStrategy, PlacedDefault, Scalar,
    Served, Special, Subresource, Surface, TableBuilder, TableError, Type, TypeId, Wire, WireTarget, Zero,
};
