//! Encodings of objects. Every form is decoded to one canonical JSON tree, and the tree is encoded to every form.
//!
//! - [`decode`]: JSON and YAML in one strict walk along the kind table; custom objects also along their schema.
//! - [`protobuf`]: the form that typed Go clients send and ask for.
//! - [`conversion`]: between the version that a client uses and the version that is stored.
//!
//! The crate does no IO and does not judge values: that is validation.

pub mod conversion;
pub mod decode;
pub mod protobuf;
