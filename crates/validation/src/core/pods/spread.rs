//! Validation of topology spread constraints.

use std::collections::{HashMap, HashSet};

use super::super::super::{
    Errors, names, selectors,
    view::{At, NOT_POSITIVE},
};

pub(super) fn check(spec: &At<'_>, errors: &mut Errors) {
    let all: Vec<At<'_>> = spec.items("topologySpreadConstraints").collect();
    let pairs: Vec<String> = all.iter().map(pair).collect();
    let last: HashMap<&str, usize> = pairs.iter().enumerate().map(|(index, pair)| (pair.as_str(), index)).collect();
    for (index, (constraint, pair)) in all.iter().zip(&pairs).enumerate() {
        positive(constraint, "maxSkew", errors);
        constraint.needs_because("topologyKey", "can not be empty", errors);
        constraint.supported("whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"], errors);
        if last.get(pair.as_str()).is_some_and(|last| *last > index) {
            errors.duplicate(constraint.path("{topologyKey, whenUnsatisfiable}"), &pair.as_str().into());
        }
        if constraint.has("minDomains") {
            positive(constraint, "minDomains", errors);
            let action = constraint.text("whenUnsatisfiable");
            if action != "DoNotSchedule" {
                let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.invalid(constraint.path("minDomains"), constraint.get("minDomains"), &why);
            }
        }
        for name in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            constraint.supported_if_present(name, &["Honor", "Ignore"], errors);
        }
        label_keys(constraint, errors);
        let from = errors.len();
        selectors::selector(&constraint.child("labelSelector"), errors);
        errors.mark_tolerated(from, "selector of spreading");
    }
}

/// Returns the key by which constraints must differ.
fn pair(one: &At<'_>) -> String {
    format!("{{{}, {}}}", one.text("topologyKey"), one.text("whenUnsatisfiable"))
}

fn positive(at: &At<'_>, name: &str, errors: &mut Errors) {
    if at.number(name) <= 0 {
        errors.invalid(at.path(name), &at.number(name).into(), NOT_POSITIVE);
    }
}

/// Checks label keys whose values are taken from the pod, in addition to a selector.
pub(crate) fn label_keys(at: &At<'_>, errors: &mut Errors) {
    for name in ["matchLabelKeys", "mismatchLabelKeys"].into_iter().filter(|name| at.count(name) > 0) {
        if !at.has("labelSelector") {
            errors.forbidden(at.path(name), "must not be specified when labelSelector is not set");
            continue;
        }
        for key in at.items(name) {
            errors.invalid_each(&key.path, key.value, names::qualified_name(key.as_text()));
        }
    }
    let matched: HashMap<&str, usize> =
        at.items("matchLabelKeys").enumerate().map(|(index, key)| (key.as_text(), index)).collect();
    let selector = at.child("labelSelector");
    let mut selected: HashSet<&str> = selector.entries("matchLabels").map(|(key, _)| key).collect();
    for expression in selector.items("matchExpressions") {
        let key = expression.text("key");
        if let Some(index) = matched.get(key).filter(|_| selected.contains(key)) {
            let why = "exists in both matchLabelKeys and labelSelector";
            errors.invalid(at.path.index(*index), &key.into(), why);
        }
        selected.insert(key);
    }
    let excluded: HashSet<&str> = at.items("mismatchLabelKeys").map(|key| key.as_text()).collect();
    for key in at.items("matchLabelKeys").filter(|key| excluded.contains(key.as_text())) {
        errors.invalid(&key.path, key.value, "exists in both matchLabelKeys and mismatchLabelKeys");
    }
}
