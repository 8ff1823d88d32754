//! Parts of a request line: path, query, route, and attributes for authorization.

pub mod attributes;
pub(crate) mod path;
pub(crate) mod query;
pub(crate) mod routes;
