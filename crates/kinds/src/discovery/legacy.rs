//! The documents of `/api`, `/apis` and below that are one per group and version.

use std::borrow::Borrow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_types::GroupVersion;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::order::{Versions, groups};
use crate::{Kind, Subresource};

/// Returns `/api`: the versions of the core group. `address` is the server's own `host:port`.
pub fn api_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// Returns `/apis`: all groups but the core group.
pub fn api_group_list<K: Borrow<Kind>>(kinds: &[K]) -> Value {
    let named = groups(kinds).into_iter().filter(|(group, _)| !group.is_empty());
    let list: Vec<Value> = named.map(|(group, versions)| Value::Object(group_entry(group, &versions))).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list})
}

/// Returns `/apis/{group}`; `None` if there is no such group.
pub fn api_group<K: Borrow<Kind>>(kinds: &[K], group: &str) -> Option<Value> {
    let (_, versions) = groups(kinds).into_iter().find(|(known, _)| *known == group && !group.is_empty())?;
    let mut document = group_entry(group, &versions);
    document.insert("kind".into(), "APIGroup".into());
    document.insert("apiVersion".into(), "v1".into());
    Some(Value::Object(document))
}

fn group_entry(group: &str, Versions(versions): &Versions<'_>) -> Map<String, Value> {
    let entry = |version: &str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let all: Vec<Value> = versions.iter().map(|(version, _)| entry(version)).collect();
    Map::from_iter([
        ("name".to_owned(), group.into()),
        ("preferredVersion".to_owned(), all.first().cloned().unwrap_or_default()),
        ("versions".to_owned(), all.into()),
    ])
}

/// Returns `/api/v1`, which does not name its own version, or `/apis/{group}/{version}`; `None` if there is no such
/// version.
pub fn api_resource_list<K: Borrow<Kind>>(kinds: &[K], version: &GroupVersion) -> Option<Value> {
    let (_, Versions(versions)) = groups(kinds).into_iter().find(|(group, _)| **group == *version.group)?;
    let (_, kinds) = versions.into_iter().find(|(known, _)| **known == *version.version)?;
    let mut resources = Vec::new();
    for kind in kinds {
        resources.push(resource(kind));
        resources.extend(kind.subresources.iter().map(|sub| subresource(kind, sub)));
    }
    let mut list = json!({"kind": "APIResourceList", "groupVersion": version.to_string(), "resources": resources});
    if !version.group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

fn resource(kind: &Kind) -> Value {
    let mut entry = json!({
        "name": &*kind.resource,
        "singularName": &*kind.singular,
        "namespaced": kind.namespaced,
        "kind": &*kind.gvk.kind,
        "verbs": kind.listed_verbs(),
    });
    if !kind.short_names.is_empty() {
        entry["shortNames"] = json!(&kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(&kind.categories);
    }
    if kind.has_verb("create") && kind.has_verb("list") {
        entry["storageVersionHash"] = storage_version_hash(kind).into();
    }
    entry
}

/// Returns a hash that changes with the stored version of the objects.
fn storage_version_hash(kind: &Kind) -> String {
    let stored = format!("{}/{}/{}", kind.storage.group, kind.storage.version, kind.gvk.kind);
    STANDARD.encode(&Sha256::digest(stored)[..8])
}

/// Returns a subresource; group and version are set if they differ from the list's.
fn subresource(kind: &Kind, sub: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", kind.resource, sub.name),
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": &*sub.gvk.kind,
        "verbs": &sub.verbs,
    });
    if sub.gvk.group_version() != kind.group_version() {
        entry["group"] = json!(&*sub.gvk.group);
        entry["version"] = json!(&*sub.gvk.version);
    }
    entry
}
