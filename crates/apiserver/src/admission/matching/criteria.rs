//! Match criteria of webhooks and policies, parsed from their objects.

use portolan_types::{LabelSelector, labels::LabelSelectorSpec};
use serde::Deserialize as _;
use serde_json::Value;

/// Rules and selectors of a webhook, a policy or a policy binding.
#[derive(Debug)]
pub(in crate::admission) struct MatchCriteria {
    /// Empty rules match everything, unless `rules_are_needed`.
    pub(super) rules: Vec<MatchRule>,
    /// Rules that exclude a request although `rules` match it.
    pub(super) excluded: Vec<MatchRule>,
    /// True for webhooks: without rules they match nothing. A binding without rules matches everything its policy
    /// matches.
    pub(super) rules_are_needed: bool,
    /// True if rules also match other versions of the requested resource.
    pub(super) matches_equivalent: bool,
    /// Namespace selector. An invalid one fails the requests it would have to be matched with.
    pub(super) namespaces: Result<LabelSelector, String>,
    pub(super) objects: Result<LabelSelector, String>,
}

/// Rule that matches requests.
#[derive(Debug)]
pub(in crate::admission) struct MatchRule {
    pub(super) operations: Vec<String>,
    pub(super) groups: Vec<String>,
    pub(super) versions: Vec<String>,
    pub(super) resources: Vec<String>,
    pub(super) scope: String,
    /// Object names; empty for all.
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

impl MatchCriteria {
    /// Parses the criteria of a webhook.
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

    /// Parses `matchConstraints` or `matchResources`.
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

fn rule(rule: &Value) -> MatchRule {
    MatchRule {
        operations: texts(rule, "operations"),
        groups: texts(rule, "apiGroups"),
        versions: texts(rule, "apiVersions"),
        resources: texts(rule, "resources"),
        scope: text(rule, "scope").to_owned(),
        names: texts(rule, "resourceNames"),
    }
}

/// Parses a selector; a missing one selects everything.
pub(in crate::admission) fn selector(spec: Option<&Value>) -> Result<LabelSelector, String> {
    let Some(spec) = spec.filter(|spec| !spec.is_null()) else { return Ok(LabelSelector::everything()) };
    let spec = LabelSelectorSpec::deserialize(spec).map_err(|e| e.to_string())?;
    LabelSelector::try_from(&spec).map_err(|e| e.to_string())
}
