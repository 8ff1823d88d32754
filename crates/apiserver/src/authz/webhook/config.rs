//! `AuthorizationConfiguration` of `apiserver.config.k8s.io/v1`.

use std::{collections::BTreeSet, path::Path, path::PathBuf, time::Duration};

use portolan_codec::decode::{MediaType, decode_any};
use portolan_types::duration;
use serde::Deserialize;
use serde_json::Value;

use crate::config::ConfigError;

const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"];
const KIND: &str = "AuthorizationConfiguration";
/// Largest file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;
/// Most authorizers, and match conditions of one.
const MAX_AUTHORIZERS: usize = 16;
const MAX_CONDITIONS: usize = 64;
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

/// Authorizers in the order of their decisions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthorizationFile {
    #[serde(default, rename = "apiVersion")]
    _api_version: String,
    #[serde(default, rename = "kind")]
    _kind: String,
    #[serde(default)]
    authorizers: Vec<AuthorizerEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthorizerEntry {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    webhook: Option<WebhookEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WebhookEntry {
    #[serde(default)]
    timeout: String,
    #[serde(default, rename = "authorizedTTL")]
    authorized_ttl: String,
    #[serde(default, rename = "unauthorizedTTL")]
    unauthorized_ttl: String,
    #[serde(default = "yes")]
    cache_authorized_requests: bool,
    #[serde(default = "yes")]
    cache_unauthorized_requests: bool,
    #[serde(default)]
    subject_access_review_version: String,
    #[serde(default)]
    match_condition_subject_access_review_version: String,
    #[serde(default)]
    failure_policy: String,
    #[serde(default)]
    connection_info: ConnectionEntry,
    #[serde(default)]
    match_conditions: Vec<ConditionEntry>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct ConnectionEntry {
    #[serde(rename = "type")]
    kind: String,
    kube_config_file: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionEntry {
    #[serde(default)]
    expression: String,
}

/// Authorizer of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConfiguredAuthorizer {
    Rbac,
    Webhook(WebhookSettings),
}

/// Settings of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WebhookSettings {
    pub(super) name: String,
    pub(super) timeout: Duration,
    /// Time for which allowing answers are remembered.
    pub(super) authorized_ttl: Duration,
    /// Time for which other answers are remembered.
    pub(super) unauthorized_ttl: Duration,
    /// True if a failure denies the request; otherwise the next authorizer decides.
    pub(super) denies_on_failure: bool,
    pub(super) kubeconfig: PathBuf,
    /// Expressions that must all be true for a request that the webhook decides on.
    pub(super) conditions: Vec<String>,
}

/// Reads a configuration.
///
/// # Errors
/// A file that cannot be read, or all its faults, one per line.
pub(super) fn read(path: &Path) -> Result<Vec<ConfiguredAuthorizer>, ConfigError> {
    let file = |source| ConfigError::File { path: path.to_owned(), source };
    let wrong = |what| ConfigError::Content { path: path.to_owned(), what };
    if std::fs::metadata(path).map_err(file)?.len() > MAX_FILE {
        return Err(wrong(format!("has more than {MAX_FILE} bytes")));
    }
    parse(&std::fs::read(path).map_err(file)?).map_err(wrong)
}

fn parse(text: &[u8]) -> Result<Vec<ConfiguredAuthorizer>, String> {
    let tree = decode_any(MediaType::Yaml, text)?;
    let word = |field: &str| tree.get(field).and_then(Value::as_str).unwrap_or_default();
    if !VERSIONS.contains(&word("apiVersion")) || word("kind") != KIND {
        return Err(format!("expected {KIND} of {}", VERSIONS.join(" or ")));
    }
    let file: AuthorizationFile = serde_json::from_value(tree).map_err(|error| error.to_string())?;
    if file.authorizers.is_empty() {
        return Err("authorizers: Required value: at least one authorization mode must be defined".into());
    }
    if file.authorizers.len() > MAX_AUTHORIZERS {
        return Err(format!("authorizers: Too many: must have at most {MAX_AUTHORIZERS} items"));
    }
    let (mut found, mut faults, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (at, entry) in file.authorizers.into_iter().enumerate() {
        let path = format!("authorizers[{at}]");
        if entry.name.is_empty() {
            faults.push(format!("{path}.name: Required value"));
        } else if !names.insert(entry.name.clone()) {
            faults.push(format!("{path}.name: Duplicate value: {:?}", entry.name));
        }
        match (entry.kind.as_str(), entry.webhook) {
            ("RBAC", None) => found.push(ConfiguredAuthorizer::Rbac),
            // This server has no kubelets.
            ("Node", None) => {}
            ("Webhook", Some(webhook)) => match webhook.settings(entry.name) {
                Ok(settings) => found.push(ConfiguredAuthorizer::Webhook(settings)),
                Err(whys) => faults.extend(whys.into_iter().map(|why| format!("{path}.webhook.{why}"))),
            },
            ("Webhook", None) => faults.push(format!("{path}.webhook: Required value: required when type=Webhook")),
            ("RBAC" | "Node", Some(_)) => {
                faults.push(format!("{path}.webhook: Invalid value: may only be specified when type=Webhook"));
            }
            (kind, _) => faults.push(format!(
                "{path}.type: Unsupported value: {kind:?}: supported values: \"Node\", \"RBAC\", \"Webhook\""
            )),
        }
    }
    if faults.is_empty() { Ok(found) } else { Err(faults.join("\n")) }
}

impl WebhookEntry {
    fn settings(self, name: String) -> Result<WebhookSettings, Vec<String>> {
        let mut faults = Vec::new();
        let mut time = |field: &str, text: &str, default: Option<Duration>| match (text, default) {
            ("", Some(default)) => default,
            ("", None) => {
                faults.push(format!("{field}: Required value"));
                Duration::ZERO
            }
            (text, _) => match duration::parse(text).ok().and_then(|nanos| u64::try_from(nanos).ok()) {
                Some(nanos) if nanos > 0 => Duration::from_nanos(nanos),
                _ => {
                    faults.push(format!("{field}: Invalid value: {text:?}: must be a duration above zero"));
                    Duration::ZERO
                }
            },
        };
        let timeout = time("timeout", &self.timeout, None);
        let authorized = time("authorizedTTL", &self.authorized_ttl, Some(Duration::from_secs(300)));
        let unauthorized = time("unauthorizedTTL", &self.unauthorized_ttl, Some(Duration::from_secs(30)));
        if timeout > MAX_TIMEOUT {
            faults.push("timeout: Invalid value: must be <= 30s".into());
        }
        if self.subject_access_review_version != "v1" {
            faults.push("subjectAccessReviewVersion: Unsupported value: supported values: \"v1\"".into());
        }
        if !self.match_conditions.is_empty() && self.match_condition_subject_access_review_version != "v1" {
            faults.push("matchConditionSubjectAccessReviewVersion: Unsupported value: supported values: \"v1\"".into());
        }
        if self.match_conditions.len() > MAX_CONDITIONS {
            faults.push(format!("matchConditions: Too many: must have at most {MAX_CONDITIONS} items"));
        }
        if !matches!(self.failure_policy.as_str(), "NoOpinion" | "Deny") {
            faults.push("failurePolicy: Unsupported value: supported values: \"Deny\", \"NoOpinion\"".into());
        }
        if self.connection_info.kind != "KubeConfigFile" {
            faults.push("connectionInfo.type: Unsupported value: supported values: \"KubeConfigFile\"".into());
        }
        let kubeconfig = self.connection_info.kube_config_file.unwrap_or_default();
        if !kubeconfig.is_absolute() {
            faults.push("connectionInfo.kubeConfigFile: Invalid value: must be an absolute path".into());
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let kept = |is_cached: bool, time: Duration| if is_cached { time } else { Duration::ZERO };
        Ok(WebhookSettings {
            name,
            timeout,
            authorized_ttl: kept(self.cache_authorized_requests, authorized),
            unauthorized_ttl: kept(self.cache_unauthorized_requests, unauthorized),
            denies_on_failure: self.failure_policy == "Deny",
            kubeconfig,
            conditions: self.match_conditions.into_iter().map(|condition| condition.expression).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n";
    const HOOK: &str = "timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny, \
                        connectionInfo: {type: KubeConfigFile, kubeConfigFile: /k}";

    fn parsed(authorizers: &str) -> Result<Vec<ConfiguredAuthorizer>, String> {
        parse(format!("{HEAD}authorizers: [{authorizers}]").as_bytes())
    }

    #[test]
    fn authorizers_keep_their_order() {
        let found = parsed(&format!(
            "{{type: Node, name: node}}, {{type: Webhook, name: hook, webhook: {{{HOOK}, unauthorizedTTL: 1m}}}}, {{type: RBAC, name: rbac}}"
        ))
        .unwrap();
        let [ConfiguredAuthorizer::Webhook(hook), ConfiguredAuthorizer::Rbac] = &found[..] else { panic!("{found:?}") };
        assert_eq!((hook.name.as_str(), hook.timeout.as_secs(), hook.denies_on_failure), ("hook", 3, true));
        assert_eq!((hook.authorized_ttl.as_secs(), hook.unauthorized_ttl.as_secs()), (300, 60));
    }

    #[test]
    fn faults_are_named_with_their_field() {
        let hook = |fields: &str| format!("{{type: Webhook, name: h, webhook: {{{fields}}}}}");
        for (authorizers, words) in [
            (String::new(), "at least one authorization mode"),
            ("{type: RBAC}".into(), "authorizers[0].name: Required"),
            ("{type: RBAC, name: a}, {type: Node, name: a}".into(), "authorizers[1].name: Duplicate"),
            ("{type: ABAC, name: a}".into(), "Unsupported value: \"ABAC\""),
            ("{type: Webhook, name: a}".into(), "webhook: Required value"),
            (format!("{{type: RBAC, name: a, webhook: {{{HOOK}}}}}"), "only be specified when type=Webhook"),
            (hook(&HOOK.replace("3s", "31s")), "must be <= 30s"),
            (hook(&HOOK.replace("3s", "soon")), "must be a duration"),
            (hook(&HOOK.replace("Deny", "Ignore")), "failurePolicy: Unsupported"),
            (hook(&HOOK.replace("Version: v1", "Version: v2")), "subjectAccessReviewVersion"),
            (hook(&HOOK.replace("/k", "k")), "absolute path"),
            (hook(&HOOK.replace("type: KubeConfigFile", "type: InClusterConfig")), "connectionInfo.type"),
            (hook(&format!("{HOOK}, matchConditions: [{{expression: 'true'}}]")), "matchConditionSubjectAccess"),
            (hook(&format!("{HOOK}, more: 1")), "unknown field `more`"),
        ] {
            let why = parsed(&authorizers).unwrap_err();
            assert!(why.contains(words), "{authorizers}: {why}");
        }
    }
}
