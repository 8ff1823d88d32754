//! Discovery of aggregated API servers: their groups among those of the workspace, and their resources.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use http::{HeaderMap, Method, header::ACCEPT};
use portolan_strategy::rbac::User;
use portolan_types::LogicalClusterId;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{AggregatedVersion, MAX_VERSIONS, headers::request_headers};
use crate::{
    front_proxy::ProxyIdentity,
    webhooks::{ForwardedRequest, WebhookContext},
};

/// Longest wait for the resources of one version.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time for which the resources of a version are cached, failures included.
const CACHED: Duration = Duration::from_secs(30);
/// Most cached versions.
const MAX_CACHED: usize = 512;
/// Longest document of resources, in bytes.
const MAX_DOCUMENT: usize = 1024 * 1024;
/// User that reads the resources, as kube-apiserver's aggregator does.
const READER: &str = "system:kube-aggregator";
const READERS: &str = "system:masters";

/// Logical cluster, group, version, and revision of the `APIService`.
type CacheKey = (LogicalClusterId, String, String, u64);

/// End of an entry's time, and the list of the version if it answered.
type CachedList = (Instant, Option<Arc<Value>>);

/// Cache of the resources of versions.
#[derive(Default)]
pub(crate) struct AggregatedResources(Mutex<HashMap<CacheKey, CachedList>>);

impl AggregatedResources {
    /// Returns the `APIResourceList` of each version; `None` for one that does not answer.
    pub(crate) async fn of_all(
        &self,
        reader: &ResourceReader<'_>,
        versions: &[AggregatedVersion],
    ) -> Vec<Option<Arc<Value>>> {
        join_all(versions.iter().take(MAX_VERSIONS).map(|version| self.of(reader, version))).await
    }

    async fn of(&self, reader: &ResourceReader<'_>, version: &AggregatedVersion) -> Option<Arc<Value>> {
        let key = (reader.cluster, version.group.clone(), version.version.clone(), version.revision);
        if let Some((_, found)) = self.lock().get(&key).filter(|(until, _)| Instant::now() < *until) {
            return found.clone();
        }
        let read = tokio::time::timeout(PATIENCE, reader.resources(version)).await;
        let found = read.ok().flatten().map(Arc::new);
        let (mut cached, now) = (self.lock(), Instant::now());
        if cached.len() >= MAX_CACHED {
            cached.retain(|_, (until, _)| now < *until);
        }
        if cached.len() < MAX_CACHED {
            cached.insert(key, (now + CACHED, found.clone()));
        }
        found
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<CacheKey, CachedList>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reader of the resources of versions of one logical cluster.
pub(crate) struct ResourceReader<'a> {
    pub(crate) webhooks: &'a WebhookContext,
    pub(crate) cluster: LogicalClusterId,
    pub(crate) identity: Option<&'a ProxyIdentity>,
}

impl ResourceReader<'_> {
    /// Reads the `APIResourceList` of a version.
    async fn resources(&self, version: &AggregatedVersion) -> Option<Value> {
        let endpoint = version.endpoint.as_ref().ok()?;
        let path = format!("/apis/{}/{}", version.group, version.version);
        let user = User { name: READER.into(), groups: vec![READERS.into()], ..User::default() };
        let asked = HeaderMap::from_iter([(ACCEPT, http::HeaderValue::from_static("application/json"))]);
        let mut request = http::Request::builder().method(Method::GET).body(Bytes::new()).ok()?;
        *request.headers_mut() = request_headers(&asked, &user);
        let forwarded = ForwardedRequest { cluster: self.cluster, path: &path, request, identity: self.identity };
        let answered = endpoint.send(self.webhooks, forwarded).await.ok()?;
        if !answered.status().is_success() {
            return None;
        }
        let body = http_body_util::Limited::new(answered.into_body(), MAX_DOCUMENT);
        let bytes = http_body_util::BodyExt::collect(body).await.ok()?.to_bytes();
        let list: Value = serde_json::from_slice(&bytes).ok()?;
        let is_own = list["groupVersion"] == format!("{}/{}", version.group, version.version);
        (list["kind"] == "APIResourceList" && is_own).then_some(list)
    }
}

/// Returns the versions by group, in the order of their priorities.
pub(crate) fn by_group(versions: &[AggregatedVersion]) -> Vec<(&str, Vec<&AggregatedVersion>)> {
    let mut sorted: Vec<&AggregatedVersion> = versions.iter().collect();
    let order = |own: &AggregatedVersion| {
        (std::cmp::Reverse(own.priorities.0), own.group.clone(), std::cmp::Reverse(own.priorities.1))
    };
    sorted.sort_by_key(|own| order(own));
    let mut groups: Vec<(&str, Vec<&AggregatedVersion>)> = Vec::new();
    for version in sorted {
        match groups.iter_mut().find(|(group, _)| *group == version.group) {
            Some((_, own)) => own.push(version),
            None => groups.push((version.group.as_str(), vec![version])),
        }
    }
    groups
}

/// Returns the `APIGroup` of a group.
pub(crate) fn api_group(group: &str, versions: &[&AggregatedVersion]) -> Value {
    let version =
        |own: &&AggregatedVersion| json!({"groupVersion": format!("{group}/{}", own.version), "version": own.version});
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
}

/// Returns the group in aggregated discovery. A version that does not answer is stale, and has no resources.
pub(crate) fn group_discovery(group: &str, versions: &[(&AggregatedVersion, Option<Arc<Value>>)]) -> Value {
    let version = |(own, list): &(&AggregatedVersion, Option<Arc<Value>>)| {
        let freshness = if list.is_some() { "Current" } else { "Stale" };
        let resources = list.as_ref().map(|list| resource_discovery(list, group, &own.version)).unwrap_or_default();
        json!({"version": own.version, "resources": resources, "freshness": freshness})
    };
    json!({"metadata": {"name": group}, "versions": versions.iter().map(version).collect::<Vec<_>>()})
}

/// Converts an `APIResourceList` to the form of aggregated discovery.
fn resource_discovery(list: &Value, group: &str, version: &str) -> Vec<Value> {
    let all = list["resources"].as_array().map_or(&[][..], Vec::as_slice);
    let name = |own: &Value| own["name"].as_str().unwrap_or_default().to_owned();
    let kind_of = |own: &Value| {
        let text = |field: &str, default: &str| {
            own[field].as_str().filter(|text| !text.is_empty()).unwrap_or(default).to_owned()
        };
        json!({"group": text("group", group), "version": text("version", version), "kind": own["kind"]})
    };
    let of_parent = |parent: &str| {
        let subresources = all.iter().filter_map(|own| {
            let full = name(own);
            let subresource = full.strip_prefix(parent)?.strip_prefix('/')?;
            Some(json!({"subresource": subresource, "responseKind": kind_of(own), "verbs": own["verbs"]}))
        });
        subresources.collect::<Vec<_>>()
    };
    let top = all.iter().filter(|own| !name(own).contains('/'));
    top.map(|own| {
        let mut entry = json!({
            "resource": own["name"], "responseKind": kind_of(own), "singularResource": own["singularName"],
            "scope": if own["namespaced"] == true { "Namespaced" } else { "Cluster" }, "verbs": own["verbs"],
        });
        for field in ["shortNames", "categories"] {
            if own[field].is_array() {
                entry[field] = own[field].clone();
            }
        }
        let subresources = of_parent(&name(own));
        if !subresources.is_empty() {
            entry["subresources"] = subresources.into();
        }
        entry
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(group: &str, version: &str, priorities: (i64, i64)) -> AggregatedVersion {
        AggregatedVersion {
            group: group.into(),
            version: version.into(),
            priorities,
            revision: 1,
            endpoint: Err("none".into()),
        }
    }

    #[test]
    fn groups_come_by_their_priorities() {
        let all = [version("a.io", "v1", (10, 1)), version("b.io", "v1", (20, 1)), version("a.io", "v2", (10, 5))];
        let groups = by_group(&all);
        let named: Vec<(&str, Vec<&str>)> = groups
            .iter()
            .map(|(group, versions)| (*group, versions.iter().map(|own| own.version.as_str()).collect()))
            .collect();
        assert_eq!(named, [("b.io", vec!["v1"]), ("a.io", vec!["v2", "v1"])]);
        assert_eq!(api_group("a.io", &groups[1].1)["preferredVersion"]["groupVersion"], "a.io/v2");
    }

    #[test]
    fn resources_are_shown_in_the_aggregated_form() {
        let list = json!({"kind": "APIResourceList", "groupVersion": "a.io/v1", "resources": [
            {"name": "widgets", "singularName": "widget", "namespaced": true, "kind": "Widget", "verbs": ["get"], "shortNames": ["w"]},
            {"name": "widgets/scale", "singularName": "", "namespaced": true, "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get"]},
        ]});
        let own = version("a.io", "v1", (1, 1));
        let group = group_discovery("a.io", &[(&own, Some(Arc::new(list)))]);
        assert_eq!(group["versions"][0]["freshness"], "Current");
        assert_eq!(
            group["versions"][0]["resources"],
            json!([{
                "resource": "widgets", "singularResource": "widget", "scope": "Namespaced", "verbs": ["get"], "shortNames": ["w"],
                "responseKind": {"group": "a.io", "version": "v1", "kind": "Widget"},
                "subresources": [{"subresource": "scale", "verbs": ["get"],
                    "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}}],
            }])
        );
        assert_eq!(group_discovery("a.io", &[(&own, None)])["versions"][0]["freshness"], "Stale");
    }
}
