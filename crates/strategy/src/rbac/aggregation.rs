//! Aggregated ClusterRoles: their rules are collected from other ClusterRoles, by labels.

use std::collections::{BTreeMap, HashSet};

use portolan_types::{LabelSelector, labels::LabelSelectorSpec, object};
use serde::Deserialize as _;
use serde_json::Value;

use super::{PolicyRule, bootstrap};

/// Maximum of levels in one pass (admin ← edit ← view); deeper ones need another pass over the stored result.
const LEVELS: usize = 4;

/// Returns the rules of all ClusterRoles of a logical cluster, by name: its `own` ones and, for other names, the shared
/// ones. Rules of aggregated ones are collected in the order of Kubernetes' controller, without duplicates.
pub fn cluster_rules<'a>(own: impl IntoIterator<Item = &'a Value>) -> BTreeMap<&'a str, Vec<PolicyRule>> {
    let mut roles: BTreeMap<&str, &Value> = bootstrap().cluster_roles.iter().map(name_and_role).collect();
    roles.extend(own.into_iter().map(name_and_role));
    let collecting: Vec<_> =
        roles.values().filter_map(|role| Some((object::name(role), sources(role, &roles)?))).collect();
    let mut rules: BTreeMap<_, _> = roles.iter().map(|(name, role)| (*name, PolicyRule::of(role))).collect();
    for _ in 0..LEVELS {
        let mut changed = false;
        for (name, sources) in &collecting {
            let collected = collect(sources, &rules);
            changed |= rules.get(name) != Some(&collected);
            rules.insert(name, collected);
        }
        if !changed {
            break;
        }
    }
    rules
}

/// Returns true for a ClusterRole whose rules are collected from others.
pub fn is_aggregated(role: &Value) -> bool {
    selectors(role).is_some()
}

fn name_and_role(role: &Value) -> (&str, &Value) {
    (object::name(role), role)
}

fn selectors(role: &Value) -> Option<&Vec<Value>> {
    role.get("aggregationRule")?.get("clusterRoleSelectors")?.as_array()
}

/// Names of the roles that an aggregated one collects from; `None` for one that is not.
fn sources<'a>(role: &Value, roles: &BTreeMap<&'a str, &'a Value>) -> Option<Vec<&'a str>> {
    let selectors = selectors(role)?.iter().filter_map(|selector| LabelSelectorSpec::deserialize(selector).ok());
    let selectors = selectors.filter_map(|spec| LabelSelector::try_from(&spec).ok());
    let others = || roles.iter().filter(|(name, _)| **name != object::name(role));
    let selected = |selector: LabelSelector| {
        let matching = others().filter(move |(_, other)| selector.matches(|key| object::label(other, key)));
        matching.map(|(name, _)| *name).collect::<Vec<_>>()
    };
    Some(selectors.flat_map(selected).collect())
}

fn collect(sources: &[&str], rules: &BTreeMap<&str, Vec<PolicyRule>>) -> Vec<PolicyRule> {
    let (all, mut seen) = (sources.iter().filter_map(|name| rules.get(name)).flatten(), HashSet::new());
    all.filter(|rule| seen.insert(*rule)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(rules: &[PolicyRule], resource: &str) -> bool {
        rules.iter().any(|rule| rule.resources.iter().any(|named| named == resource))
    }

    #[test]
    fn aggregated_roles_take_in_portolans_own_kinds() {
        let rules = cluster_rules([]);
        let view = &rules["view"];
        assert!(names(view, "pods") && names(view, "placements") && !names(view, "secrets"));
    }

    #[test]
    fn rules_are_collected_selector_by_selector_over_several_levels_and_once() {
        let role = |name: &str, label: &str, verbs: &[&str]| {
            let rules: Vec<_> = verbs.iter().map(|verb| json!({"verbs": [verb]})).collect();
            json!({"metadata": {"name": name, "labels": {(label): "true"}}, "rules": rules})
        };
        let collecting = |name: &str, label: &str, from: &[&str]| {
            let selectors: Vec<_> = from.iter().map(|label| json!({"matchLabels": {(*label): "true"}})).collect();
            let mut role = role(name, label, &["stale"]);
            role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
            role
        };
        let own = [
            collecting("all", "x", &["second", "first"]),
            collecting("middle", "first", &["base", "first"]),
            role("a", "base", &["get", "list"]),
            role("b", "second", &["watch", "get"]),
            role("view", "x", &["own"]),
        ];
        let rules = cluster_rules(&own);
        let verbs = |name: &str| rules[name].iter().map(|rule| rule.verbs.join(",")).collect::<Vec<_>>();
        assert_eq!(verbs("middle"), ["get", "list"], "never from itself");
        assert_eq!(verbs("all"), ["watch", "get", "list"]);
        assert_eq!(verbs("view"), ["own"], "instead of the shared one");
        assert!(is_aggregated(&own[0]) && !is_aggregated(&own[2]));
    }
}
