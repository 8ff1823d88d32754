//! Where a webhook is, as its configuration says.

use std::{borrow::Cow, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey};
use serde_json::Value;

use super::{
    client::{Answered, with_timeout},
    service::Service,
};
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
    /// The path begins with a slash.
    Service {
        namespace: String,
        name: String,
        path: String,
        port: u16,
    },
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
        let answer = self.asked(api, cluster, timeout, question).await?;
        // What was answered is not repeated: the client may be somebody who must not see it.
        serde_json::from_slice(&answer.body).map_err(|_| format!("the response is no {name} in JSON"))
    }

    /// As [`Endpoint::ask`], and gives back the answer as it came.
    ///
    /// # Errors
    /// As [`Endpoint::ask`].
    pub(crate) async fn asked(
        &self,
        api: &ApiServer,
        cluster: LogicalClusterId,
        timeout: Duration,
        question: Vec<Bytes>,
    ) -> Result<Answered, String> {
        let way = match &self.place {
            Place::Url(url) => (Cow::Borrowed(url), None),
            Place::Service { namespace, name, path, port } => {
                let url = format!("https://{name}.{namespace}.svc:{port}{path}");
                let service = service(api, cluster, namespace, name)
                    .ok_or_else(|| format!("Post {:?}: service {name:?} not found", with_timeout(&url, timeout)))?;
                (Cow::Owned(url), Some(service))
            }
        };
        api.webhooks.post(cluster, &self.ca_bundle, (&way.0, way.1), timeout, question).await
    }
}

impl Place {
    fn of(client_config: &Value) -> Self {
        match client_config.get("service").filter(|service| !service.is_null()) {
            None => Self::Url(with_clean_path(text(client_config, "url"))),
            Some(service) => Self::Service {
                namespace: text(service, "namespace").to_owned(),
                name: text(service, "name").to_owned(),
                path: cleaned(text(service, "path")),
                port: service.get("port").and_then(Value::as_u64).and_then(|p| u16::try_from(p).ok()).unwrap_or(HTTPS),
            },
        }
    }
}

/// A URL as kube-apiserver asks for it. It has neither a query nor a fragment.
fn with_clean_path(url: &str) -> String {
    let Some(host) = url.find("://").map(|at| at + "://".len()) else { return url.to_owned() };
    let path = url[host..].find('/').map_or(url.len(), |at| host + at);
    format!("{}{}", &url[..path], cleaned(&url[path..]))
}

/// As Go's `path.Join("/", path)`: webhooks that were written for kube-apiserver may be configured with any of what it makes alike.
fn cleaned(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_go_cleans_them() {
        for (url, expected) in [
            ("https://127.0.0.1:9443//failing", "https://127.0.0.1:9443/failing"),
            ("https://hooks.example.com", "https://hooks.example.com/"),
            ("https://hooks.example.com/", "https://hooks.example.com/"),
            ("https://hooks.example.com/a/", "https://hooks.example.com/a"),
            ("https://[::1]/a/./b/../c//d", "https://[::1]/a/c/d"),
            ("https://hooks.example.com/../../a", "https://hooks.example.com/a"),
            ("https://hooks.example.com/a%2Fb", "https://hooks.example.com/a%2Fb"),
            ("no URL", "no URL"),
        ] {
            assert_eq!(with_clean_path(url), expected);
        }
        for (path, expected) in [("", "/"), ("a", "/a"), ("//a/", "/a")] {
            assert_eq!(cleaned(path), expected);
        }
    }
}
