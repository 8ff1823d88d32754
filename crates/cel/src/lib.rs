//! Kubernetes' CEL: expressions that are compiled against declared types, with cel-go's errors and cost estimates, and
//! evaluated within a budget; and its uses, `x-kubernetes-validations` and admission policies.
//!
//! The crate is pure: expressions, schemas and objects in, verdicts out. It does no IO and knows no kind; authorization
//! checks go through [`ExpressionAuthorizer`]. It never panics on an expression, and the steps and memory of an
//! evaluation are bounded. `e2e/codegen/celtable` generates the table of functions; `docs/decisions/0003-cel.md`
//! explains why cel-go's rules are implemented here.

mod check;
mod deep;
mod devices;
mod estimate;
mod expression;
mod functions;
mod library;
mod placement;
pub mod policy;
mod program;
pub mod rules;
mod schema;
mod syntax;
mod time;
mod types;

pub use check::{Environment, ObjectTypes};
pub use devices::device_selector;
pub use expression::{EvaluatedExpression, EvaluationError, Expression, ExpressionAnswer, ExpressionVariables};
pub use placement::{
    MAX_PLACEMENT_EXPRESSION, PLACEMENT_COST_LIMIT, PlacementExpression, PlacementTruth, cluster_expression,
    object_expression,
};
pub use program::{
    AuthorizerDecision, AuthorizerSelector, ExpressionAuthorizer, PER_CALL_LIMIT, PathCheck, ResourceCheck,
};
pub use schema::{
    DeclaredType, RuleReason, RuleSchema, SchemaListType, ValidationRule, escape, parse_duration, unescape,
};
pub use types::CelType;
