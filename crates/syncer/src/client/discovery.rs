//! Which of the allowed resources a physical cluster serves, in which version and scope.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use portolan_types::{GroupResource, GroupVersion, GroupVersionKind};
use serde_json::Value;

use super::{Api, DownstreamError, encode};
use crate::rules::{SyncRules, version_of};

/// A resource as the physical cluster serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) resource: GroupResource,
    pub(crate) kind: GroupVersionKind,
    pub(crate) namespaced: bool,
}

impl Served {
    /// The path of all its objects, of those in a namespace, or of one.
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

    /// Namespaces themselves, which every Kubernetes serves.
    pub(crate) fn namespaces() -> Self {
        Self {
            resource: GroupResource::new("", "namespaces"),
            kind: GroupVersionKind::new("", "v1", "Namespace"),
            namespaced: false,
        }
    }
}

fn root(version: &GroupVersion) -> String {
    match &*version.group {
        "" => format!("/api/{}", version.version),
        group => format!("/apis/{group}/{}", version.version),
    }
}

/// Asks for every resource that goes down or is shown above. What the physical cluster says it does not serve is left out.
///
/// # Errors
/// When any part of the answer is missing: half a discovery is none.
pub(crate) async fn discover(api: &Api, rules: &SyncRules) -> Result<HashMap<GroupResource, Served>, DownstreamError> {
    let preferred = preferred_versions(api).await?;
    let mut by_version: BTreeMap<GroupVersion, BTreeSet<GroupResource>> = BTreeMap::new();
    for resource in rules.watched() {
        let version = version_of(&resource).or_else(|| preferred.get(&*resource.group).map(String::as_str));
        let version = version.map(|version| GroupVersion::new(&*resource.group, version));
        if let Some(version) = version {
            by_version.entry(version).or_default().insert(resource);
        }
    }
    let mut served = HashMap::new();
    for (version, resources) in by_version {
        let known = version.group.is_empty() || preferred.contains_key(&*version.group);
        let list = match known {
            true => api.get(&root(&version)).await,
            false => continue,
        };
        match list {
            Ok(list) => served.extend(found(&version, &resources, &list)),
            Err(error) if error.code() == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(served)
}

async fn preferred_versions(api: &Api) -> Result<HashMap<String, String>, DownstreamError> {
    let groups = api.get("/apis").await?;
    let list = groups["groups"].as_array().ok_or_else(|| DownstreamError::Garbled("/apis lists no groups".into()))?;
    let pair = |group: &Value| {
        let name = group["name"].as_str()?.to_owned();
        Some((name, group["preferredVersion"]["version"].as_str()?.to_owned()))
    };
    Ok(list.iter().filter_map(pair).collect())
}

fn found(version: &GroupVersion, wanted: &BTreeSet<GroupResource>, list: &Value) -> Vec<(GroupResource, Served)> {
    let entries = list["resources"].as_array().into_iter().flatten();
    entries
        .filter_map(|entry| {
            let resource = GroupResource::new(version.group.clone(), entry["name"].as_str()?);
            let namespaced = entry["namespaced"].as_bool()?;
            let kind = version.kind(entry["kind"].as_str()?);
            wanted.contains(&resource).then(|| (resource.clone(), Served { resource, kind, namespaced }))
        })
        .collect()
}
