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

pub use authorize::{Authorizer, Decision, PathCheck, ResourceCheck, Selector};
pub(crate) use authorize::{Check, Step};
pub(crate) use data::{free, read};
pub(crate) use equal::{ScalarKey, compare, contains, element_key, equal, has_key};
pub(crate) use meter::{Failure, Meter};
pub(crate) use value::{Amount, Elements, Key, List, ListKind, Map, Text, Value};

use crate::check::Checked;
use crate::deep;
use crate::library::regex::Pattern;
use plan::Node;
use std::collections::HashMap;
use std::sync::Arc;

/// Most that one evaluation may cost.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// What a program says that costs more.
pub(crate) const OVER_LIMIT: &str = "operation cancelled: actual cost limit exceeded";

/// An expression that is ready to be evaluated, any number of times and by any number of threads.
#[derive(Debug)]
pub(crate) struct Program {
    root: Node,
    globals: Vec<Arc<str>>,
    locals: usize,
    patterns: HashMap<Arc<str>, Pattern>,
    deep: bool,
}

/// The outcome of an evaluation and what it cost.
#[derive(Debug)]
pub(crate) struct Outcome<'a> {
    pub(crate) value: Result<Value<'a>, Failure>,
    pub(crate) cost: u64,
}

/// What a variable stands for, asked for when an expression first needs it.
pub(crate) trait Activation<'a>: Sync {
    /// The value of a variable; `None` where it has none.
    fn resolve(&self, name: &str) -> Option<Result<Value<'a>, Failure>>;
}

impl Drop for Program {
    /// A deep tree is also taken apart deeply.
    fn drop(&mut self) {
        if self.deep {
            let root = std::mem::replace(&mut self.root, Node::Const(Value::Null));
            let _ = deep::run(true, || drop(root));
        }
    }
}

impl Program {
    /// Plans an expression that checks. What is constant is computed here.
    ///
    /// # Errors
    /// What a constant conversion says that cannot be made.
    pub(crate) fn new(checked: &Checked) -> Result<Self, String> {
        let deep = checked.root.is_deeper_than(deep::SHALLOW);
        let planned = deep::run(deep, || plan::plan(checked)).map_err(str::to_owned)?;
        planned.map(|mut program| {
            program.deep = deep;
            program
        })
    }

    /// Bytes that its constant patterns take at most.
    pub(crate) fn weight_of_patterns(&self) -> usize {
        self.patterns.values().map(|pattern| pattern.weight).sum()
    }

    /// Evaluates within `limit`.
    pub(crate) fn evaluate<'a>(&'a self, activation: &dyn Activation<'a>, limit: u64) -> Outcome<'a> {
        let outcome = deep::run(self.deep, || evaluate::run(self, activation, limit));
        outcome.unwrap_or_else(|problem| Outcome { value: Err(Failure::Cancelled(problem)), cost: limit })
    }
}

#[cfg(test)]
mod tests;
