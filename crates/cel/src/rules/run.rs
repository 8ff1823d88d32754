//! One node's rules on one value.

use super::error::child;
use super::validator::{Ratchet, Run, Validator};
use super::{BadValue, Compiled, ErrorKind, MAX_MESSAGE, RuleError};
use crate::program::{Activation, Failure, OVER_LIMIT, PER_CALL_LIMIT, Value, read};
use crate::schema::{Reason, Rule, Schema};
use serde_json::Value as Json;
use std::sync::Arc;

/// `self` and `oldSelf`.
struct Selves<'a> {
    schema: &'a Schema,
    new: &'a Json,
    old: Option<&'a Json>,
    optional: bool,
}

impl<'a> Activation<'a> for Selves<'a> {
    fn resolve(&self, name: &str) -> Option<Result<Value<'a>, Failure>> {
        let value = |json: &'a Json| read(json, Some(self.schema)).map_err(Failure::Error);
        match name {
            "self" => Some(value(self.new)),
            "oldSelf" if self.optional => Some(match self.old {
                Some(old) => value(old).map(|old| Value::Optional(Some(Arc::new(old)))),
                None => Ok(Value::NONE),
            }),
            "oldSelf" => self.old.map(value),
            _ => None,
        }
    }
}

impl Validator {
    pub(super) fn run_rules<'a>(
        &'a self,
        run: &mut Run,
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
            let selves = Selves { schema: &self.schema, new, old, optional };
            self.run_rule(run, path, rule, compiled, &selves, ratchet);
            if run.budget < 0 {
                return;
            }
        }
    }

    fn run_rule<'a>(
        &'a self,
        run: &mut Run,
        path: &str,
        rule: &Rule,
        compiled: &'a Compiled,
        selves: &Selves<'a>,
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
            Ok(Value::Bool(true)) => {}
            Ok(_) => {
                let forgiven = !compiled.uses_old_self && ratchet.forgives();
                if let Some(error) = self.broken(run, path, rule, compiled, selves) {
                    if forgiven { run.verdict.warnings.push(error) } else { run.verdict.errors.push(error) }
                }
            }
            Err(failure) => run.failed(path, kind, rule, &failure),
        }
    }

    /// What is said of a rule that does not hold.
    fn broken<'a>(
        &'a self,
        run: &mut Run,
        path: &str,
        rule: &Rule,
        compiled: &'a Compiled,
        selves: &Selves<'a>,
    ) -> Option<RuleError> {
        let path = if compiled.field_path.is_empty() { path.to_owned() } else { child(path, &compiled.field_path) };
        let detail =
            match compiled.message.as_ref().map(|program| message(run, program, &rule.message_expression, selves)) {
                Some(Ok(text)) => text,
                Some(Err(Unsaid::Stop(text))) => {
                    run.budget = -1;
                    return Some(RuleError::invalid(&path, &self.schema.kind, text));
                }
                Some(Err(Unsaid::Wrong)) | None => default_message(rule),
            };
        let large = matches!(self.schema.kind.as_str(), "object" | "array");
        let value = if large { BadValue::Omitted } else { BadValue::Json(selves.new.clone()) };
        let (kind, detail) = match rule.reason {
            None | Some(Reason::Invalid) => (ErrorKind::Invalid, detail),
            Some(Reason::Forbidden) => (ErrorKind::Forbidden, detail),
            Some(Reason::Required) => (ErrorKind::Required, detail),
            Some(Reason::Duplicate) => (ErrorKind::Duplicate, String::new()),
        };
        Some(RuleError { path, kind, value, detail })
    }
}

/// Why an expression gives no message.
enum Unsaid {
    /// Nothing more is run.
    Stop(String),
    /// The message is what it would be without the expression.
    Wrong,
}

fn message<'a>(
    run: &mut Run,
    program: &'a crate::program::Program,
    source: &str,
    selves: &Selves<'a>,
) -> Result<String, Unsaid> {
    let outcome = program.evaluate(selves, PER_CALL_LIMIT);
    if !run.pay(outcome.cost) {
        let text = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
        return Err(Unsaid::Stop(text.to_owned()));
    }
    match outcome.value {
        Err(Failure::Cancelled(_)) => {
            let quoted = Json::from(source);
            let text = format!(
                "no further validation rules will be run due to call cost exceeds limit for messageExpression: {quoted}"
            );
            Err(Unsaid::Stop(text))
        }
        Ok(Value::String(text)) => {
            let text = text.trim();
            if text.is_empty() || text.len() > MAX_MESSAGE || text.contains('\n') {
                Err(Unsaid::Wrong)
            } else {
                Ok(text.to_owned())
            }
        }
        Ok(_) | Err(Failure::Error(_)) => Err(Unsaid::Wrong),
    }
}

fn rule_text(rule: &Rule) -> &str {
    if rule.message.is_empty() { rule.rule.trim() } else { rule.message.trim() }
}

fn default_message(rule: &Rule) -> String {
    if rule.message.is_empty() { format!("failed rule: {}", rule_text(rule)) } else { rule.message.trim().to_owned() }
}

impl Run {
    /// Takes a cost from the budget; false where that is not enough.
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

    fn failed(&mut self, path: &str, kind: &str, rule: &Rule, failure: &Failure) {
        let rule = rule_text(rule);
        let text = match failure {
            Failure::Cancelled(_) => {
                self.budget = -1;
                format!(
                    "'{OVER_LIMIT}': no further validation rules will be run due to call cost exceeds limit for rule: {rule}"
                )
            }
            Failure::Error(message) if message.starts_with("no such overload") => {
                format!(
                    "'{message}': call arguments did not match a supported operator, function or macro signature for rule: {rule}"
                )
            }
            Failure::Error(message) => format!("{message} evaluating rule: {rule}"),
        };
        self.verdict.errors.push(RuleError::invalid(path, kind, text));
    }
}
