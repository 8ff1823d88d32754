//! Audit policy: `Policy` of `audit.k8s.io/v1`, with the rules of kube-apiserver.

use std::path::Path;

use portolan_codec::decode::{MediaType, decode_any};
use portolan_strategy::rbac::User;
use serde::Deserialize;
use serde_json::Value;

use crate::{config::ConfigError, routing::attributes::Attributes};

const VERSION: &str = "audit.k8s.io/v1";
/// Largest policy file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// Amount of data that an event has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) enum AuditLevel {
    /// No event.
    None,
    /// User, request line and outcome.
    Metadata,
    /// Metadata and the request's object.
    Request,
    /// Metadata and the objects of the request and the response.
    RequestResponse,
}

impl AuditLevel {
    /// Returns the name in events and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// Stage of a request at which an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum AuditStage {
    /// The client is authenticated.
    RequestReceived,
    /// The head of the response of a watch or stream is sent.
    ResponseStarted,
    /// The response is complete.
    ResponseComplete,
    /// The handler panicked.
    Panic,
}

impl AuditStage {
    /// Returns the name in events.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// Policy: the first rule that matches a request decides; without one there is no event.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AuditPolicy {
    #[serde(default, rename = "apiVersion")]
    _api_version: String,
    #[serde(default, rename = "kind")]
    _kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: Value,
    #[serde(default)]
    rules: Vec<AuditRule>,
    #[serde(default)]
    omit_stages: Vec<AuditStage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

/// Rule of a policy. Empty lists match everything.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AuditRule {
    level: AuditLevel,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<AuditResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    paths: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<AuditStage>,
    #[serde(default)]
    omit_managed_fields: Option<bool>,
}

/// Resources of a group.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AuditResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// Decision of a policy on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditDecision {
    pub(crate) level: AuditLevel,
    pub(crate) omitted: Vec<AuditStage>,
    pub(crate) omits_managed_fields: bool,
}

impl AuditPolicy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// A file that cannot be read, or its faults.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = |source| ConfigError::File { path: path.to_owned(), source };
        let wrong = |what| ConfigError::Content { path: path.to_owned(), what };
        if std::fs::metadata(path).map_err(file)?.len() > MAX_FILE {
            return Err(wrong(format!("has more than {MAX_FILE} bytes")));
        }
        Self::parse(&std::fs::read(path).map_err(file)?).map_err(wrong)
    }

    /// Parses a policy in YAML or JSON. Unknown fields are errors.
    ///
    /// # Errors
    /// The fault of the text, or the faults of its rules, one per line.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let tree = decode_any(MediaType::Yaml, text)?;
        let word = |field: &str| tree.get(field).and_then(Value::as_str).unwrap_or_default();
        if word("apiVersion") != VERSION || word("kind") != "Policy" {
            let (kind, version) = (word("kind"), word("apiVersion"));
            return Err(format!(
                "no kind {kind:?} is registered for version {version:?}; expected Policy of {VERSION}"
            ));
        }
        let policy: Self = serde_json::from_value(tree).map_err(|error| error.to_string())?;
        if policy.rules.is_empty() {
            return Err("loaded illegal policy with 0 rules".into());
        }
        let faults: Vec<String> = policy.rules.iter().enumerate().flat_map(|(at, rule)| rule.faults(at)).collect();
        if faults.is_empty() { Ok(policy) } else { Err(faults.join("\n")) }
    }

    /// Decides on a request. `user` is the client's own, also if it impersonates another; `None` if it is unknown.
    pub(crate) fn decide(&self, user: Option<&User>, attributes: &Attributes) -> AuditDecision {
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(user, attributes)) else {
            return AuditDecision { level: AuditLevel::None, omitted: Vec::new(), omits_managed_fields: false };
        };
        AuditDecision {
            level: rule.level,
            omitted: [&self.omit_stages[..], &rule.omit_stages].concat(),
            omits_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
        }
    }
}

impl AuditRule {
    fn faults(&self, at: usize) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.paths.is_empty() && (!self.resources.is_empty() || !self.namespaces.is_empty()) {
            faults.push(format!(
                "rules[{at}].nonResourceURLs: Invalid value: rules cannot apply to both regular resources and \
                 non-resource URLs"
            ));
        }
        for (index, path) in self.paths.iter().enumerate() {
            let why = match path.as_str() {
                "*" => continue,
                path if !path.starts_with('/') => {
                    "non-resource URL rules must begin with a '/' character, or be equal to '*'"
                }
                path if path[..path.len() - 1].contains('*') => {
                    "non-resource URL wildcards '*' must be the final character of the rule"
                }
                _ => continue,
            };
            faults.push(format!("rules[{at}].nonResourceURLs[{index}]: Invalid value: {path:?}: {why}"));
        }
        for (index, one) in self.resources.iter().enumerate() {
            let path = format!("rules[{at}].resources[{index}]");
            if !one.resource_names.is_empty() && one.resources.is_empty() {
                faults.push(format!(
                    "{path}.resourceNames: Invalid value: using resourceNames requires at least one resource"
                ));
            }
            if one.group.contains('/') {
                faults.push(format!("{path}.group: Invalid value: {:?}: a group has no version", one.group));
            }
        }
        faults
    }

    fn matches(&self, user: Option<&User>, attributes: &Attributes) -> bool {
        let holds = |list: &[String], value: &str| list.is_empty() || list.iter().any(|one| one == value);
        let fits_user = self.users.is_empty() || user.is_some_and(|user| self.users.contains(&user.name));
        let fits_groups = self.user_groups.is_empty()
            || user.is_some_and(|user| user.groups.iter().any(|group| self.user_groups.contains(group)));
        if !fits_user || !fits_groups || !holds(&self.verbs, &attributes.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return attributes.is_resource()
                && holds(&self.namespaces, &attributes.namespace)
                && (self.resources.is_empty() || self.resources.iter().any(|one| one.matches(attributes)));
        }
        self.paths.is_empty()
            || !attributes.is_resource() && self.paths.iter().any(|path| matches_path(path, &attributes.path))
    }
}

fn matches_path(pattern: &str, path: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == path, |prefix| path.starts_with(prefix))
}

impl AuditResources {
    fn matches(&self, attributes: &Attributes) -> bool {
        let Attributes { group, resource, subresource, name, .. } = attributes;
        if self.group != *group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let is_named = self.resource_names.is_empty() || self.resource_names.contains(name);
        let fits = |pattern: &String| match pattern.split_once('/') {
            None => pattern == "*" || pattern == resource && subresource.is_empty(),
            Some(("*", wanted)) => !subresource.is_empty() && wanted == subresource,
            Some((wanted, "*")) => wanted == resource,
            Some((wanted, part)) => wanted == resource && part == subresource,
        };
        is_named && self.resources.iter().any(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(rules: &str) -> Result<AuditPolicy, String> {
        AuditPolicy::parse(format!("apiVersion: {VERSION}\nkind: Policy\n{rules}").as_bytes())
    }

    fn of(verb: &str, resource: &str, namespace: &str) -> Attributes {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let (group, resource) = resource.rsplit_once('.').map_or(("", resource), |(resource, group)| (group, resource));
        Attributes {
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: "web".into(),
            ..Attributes::default()
        }
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let policy = parse(
            r#"
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: None, users: ["system:probe"]}
- {level: Request, userGroups: [auditors], omitManagedFields: false, omitStages: [ResponseStarted]}
- {level: RequestResponse, verbs: [delete], resources: [{group: apps, resources: [deployments]}]}
- {level: Metadata, resources: [{resources: ["pods/*", "*/status"], resourceNames: [web]}]}
- {level: Request, namespaces: [shop, ""], resources: [{resources: [configmaps, secrets]}]}
- {level: Metadata, nonResourceURLs: ["/version", "/logs*"]}
- {level: Metadata, resources: [{group: batch}]}
"#,
        )
        .unwrap();
        let user = |name: &str, group: &str| User { name: name.into(), groups: vec![group.into()], ..User::default() };
        let ann = user("ann", "dev");
        for (case, user, attributes, level) in [
            ("a user that is left out", user("system:probe", "x"), of("get", "pods/log", "a"), AuditLevel::None),
            ("a group", user("bob", "auditors"), of("get", "nodes", ""), AuditLevel::Request),
            ("verb and resource", ann.clone(), of("delete", "deployments.apps", "a"), AuditLevel::RequestResponse),
            ("another verb", ann.clone(), of("get", "deployments.apps", "a"), AuditLevel::None),
            ("all subresources", ann.clone(), of("create", "pods/exec", "a"), AuditLevel::Metadata),
            ("the resource of all subresources", ann.clone(), of("get", "pods", "a"), AuditLevel::Metadata),
            ("a subresource of all resources", ann.clone(), of("update", "nodes/status", ""), AuditLevel::Metadata),
            ("a namespace", ann.clone(), of("list", "configmaps", "shop"), AuditLevel::Request),
            ("no namespace", ann.clone(), of("list", "configmaps", ""), AuditLevel::Request),
            ("another namespace", ann.clone(), of("list", "configmaps", "b"), AuditLevel::None),
            ("a path", ann.clone(), Attributes::of_path("get", "/version"), AuditLevel::Metadata),
            ("a path by its prefix", ann.clone(), Attributes::of_path("get", "/logs/a"), AuditLevel::Metadata),
            ("another path", ann.clone(), Attributes::of_path("get", "/livez"), AuditLevel::None),
            ("a whole group", ann, of("list", "jobs.batch", "x"), AuditLevel::Metadata),
        ] {
            assert_eq!(policy.decide(Some(&user), &attributes).level, level, "{case}");
        }
        let auditor = policy.decide(Some(&user("bob", "auditors")), &of("get", "nodes", ""));
        assert_eq!(auditor.omitted, [AuditStage::RequestReceived, AuditStage::ResponseStarted]);
        assert!(!auditor.omits_managed_fields, "the rule overrides the policy");
        let unknown = policy.decide(None, &of("get", "nodes", ""));
        assert_eq!(unknown.level, AuditLevel::None, "rules for users do not match an unknown one");
    }

    #[test]
    fn faults_are_reported_as_in_kube_apiserver() {
        for (rules, words) in [
            ("", "0 rules"),
            ("rules: [{level: Everything}]", "unknown variant `Everything`"),
            ("rules: [{level: None, user: [a]}]", "unknown field `user`"),
            ("rules: [{level: None, omitStages: [Begun]}]", "unknown variant `Begun`"),
            ("rules: [{level: None, nonResourceURLs: [/a], namespaces: [b]}]", "cannot apply to both"),
            ("rules: [{level: None, nonResourceURLs: [a]}]", "must begin with a '/'"),
            ("rules: [{level: None, nonResourceURLs: ['/a*b']}]", "must be the final character"),
            ("rules: [{level: None, resources: [{resourceNames: [a]}]}]", "requires at least one resource"),
        ] {
            let why = parse(rules).unwrap_err();
            assert!(why.contains(words), "{rules}: {why}");
        }
        let old = AuditPolicy::parse(b"apiVersion: audit.k8s.io/v1beta1\nkind: Policy\n").unwrap_err();
        assert!(old.contains("expected Policy of audit.k8s.io/v1"), "{old}");
    }
}
