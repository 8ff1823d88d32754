//! What a policy says of one request.

use super::environment::{Given, Scope};
use super::purse::{OUT_OF_BUDGET, Purse, Refused};
use super::{Effort, FailurePolicy, MATCH_BUDGET, MatchConditions, TooLong, ValidatingPolicy, Validation};
use crate::expression::Answer;
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

impl MatchConditions {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Whether they hold for a request. One that does not decides, whatever is wrong with others.
    ///
    /// # Errors
    /// When that takes longer than a brief evaluation.
    pub fn matches<'a>(&'a self, review: Review<'a>, effort: Effort) -> Result<Matched, TooLong> {
        let scope = Scope::new(review, &[], effort.per_call());
        let mut purse = Purse::new(effort, MATCH_BUDGET);
        let (mut problems, mut against) = (Vec::new(), None);
        for condition in &self.conditions {
            match purse.answer(&condition.text, &condition.compiled, &scope) {
                Ok(Answer::Bool(false)) => against = against.or(Some(&condition.name)),
                Ok(_) => {}
                Err(Refused::Expression(problem)) if problems.contains(&problem) => {}
                Err(Refused::Expression(problem)) => problems.push(problem),
                Err(Refused::Budget) => return Ok(self.unsure(OUT_OF_BUDGET.to_owned())),
                Err(Refused::TooLong) => return Err(TooLong),
            }
        }
        Ok(match (against, problems.as_slice()) {
            (Some(name), _) => Matched::No(name.clone()),
            (None, []) => Matched::Yes,
            (None, [one]) => self.unsure(one.clone()),
            (None, many) => self.unsure(format!("[{}]", many.join(", "))),
        })
    }

    fn unsure(&self, problem: String) -> Matched {
        match self.failure_policy {
            FailurePolicy::Fail => Matched::Failed(problem),
            FailurePolicy::Ignore => Matched::Ignored,
        }
    }
}

/// What the expressions of all validations give, in their order, and what is left of the budget.
type Evaluated = (Vec<Result<Answer, String>>, Purse);

impl ValidatingPolicy {
    /// What it says of a request that it is for.
    ///
    /// # Errors
    /// When that takes longer than a brief evaluation.
    pub fn validate<'a>(&'a self, review: Review<'a>, effort: Effort) -> Result<PolicyVerdict, TooLong> {
        match self.conditions.matches(review, effort)? {
            Matched::Yes => {}
            Matched::No(_) | Matched::Ignored => return Ok(PolicyVerdict::default()),
            Matched::Failed(problem) => return Ok(self.failed(problem)),
        }
        let Some((answers, mut purse)) = self.evaluate(review, effort)? else {
            return Ok(self.failed(OUT_OF_BUDGET.to_owned()));
        };
        // Neither messages nor annotations can ask for rights.
        let review = Review { authorizer: None, ..review };
        let messages = self.messages(review, effort, &mut purse)?;
        let decide = |(at, answer): (usize, Result<Answer, String>)| {
            let validation = &self.validations[at];
            match (answer, &messages) {
                (Err(problem), _) => self.on_error(problem),
                (Ok(_), None) => self.on_error(format!("failed messageExpression: {OUT_OF_BUDGET}")),
                (Ok(Answer::Bool(true)), _) => PolicyDecision::Admit,
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

    /// The answers of the validations; `None` where the budget is used up.
    fn evaluate<'a>(&'a self, review: Review<'a>, effort: Effort) -> Result<Option<Evaluated>, TooLong> {
        let scope = Scope::new(review, &self.variables, effort.per_call());
        let mut purse = Purse::new(effort, BUDGET.unsigned_abs());
        let mut answers = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            match purse.answer(&validation.text, &validation.compiled, &scope) {
                Ok(answer) => answers.push(Ok(answer)),
                Err(Refused::Expression(problem)) => answers.push(Err(problem)),
                Err(Refused::Budget) => return Ok(None),
                Err(Refused::TooLong) => return Err(TooLong),
            }
        }
        Ok(Some((answers, purse)))
    }

    /// What expressions of messages give, also of validations that hold; `None` where the budget is used up.
    fn messages<'a>(
        &'a self,
        review: Review<'a>,
        effort: Effort,
        purse: &mut Purse,
    ) -> Result<Option<Vec<Option<String>>>, TooLong> {
        let scope = Scope::new(review, &self.variables, effort.per_call());
        let mut messages = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            let Some((text, compiled)) = &validation.message_expression else {
                messages.push(None);
                continue;
            };
            messages.push(match purse.answer(text, compiled, &scope) {
                Ok(Answer::Text(text)) => Some(text.trim().to_owned()).filter(|text| is_message(text)),
                Ok(_) | Err(Refused::Expression(_)) => None,
                Err(Refused::Budget) => return Ok(None),
                Err(Refused::TooLong) => return Err(TooLong),
            });
        }
        Ok(Some(messages))
    }

    /// The annotations; `None` where the budget is used up.
    fn annotate<'a>(&'a self, review: Review<'a>, effort: Effort) -> Result<Option<Vec<AuditAnnotation>>, TooLong> {
        let scope = Scope::new(review, &self.variables, effort.per_call());
        let mut purse = Purse::new(effort, BUDGET.unsigned_abs());
        let mut found = Vec::new();
        for (key, text, compiled) in &self.annotations {
            let value = match purse.answer(text, compiled, &scope) {
                Ok(Answer::Text(text)) if text.trim().is_empty() => continue,
                Ok(Answer::Text(text)) => Ok(text.trim().to_owned()),
                Ok(Answer::Null | Answer::Bool(_) | Answer::Other) => continue,
                Err(Refused::Expression(_)) if self.failure_policy == FailurePolicy::Ignore => continue,
                Err(Refused::Expression(problem)) => Err(problem),
                Err(Refused::Budget) => return Ok(None),
                Err(Refused::TooLong) => return Err(TooLong),
            };
            found.push(AuditAnnotation { key: key.clone(), value });
        }
        Ok(Some(found))
    }
}

impl Validation {
    /// The refusal of what it does not hold for.
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
