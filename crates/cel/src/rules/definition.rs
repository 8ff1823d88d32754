//! Validation of a definition's rules when it is written: they must compile, and stay within the cost estimates.

use super::error::child;
use super::{BadValue, DEFINITION_LIMIT, ErrorKind, RULE_LIMIT, RuleError, compile};
use crate::schema::{DeclaredType, RuleReason, RuleSchema, SchemaListType, ValidationRule};
use serde_json::json;

/// Checks the rules of a schema at `path`, such as `spec.validation.openAPIV3Schema`.
#[must_use]
pub fn check_definition(schema: &RuleSchema, path: &str) -> Vec<RuleError> {
    let mut check = DefinitionCheck { errors: Vec::new(), total: 0, expensive: Vec::new() };
    let place = NodePosition { path: path.to_owned(), cardinality: Some(1), uncorrelatable: None, is_root: true };
    check.node(schema, &place);
    let DefinitionCheck { mut errors, total, expensive } = check;
    if total > DEFINITION_LIMIT {
        for (path, _) in expensive {
            let text = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.push(RuleError::forbidden(&path, text.to_owned()));
        }
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(RuleError::forbidden(path, cost_text(name, total, DEFINITION_LIMIT)));
    }
    errors
}

/// Position of a schema node, and its maximum number of occurrences.
struct NodePosition {
    path: String,
    /// `None` if it is unbounded.
    cardinality: Option<u64>,
    /// Enclosing list whose elements cannot be correlated.
    uncorrelatable: Option<String>,
    is_root: bool,
}

struct DefinitionCheck {
    errors: Vec<RuleError>,
    total: u64,
    expensive: Vec<(String, u64)>,
}

impl DefinitionCheck {
    fn node(&mut self, schema: &RuleSchema, place: &NodePosition) {
        let most = max_elements(schema);
        let below = |path: String, uncorrelatable: Option<String>| NodePosition {
            path,
            cardinality: place.cardinality.and_then(|count| most.map(|most| count.saturating_mul(most))),
            uncorrelatable,
            is_root: false,
        };
        if let Some(values) = &schema.values {
            self.node(values, &below(child(&place.path, "additionalProperties"), place.uncorrelatable.clone()));
        }
        for (name, property) in &schema.properties {
            let path = format!("{}[{name}]", child(&place.path, "properties"));
            self.node(property, &below(path, place.uncorrelatable.clone()));
        }
        if let Some(items) = &schema.items {
            let correlatable = matches!(schema.list_type, SchemaListType::Map(_));
            let uncorrelatable = place.uncorrelatable.clone().or_else(|| (!correlatable).then(|| place.path.clone()));
            self.node(items, &below(child(&place.path, "items"), uncorrelatable));
        }
        if !schema.rules.is_empty() {
            self.rules(schema, place);
        }
    }

    fn rules(&mut self, schema: &RuleSchema, place: &NodePosition) {
        let path = child(&place.path, "x-kubernetes-validations");
        let Some(declared) = DeclaredType::of(schema, place.is_root || schema.embedded) else {
            let detail = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert \
                          structural schema to CEL declarations";
            self.errors.push(RuleError {
                path,
                kind: ErrorKind::Internal,
                value: BadValue::Omitted,
                detail: detail.to_owned(),
            });
            return;
        };
        for (index, (compiled, rule)) in compile(schema, &schema.rules, &declared).iter().zip(&schema.rules).enumerate()
        {
            let path = format!("{path}[{index}]");
            let at = child(&path, "rule");
            let cost = compiled.max_cost.saturating_mul(place.cardinality.unwrap_or(compiled.max_cardinality));
            self.observe(&at, "estimated rule cost", cost);
            if let Some(problem) = &compiled.problem {
                self.errors.push(of_rule(&at, rule, &problem.0));
            }
            let message_at = child(&path, "messageExpression");
            match &compiled.message_problem {
                Some(problem) => self.errors.push(of_rule(&message_at, rule, &problem.0)),
                None if compiled.message.is_some() => {
                    self.observe(&message_at, "estimated messageExpression cost", compiled.message_max_cost)
                }
                None => {}
            }
            if compiled.uses_old_self {
                if let Some(list) = &place.uncorrelatable {
                    let detail =
                        format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
                    self.errors.push(RuleError::invalid(&at, &rule.rule, detail));
                }
            } else if let Some(optional) = rule.optional_old_self {
                let detail = "may not be set if oldSelf is not used in rule".to_owned();
                let value = BadValue::Json(optional.into());
                self.errors.push(RuleError {
                    path: child(&path, "optionalOldSelf"),
                    kind: ErrorKind::Invalid,
                    value,
                    detail,
                });
            }
        }
    }

    /// Adds a cost, and reports the four most expensive rules if the total is too large.
    fn observe(&mut self, path: &str, name: &str, cost: u64) {
        if cost > RULE_LIMIT {
            self.errors.push(RuleError::forbidden(path, cost_text(name, cost, RULE_LIMIT)));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= DEFINITION_LIMIT / 100 {
            self.expensive.push((path.to_owned(), cost));
            self.expensive.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
            self.expensive.truncate(4);
        }
    }
}

fn max_elements(schema: &RuleSchema) -> Option<u64> {
    let bound = |most: Option<i64>| most.map(|most| u64::try_from(most).unwrap_or_default());
    match schema.kind.as_str() {
        "object" if schema.values.is_some() => bound(schema.max_properties),
        "array" => bound(schema.max_items),
        _ => Some(1),
    }
}

/// Creates an error that shows the whole rule, in the form of kube-apiserver's internal type.
fn of_rule(path: &str, rule: &ValidationRule, detail: &str) -> RuleError {
    let reason = rule.reason.map(|reason| match reason {
        RuleReason::Invalid => "FieldValueInvalid",
        RuleReason::Forbidden => "FieldValueForbidden",
        RuleReason::Required => "FieldValueRequired",
        RuleReason::Duplicate => "FieldValueDuplicate",
    });
    let value = json!({"Rule": rule.rule, "Message": rule.message, "MessageExpression": rule.message_expression, "Reason": reason,
        "FieldPath": rule.field_path, "OptionalOldSelf": rule.optional_old_self});
    RuleError {
        path: path.to_owned(),
        kind: ErrorKind::Invalid,
        value: BadValue::Json(value),
        detail: detail.to_owned(),
    }
}

fn cost_text(name: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where \
         arrays, maps, and strings are declared)"
    )
}
