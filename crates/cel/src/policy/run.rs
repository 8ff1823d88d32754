//! Evaluation of a policy for one request.

use super::budget::{CostBudget, EvaluationRefusal, OUT_OF_BUDGET};
use super::environment::{PolicyScope, PolicyVariables};
use super::{
    EvaluationEffort, EvaluationTooLong, FailurePolicy, MATCH_BUDGET, MatchConditions, ValidatingPolicy, Validation,
};
use crate::expression::ExpressionAnswer;
use crate::rules::{BUDGET, MAX_MESSAGE};

/// Result of match conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionMatch {
    /// All conditions match.
    Yes,
    /// The named condition does not match.
    No(String),
    /// The result is unknown, and the failure policy is `Fail`.
    Failed(String),
    /// The result is unknown, and the failure policy is `Ignore`.
    Ignored,
}

/// Decision of one validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyDecision {
    /// The validation holds.
    Admit,
    /// The request is refused.
    Deny {
        /// Message of the refusal.
        message: String,
        /// Reason of the response; `Invalid` if the policy names none.
        reason: String,
        /// True if the cause is a failed expression.
        is_error: bool,
    },
}

/// Annotation for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditAnnotation {
    /// The key, without the policy's name.
    pub key: String,
    /// Value, or its error.
    pub value: Result<String, String>,
}

/// Result of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyVerdict {
    /// One decision per validation; empty if the policy does not match.
    pub decisions: Vec<PolicyDecision>,
    /// Annotations for the audit log.
    pub annotations: Vec<AuditAnnotation>,
}

/// A request as policies see it.
pub type ReviewVariables<'a> = PolicyVariables<'a>;

impl MatchConditions {
    /// Returns true if there are no conditions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Returns the result for a request. A condition that is false decides, even if others fail.
    ///
    /// # Errors
    /// Fails if the evaluation exceeds the limit for brief evaluations.
    pub fn matches<'a>(
        &'a self,
        review: ReviewVariables<'a>,
        effort: EvaluationEffort,
    ) -> Result<ConditionMatch, EvaluationTooLong> {
        let scope = PolicyScope::new(review, &[], effort.per_call());
        let mut budget = CostBudget::new(effort, MATCH_BUDGET);
        let (mut problems, mut against) = (Vec::new(), None);
        for condition in &self.conditions {
            match budget.answer(&condition.text, &condition.compiled, &scope) {
                Ok(ExpressionAnswer::Bool(false)) => against = against.or(Some(&condition.name)),
                Ok(_) => {}
                Err(EvaluationRefusal::Expression(problem)) if problems.contains(&problem) => {}
                Err(EvaluationRefusal::Expression(problem)) => problems.push(problem),
                Err(EvaluationRefusal::Budget) => return Ok(self.unsure(OUT_OF_BUDGET.to_owned())),
                Err(EvaluationRefusal::TooLong) => return Err(EvaluationTooLong),
            }
        }
        Ok(match (against, problems.as_slice()) {
            (Some(name), _) => ConditionMatch::No(name.clone()),
            (None, []) => ConditionMatch::Yes,
            (None, [one]) => self.unsure(one.clone()),
            (None, many) => self.unsure(format!("[{}]", many.join(", "))),
        })
    }

    fn unsure(&self, problem: String) -> ConditionMatch {
        match self.failure_policy {
            FailurePolicy::Fail => ConditionMatch::Failed(problem),
            FailurePolicy::Ignore => ConditionMatch::Ignored,
        }
    }
}

/// Values of all validations' expressions, in order, and the remaining budget.
type EvaluatedValidations = (Vec<Result<ExpressionAnswer, String>>, CostBudget);

impl ValidatingPolicy {
    /// Evaluates the policy for a request that it matches.
    ///
    /// # Errors
    /// Fails if the evaluation exceeds the limit for brief evaluations.
    pub fn validate<'a>(
        &'a self,
        review: ReviewVariables<'a>,
        effort: EvaluationEffort,
    ) -> Result<PolicyVerdict, EvaluationTooLong> {
        match self.conditions.matches(review, effort)? {
            ConditionMatch::Yes => {}
            ConditionMatch::No(_) | ConditionMatch::Ignored => return Ok(PolicyVerdict::default()),
            ConditionMatch::Failed(problem) => return Ok(self.failed(problem)),
        }
        let Some((answers, mut budget)) = self.evaluate(review, effort)? else {
            return Ok(self.failed(OUT_OF_BUDGET.to_owned()));
        };
        // Messages and annotations have no authorizer.
        let review = ReviewVariables { authorizer: None, ..review };
        let messages = self.messages(review, effort, &mut budget)?;
        let decide = |(at, answer): (usize, Result<ExpressionAnswer, String>)| {
            let validation = &self.validations[at];
            match (answer, &messages) {
                (Err(problem), _) => self.on_error(problem),
                (Ok(_), None) => self.on_error(format!("failed messageExpression: {OUT_OF_BUDGET}")),
                (Ok(ExpressionAnswer::Bool(true)), _) => PolicyDecision::Admit,
                (Ok(_), Some(messages)) => validation.denial(messages[at].as_deref()),
            }
        };
        let decisions = answers.into_iter().enumerate().map(decide).collect();
        match self.annotate(review, effort)? {
            Some(annotations) => Ok(PolicyVerdict { decisions, annotations }),
            None => Ok(self.failed(OUT_OF_BUDGET.to_owned())),
        }
    }

    fn failed(&self, problem: String) -> PolicyVerdict {
        PolicyVerdict { decisions: vec![self.on_error(problem)], annotations: Vec::new() }
    }

    fn on_error(&self, message: String) -> PolicyDecision {
        match self.failure_policy {
            FailurePolicy::Fail => PolicyDecision::Deny { message, reason: "Invalid".to_owned(), is_error: true },
            FailurePolicy::Ignore => PolicyDecision::Admit,
        }
    }

    /// Returns the decisions of the validations; `None` if the budget is used up.
    fn evaluate<'a>(
        &'a self,
        review: ReviewVariables<'a>,
        effort: EvaluationEffort,
    ) -> Result<Option<EvaluatedValidations>, EvaluationTooLong> {
        let scope = PolicyScope::new(review, &self.variables, effort.per_call());
        let mut budget = CostBudget::new(effort, BUDGET.unsigned_abs());
        let mut answers = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            match budget.answer(&validation.text, &validation.compiled, &scope) {
                Ok(answer) => answers.push(Ok(answer)),
                Err(EvaluationRefusal::Expression(problem)) => answers.push(Err(problem)),
                Err(EvaluationRefusal::Budget) => return Ok(None),
                Err(EvaluationRefusal::TooLong) => return Err(EvaluationTooLong),
            }
        }
        Ok(Some((answers, budget)))
    }

    /// Evaluates the message expressions, also those of validations that hold; `None` if the budget is used up.
    fn messages<'a>(
        &'a self,
        review: ReviewVariables<'a>,
        effort: EvaluationEffort,
        budget: &mut CostBudget,
    ) -> Result<Option<Vec<Option<String>>>, EvaluationTooLong> {
        let scope = PolicyScope::new(review, &self.variables, effort.per_call());
        let mut messages = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            let Some((text, compiled)) = &validation.message_expression else {
                messages.push(None);
                continue;
            };
            messages.push(match budget.answer(text, compiled, &scope) {
                Ok(ExpressionAnswer::Text(text)) => Some(text.trim().to_owned()).filter(|text| is_message(text)),
                Ok(_) | Err(EvaluationRefusal::Expression(_)) => None,
                Err(EvaluationRefusal::Budget) => return Ok(None),
                Err(EvaluationRefusal::TooLong) => return Err(EvaluationTooLong),
            });
        }
        Ok(Some(messages))
    }

    /// Returns the annotations; `None` if the budget is used up.
    fn annotate<'a>(
        &'a self,
        review: ReviewVariables<'a>,
        effort: EvaluationEffort,
    ) -> Result<Option<Vec<AuditAnnotation>>, EvaluationTooLong> {
        let scope = PolicyScope::new(review, &self.variables, effort.per_call());
        let mut budget = CostBudget::new(effort, BUDGET.unsigned_abs());
        let mut found = Vec::new();
        for (key, text, compiled) in &self.annotations {
            let value = match budget.answer(text, compiled, &scope) {
                Ok(ExpressionAnswer::Text(text)) if text.trim().is_empty() => continue,
                Ok(ExpressionAnswer::Text(text)) => Ok(text.trim().to_owned()),
                Ok(
                    ExpressionAnswer::Null
                    | ExpressionAnswer::Bool(_)
                    | ExpressionAnswer::Texts(_)
                    | ExpressionAnswer::Other,
                ) => {
                    continue;
                }
                Err(EvaluationRefusal::Expression(_)) if self.failure_policy == FailurePolicy::Ignore => continue,
                Err(EvaluationRefusal::Expression(problem)) => Err(problem),
                Err(EvaluationRefusal::Budget) => return Ok(None),
                Err(EvaluationRefusal::TooLong) => return Err(EvaluationTooLong),
            };
            found.push(AuditAnnotation { key: key.clone(), value });
        }
        Ok(Some(found))
    }
}

impl Validation {
    /// Returns the refusal of a validation that does not hold.
    fn denial(&self, by_expression: Option<&str>) -> PolicyDecision {
        let message = match (by_expression, self.message.trim()) {
            (Some(message), _) => message.to_owned(),
            (None, "") => format!("failed expression: {}", self.text.trim()),
            (None, message) => message.to_owned(),
        };
        let reason = if self.reason.is_empty() { "Invalid" } else { &self.reason };
        PolicyDecision::Deny { message, reason: reason.to_owned(), is_error: false }
    }
}

fn is_message(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n')
}
