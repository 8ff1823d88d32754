//! Webhooks as their configurations describe them, read once.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_types::{LabelSelector, labels::LabelSelectorSpec, object};
use serde::Deserialize as _;
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TIMEOUT: Duration = Duration::from_secs(30);
const HTTPS: u16 = 443;

/// One webhook of a configuration.
#[derive(Debug)]
pub(in super::super) struct Webhook {
    /// The configuration that it is of.
    pub(super) configuration: String,
    pub(super) name: String,
    pub(super) target: Target,
    /// Certificates in PEM that its own must go back to; empty for those of the system.
    pub(super) ca_bundle: Arc<[u8]>,
    pub(super) rules: Vec<Rule>,
    /// A call that fails is as if the webhook allowed the request.
    pub(super) fails_open: bool,
    /// Rules also match other versions of what is asked for.
    pub(super) matches_equivalent: bool,
    /// What is wrong with a selector is told to those whose requests it would have to match.
    pub(super) namespaces: Result<LabelSelector, String>,
    pub(super) objects: Result<LabelSelector, String>,
    pub(super) timeout: Duration,
    /// Of AdmissionReview, in order of preference.
    pub(super) versions: Vec<String>,
    pub(super) side_effects: String,
    /// Called again when others have changed the object since.
    pub(super) reinvoked: bool,
    /// Names and expressions.
    pub(super) conditions: Vec<(String, String)>,
}

/// Where a webhook is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Url(String),
    Service { namespace: String, name: String, path: String, port: u16 },
}

/// What a webhook wants to be asked about.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) operations: Vec<String>,
    pub(super) groups: Vec<String>,
    pub(super) versions: Vec<String>,
    pub(super) resources: Vec<String>,
    pub(super) scope: String,
}

/// All webhooks of a configuration.
pub(in super::super) fn webhooks_of(configuration: &Value) -> Vec<Webhook> {
    let list = configuration.get("webhooks").and_then(Value::as_array).into_iter().flatten();
    list.map(|webhook| read(object::name(configuration), webhook)).collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    let list = value.get(key).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn read(configuration: &str, webhook: &Value) -> Webhook {
    let client = webhook.get("clientConfig").unwrap_or(&Value::Null);
    let list = |key: &str| webhook.get(key).and_then(Value::as_array).into_iter().flatten();
    let seconds = webhook.get("timeoutSeconds").and_then(Value::as_u64).map(Duration::from_secs);
    Webhook {
        configuration: configuration.to_owned(),
        name: text(webhook, "name").to_owned(),
        target: target(client),
        ca_bundle: STANDARD.decode(text(client, "caBundle")).unwrap_or_default().into(),
        rules: list("rules").map(rule).collect(),
        fails_open: text(webhook, "failurePolicy") == "Ignore",
        matches_equivalent: text(webhook, "matchPolicy") != "Exact",
        namespaces: selector(webhook.get("namespaceSelector")),
        objects: selector(webhook.get("objectSelector")),
        timeout: seconds.unwrap_or(TIMEOUT).min(MAX_TIMEOUT),
        versions: texts(webhook, "admissionReviewVersions"),
        side_effects: text(webhook, "sideEffects").to_owned(),
        reinvoked: text(webhook, "reinvocationPolicy") == "IfNeeded",
        conditions: list("matchConditions")
            .map(|condition| (text(condition, "name").to_owned(), text(condition, "expression").to_owned()))
            .collect(),
    }
}

fn target(client: &Value) -> Target {
    match client.get("service").filter(|service| !service.is_null()) {
        None => Target::Url(text(client, "url").to_owned()),
        Some(service) => Target::Service {
            namespace: text(service, "namespace").to_owned(),
            name: text(service, "name").to_owned(),
            path: text(service, "path").to_owned(),
            port: service.get("port").and_then(Value::as_u64).and_then(|p| u16::try_from(p).ok()).unwrap_or(HTTPS),
        },
    }
}

fn rule(rule: &Value) -> Rule {
    Rule {
        operations: texts(rule, "operations"),
        groups: texts(rule, "apiGroups"),
        versions: texts(rule, "apiVersions"),
        resources: texts(rule, "resources"),
        scope: text(rule, "scope").to_owned(),
    }
}

fn selector(spec: Option<&Value>) -> Result<LabelSelector, String> {
    let Some(spec) = spec.filter(|spec| !spec.is_null()) else { return Ok(LabelSelector::everything()) };
    let spec = LabelSelectorSpec::deserialize(spec).map_err(|e| e.to_string())?;
    LabelSelector::try_from(&spec).map_err(|e| e.to_string())
}
