//! Admission policies: their expressions, what these can see, and what they decide. Which objects a policy is for is not known here.

mod environment;
mod run;

pub use environment::Given;
pub use run::{AuditAnnotation, Matched, PolicyDecision, PolicyVerdict, Review};

use crate::check::Environment;
use crate::expression::Expression;
use crate::types::Type;
use serde_json::Value as Json;
use std::sync::Arc;

/// Most that the match conditions of one webhook or policy may cost for one object.
pub const MATCH_BUDGET: u64 = 2_500_000;

/// What is done where an expression cannot say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The request is refused.
    #[default]
    Fail,
    /// As if the policy were not there.
    Ignore,
}

/// An expression of a policy, or what is wrong with it.
pub(crate) type Compiled = Result<Expression, String>;

/// The match conditions of a webhook or a policy.
#[derive(Debug)]
pub struct MatchConditions {
    conditions: Vec<Condition>,
    failure_policy: FailurePolicy,
}

#[derive(Debug)]
struct Condition {
    name: String,
    text: String,
    compiled: Compiled,
}

/// A ValidatingAdmissionPolicy, compiled.
#[derive(Debug)]
pub struct ValidatingPolicy {
    failure_policy: FailurePolicy,
    conditions: MatchConditions,
    variables: Vec<(Arc<str>, Compiled)>,
    validations: Vec<Validation>,
    annotations: Vec<(String, String, Compiled)>,
}

#[derive(Debug)]
struct Validation {
    text: String,
    message: String,
    reason: String,
    compiled: Compiled,
    message_expression: Option<Compiled>,
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

/// Compiles an expression that has to give one of these types.
fn compile(text: &str, environment: &Environment, wanted: &[Type]) -> Compiled {
    let expression =
        Expression::compile(text, environment).map_err(|problems| format!("compilation failed: {problems}"))?;
    if wanted.is_empty() || wanted.contains(expression.output()) {
        return Ok(expression);
    }
    match wanted {
        [one] => Err(format!("must evaluate to {}", one.name())),
        many => {
            let names: Vec<&str> = many.iter().map(Type::name).collect();
            Err(format!("must evaluate to one of [{}]", names.join(" ")))
        }
    }
}

impl MatchConditions {
    /// Compiles `matchConditions` of a webhook, or of a policy whose parameters they see.
    #[must_use]
    pub fn new(spec: &Json, has_params: bool) -> Self {
        let environment = environment::environment(has_params, true);
        let condition = |json: &Json| Condition {
            name: text(json, "name").to_owned(),
            text: text(json, "expression").to_owned(),
            compiled: compile(text(json, "expression"), &environment, &[Type::Bool]),
        };
        let conditions = list(spec, "matchConditions").iter().map(condition).collect();
        Self { conditions, failure_policy: failure_policy(spec) }
    }
}

impl ValidatingPolicy {
    /// Compiles `spec` of a ValidatingAdmissionPolicy.
    #[must_use]
    pub fn new(spec: &Json) -> Self {
        let has_params = spec.get("paramKind").is_some_and(Json::is_object);
        let mut with_rights = environment::environment(has_params, true);
        let mut variables = Vec::new();
        for variable in list(spec, "variables") {
            let compiled = compile(text(variable, "expression"), &with_rights, &[]);
            let one = compiled.as_ref().map_or(Type::Dyn, |expression| expression.output().clone());
            environment::declare_variable(&mut with_rights, text(variable, "name"), one);
            variables.push((text(variable, "name").into(), compiled));
        }
        let mut without = with_rights.clone();
        without.variables.remove("authorizer");
        without.variables.remove("authorizer.requestResource");
        let validation = |json: &Json| Validation {
            text: text(json, "expression").to_owned(),
            message: text(json, "message").to_owned(),
            reason: text(json, "reason").to_owned(),
            compiled: compile(text(json, "expression"), &with_rights, &[Type::Bool]),
            message_expression: Some(text(json, "messageExpression"))
                .filter(|text| !text.is_empty())
                .map(|text| compile(text, &without, &[Type::String])),
        };
        let annotation = |json: &Json| {
            let expression = text(json, "valueExpression");
            let compiled = compile(expression, &without, &[Type::String, Type::Null]);
            (text(json, "key").to_owned(), expression.to_owned(), compiled)
        };
        Self {
            failure_policy: failure_policy(spec),
            conditions: MatchConditions::new(spec, has_params),
            validations: list(spec, "validations").iter().map(validation).collect(),
            annotations: list(spec, "auditAnnotations").iter().map(annotation).collect(),
            variables,
        }
    }

    /// What is wrong with its expressions, each with its path below `spec`.
    #[must_use]
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut note = |path: String, compiled: &Compiled| {
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
            if let Some(message) = &validation.message_expression {
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
