//! Evaluation of one node's rules on one value.

use super::error::child;
use super::validator::{Ratchet, RuleValidator, ValidationRun};
use super::{BadValue, CompiledRules, ErrorKind, MAX_MESSAGE, RuleError};
use crate::program::{Activation, CelValue, EvaluationFailure, OVER_LIMIT, PER_CALL_LIMIT, read};
use crate::schema::{RuleReason, RuleSchema, ValidationRule};
use serde_json::Value as Json;
use std::sync::Arc;

/// `self` and `oldSelf`.
struct SelfValues<'a> {
    schema: &'a RuleSchema,
    new: &'a Json,
    old: Option<&'a Json>,
    optional: bool,
}

impl<'a> Activation<'a> for SelfValues<'a> {
    fn resolve(&self, name: &str) -> Option<Result<CelValue<'a>, EvaluationFailure>> {
        let value = |json: &'a Json| read(json, Some(self.schema)).map_err(EvaluationFailure::Error);
        match name {
            "self" => Some(value(self.new)),
            "oldSelf" if self.optional => Some(match self.old {
                Some(old) => value(old).map(|old| CelValue::Optional(Some(Arc::new(old)))),
                None => Ok(CelValue::NONE),
            }),
            "oldSelf" => self.old.map(value),
            _ => None,
        }
    }
}

impl RuleValidator {
    pub(super) fn run_rules<'a>(
        &'a self,
        run: &mut ValidationRun,
        path: &str,
        new: &'a Json,
        old: Option<&'a Json>,
        ratchet: Ratchet<'a>,
    ) {
        if self.rules.is_empty() {
            return;
        }
        let kind = self.schema.kind.as_str();
        if run.budget <= 0 {
            run.out_of_budget(path, kind);
            return;
        }
        let old = old.filter(|old| !old.is_null());
        for (rule, compiled) in &self.rules {
            if let Some(problem) = &compiled.problem {
                run.verdict.errors.push(RuleError::invalid(path, kind, format!("rule compile error: {}", problem.0)));
                continue;
            }
            let optional = rule.optional_old_self == Some(true);
            if compiled.program.is_none() || (compiled.uses_old_self && old.is_none() && !optional) {
                continue;
            }
            let selves = SelfValues { schema: &self.schema, new, old, optional };
            self.run_rule(run, path, rule, compiled, &selves, ratchet);
            if run.budget < 0 {
                return;
            }
        }
    }

    fn run_rule<'a>(
        &'a self,
        run: &mut ValidationRun,
        path: &str,
        rule: &ValidationRule,
        compiled: &'a CompiledRules,
        selves: &SelfValues<'a>,
        ratchet: Ratchet<'a>,
    ) {
        let kind = self.schema.kind.as_str();
        let Some(program) = &compiled.program else { return };
        let outcome = program.evaluate(selves, PER_CALL_LIMIT);
        if !run.pay(outcome.cost) {
            run.out_of_budget(path, kind);
            return;
        }
        match outcome.value {
            Ok(CelValue::Bool(true)) => {}
            Ok(_) => {
                let forgiven = !compiled.uses_old_self && ratchet.forgives();
                if let Some(error) = self.broken(run, path, rule, compiled, selves) {
                    if forgiven { run.verdict.warnings.push(error) } else { run.verdict.errors.push(error) }
                }
            }
            Err(failure) => run.failed(path, kind, rule, &failure),
        }
    }

    /// Returns the error of a rule that does not hold.
    fn broken<'a>(
        &'a self,
        run: &mut ValidationRun,
        path: &str,
        rule: &ValidationRule,
        compiled: &'a CompiledRules,
        selves: &SelfValues<'a>,
    ) -> Option<RuleError> {
        let path = if compiled.field_path.is_empty() { path.to_owned() } else { child(path, &compiled.field_path) };
        let detail =
            match compiled.message.as_ref().map(|program| message(run, program, &rule.message_expression, selves)) {
                Some(Ok(text)) => text,
                Some(Err(MissingMessage::Stop(text))) => {
                    run.budget = -1;
                    return Some(RuleError::invalid(&path, &self.schema.kind, text));
                }
                Some(Err(MissingMessage::Wrong)) | None => default_message(rule),
            };
        let large = matches!(self.schema.kind.as_str(), "object" | "array");
        let value = if large { BadValue::Omitted } else { BadValue::Json(selves.new.clone()) };
        let (kind, detail) = match rule.reason {
            None | Some(RuleReason::Invalid) => (ErrorKind::Invalid, detail),
            Some(RuleReason::Forbidden) => (ErrorKind::Forbidden, detail),
            Some(RuleReason::Required) => (ErrorKind::Required, detail),
            Some(RuleReason::Duplicate) => (ErrorKind::Duplicate, String::new()),
        };
        Some(RuleError { path, kind, value, detail })
    }
}

/// Reason that an expression gives no message.
enum MissingMessage {
    /// The evaluation of all rules stops.
    Stop(String),
    /// The message is the one without an expression.
    Wrong,
}

fn message<'a>(
    run: &mut ValidationRun,
    program: &'a crate::program::CelProgram,
    source: &str,
    selves: &SelfValues<'a>,
) -> Result<String, MissingMessage> {
    let outcome = program.evaluate(selves, PER_CALL_LIMIT);
    if !run.pay(outcome.cost) {
        let text = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
        return Err(MissingMessage::Stop(text.to_owned()));
    }
    match outcome.value {
        Err(EvaluationFailure::Cancelled(_)) => {
            let quoted = Json::from(source);
            let text = format!(
                "no further validation rules will be run due to call cost exceeds limit for messageExpression: {quoted}"
            );
            Err(MissingMessage::Stop(text))
        }
        Ok(CelValue::String(text)) => {
            let text = text.trim();
            if text.is_empty() || text.len() > MAX_MESSAGE || text.contains('\n') {
                Err(MissingMessage::Wrong)
            } else {
                Ok(text.to_owned())
            }
        }
        Ok(_) | Err(EvaluationFailure::Error(_)) => Err(MissingMessage::Wrong),
    }
}

fn rule_text(rule: &ValidationRule) -> &str {
    if rule.message.is_empty() { rule.rule.trim() } else { rule.message.trim() }
}

fn default_message(rule: &ValidationRule) -> String {
    if rule.message.is_empty() { format!("failed rule: {}", rule_text(rule)) } else { rule.message.trim().to_owned() }
}

impl ValidationRun {
    /// Takes a cost from the budget; returns false if it does not suffice.
    fn pay(&mut self, cost: u64) -> bool {
        match i64::try_from(cost) {
            Ok(cost) if cost <= self.budget => {
                self.budget -= cost;
                true
            }
            _ => false,
        }
    }

    fn out_of_budget(&mut self, path: &str, kind: &str) {
        let text = "validation failed due to running out of cost budget, no further validation rules will be run";
        self.verdict.errors.push(RuleError::invalid(path, kind, text.to_owned()));
        self.budget = -1;
    }

    fn failed(&mut self, path: &str, kind: &str, rule: &ValidationRule, failure: &EvaluationFailure) {
        let rule = rule_text(rule);
        let text = match failure {
            EvaluationFailure::Cancelled(_) => {
                self.budget = -1;
                format!(
                    "'{OVER_LIMIT}': no further validation rules will be run due to call cost exceeds limit for rule: {rule}"
                )
            }
            EvaluationFailure::Error(message) if message.starts_with("no such overload") => {
                format!(
                    "'{message}': call arguments did not match a supported operator, function or macro signature for rule: {rule}"
                )
            }
            EvaluationFailure::Error(message) => format!("{message} evaluating rule: {rule}"),
        };
        self.verdict.errors.push(RuleError::invalid(path, kind, text));
    }
}
