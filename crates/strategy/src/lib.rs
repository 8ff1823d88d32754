//! Strategies of kinds: the steps of a write other than decoding, merging and validation, and the output of objects.
//!
//! - [`defaults`]: default values.
//! - [`lifecycle`]: the changes that a create, an update and a delete make to an object.
//! - [`fields`]: field selectors.
//! - [`table`]: tables for `kubectl get`.
//! - [`warnings`]: texts of `Warning` headers.
//! - [`quota`]: the usage that objects charge to a ResourceQuota.
//! - [`namespace_objects`]: the objects that every namespace has.
//! - [`rbac`]: evaluation of RBAC rules, and the default roles.
//! - [`type_check`]: type checks of admission policies.
//! - [`webhook_conversion`]: reviews of conversion webhooks.
//!
//! The crate does no IO. It knows neither HTTP nor stores.

#[cfg(test)]
mod custom_tests;
pub mod defaults;
pub mod fields;
pub mod lifecycle;
pub mod namespace_objects;
pub mod quota;
pub mod rbac;
#[cfg(test)]
mod records;
pub mod table;
pub mod type_check;
#[cfg(test)]
mod validation_tests;
pub mod warnings;
pub mod webhook_conversion;
