//! Kubernetes' CEL: expressions compiled against declared types, with cel-go's errors and cost estimates, and evaluated within a
//! budget; and what Kubernetes makes of them, `x-kubernetes-validations` and admission policies.
//!
//! Everything here is pure: expressions, schemas and objects in, verdicts out. The crate does no IO and knows no kind; who may do what
//! is asked through [`Authorizer`]. It never panics on an expression, and what an evaluation takes is bounded in steps and in memory.
//! The table of functions is printed by `e2e/celtable`; `docs/decisions/0003-cel.md` tells why cel-go's rules are built here anew.

mod check;
mod deep;
mod devices;
mod estimate;
mod expression;
mod functions;
mod library;
pub mod policy;
mod program;
pub mod rules;
mod schema;
mod syntax;
mod time;
mod types;

pub use check::{Environment, ObjectTypes};
pub use devices::device_selector;
pub use expression::{Answer, Evaluated, EvaluationError, Expression, Variables};
pub use library::{BadPattern, Matcher, TooLong, is_request_uri};
pub use program::{Authorizer, Decision, PER_CALL_LIMIT, PathCheck, ResourceCheck, Selector};
pub use schema::{DeclaredType, ListType, Reason, Rule, Schema, escape, parse_duration, unescape};
pub use types::Type;
