//! Webhooks, parsed once from their configurations.

use std::time::Duration;

use portolan_types::object;
use serde_json::{Value, json};

use super::super::{
    expressions::ExpressionSource,
    matching::{MatchCriteria, list, text, texts},
};

use crate::webhooks::WebhookEndpoint;

const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

/// One webhook of a configuration.
#[derive(Debug)]
pub(in super::super) struct WebhookConfig {
    /// Identity for as long as it exists: uid of its configuration and name in it.
    pub(super) key: (String, String),
    /// Name of its configuration.
    pub(super) configuration: String,
    pub(super) name: String,
    pub(super) endpoint: WebhookEndpoint,
    /// Match criteria.
    pub(super) criteria: MatchCriteria,
    /// True if a failed call admits the request.
    pub(super) fails_open: bool,
    pub(super) timeout: Duration,
    /// AdmissionReview versions in order of preference.
    pub(super) versions: Vec<String>,
    pub(super) side_effects: String,
    /// True if it is called again after other plugins change the object.
    pub(super) reinvoked: bool,
    /// Match conditions.
    pub(super) conditions: Option<ExpressionSource>,
}

/// Parses all webhooks of a configuration.
pub(in super::super) fn webhooks_of(configuration: &Value) -> Vec<WebhookConfig> {
    list(configuration, "webhooks").map(|webhook| read(configuration, webhook)).collect()
}

fn read(configuration: &Value, webhook: &Value) -> WebhookConfig {
    let seconds = webhook.get("timeoutSeconds").and_then(Value::as_u64).map(Duration::from_secs);
    WebhookConfig {
        key: (object::meta_text(configuration, "uid").to_owned(), text(webhook, "name").to_owned()),
        configuration: object::name(configuration).to_owned(),
        name: text(webhook, "name").to_owned(),
        endpoint: WebhookEndpoint::of(webhook.get("clientConfig").unwrap_or(&Value::Null)),
        criteria: MatchCriteria::of_webhook(webhook),
        fails_open: text(webhook, "failurePolicy") == "Ignore",
        timeout: seconds.unwrap_or(TIMEOUT).min(MAX_TIMEOUT),
        versions: texts(webhook, "admissionReviewVersions"),
        side_effects: text(webhook, "sideEffects").to_owned(),
        reinvoked: text(webhook, "reinvocationPolicy") == "IfNeeded",
        conditions: conditions(webhook),
    }
}

/// Returns the source of match conditions. Webhooks with equal conditions share the compiled form.
fn conditions(webhook: &Value) -> Option<ExpressionSource> {
    list(webhook, "matchConditions").next()?;
    let [conditions, failure_policy] = ["matchConditions", "failurePolicy"].map(|key| webhook.get(key));
    Some(ExpressionSource::new(json!({"matchConditions": conditions, "failurePolicy": failure_policy})))
}
