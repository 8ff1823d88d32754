//! Cost budget that the expressions of one webhook or policy share.

use super::compile::CompiledExpression;
use super::environment::PolicyScope;
use crate::expression::ExpressionAnswer;
use crate::program::{CelValue, EvaluationFailure, PER_CALL_LIMIT};

/// Cost limit of a brief evaluation, which takes a few milliseconds.
const BRIEF: u64 = 100_000;

pub(super) const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Limit of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluationEffort {
    /// Limit of a few milliseconds. When it is reached, the caller repeats the evaluation on a thread that delays no
    /// other request.
    Brief,
    /// Cost limits of kube-apiserver.
    Full,
}

impl EvaluationEffort {
    /// Cost limit of one expression.
    pub(super) fn per_call(self) -> u64 {
        match self {
            Self::Brief => BRIEF,
            Self::Full => PER_CALL_LIMIT,
        }
    }
}

/// Reason that an expression has no value.
pub(super) enum EvaluationRefusal {
    /// Error of the expression.
    Expression(String),
    /// The shared budget is used up.
    Budget,
    /// The evaluation takes longer than a brief one.
    TooLong,
}

/// Budget that evaluations draw on.
pub(super) struct CostBudget {
    effort: EvaluationEffort,
    left: u64,
}

impl CostBudget {
    pub(super) fn new(effort: EvaluationEffort, budget: u64) -> Self {
        let left = if effort == EvaluationEffort::Brief { BRIEF.min(budget) } else { budget };
        Self { effort, left }
    }

    fn pay(&mut self, cost: u64) -> Result<(), EvaluationRefusal> {
        match self.left.checked_sub(cost) {
            Some(left) => self.left = left,
            None if self.effort == EvaluationEffort::Brief => return Err(EvaluationRefusal::TooLong),
            None => return Err(EvaluationRefusal::Budget),
        }
        Ok(())
    }

    /// Evaluates an expression.
    pub(super) fn value<'a>(
        &mut self,
        text: &str,
        compiled: &'a CompiledExpression,
        scope: &PolicyScope<'a>,
    ) -> Result<CelValue<'a>, EvaluationRefusal> {
        let expression = compiled
            .as_ref()
            .map_err(|problem| EvaluationRefusal::Expression(format!("compilation error: {problem}")))?;
        let (value, cost) = expression.value(scope, self.effort.per_call());
        if self.effort == EvaluationEffort::Brief && matches!(value, Err(EvaluationFailure::Cancelled(_))) {
            return Err(EvaluationRefusal::TooLong);
        }
        self.pay(scope.take_cost())?;
        self.pay(cost)?;
        value.map_err(|failure| {
            EvaluationRefusal::Expression(format!("expression '{text}' resulted in error: {}", failure.message()))
        })
    }

    /// Evaluates an expression whose value is a bool, a text or null.
    pub(super) fn answer<'a>(
        &mut self,
        text: &str,
        compiled: &'a CompiledExpression,
        scope: &PolicyScope<'a>,
    ) -> Result<ExpressionAnswer, EvaluationRefusal> {
        self.value(text, compiled, scope).map(ExpressionAnswer::from)
    }
}

/// Error of a brief evaluation that reached its limit: the caller must repeat it in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationTooLong;
