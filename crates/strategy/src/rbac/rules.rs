//! One rule of a role, and its evaluation.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Action to authorize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// A verb on a resource.
    Resource {
        /// `get`, `list`, `create`, …
        verb: &'a str,
        /// API group, empty for core.
        group: &'a str,
        /// Plural resource name.
        resource: &'a str,
        /// Subresource, empty for none.
        subresource: &'a str,
        /// Object name, empty when the request has none.
        name: &'a str,
        /// Namespace, empty at cluster scope.
        namespace: &'a str,
    },
    /// A verb on a path that is not a resource.
    Path {
        /// `get`, `post`, …
        verb: &'a str,
        /// The path, with its leading slash.
        path: &'a str,
    },
}

/// A `rbac.authorization.k8s.io/v1` `PolicyRule`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    /// Verbs, or `*`.
    pub verbs: Vec<String>,
    /// API groups, or `*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// `pods`, `pods/log`, `*/scale`, or `*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// Object names; all when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// Paths, `*` allowed as the last character.
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl PolicyRule {
    /// Returns the rules of a Role or ClusterRole. Malformed rules are left out, since they allow nothing.
    pub fn of(role: &Value) -> Vec<Self> {
        let rules = role.get("rules").and_then(Value::as_array);
        rules.into_iter().flatten().filter_map(|rule| Self::deserialize(rule).ok()).collect()
    }

    /// Returns true if this rule alone allows `action`.
    pub fn allows(&self, action: Action<'_>) -> bool {
        match action {
            Action::Resource { verb, group, resource, subresource, name, .. } => {
                has(&self.verbs, verb)
                    && has(&self.api_groups, group)
                    && self.names_resource(resource, subresource)
                    && (self.resource_names.is_empty() || self.resource_names.iter().any(|n| n == name))
            }
            Action::Path { verb, path } => has(&self.verbs, verb) && self.names_path(path),
        }
    }

    fn names_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|item| match (item.as_str(), subresource) {
            ("*", _) => true,
            (item, "") => item == resource,
            (item, subresource) => item
                .split_once('/')
                .is_some_and(|(named, sub)| (named == "*" || named == resource) && sub == subresource),
        })
    }

    fn names_path(&self, path: &str) -> bool {
        self.non_resource_urls.iter().any(|item| match item.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => item == path,
        })
    }

    /// Returns the number of rules that [`PolicyRule::atoms`] returns.
    pub(super) fn count_atoms(&self) -> usize {
        let resources = self.api_groups.len().saturating_mul(self.resources.len());
        let named = resources.saturating_mul(self.resource_names.len().max(1));
        self.verbs.len().saturating_mul(named.saturating_add(self.non_resource_urls.len()))
    }

    /// Splits the rule into rules of one verb on one resource or path each, so that coverage can be checked one by one.
    pub(super) fn atoms(&self) -> Vec<Self> {
        let one = |text: &String| vec![text.clone()];
        let mut atoms = Vec::new();
        for verb in &self.verbs {
            for path in &self.non_resource_urls {
                atoms.push(Self { verbs: one(verb), non_resource_urls: one(path), ..Self::default() });
            }
            for (group, resource) in pairs(&self.api_groups, &self.resources) {
                let atom =
                    Self { verbs: one(verb), api_groups: one(group), resources: one(resource), ..Self::default() };
                match self.resource_names.as_slice() {
                    [] => atoms.push(atom),
                    names => atoms.extend(names.iter().map(|n| Self { resource_names: one(n), ..atom.clone() })),
                }
            }
        }
        atoms
    }

    /// Returns true if this rule alone covers another one.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let names = self.resource_names.is_empty()
            || (!other.resource_names.is_empty() && Words(&self.resource_names).have_all(&other.resource_names));
        names
            && Words(&self.verbs).have_all_or_any(&other.verbs)
            && Words(&self.api_groups).have_all_or_any(&other.api_groups)
            && Words(&self.resources).have_all_resources(&other.resources)
            && other.non_resource_urls.iter().all(|path| self.names_path(path))
    }

    /// Returns an upper estimate of the comparisons that show whether this rule covers another one.
    pub(super) fn effort_to_cover(&self, other: &Self) -> usize {
        let paths = self.non_resource_urls.len().saturating_mul(other.non_resource_urls.len());
        let lists = [
            (&self.resource_names, &other.resource_names),
            (&self.verbs, &other.verbs),
            (&self.api_groups, &other.api_groups),
            (&self.resources, &other.resources),
        ];
        lists.into_iter().map(|(own, others)| Words(own).effort(others)).fold(paths + 1, usize::saturating_add)
    }
}

/// Words of a rule, long lists of which are put in order before others are looked up among them.
struct Words<'a>(&'a [String]);

impl Words<'_> {
    /// Number of comparisons that cost less than sorting.
    const FEW: usize = 1024;

    fn effort(&self, others: &[String]) -> usize {
        let product = self.0.len().saturating_mul(others.len());
        if product <= Self::FEW { product } else { self.0.len() + others.len() }
    }

    fn have_all(&self, others: &[String]) -> bool {
        self.all(others, |has, other| has(other))
    }

    fn have_all_or_any(&self, others: &[String]) -> bool {
        self.all(others, |has, other| has("*") || has(other))
    }

    fn have_all_resources(&self, others: &[String]) -> bool {
        self.all(others, |has, other| {
            let of_any = || other.split_once('/').is_some_and(|(_, subresource)| has(&format!("*/{subresource}")));
            has("*") || has(other) || of_any()
        })
    }

    fn all(&self, others: &[String], holds: impl Fn(&dyn Fn(&str) -> bool, &str) -> bool) -> bool {
        if self.0.len().saturating_mul(others.len()) <= Self::FEW {
            return others.iter().all(|other| holds(&|word| self.0.iter().any(|own| own == word), other));
        }
        let set: HashSet<&str> = self.0.iter().map(String::as_str).collect();
        others.iter().all(|other| holds(&|word| set.contains(word), other))
    }
}

fn pairs<'a>(left: &'a [String], right: &'a [String]) -> impl Iterator<Item = (&'a String, &'a String)> {
    left.iter().flat_map(move |l| right.iter().map(move |r| (l, r)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(value: Value) -> PolicyRule {
        PolicyRule::deserialize(value).unwrap()
    }

    #[test]
    fn rules_allow_as_in_kubernetes() {
        let pods = rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "*/scale"]}));
        let named = rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "resourceNames": ["a"]}));
        let paths = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/api/*"]}));
        let ask = |verb, group, resource, subresource, name| Action::Resource {
            verb,
            group,
            resource,
            subresource,
            name,
            namespace: "n",
        };
        let path = |verb, path| Action::Path { verb, path };
        for (case, rule, action, expected) in [
            ("a named resource", &pods, ask("get", "", "pods", "", "x"), true),
            ("another verb", &pods, ask("list", "", "pods", "", ""), false),
            ("another group", &pods, ask("get", "apps", "pods", "", ""), false),
            ("a subresource is not meant by its resource", &pods, ask("get", "", "pods", "log", "x"), false),
            ("a subresource of any resource", &pods, ask("get", "", "deployments", "scale", "x"), true),
            ("a named object", &named, ask("delete", "apps", "deployments", "status", "a"), true),
            ("another object", &named, ask("delete", "apps", "deployments", "", "b"), false),
            ("a list has no name", &named, ask("list", "apps", "deployments", "", ""), false),
            ("a path", &paths, path("get", "/healthz"), true),
            ("below a path", &paths, path("get", "/api/v1"), true),
            ("another path", &paths, path("get", "/metrics"), false),
        ] {
            assert_eq!(rule.allows(action), expected, "{case}");
        }
    }
}
