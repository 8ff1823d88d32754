//! OpenAPI documents, made from the kind table.
//!
//! There is one v3 document per group version ([`document`]) and an index of them ([`index`]). Schemas carry what clients read:
//! list types and merge keys, defaults, `x-kubernetes-group-version-kind` for `kubectl explain`; operations carry their action,
//! kind and query parameters, by which kubectl learns that the server checks fields itself (`fieldValidation`).
//!
//! [`swagger`] joins them into the v2 document that older readers want, [`swagger_protobuf`] encodes it for client-go.
//!
//! Making a document costs milliseconds; the caller makes each when it is first asked for, and keeps the bytes with their
//! [`hash`]. Logical clusters without kinds of their own share them.

mod document;
mod gnostic;
mod operations;
mod paths;
mod schema;
mod swagger;

#[cfg(test)]
mod tests;

pub use document::{document, hash, index};
pub use gnostic::{SWAGGER_PROTOBUF, swagger_protobuf};
pub use swagger::swagger;

/// Descriptions, from type name and field (`None`: of the type itself). The machinery has no texts of its own.
pub type Texts<'a> = &'a dyn Fn(&str, Option<&str>) -> Option<&'a str>;

/// No descriptions.
pub const NO_TEXTS: Texts<'static> = &|_, _| None;
