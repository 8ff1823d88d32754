//! Discovery: the resources that a physical cluster serves, of those that may be synced.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use futures::StreamExt as _;
use portolan_types::{BoxFuture, GroupResource, GroupVersion, GroupVersionKind, placement::MAX_CUSTOM_KINDS};
use serde_json::Value;

use super::{DownstreamClient, DownstreamError, encode};
use crate::rules::{SyncRules, is_custom, version_of};

/// Most versions of a custom kind that are looked at, the preferred one first.
const MAX_VERSIONS: usize = 8;
/// Deadline of an answer about a group of custom kinds, whose server may be another one that hangs.
const GROUP_DEADLINE: Duration = Duration::from_secs(5);
/// Groups of custom kinds that are read at a time.
const GROUPS_AT_A_TIME: usize = 16;
/// Longest name of a resource, kind or version, in bytes: as long as a label may be. They are kept and reported.
const MAX_NAME: usize = 63;

/// Resource as the physical cluster serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServedResource {
    pub(crate) resource: GroupResource,
    pub(crate) kind: GroupVersionKind,
    pub(crate) namespaced: bool,
    /// Versions of a custom kind that are served, the preferred one first; empty for resources of a fixed version.
    pub(crate) versions: Vec<String>,
}

impl ServedResource {
    /// Returns a resource that is served in one version.
    pub(crate) fn new(resource: GroupResource, kind: GroupVersionKind, namespaced: bool) -> Self {
        Self { resource, kind, namespaced, versions: Vec::new() }
    }

    /// Returns the path of all its objects, of those in a namespace, or of one.
    pub(crate) fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let mut path = root(&self.kind.group_version());
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            path = format!("{path}/namespaces/{}", encode(namespace));
        }
        path = format!("{path}/{}", self.resource.resource);
        match name {
            Some(name) => format!("{path}/{}", encode(name)),
            None => path,
        }
    }

    /// Returns the resource in the version of an upstream object; in its own version if that one is not served.
    pub(crate) fn in_version(self, version: &str) -> Self {
        if !self.versions.iter().any(|served| served == version) {
            return self;
        }
        let kind = GroupVersionKind::new(self.kind.group.clone(), version, self.kind.kind.clone());
        Self { kind, ..self }
    }

    /// Returns Secrets, which every Kubernetes cluster serves.
    pub(crate) fn secrets() -> Self {
        Self::new(GroupResource::new("", "secrets"), GroupVersionKind::new("", "v1", "Secret"), true)
    }

    /// Returns namespaces, which every Kubernetes cluster serves.
    pub(crate) fn namespaces() -> Self {
        Self::new(GroupResource::new("", "namespaces"), GroupVersionKind::new("", "v1", "Namespace"), false)
    }
}

/// Resources that a physical cluster serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Discovery {
    /// Resources that are synced or projected.
    pub(crate) served: HashMap<GroupResource, ServedResource>,
    /// Custom kinds that would be synced, were they namespaced.
    pub(crate) cluster_scoped: BTreeMap<GroupResource, String>,
    /// Groups of custom kinds whose server fails, as an aggregated one may: nothing is known of them.
    pub(crate) unknown: BTreeSet<String>,
}

impl Discovery {
    /// Adds the custom kinds among the resources of one version. Versions come in the order of preference.
    fn add_custom(&mut self, rules: &SyncRules, entries: Vec<ServedResource>) {
        for served in entries {
            if !is_custom(&served.resource) || !rules.allows(&served.resource, &served.kind.kind) {
                continue;
            }
            let version = served.kind.version.to_string();
            if !served.namespaced {
                if self.cluster_scoped.len() < MAX_CUSTOM_KINDS {
                    self.cluster_scoped.insert(served.resource, served.kind.kind.to_string());
                }
            } else if let Some(known) = self.served.get_mut(&served.resource) {
                known.versions.push(version);
            } else if self.served.len() < MAX_CUSTOM_KINDS {
                let served = ServedResource { versions: vec![version], ..served };
                self.served.insert(served.resource.clone(), served);
            }
        }
    }
}

fn root(version: &GroupVersion) -> String {
    match &*version.group {
        "" => format!("/api/{}", version.version),
        group => format!("/apis/{group}/{}", version.version),
    }
}

/// Reads all resources that are synced or projected. Resources that the physical cluster reports as not served are
/// omitted.
///
/// # Errors
/// Fails if any part of the answer is missing, except the groups of custom kinds: an incomplete discovery is useless.
pub(crate) async fn discover(api: &DownstreamClient, rules: &SyncRules) -> Result<Discovery, DownstreamError> {
    let groups = group_versions(api).await?;
    let mut by_version: BTreeMap<GroupVersion, BTreeSet<GroupResource>> = BTreeMap::new();
    for resource in rules.watched().filter(|resource| !is_custom(resource)) {
        let preferred = || groups.get(&*resource.group).and_then(|versions| versions.first()).map(String::as_str);
        if let Some(version) = version_of(&resource).or_else(preferred) {
            by_version.entry(GroupVersion::new(&*resource.group, version)).or_default().insert(resource);
        }
    }
    let mut found = Discovery::default();
    for (version, resources) in by_version {
        let known = version.group.is_empty() || groups.contains_key(&*version.group);
        if !known {
            continue;
        }
        let entries = entries(api, &version).await?.unwrap_or_default();
        let fixed = entries.into_iter().filter(|served| resources.contains(&served.resource));
        found.served.extend(fixed.map(|served| (served.resource.clone(), served)));
    }
    let mut reading: Vec<BoxFuture<'static, _>> = Vec::new();
    for group in rules.custom_groups() {
        // The core group, of which resources can be named that are not synced by default, is not among the others.
        let core = || vec!["v1".to_owned()];
        let versions = if group.is_empty() { core() } else { groups.get(group).cloned().unwrap_or_default() };
        let (apart, group) = (api.apart(GROUP_DEADLINE), group.to_owned());
        reading.push(Box::pin(async move {
            let entries = group_entries(&apart, &group, &versions).await;
            (group, entries)
        }));
    }
    let mut answers = futures::stream::iter(reading).buffered(GROUPS_AT_A_TIME);
    while let Some((group, (entries, is_whole))) = answers.next().await {
        entries.into_iter().for_each(|entries| found.add_custom(rules, entries));
        if !is_whole {
            found.unknown.insert(group);
        }
    }
    Ok(found)
}

/// Reads the resources of the versions of a group of custom kinds. The second value is false if the server of a version
/// fails or does not answer, as an aggregated one may: it costs its group only.
async fn group_entries(api: &DownstreamClient, group: &str, versions: &[String]) -> (Vec<Vec<ServedResource>>, bool) {
    let (mut all, mut is_whole) = (Vec::new(), true);
    for version in versions.iter().take(MAX_VERSIONS) {
        match entries(api, &GroupVersion::new(group, version.as_str())).await {
            Ok(Some(entries)) => all.push(entries),
            // The version is listed, so it should be there.
            Ok(None) => is_whole = false,
            Err(DownstreamError::Unreachable(_)) => return (all, false),
            Err(DownstreamError::Refused(_) | DownstreamError::Garbled(_) | DownstreamError::Excessive(_)) => {
                is_whole = false;
            }
        }
    }
    (all, is_whole)
}

/// Returns the versions of each group, the preferred one first.
async fn group_versions(api: &DownstreamClient) -> Result<HashMap<String, Vec<String>>, DownstreamError> {
    let groups = api.get("/apis").await?;
    let list = groups["groups"].as_array().ok_or_else(|| DownstreamError::Garbled("/apis lists no groups".into()))?;
    let pair = |group: &Value| {
        let name = group["name"].as_str()?.to_owned();
        let preferred =
            group["preferredVersion"]["version"].as_str().filter(|version| version.len() <= MAX_NAME)?.to_owned();
        let all = group["versions"].as_array().into_iter().flatten();
        let others = all.filter_map(|version| version["version"].as_str());
        let others = others.filter(|other| **other != *preferred && other.len() <= MAX_NAME);
        let others: Vec<String> = others.take(MAX_VERSIONS).map(str::to_owned).collect();
        Some((name, std::iter::once(preferred).chain(others).collect()))
    };
    Ok(list.iter().filter_map(pair).collect())
}

/// Returns the resources of a version; `None` where it is not served.
async fn entries(
    api: &DownstreamClient,
    version: &GroupVersion,
) -> Result<Option<Vec<ServedResource>>, DownstreamError> {
    let list = match api.get(&root(version)).await {
        Ok(list) => list,
        Err(error) if error.code() == 404 => return Ok(None),
        Err(error) => return Err(error),
    };
    // An answer without a list does not say that nothing is served.
    if list["kind"] != "APIResourceList" {
        return Err(DownstreamError::Garbled(format!("{} is no list of resources", root(version))));
    }
    let served = |entry: &Value| {
        let name = entry["name"].as_str().filter(|name| !name.contains('/') && name.len() <= MAX_NAME)?;
        let resource = GroupResource::new(version.group.clone(), name);
        let kind = version.kind(entry["kind"].as_str().filter(|kind| kind.len() <= MAX_NAME)?);
        Some(ServedResource::new(resource, kind, entry["namespaced"].as_bool()?))
    };
    Ok(Some(list["resources"].as_array().into_iter().flatten().filter_map(served).collect()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::{Client, client::Body};
    use serde_json::json;

    use super::*;

    /// Answers a request for discovery. The server of `slow.io` never answers, and that of `half.io` fails for v1.
    async fn answer(request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let group = |name: &str, versions: &[&str]| {
            let versions: Vec<Value> = versions.iter().map(|version| json!({"version": version})).collect();
            json!({"name": name, "preferredVersion": versions[0], "versions": versions})
        };
        let resources = |resource: &str, kind: &str| {
            let resource = json!({"name": resource, "kind": kind, "namespaced": true});
            json!({"kind": "APIResourceList", "resources": [resource]})
        };
        let (code, body) = match request.uri().path() {
            "/apis" => (
                200,
                json!({"groups": [
                    group("slow.io", &["v1"]), group("half.io", &["v2", "v1"]), group("good.io", &["v1"]),
                ]}),
            ),
            "/apis/half.io/v2" => (200, resources("halves", "Half")),
            "/apis/half.io/v1" => (503, json!({"kind": "Status", "code": 503})),
            "/apis/good.io/v1" => (200, resources("goods", "Good")),
            path if path.starts_with("/apis/slow.io") => std::future::pending().await,
            _ => (200, json!({"kind": "APIResourceList", "resources": []})),
        };
        Ok(Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_whose_server_hangs_costs_no_other() {
        let client = Client::new(tower::service_fn(answer), "default");
        let api = DownstreamClient::new(client, Duration::from_secs(30));
        let rules = SyncRules::new(&["slows.slow.io", "halves.half.io", "goods.good.io"].map(str::to_owned));
        let begun = tokio::time::Instant::now();
        let found = discover(&api, &rules).await.unwrap();
        assert!(begun.elapsed() <= GROUP_DEADLINE, "{:?}", begun.elapsed());
        let versions = |resource: &str, group: &str| {
            found.served.get(&GroupResource::new(group, resource)).map(|served| served.versions.join(","))
        };
        assert_eq!(versions("goods", "good.io").as_deref(), Some("v1"));
        assert_eq!(versions("halves", "half.io").as_deref(), Some("v2"), "what is known of it");
        assert_eq!(found.unknown.iter().collect::<Vec<_>>(), ["half.io", "slow.io"]);
        assert!(api.get("/apis").await.is_ok(), "the physical cluster is not in doubt");
    }
}
