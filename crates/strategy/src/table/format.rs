//! Cells of several parts.

use portolan_types::{
    LabelSelector,
    labels::{LabelSelectorSpec, MatchExpression},
};
use serde_json::Value;

use super::column::NONE;
use portolan_validation::names::{label_value, qualified_name};

/// Labels as `a=b,c=d`.
pub(super) fn labels(map: Option<&Value>) -> String {
    let pairs = map.and_then(Value::as_object).into_iter().flatten();
    let texts: Vec<String> =
        pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    or_none(texts.join(","))
}

/// Returns a label selector as text, or a placeholder for one that selects everything or is invalid.
pub(super) fn selector(spec: Option<&Value>) -> String {
    selector_text(spec).map_or_else(|| "<error>".into(), or_none)
}

/// Returns the selector of a deployment, whose printer differs.
pub(super) fn selector_of_deployment(spec: Option<&Value>) -> String {
    selector_text(spec).unwrap_or_else(|| "<invalid>".into())
}

/// Returns a label selector in its text form, sorted by key; `None` for an invalid one.
fn selector_text(spec: Option<&Value>) -> Option<String> {
    let parsed = spec.and_then(|spec| serde_json::from_value::<LabelSelectorSpec>(spec.clone()).ok());
    let Some(spec) = parsed else { return Some(String::new()) };
    let labels = spec.match_labels.iter().map(|(key, value)| (key.clone(), format!("{key}={value}")));
    let expressions = spec.match_expressions.iter().map(|e| (e.key.clone(), expression(e)));
    let mut terms: Vec<(String, String)> = labels.chain(expressions).collect();
    terms.sort_by(|a, b| a.0.cmp(&b.0));
    let has_sense = LabelSelector::try_from(&spec).is_ok() && has_good_keys(&spec) && has_good_values(&spec);
    has_sense.then(|| terms.into_iter().map(|(_, term)| term).collect::<Vec<_>>().join(","))
}

/// Returns true if the keys of a label selector are valid.
fn has_good_keys(spec: &LabelSelectorSpec) -> bool {
    let listed = spec.match_expressions.iter().map(|expression| &expression.key);
    spec.match_labels.keys().chain(listed).all(|key| qualified_name(key).is_empty())
}

/// Returns true if the values of a label selector are valid.
fn has_good_values(spec: &LabelSelectorSpec) -> bool {
    let listed = spec.match_expressions.iter().flat_map(|expression| &expression.values);
    spec.match_labels.values().chain(listed).all(|value| label_value(value).is_empty())
}

fn expression(expression: &MatchExpression) -> String {
    let MatchExpression { key, operator, values } = expression;
    let mut values = values.clone();
    values.sort();
    let values = values.join(",");
    match operator.as_str() {
        "In" => format!("{key} in ({values})"),
        "NotIn" => format!("{key} notin ({values})"),
        "Exists" => key.clone(),
        "DoesNotExist" => format!("!{key}"),
        _ => String::new(),
    }
}

pub(super) fn or_none(text: String) -> String {
    if text.is_empty() { NONE.into() } else { text }
}

/// Returns the texts under a key of each object in a list, joined by commas, such as names of containers.
pub(super) fn column_of(list: &[Value], key: &str) -> String {
    list.iter().map(|item| item[key].as_str().unwrap_or_default()).collect::<Vec<_>>().join(",")
}

/// Returns the first few of many: `a,b,c + 2 more...`.
pub(super) fn first_of(all: &[String], most: usize, separator: &str) -> String {
    let shown = all[..all.len().min(most)].join(separator);
    match all.len().checked_sub(most) {
        Some(more) if more > 0 => format!("{shown} + {more} more..."),
        _ => shown,
    }
}

/// Returns a quantity or a number or text, as text; `other` if it is absent.
pub(super) fn amount(value: Option<&Value>, other: &str) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(number @ Value::Number(_)) => number.to_string(),
        _ => other.into(),
    }
}
