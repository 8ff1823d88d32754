//! Label selectors, quantities, percentages, ports: parts that many kinds share.

use portolan_types::{LabelSelector, labels::LabelSelectorSpec, quantity::Quantity};
use serde_json::Value;

use super::{Errors, metadata, names, view::At};

/// A label selector.
pub(super) fn selector(at: &At<'_>, errors: &mut Errors) {
    metadata::labels(&at.path("matchLabels"), at.value.get("matchLabels"), errors);
    for expression in at.items("matchExpressions") {
        let values = expression.count("values");
        match expression.text("operator") {
            "In" | "NotIn" if values == 0 => {
                errors.required(expression.path("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(expression.path("values"), detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(expression.path("operator"), &other.into(), "not a valid selector operator"),
        }
        label_name(&expression, "key", errors);
        for value in expression.items("values") {
            for detail in names::label_value(value.as_text()) {
                errors.invalid(&value.path, value.value, &detail);
            }
        }
    }
}

/// The key of a label at `name`.
pub(super) fn label_name(at: &At<'_>, name: &str, errors: &mut Errors) {
    at.follows(name, names::qualified_name, errors);
}

/// Whether nothing is selected by.
pub(super) fn is_empty(at: &At<'_>) -> bool {
    at.count("matchLabels") + at.count("matchExpressions") == 0
}

/// Whether a selector matches labels; `None` when it cannot be understood.
pub(super) fn matches(selector: &Value, labels: &Value) -> Option<bool> {
    let spec: LabelSelectorSpec = serde_json::from_value(selector.clone()).ok()?;
    let selector = LabelSelector::try_from(&spec).ok()?;
    Some(selector.matches(|key| labels.get(key).and_then(Value::as_str)))
}

/// The quantity of a value, if it is one.
pub(super) fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

const PERCENT_RULE: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', \
     regex used for validation is '[0-9]+%')";

/// A number or a percentage, not negative.
pub(super) fn int_or_percent(at: &At<'_>, errors: &mut Errors) {
    match at.value {
        Value::String(text) if percent(text).is_none() => errors.invalid(&at.path, at.value, PERCENT_RULE),
        Value::Number(number) if number.as_i64().is_some_and(|number| number < 0) => {
            errors.invalid(&at.path, at.value, super::view::NEGATIVE);
        }
        _ => {}
    }
}

/// A percentage of no more than 100.
pub(super) fn at_most_100_percent(at: &At<'_>, errors: &mut Errors) {
    if at.value.as_str().and_then(percent).is_some_and(|percent| percent > 100) {
        errors.invalid(&at.path, at.value, "must not be greater than 100%");
    }
}

/// The number of a percentage.
fn percent(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('%').filter(|digits| !digits.is_empty())?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Whether a number or percentage is zero.
pub(super) fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => percent(text) == Some(0),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => true,
    }
}

/// The number of a port at `name`.
pub(super) fn port_number(at: &At<'_>, name: &str, errors: &mut Errors) {
    for detail in names::port_number(at.int(name).unwrap_or(0)) {
        errors.invalid(at.path(name), &at.int(name).unwrap_or(0).into(), &detail);
    }
}

/// The number or name of a port at `name`.
pub(super) fn port(at: &At<'_>, name: &str, errors: &mut Errors) {
    match at.get(name) {
        Value::String(text) => {
            names::port_name(text).iter().for_each(|detail| errors.invalid(at.path(name), at.get(name), detail));
        }
        _ => port_number(at, name, errors),
    }
}

pub(super) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
