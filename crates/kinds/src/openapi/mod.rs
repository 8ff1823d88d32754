//! OpenAPI documents, made from the kind table.
//!
//! There is one v3 document per group version ([`document`]), a few for other paths ([`around`]), and an index
//! ([`index`]). Schemas carry list types, merge keys and defaults, and `x-kubernetes-group-version-kind` for `kubectl
//! explain`. Operations carry their action, kind and query parameters; `fieldValidation` among them shows kubectl that
//! the server checks fields itself.
//!
//! [`swagger`] joins them into the v2 document that older readers want. [`swagger_protobuf`] and [`document_protobuf`]
//! encode the documents for client-go.
//!
//! Making a document costs milliseconds: the caller makes each at its first request and keeps the bytes with their
//! [`hash`]. Logical clusters without custom resources share the documents.

mod around;
mod document;
mod gnostic;
mod operations;
mod paths;
mod resolved;
mod schema;
mod swagger;
mod texts;

#[cfg(test)]
mod tests;

pub use around::around;
pub use document::{document, hash, index, name};
pub use gnostic::{DOCUMENT_PROTOBUF, SWAGGER_PROTOBUF, document_protobuf, swagger_protobuf};
pub use resolved::resolved;
pub use swagger::swagger;
pub use texts::{NoTexts, OwnTexts};

/// Descriptions of types and fields. This crate knows those of Portolan's own kinds only ([`OwnTexts`]).
pub trait Texts {
    /// Returns the text of a field of a type, or (`None`) of the type itself.
    fn text(&self, type_name: &str, field: Option<&str>) -> Option<&str>;
}
