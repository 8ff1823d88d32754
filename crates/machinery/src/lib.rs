//! The Kubernetes API machinery over JSON trees, all pure: kind table, protobuf, OpenAPI, discovery, strict decoding,
//! defaults, validation, life cycle, patches, server-side apply, field selectors, tables, RBAC rules, quotas.
//!
//! This crate does no IO. It knows neither HTTP nor stores, and nothing in it asks whether a resource is built in or custom.

pub mod apply;
pub mod conversion;
pub mod custom;
pub mod decode;
pub mod defaults;
pub mod discovery;
pub mod fields;
pub mod kinds;
pub mod lifecycle;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod quota;
pub mod rbac;
#[cfg(test)]
mod records;
pub mod table;
pub mod type_check;
pub mod validation;
pub mod warnings;
