//! Webhooks as their configurations describe them, read once.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_types::object;
use serde_json::{Value, json};

use super::super::{
    expressions::Source,
    matching::{Criteria, list, text, texts},
};

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

/// Where a webhook is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Url(String),
    Service { namespace: String, name: String, path: String, port: u16 },
}

/// All webhooks of a configuration.
pub(in super::super) fn webhooks_of(configuration: &Value) -> Vec<Webhook> {
    list(configuration, "webhooks").map(|webhook| read(object::name(configuration), webhook)).collect()
}

fn read(configuration: &str, webhook: &Value) -> Webhook {
    let client = webhook.get("clientConfig").unwrap_or(&Value::Null);
    let seconds = webhook.get("timeoutSeconds").and_then(Value::as_u64).map(Duration::from_secs);
    Webhook {
        configuration: configuration.to_owned(),
        name: text(webhook, "name").to_owned(),
        target: target(client),
        ca_bundle: STANDARD.decode(text(client, "caBundle")).unwrap_or_default().into(),
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
