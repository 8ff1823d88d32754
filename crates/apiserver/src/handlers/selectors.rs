//! Selectors in access reviews.

use portolan_strategy::fields::FieldTerms;
use portolan_types::{
    LabelSelector, StatusCause,
    labels::{key_faults, value_faults},
    quoted::go_quoted,
};
use serde_json::Value;

use super::invalid;

/// Validates the `fieldSelector` or `labelSelector` of resource attributes (kube-apiserver's
/// `validateFieldSelectorAttributes` and `validateLabelSelectorAttributes`). Unknown operators are valid.
pub(super) fn check(kind: &str, selector: &Value) -> Vec<StatusCause> {
    if selector.is_null() {
        return Vec::new();
    }
    let at = format!("spec.resourceAttributes.{kind}");
    let raw = selector["rawSelector"].as_str().unwrap_or_default();
    let requirements = selector["requirements"].as_array().map_or(&[][..], Vec::as_slice);
    let mut causes = Vec::new();
    if !raw.is_empty() && !requirements.is_empty() {
        let why = "may not specified at the same time as requirements";
        causes.push(invalid(format!("{at}.rawSelector"), &go_quoted(raw), why));
    }
    if raw.is_empty() && requirements.is_empty() {
        let why = format!("when {at} is specified, requirements or rawSelector is required");
        causes.push(required(format!("{at}.requirements"), &why));
    }
    for (index, requirement) in requirements.iter().enumerate() {
        let at = format!("{at}.requirements[{index}]");
        causes.extend(if kind == "fieldSelector" { of_field(&at, requirement) } else { of_label(&at, requirement) });
    }
    causes
}

/// Returns the evaluation error for selectors that cannot be parsed and are therefore ignored (kube-apiserver's
/// `BuildEvaluationError`), or `None` if all can be parsed.
pub(super) fn evaluation_error(attributes: &Value) -> Option<String> {
    let told = |kind: &str, read: SelectorCoverage| match read {
        SelectorCoverage::Complete => None,
        SelectorCoverage::Partial => {
            Some(format!("spec.resourceAttributes.{kind} partially ignored due to parse error"))
        }
        SelectorCoverage::Ignored => Some(format!("spec.resourceAttributes.{kind} ignored due to parse error")),
    };
    let (fields, labels) = (&attributes["fieldSelector"], &attributes["labelSelector"]);
    let fields = told("fieldSelector", read(fields, |raw| FieldTerms::parse(raw).is_ok(), is_usable_field));
    let labels = told("labelSelector", read(labels, |raw| LabelSelector::parse(raw).is_ok(), is_usable_label));
    let all: Vec<String> = fields.into_iter().chain(labels).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Part of a selector that can be parsed.
enum SelectorCoverage {
    Complete,
    Partial,
    Ignored,
}

/// Parses a selector. Requirements have precedence over text.
fn read(selector: &Value, is_selector: impl Fn(&str) -> bool, is_usable: impl Fn(&Value) -> bool) -> SelectorCoverage {
    let requirements = selector["requirements"].as_array().map_or(&[][..], Vec::as_slice);
    let usable = requirements.iter().filter(|requirement| is_usable(requirement)).count();
    let raw = selector["rawSelector"].as_str().unwrap_or_default();
    match (requirements.len(), usable) {
        (0, _) if raw.is_empty() || is_selector(raw) => SelectorCoverage::Complete,
        (all, usable) if all > 0 && usable == all => SelectorCoverage::Complete,
        (_, 0) => SelectorCoverage::Ignored,
        _ => SelectorCoverage::Partial,
    }
}

/// Returns true for a requirement with one value, the only form that fields have.
fn is_usable_field(requirement: &Value) -> bool {
    let values = requirement["values"].as_array().map_or(0, Vec::len);
    values == 1 && matches!(requirement["operator"].as_str(), Some("In" | "NotIn"))
}

/// Returns true for a known operator; keys and values have been validated.
fn is_usable_label(requirement: &Value) -> bool {
    matches!(requirement["operator"].as_str(), Some("In" | "NotIn" | "Exists" | "DoesNotExist"))
}

fn of_field(at: &str, requirement: &Value) -> Vec<StatusCause> {
    let has_key = requirement["key"].as_str().is_some_and(|key| !key.is_empty());
    let key = (!has_key).then(|| required(format!("{at}.key"), "must be specified"));
    key.into_iter().chain(values(at, requirement)).collect()
}

fn of_label(at: &str, requirement: &Value) -> Vec<StatusCause> {
    let mut causes: Vec<StatusCause> = values(at, requirement).into_iter().collect();
    let key = requirement["key"].as_str().unwrap_or_default();
    causes.extend(key_faults(key).into_iter().map(|why| invalid(format!("{at}.key"), &go_quoted(key), &why)));
    for (index, value) in requirement["values"].as_array().into_iter().flatten().enumerate() {
        let value = value.as_str().unwrap_or_default();
        let wrong = value_faults(value).into_iter();
        causes.extend(wrong.map(|why| invalid(format!("{at}.values[{index}]"), &go_quoted(value), &why)));
    }
    causes
}

fn values(at: &str, requirement: &Value) -> Option<StatusCause> {
    let has_values = requirement["values"].as_array().is_some_and(|values| !values.is_empty());
    let field = format!("{at}.values");
    match requirement["operator"].as_str().unwrap_or_default() {
        "In" | "NotIn" if !has_values => Some(required(field, "must be specified when `operator` is 'In' or 'NotIn'")),
        "Exists" | "DoesNotExist" if has_values => {
            let message = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            Some(StatusCause { reason: "FieldValueForbidden".into(), message: message.into(), field })
        }
        _ => None,
    }
}

fn required(field: String, why: &str) -> StatusCause {
    StatusCause { reason: "FieldValueRequired".into(), message: format!("Required value: {why}"), field }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_have_exactly_one_form() {
        let exists = json!([{"key": "a", "operator": "Exists"}]);
        for (kind, selector, expected) in [
            ("fieldSelector", Value::Null, vec![]),
            ("fieldSelector", json!({"rawSelector": "a=b"}), vec![]),
            ("fieldSelector", json!({"rawSelector": "a=b", "requirements": exists}), vec!["rawSelector"]),
            ("labelSelector", json!({}), vec!["requirements"]),
            (
                "fieldSelector",
                json!({"requirements": [{"operator": "In"}]}),
                vec!["requirements[0].key", "requirements[0].values"],
            ),
            ("labelSelector", json!({"requirements": [{"key": "-", "operator": "New"}]}), vec!["requirements[0].key"]),
        ] {
            let fields: Vec<String> = check(kind, &selector).into_iter().map(|cause| cause.field).collect();
            let expected: Vec<String> =
                expected.iter().map(|field| format!("spec.resourceAttributes.{kind}.{field}")).collect();
            assert_eq!(fields, expected, "{selector}");
        }
    }

    #[test]
    fn unusable_selectors_are_reported() {
        let one = json!({"key": "a", "operator": "In", "values": ["x"]});
        let near = json!({"key": "a", "operator": "Near", "values": ["x"]});
        let two = json!({"key": "a", "operator": "In", "values": ["x", "y"]});
        for (attributes, expected) in [
            (json!({}), None),
            (json!({"fieldSelector": {"rawSelector": "a=b"}, "labelSelector": {"rawSelector": "a in (b)"}}), None),
            (json!({"labelSelector": {"requirements": [two, {"key": "a", "operator": "Exists"}]}}), None),
            (
                json!({"fieldSelector": {"rawSelector": "((("}, "labelSelector": {"rawSelector": "!!"}}),
                Some("fieldSelector ignored; labelSelector ignored"),
            ),
            (json!({"fieldSelector": {"requirements": [two]}}), Some("fieldSelector ignored")),
            (
                json!({"fieldSelector": {"requirements": [{"key": "a", "operator": "Exists"}]}}),
                Some("fieldSelector ignored"),
            ),
            (json!({"fieldSelector": {"requirements": [near, one]}}), Some("fieldSelector partially ignored")),
            (json!({"labelSelector": {"requirements": [near]}}), Some("labelSelector ignored")),
        ] {
            let told = evaluation_error(&attributes);
            let short =
                told.map(|told| told.replace("spec.resourceAttributes.", "").replace(" due to parse error", ""));
            assert_eq!(short.as_deref(), expected, "{attributes}");
        }
    }
}
