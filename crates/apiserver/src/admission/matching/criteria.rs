//! What a webhook or a policy is about, as it is written in their objects.

use portolan_types::{LabelSelector, labels::LabelSelectorSpec};
use serde::Deserialize as _;
use serde_json::Value;

/// Rules and selectors of a webhook, a policy, or a binding of one.
#[derive(Debug)]
pub(in crate::admission) struct Criteria {
    /// None match everything, unless `rules_are_needed`.
    pub(super) rules: Vec<Rule>,
    /// What is left out although rules match.
    pub(super) excluded: Vec<Rule>,
    /// A webhook without rules is asked about nothing, a binding without them is about all that its policy is about.
    pub(super) rules_are_needed: bool,
    /// Rules also match other versions of what is asked for.
    pub(super) matches_equivalent: bool,
    /// What is wrong with a selector is told to those whose requests it would have to match.
    pub(super) namespaces: Result<LabelSelector, String>,
    pub(super) objects: Result<LabelSelector, String>,
}

/// Requests that are meant.
#[derive(Debug)]
pub(in crate::admission) struct Rule {
    pub(super) operations: Vec<String>,
    pub(super) groups: Vec<String>,
    pub(super) versions: Vec<String>,
    pub(super) resources: Vec<String>,
    pub(super) scope: String,
    /// Names of objects; none for all.
    pub(super) names: Vec<String>,
}

pub(in crate::admission) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(in crate::admission) fn texts(value: &Value, key: &str) -> Vec<String> {
    list(value, key).filter_map(Value::as_str).map(str::to_owned).collect()
}

pub(in crate::admission) fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

impl Criteria {
    /// Of a webhook.
    pub(in crate::admission) fn of_webhook(webhook: &Value) -> Self {
        Self {
            rules: list(webhook, "rules").map(rule).collect(),
            excluded: Vec::new(),
            rules_are_needed: true,
            matches_equivalent: text(webhook, "matchPolicy") != "Exact",
            namespaces: selector(webhook.get("namespaceSelector")),
            objects: selector(webhook.get("objectSelector")),
        }
    }

    /// Of `matchConstraints` and `matchResources`.
    pub(in crate::admission) fn of_policy(constraints: &Value) -> Self {
        Self {
            rules: list(constraints, "resourceRules").map(rule).collect(),
            excluded: list(constraints, "excludeResourceRules").map(rule).collect(),
            rules_are_needed: false,
            matches_equivalent: text(constraints, "matchPolicy") == "Equivalent",
            namespaces: selector(constraints.get("namespaceSelector")),
            objects: selector(constraints.get("objectSelector")),
        }
    }
}

fn rule(rule: &Value) -> Rule {
    Rule {
        operations: texts(rule, "operations"),
        groups: texts(rule, "apiGroups"),
        versions: texts(rule, "apiVersions"),
        resources: texts(rule, "resources"),
        scope: text(rule, "scope").to_owned(),
        names: texts(rule, "resourceNames"),
    }
}

/// A selector; all where there is none.
pub(in crate::admission) fn selector(spec: Option<&Value>) -> Result<LabelSelector, String> {
    let Some(spec) = spec.filter(|spec| !spec.is_null()) else { return Ok(LabelSelector::everything()) };
    let spec = LabelSelectorSpec::deserialize(spec).map_err(|e| e.to_string())?;
    LabelSelector::try_from(&spec).map_err(|e| e.to_string())
}
