//! Compiled expressions and their evaluation within a budget.

mod attribute;
mod authorize;
mod cost;
mod data;
mod equal;
mod evaluate;
mod meter;
mod plan;
mod value;

pub(crate) use authorize::{AuthorizerCheck, Step};
pub use authorize::{AuthorizerDecision, AuthorizerSelector, ExpressionAuthorizer, PathCheck, ResourceCheck};
pub(crate) use data::{free, read};
pub(crate) use equal::{ScalarKey, compare, contains, element_key, equal, has_key};
pub(crate) use meter::{EvaluationFailure, Meter};
pub(crate) use value::{CelList, CelListElements, CelListKind, CelMap, CelQuantity, CelText, CelValue, Key};

use crate::check::CheckedExpression;
use crate::deep;
use crate::library::regex::Pattern;
use plan::PlanNode;
use std::collections::HashMap;
use std::sync::Arc;

/// Cost limit of one evaluation.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// Error of a program that exceeds the cost limit.
pub(crate) const OVER_LIMIT: &str = "operation cancelled: actual cost limit exceeded";

/// Expression that is ready to be evaluated any number of times, by any number of threads.
#[derive(Debug)]
pub(crate) struct CelProgram {
    root: PlanNode,
    globals: Vec<Arc<str>>,
    locals: usize,
    patterns: HashMap<Arc<str>, Pattern>,
    deep: bool,
}

/// Result of an evaluation with its cost.
#[derive(Debug)]
pub(crate) struct ProgramOutcome<'a> {
    pub(crate) value: Result<CelValue<'a>, EvaluationFailure>,
    pub(crate) cost: u64,
}

/// Source of variables, which are computed when an expression first reads them.
pub(crate) trait Activation<'a>: Sync {
    /// Returns the value of a variable; `None` if it has none.
    fn resolve(&self, name: &str) -> Option<Result<CelValue<'a>, EvaluationFailure>>;
}

impl Drop for CelProgram {
    /// Dropping a deep tree recurses as deeply.
    fn drop(&mut self) {
        if self.deep {
            let root = std::mem::replace(&mut self.root, PlanNode::Const(CelValue::Null));
            let _ = deep::run(true, || drop(root));
        }
    }
}

impl CelProgram {
    /// Plans a checked expression, and computes its constant parts.
    ///
    /// # Errors
    /// The error of a constant conversion.
    pub(crate) fn new(checked: &CheckedExpression) -> Result<Self, String> {
        let deep = checked.root.is_deeper_than(deep::SHALLOW);
        let planned = deep::run(deep, || plan::plan(checked)).map_err(str::to_owned)?;
        planned.map(|mut program| {
            program.deep = deep;
            program
        })
    }

    /// Returns the maximum size of its constant patterns in bytes.
    pub(crate) fn weight_of_patterns(&self) -> usize {
        self.patterns.values().map(|pattern| pattern.weight).sum()
    }

    /// Evaluates within `limit`.
    pub(crate) fn evaluate<'a>(&'a self, activation: &dyn Activation<'a>, limit: u64) -> ProgramOutcome<'a> {
        let outcome = deep::run(self.deep, || evaluate::run(self, activation, limit));
        outcome
            .unwrap_or_else(|problem| ProgramOutcome { value: Err(EvaluationFailure::Cancelled(problem)), cost: limit })
    }
}

#[cfg(test)]
mod tests;
