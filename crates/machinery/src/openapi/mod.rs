//! OpenAPI documents, made from the kind table.
//!
//! There is one v3 document per group version ([`document`]), some of what is around those ([`around`]) and an index ([`index`]). Schemas carry what clients read:
//! list types and merge keys, defaults, `x-kubernetes-group-version-kind` for `kubectl explain`; operations carry their action,
//! kind and query parameters, by which kubectl learns that the server checks fields itself (`fieldValidation`).
//!
//! [`swagger`] joins them into the v2 document that older readers want, [`swagger_protobuf`] encodes it for client-go, as
//! [`document_protobuf`] does with each of them.
//!
//! Making a document costs milliseconds; the caller makes each when it is first asked for, and keeps the bytes with their
//! [`hash`]. Logical clusters without kinds of their own share them.

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

/// Descriptions of types and fields. The machinery knows those of Portolan's own kinds only ([`OwnTexts`]).
pub trait Texts {
    /// The text of a field of a type, or (`None`) of the type itself.
    fn text(&self, type_name: &str, field: Option<&str>) -> Option<&str>;
}
