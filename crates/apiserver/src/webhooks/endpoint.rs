//! Where a webhook is, as its configuration says.

use std::{borrow::Cow, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey};
use serde_json::Value;

use super::{client::with_timeout, service::Service};
use crate::ApiServer;

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
        let way = match &self.place {
            Place::Url(url) => (Cow::Borrowed(url), None),
            Place::Service { namespace, name, path, port } => {
                let slash = if path.starts_with('/') { "" } else { "/" };
                let url = format!("https://{name}.{namespace}.svc:{port}{slash}{path}");
                let service = service(api, cluster, namespace, name)
                    .ok_or_else(|| format!("Post {:?}: service {name:?} not found", with_timeout(&url, timeout)))?;
                (Cow::Owned(url), Some(service))
            }
        };
        let answer = api.webhooks.post(cluster, &self.ca_bundle, (&way.0, way.1), timeout, question).await?;
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

/// `None` of what cannot be there.
fn service(api: &ApiServer, cluster: LogicalClusterId, namespace: &str, name: &str) -> Option<Service> {
    let key =
        ObjectKey::namespaced(cluster, GroupResource::new("", "services"), namespace.parse().ok()?, name.parse().ok()?);
    Some(Service::new(api, api.directory.by_id(cluster)?, key))
}
