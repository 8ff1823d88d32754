//! Admission policies: their expressions, the variables that these see, and their decisions. Matching of policies to
//! objects is not part of this crate.

mod budget;
mod compile;
mod environment;
mod mutate;
mod run;
mod types;

pub use budget::{EvaluationEffort, EvaluationTooLong};
pub use compile::{CompiledExpression, PolicyCompiler};
pub use environment::PolicyVariables;
pub use mutate::{MutatingPolicy, MutationPatch};
pub use run::{AuditAnnotation, ConditionMatch, PolicyDecision, PolicyVerdict, ReviewVariables};
pub use types::{TypedKind, type_warnings};

use crate::expression::Expression;
use serde_json::Value as Json;
use std::sync::Arc;

/// Cost limit of the match conditions of one webhook or policy for one object.
pub const MATCH_BUDGET: u64 = 2_500_000;

/// Action when an expression fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The request is refused.
    #[default]
    Fail,
    /// The policy is skipped.
    Ignore,
}

/// Match conditions of a webhook or a policy.
#[derive(Debug)]
pub struct MatchConditions {
    conditions: Vec<MatchCondition>,
    failure_policy: FailurePolicy,
}

#[derive(Debug)]
struct MatchCondition {
    name: String,
    text: String,
    compiled: CompiledExpression,
}

/// Compiled ValidatingAdmissionPolicy.
#[derive(Debug)]
pub struct ValidatingPolicy {
    failure_policy: FailurePolicy,
    conditions: MatchConditions,
    variables: Vec<(Arc<str>, CompiledExpression)>,
    validations: Vec<Validation>,
    annotations: Vec<(String, String, CompiledExpression)>,
}

#[derive(Debug)]
struct Validation {
    text: String,
    message: String,
    reason: String,
    compiled: CompiledExpression,
    message_expression: Option<(String, CompiledExpression)>,
}

fn weight(compiled: &CompiledExpression) -> usize {
    compiled.as_ref().map_or_else(String::len, Expression::weight)
}

fn text<'j>(json: &'j Json, name: &str) -> &'j str {
    json.get(name).and_then(Json::as_str).unwrap_or_default()
}

fn list<'j>(json: &'j Json, name: &str) -> &'j [Json] {
    json.get(name).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

fn failure_policy(spec: &Json) -> FailurePolicy {
    if text(spec, "failurePolicy") == "Ignore" { FailurePolicy::Ignore } else { FailurePolicy::Fail }
}

impl MatchConditions {
    /// Compiles `matchConditions` of a webhook, or of a policy with parameters.
    #[must_use]
    pub fn new(spec: &Json, has_params: bool) -> Self {
        Self::with(spec, &PolicyCompiler::new(has_params))
    }

    /// Returns the approximate size in bytes.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.conditions.iter().map(|condition| weight(&condition.compiled)).sum()
    }

    fn with(spec: &Json, compiler: &PolicyCompiler) -> Self {
        let condition = |json: &Json| MatchCondition {
            name: text(json, "name").to_owned(),
            text: text(json, "expression").to_owned(),
            compiled: compiler.condition(text(json, "expression")),
        };
        let conditions = list(spec, "matchConditions").iter().map(condition).collect();
        Self { conditions, failure_policy: failure_policy(spec) }
    }
}

/// Compiles the variables of a policy. Returns them with a compiler that declares them.
fn variables(spec: &Json) -> (Vec<(Arc<str>, CompiledExpression)>, PolicyCompiler) {
    let mut compiler = PolicyCompiler::with_variables(spec.get("paramKind").is_some_and(Json::is_object));
    let variable = |json: &Json| {
        let name = text(json, "name");
        (name.into(), compiler.variable(name, text(json, "expression")))
    };
    let variables = list(spec, "variables").iter().map(variable).collect();
    (variables, compiler)
}

impl ValidatingPolicy {
    /// Compiles `spec` of a ValidatingAdmissionPolicy.
    #[must_use]
    pub fn new(spec: &Json) -> Self {
        let (variables, compiler) = variables(spec);
        let validation = |json: &Json| Validation {
            text: text(json, "expression").to_owned(),
            message: text(json, "message").to_owned(),
            reason: text(json, "reason").to_owned(),
            compiled: compiler.condition(text(json, "expression")),
            message_expression: Some(text(json, "messageExpression"))
                .filter(|text| !text.is_empty())
                .map(|text| (text.to_owned(), compiler.message(text))),
        };
        let annotation = |json: &Json| {
            let expression = text(json, "valueExpression");
            (text(json, "key").to_owned(), expression.to_owned(), compiler.annotation(expression))
        };
        Self {
            failure_policy: failure_policy(spec),
            conditions: MatchConditions::with(spec, &compiler),
            validations: list(spec, "validations").iter().map(validation).collect(),
            annotations: list(spec, "auditAnnotations").iter().map(annotation).collect(),
            variables,
        }
    }

    /// Returns the approximate size in bytes.
    #[must_use]
    pub fn weight(&self) -> usize {
        let variables = self.variables.iter().map(|(_, compiled)| compiled);
        let messages = self.validations.iter().filter_map(|one| Some(&one.message_expression.as_ref()?.1));
        let validations = self.validations.iter().map(|one| &one.compiled).chain(messages);
        let annotations = self.annotations.iter().map(|(_, _, compiled)| compiled);
        self.conditions.weight() + variables.chain(validations).chain(annotations).map(weight).sum::<usize>()
    }

    /// Returns the errors of the expressions, each with its path relative to `spec`.
    #[must_use]
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut note = |path: String, compiled: &CompiledExpression| {
            if let Err(problem) = compiled {
                found.push((path, problem.clone()));
            }
        };
        for (index, (_, compiled)) in self.variables.iter().enumerate() {
            note(format!("variables[{index}].expression"), compiled);
        }
        for (index, condition) in self.conditions.conditions.iter().enumerate() {
            note(format!("matchConditions[{index}].expression"), &condition.compiled);
        }
        for (index, validation) in self.validations.iter().enumerate() {
            note(format!("validations[{index}].expression"), &validation.compiled);
            if let Some((_, message)) = &validation.message_expression {
                note(format!("validations[{index}].messageExpression"), message);
            }
        }
        for (index, (_, _, compiled)) in self.annotations.iter().enumerate() {
            note(format!("auditAnnotations[{index}].valueExpression"), compiled);
        }
        found
    }
}

#[cfg(test)]
mod tests;
