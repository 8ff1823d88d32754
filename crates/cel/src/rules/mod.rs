//! `x-kubernetes-validations`: rules compiled with a schema, estimated when a definition is written, run when an object is.

mod compile;
mod correlate;
mod definition;
mod error;
mod field_path;
mod run;
mod validator;

pub use compile::{Compiled, Problem, compile};
pub use definition::check_definition;
pub use error::{BadValue, ErrorKind, RuleError};
pub use field_path::{check_field_path, valid_field_path};
pub use validator::{Validator, Verdict};

/// Most that all rules of one object may cost.
pub const BUDGET: i64 = 10_000_000;
/// Most that a rule may be estimated to cost.
pub const RULE_LIMIT: u64 = 10_000_000;
/// Most that all rules of a definition may be estimated to cost.
pub const DEFINITION_LIMIT: u64 = 100_000_000;
/// The longest message an expression may make, in bytes.
pub(crate) const MAX_MESSAGE: usize = 5 * 1024;

#[cfg(test)]
mod tests;
