//! Where a webhook is, as its configuration says.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey};
use serde_json::Value;

use super::client::with_timeout;
use crate::{ApiServer, errors::status_for};

const HTTPS: u16 = 443;

/// A `clientConfig`.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    place: Place,
    /// Certificates in PEM that its own must go back to; empty for those of the system.
    ca_bundle: Arc<[u8]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Url(String),
    Service { namespace: String, name: String, path: String, port: u16 },
}

impl Endpoint {
    /// Reads it.
    pub(crate) fn of(client_config: &Value) -> Self {
        let bundle = STANDARD.decode(text(client_config, "caBundle")).unwrap_or_default();
        let is_blank = bundle.iter().all(u8::is_ascii_whitespace);
        Self { place: Place::of(client_config), ca_bundle: if is_blank { Arc::default() } else { bundle.into() } }
    }

    /// Sends a review in JSON, in parts, and gives back the answer, which is no longer than a bound of the client's.
    ///
    /// # Errors
    /// What went wrong, in the words of Go's client; nothing of what the other side said.
    pub(crate) async fn ask(
        &self,
        api: &ApiServer,
        cluster: LogicalClusterId,
        timeout: Duration,
        (question, name): (Vec<Bytes>, &str),
    ) -> Result<Value, String> {
        let url = match &self.place {
            Place::Url(url) => url,
            Place::Service { namespace, name, path, port } => {
                let slash = if path.starts_with('/') { "" } else { "/" };
                let shown = with_timeout(&format!("https://{name}.{namespace}.svc:{port}{slash}{path}"), timeout);
                return Err(format!("Post {shown:?}: {}", unreachable(api, cluster, namespace, name).await));
            }
        };
        let answer = api.webhooks.post(cluster, &self.ca_bundle, url, timeout, question).await?;
        // What was answered is not repeated: the client may be somebody who must not see it.
        serde_json::from_slice(&answer).map_err(|_| format!("the response is no {name} in JSON"))
    }
}

impl Place {
    fn of(client_config: &Value) -> Self {
        match client_config.get("service").filter(|service| !service.is_null()) {
            None => Self::Url(text(client_config, "url").to_owned()),
            Some(service) => Self::Service {
                namespace: text(service, "namespace").to_owned(),
                name: text(service, "name").to_owned(),
                path: text(service, "path").to_owned(),
                port: service.get("port").and_then(Value::as_u64).and_then(|p| u16::try_from(p).ok()).unwrap_or(HTTPS),
            },
        }
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// No pod of a logical cluster can be reached from here: Services lead nowhere. Why not through the API server of a physical
/// cluster is told in `docs/decisions/0004-services-of-webhooks.md`.
async fn unreachable(api: &ApiServer, cluster: LogicalClusterId, namespace: &str, name: &str) -> String {
    let missing = format!("service {name:?} not found");
    let (Ok(namespace), Ok(service)) = (namespace.parse(), name.parse()) else { return missing };
    let key = ObjectKey::namespaced(cluster, GroupResource::new("", "services"), namespace, service);
    match api.store.get(&key).await {
        Ok(Some(_)) => format!(
            "service {name:?} cannot be reached: the API server of a logical cluster calls no pods; say in clientConfig.url where \
             the webhook is, instead of clientConfig.service"
        ),
        Ok(None) => missing,
        Err(error) => status_for(&error).message().to_owned(),
    }
}
