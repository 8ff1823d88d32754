//! What expressions of one webhook or policy may cost together, and how much of it is left.

use super::compile::Compiled;
use super::environment::Scope;
use crate::expression::Answer;
use crate::program::{Failure, PER_CALL_LIMIT, Value};

/// What a brief evaluation may cost: a few milliseconds.
const BRIEF: u64 = 100_000;

pub(super) const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// How long an evaluation may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A few milliseconds at most: then it gives up, for the caller to do it again where nobody else is held up.
    Brief,
    /// As long as the costs of upstream allow.
    Full,
}

impl Effort {
    /// Most that one expression may cost.
    pub(super) fn per_call(self) -> u64 {
        match self {
            Self::Brief => BRIEF,
            Self::Full => PER_CALL_LIMIT,
        }
    }
}

/// Why an expression has no value.
pub(super) enum Refused {
    /// What is wrong with it.
    Expression(String),
    /// The budget of them all is used up.
    Budget,
    /// It takes longer than a brief evaluation.
    TooLong,
}

/// A budget that costs are taken from.
pub(super) struct Purse {
    effort: Effort,
    left: u64,
}

impl Purse {
    pub(super) fn new(effort: Effort, budget: u64) -> Self {
        let left = if effort == Effort::Brief { BRIEF.min(budget) } else { budget };
        Self { effort, left }
    }

    fn pay(&mut self, cost: u64) -> Result<(), Refused> {
        match self.left.checked_sub(cost) {
            Some(left) => self.left = left,
            None if self.effort == Effort::Brief => return Err(Refused::TooLong),
            None => return Err(Refused::Budget),
        }
        Ok(())
    }

    /// What an expression gives.
    pub(super) fn value<'a>(
        &mut self,
        text: &str,
        compiled: &'a Compiled,
        scope: &Scope<'a>,
    ) -> Result<Value<'a>, Refused> {
        let expression =
            compiled.as_ref().map_err(|problem| Refused::Expression(format!("compilation error: {problem}")))?;
        let (value, cost) = expression.value(scope, self.effort.per_call());
        if self.effort == Effort::Brief && matches!(value, Err(Failure::Cancelled(_))) {
            return Err(Refused::TooLong);
        }
        self.pay(scope.take_cost())?;
        self.pay(cost)?;
        value.map_err(|failure| {
            Refused::Expression(format!("expression '{text}' resulted in error: {}", failure.message()))
        })
    }

    /// The same for what is a bool, a text or nothing.
    pub(super) fn answer<'a>(
        &mut self,
        text: &str,
        compiled: &'a Compiled,
        scope: &Scope<'a>,
    ) -> Result<Answer, Refused> {
        self.value(text, compiled, scope).map(Answer::from)
    }
}

/// Whether a brief evaluation gave up: the caller has to do it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;
