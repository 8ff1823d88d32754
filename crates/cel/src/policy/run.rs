//! What a policy says of one request.

use super::environment::{Given, Scope};
use super::{Compiled, FailurePolicy, MATCH_BUDGET, MatchConditions, ValidatingPolicy, Validation};
use crate::expression::Answer;
use crate::program::PER_CALL_LIMIT;
use crate::rules::{BUDGET, MAX_MESSAGE};

/// Whether match conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matched {
    /// All do.
    Yes,
    /// The named one does not.
    No(String),
    /// That cannot be said, and the policy is to fail.
    Failed(String),
    /// That cannot be said, and it does not matter.
    Ignored,
}

/// What one validation decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyDecision {
    /// Nothing against it.
    Admit,
    /// It is refused.
    Deny {
        /// Why.
        message: String,
        /// The reason of the answer, `Invalid` where the policy names none.
        reason: String,
        /// Whether it is refused since an expression failed.
        is_error: bool,
    },
}

/// An annotation for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditAnnotation {
    /// The key, without the policy's name.
    pub key: String,
    /// The value, or why there is none.
    pub value: Result<String, String>,
}

/// All that a policy says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyVerdict {
    /// One for each validation; none where the policy does not match.
    pub decisions: Vec<PolicyDecision>,
    /// For the audit log.
    pub annotations: Vec<AuditAnnotation>,
}

/// A request as policies see it.
pub type Review<'a> = Given<'a>;

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Takes costs of expressions from what is left.
struct Purse(u64);

impl Purse {
    /// What an expression gives, or what is said instead.
    fn evaluate<'a>(&mut self, text: &str, compiled: &'a Compiled, scope: &Scope<'a>) -> Result<Answer, Refused> {
        let expression =
            compiled.as_ref().map_err(|problem| Refused::Expression(format!("compilation error: {problem}")))?;
        let evaluated = expression.evaluate_with(scope, PER_CALL_LIMIT);
        let cost = evaluated.cost.saturating_add(scope.take_cost());
        self.0 = self.0.checked_sub(cost).ok_or(Refused::Budget)?;
        evaluated
            .answer
            .map_err(|error| Refused::Expression(format!("expression '{text}' resulted in error: {}", error.message)))
    }
}

enum Refused {
    Expression(String),
    Budget,
}

impl MatchConditions {
    /// Whether they hold for a request.
    #[must_use]
    pub fn matches<'a>(&'a self, review: Review<'a>) -> Matched {
        let scope = Scope::new(review, &[]);
        let mut purse = Purse(MATCH_BUDGET);
        let mut problems = Vec::new();
        for condition in &self.conditions {
            match purse.evaluate(&condition.text, &condition.compiled, &scope) {
                Ok(Answer::Bool(false)) => return Matched::No(condition.name.clone()),
                Ok(_) => {}
                Err(Refused::Expression(problem)) => problems.push(problem),
                Err(Refused::Budget) => return self.unsure(OUT_OF_BUDGET.to_owned()),
            }
        }
        match problems.as_slice() {
            [] => Matched::Yes,
            [one] => self.unsure(one.clone()),
            many => self.unsure(format!("[{}]", many.join(", "))),
        }
    }

    fn unsure(&self, problem: String) -> Matched {
        match self.failure_policy {
            FailurePolicy::Fail => Matched::Failed(problem),
            FailurePolicy::Ignore => Matched::Ignored,
        }
    }
}

impl ValidatingPolicy {
    /// What it says of a request that it is for.
    #[must_use]
    pub fn validate<'a>(&'a self, review: Review<'a>) -> PolicyVerdict {
        match self.conditions.matches(review) {
            Matched::Yes => {}
            Matched::No(_) | Matched::Ignored => return PolicyVerdict::default(),
            Matched::Failed(problem) => return self.failed(problem),
        }
        let scope = Scope::new(review, &self.variables);
        let mut purse = Purse(BUDGET.unsigned_abs());
        let mut decisions = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            match self.decide(validation, &scope, &mut purse) {
                Ok(decision) => decisions.push(decision),
                Err(()) => return self.failed(OUT_OF_BUDGET.to_owned()),
            }
        }
        PolicyVerdict { decisions, annotations: self.annotate(&scope) }
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

    fn decide<'a>(
        &'a self,
        validation: &'a Validation,
        scope: &Scope<'a>,
        purse: &mut Purse,
    ) -> Result<PolicyDecision, ()> {
        match purse.evaluate(&validation.text, &validation.compiled, scope) {
            Err(Refused::Budget) => Err(()),
            Err(Refused::Expression(problem)) => Ok(self.on_error(problem)),
            Ok(Answer::Bool(true)) => Ok(PolicyDecision::Admit),
            Ok(_) => match message(validation, scope, purse) {
                Ok(message) => {
                    let reason = if validation.reason.is_empty() { "Invalid" } else { &validation.reason };
                    Ok(PolicyDecision::Deny { message, reason: reason.to_owned(), is_error: false })
                }
                Err(problem) => Ok(self.on_error(problem)),
            },
        }
    }

    fn annotate<'a>(&'a self, scope: &Scope<'a>) -> Vec<AuditAnnotation> {
        let mut purse = Purse(BUDGET.unsigned_abs());
        let mut found = Vec::new();
        for (key, text, compiled) in &self.annotations {
            let value = match purse.evaluate(text, compiled, scope) {
                Ok(Answer::Text(text)) if text.trim().is_empty() => continue,
                Ok(Answer::Text(text)) => Ok(text.trim().to_owned()),
                Ok(Answer::Null | Answer::Bool(_) | Answer::Other) => continue,
                Err(_) if self.failure_policy == FailurePolicy::Ignore => continue,
                Err(Refused::Expression(problem)) => Err(problem),
                Err(Refused::Budget) => Err(OUT_OF_BUDGET.to_owned()),
            };
            found.push(AuditAnnotation { key: key.clone(), value });
        }
        found
    }
}

/// The message of a validation that does not hold; an error where the budget is used up.
fn message<'a>(validation: &'a Validation, scope: &Scope<'a>, purse: &mut Purse) -> Result<String, String> {
    if let Some(compiled) = &validation.message_expression {
        match purse.evaluate("", compiled, scope) {
            Ok(Answer::Text(text)) if is_message(text.trim()) => return Ok(text.trim().to_owned()),
            Ok(_) | Err(Refused::Expression(_)) => {}
            Err(Refused::Budget) => return Err(format!("failed messageExpression: {OUT_OF_BUDGET}")),
        }
    }
    if validation.message.is_empty() {
        return Ok(format!("failed expression: {}", validation.text.trim()));
    }
    Ok(validation.message.trim().to_owned())
}

fn is_message(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n')
}
