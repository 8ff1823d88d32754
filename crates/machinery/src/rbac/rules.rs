//! One rule of a role, and what it allows.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is asked for.
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
    /// A verb on a path that is no resource.
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
    /// The rules of a Role or ClusterRole; what is no rule is left out, since it can allow nothing.
    pub fn of(role: &Value) -> Vec<Self> {
        let rules = role.get("rules").and_then(Value::as_array);
        rules.into_iter().flatten().filter_map(|rule| Self::deserialize(rule).ok()).collect()
    }

    /// Whether this rule alone allows `action`.
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

    /// How many rules [`PolicyRule::atoms`] gives.
    pub(super) fn count_atoms(&self) -> usize {
        let resources = self.api_groups.len().saturating_mul(self.resources.len());
        let named = resources.saturating_mul(self.resource_names.len().max(1));
        self.verbs.len().saturating_mul(named.saturating_add(self.non_resource_urls.len()))
    }

    /// The rule taken apart into rules of one verb on one thing each, so that covering can be checked one by one.
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

    /// Whether this rule alone covers an atom.
    pub(super) fn covers(&self, atom: &Self) -> bool {
        let all = |held: &[String], wanted: &[String]| wanted.iter().all(|w| has(held, w));
        let resources = atom.resources.iter().all(|wanted| match wanted.split_once('/') {
            Some((resource, subresource)) => self.names_resource(resource, subresource),
            None => self.resources.iter().any(|held| held == "*" || held == wanted),
        });
        let names = self.resource_names.is_empty()
            || (!atom.resource_names.is_empty() && atom.resource_names.iter().all(|n| self.resource_names.contains(n)));
        let paths = atom.non_resource_urls.iter().all(|path| self.names_path(path));
        all(&self.verbs, &atom.verbs) && all(&self.api_groups, &atom.api_groups) && resources && names && paths
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
