//! `APIService` of an aggregated API server, as stored in a logical cluster.

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Status, object};
use serde_json::{Value, json};

use crate::{errors::status_for, storage::StorageContext, webhooks::WebhookEndpoint};

/// Annotation with the URL of the API server, in place of the Service.
pub(crate) const URL: &str = "portolan.dev/url";
const HTTPS: u64 = 443;

/// Group version that another API server serves.
#[derive(Clone)]
pub(crate) struct AggregatedVersion {
    pub(crate) group: String,
    pub(crate) version: String,
    /// Order among the groups and versions; the highest come first.
    pub(crate) priorities: (i64, i64),
    /// Revision of the `APIService`, which changes with its address.
    pub(crate) revision: u64,
    pub(crate) endpoint: Result<WebhookEndpoint, String>,
}

fn resource() -> GroupResource {
    GroupResource::new("apiregistration.k8s.io", "apiservices")
}

impl AggregatedVersion {
    /// Reads the version of a group; `None` if no `APIService` names another API server for it.
    ///
    /// # Errors
    /// Failure of the store.
    pub(crate) async fn read(
        storage: &StorageContext,
        cluster: LogicalClusterId,
        (group, version): (&str, &str),
    ) -> Result<Option<Self>, Status> {
        let Ok(name) = format!("{version}.{group}").parse() else { return Ok(None) };
        let key = ObjectKey::cluster_scoped(cluster, resource(), name);
        let Some(stored) = storage.store.get(&key).await.map_err(|error| status_for(&error))? else { return Ok(None) };
        let service = stored.to_value().map_err(|error| status_for(&error))?;
        Self::of(storage, cluster, &service, stored.revision.get()).await
    }

    /// Reads all versions of a logical cluster that other API servers serve.
    ///
    /// # Errors
    /// Failure of the store.
    pub(crate) async fn all(storage: &StorageContext, cluster: LogicalClusterId) -> Result<Vec<Self>, Status> {
        use portolan_store::{RangeRequest, RangeScope};
        let request = RangeRequest {
            limit: Some(super::MAX_VERSIONS),
            ..RangeRequest::all(RangeScope::Cluster(cluster, resource())).skip_damaged()
        };
        let page = storage.store.range(request).await.map_err(|error| status_for(&error))?;
        let mut found = Vec::new();
        for stored in page.objects {
            let service = stored.to_value().map_err(|error| status_for(&error))?;
            found.extend(Self::of(storage, cluster, &service, stored.revision.get()).await?);
        }
        Ok(found)
    }

    async fn of(
        storage: &StorageContext,
        cluster: LogicalClusterId,
        service: &Value,
        revision: u64,
    ) -> Result<Option<Self>, Status> {
        let spec = &service["spec"];
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
        let url = object::annotation(service, URL);
        if object::is_deleting(service) || (url.is_none() && spec["service"].is_null()) {
            return Ok(None);
        }
        let endpoint = match (spec["insecureSkipTLSVerify"].as_bool(), url) {
            (Some(true), _) => Err("spec.insecureSkipTLSVerify is not supported: set spec.caBundle".to_owned()),
            (_, Some(url)) => of_url(url, &spec["caBundle"]),
            (_, None) => of_service(storage, cluster, spec).await?,
        };
        let number = |field: &str| spec[field].as_i64().unwrap_or(0);
        let priorities = (number("groupPriorityMinimum"), number("versionPriority"));
        Ok(Some(Self { group: text("group"), version: text("version"), priorities, revision, endpoint }))
    }
}

/// Returns the endpoint of a URL: HTTPS, without a user, query or fragment.
fn of_url(url: &str, bundle: &Value) -> Result<WebhookEndpoint, String> {
    let rest = url.strip_prefix("https://").ok_or_else(|| format!("the annotation {URL} is not an https URL"))?;
    let is_plain = !rest.is_empty() && !rest.contains(['?', '#', '@', '\\']) && !rest.starts_with('/');
    if !is_plain {
        return Err(format!("the annotation {URL} has a user, a query or a fragment, or no host"));
    }
    Ok(WebhookEndpoint::of(&json!({"url": url, "caBundle": bundle})))
}

/// Returns the endpoint of a Service: a host outside for the type `ExternalName`, pods otherwise.
async fn of_service(
    storage: &StorageContext,
    cluster: LogicalClusterId,
    spec: &Value,
) -> Result<Result<WebhookEndpoint, String>, Status> {
    let reference = &spec["service"];
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (namespace, name) = (text("namespace"), text("name"));
    let missing = || format!("service {namespace}/{name} not found");
    let (Ok(in_namespace), Ok(of_name)) = (namespace.parse(), name.parse()) else { return Ok(Err(missing())) };
    let key = ObjectKey::namespaced(cluster, GroupResource::new("", "services"), in_namespace, of_name);
    let Some(stored) = storage.store.get(&key).await.map_err(|error| status_for(&error))? else {
        return Ok(Err(missing()));
    };
    let service = stored.to_value().map_err(|error| status_for(&error))?;
    let port = reference["port"].as_u64().unwrap_or(HTTPS);
    if service["spec"]["type"] == "ExternalName" {
        let host = service["spec"]["externalName"].as_str().unwrap_or_default().trim_end_matches('.');
        return Ok(of_url(&format!("https://{host}:{port}"), &spec["caBundle"]));
    }
    let config = json!({"service": {"namespace": namespace, "name": name, "port": port}, "caBundle": spec["caBundle"]});
    Ok(Ok(WebhookEndpoint::of(&config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_of_https_and_plain() {
        for (url, expected) in [
            ("https://api.example.com", true),
            ("https://api.example.com:8443/base", true),
            ("https://[::1]:8443", true),
            ("http://api.example.com", false),
            ("https://user@api.example.com", false),
            ("https://api.example.com?x=y", false),
            ("https://api.example.com#x", false),
            ("https:///path", false),
            ("https://", false),
            ("file:///etc/passwd", false),
        ] {
            assert_eq!(of_url(url, &Value::Null).is_ok(), expected, "{url}");
        }
    }
}
