//! `x-kubernetes-validations`: rules that are compiled with a schema, estimated when a definition is written, and run
//! when an object is written.

mod compile;
mod correlate;
mod definition;
mod error;
mod field_path;
mod run;
mod validator;

pub use compile::{CompiledRules, RuleProblem, compile};
pub use definition::check_definition;
pub use error::{BadValue, ErrorKind, RuleError};
pub use field_path::{check_field_path, valid_field_path};
pub use validator::{RuleValidator, RuleVerdict};

/// Cost limit of all rules of one object.
pub const BUDGET: i64 = 10_000_000;
/// Limit of the estimated cost of a rule.
pub const RULE_LIMIT: u64 = 10_000_000;
/// Limit of the estimated cost of all rules of a definition.
pub const DEFINITION_LIMIT: u64 = 100_000_000;
/// Maximum length of a message from an expression, in bytes.
pub(crate) const MAX_MESSAGE: usize = 5 * 1024;

#[cfg(test)]
mod tests;
