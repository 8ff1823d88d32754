//! Webhooks as their configurations describe them, read once.

use std::time::Duration;

use portolan_types::object;
use serde_json::{Value, json};

use super::super::{
    expressions::Source,
    matching::{Criteria, list, text, texts},
};

use crate::webhooks::Endpoint;

const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

/// One webhook of a configuration.
#[derive(Debug)]
pub(in super::super) struct Webhook {
    /// What it is, as long as it is there: the uid of its configuration, and its name in it.
    pub(super) key: (String, String),
    /// The configuration that it is of.
    pub(super) configuration: String,
    pub(super) name: String,
    pub(super) endpoint: Endpoint,
    /// What it wants to be asked about.
    pub(super) criteria: Criteria,
    /// A call that fails is as if the webhook allowed the request.
    pub(super) fails_open: bool,
    pub(super) timeout: Duration,
    /// Of AdmissionReview, in order of preference.
    pub(super) versions: Vec<String>,
    pub(super) side_effects: String,
    /// Called again when others have changed the object since.
    pub(super) reinvoked: bool,
    /// What else must hold of a request for the webhook to be asked.
    pub(super) conditions: Option<Source>,
}

/// All webhooks of a configuration.
pub(in super::super) fn webhooks_of(configuration: &Value) -> Vec<Webhook> {
    list(configuration, "webhooks").map(|webhook| read(configuration, webhook)).collect()
}

fn read(configuration: &Value, webhook: &Value) -> Webhook {
    let seconds = webhook.get("timeoutSeconds").and_then(Value::as_u64).map(Duration::from_secs);
    Webhook {
        key: (object::meta_text(configuration, "uid").to_owned(), text(webhook, "name").to_owned()),
        configuration: object::name(configuration).to_owned(),
        name: text(webhook, "name").to_owned(),
        endpoint: Endpoint::of(webhook.get("clientConfig").unwrap_or(&Value::Null)),
        criteria: Criteria::of_webhook(webhook),
        fails_open: text(webhook, "failurePolicy") == "Ignore",
        timeout: seconds.unwrap_or(TIMEOUT).min(MAX_TIMEOUT),
        versions: texts(webhook, "admissionReviewVersions"),
        side_effects: text(webhook, "sideEffects").to_owned(),
        reinvoked: text(webhook, "reinvocationPolicy") == "IfNeeded",
        conditions: conditions(webhook),
    }
}

/// What of a webhook is compiled. Webhooks that have the same conditions share it.
fn conditions(webhook: &Value) -> Option<Source> {
    list(webhook, "matchConditions").next()?;
    let [conditions, failure_policy] = ["matchConditions", "failurePolicy"].map(|key| webhook.get(key));
    Some(Source::new(json!({"matchConditions": conditions, "failurePolicy": failure_policy})))
}
