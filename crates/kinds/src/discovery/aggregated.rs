//! The aggregated documents (`apidiscovery.k8s.io/v2`), which answer for all groups at once.

use std::borrow::Borrow;

use portolan_types::GroupVersionKind;
use serde_json::{Value, json};

use super::order::{Versions, groups};
use crate::{Kind, Subresource};

/// Returns the aggregated form of `/api`: the core group alone.
pub fn aggregated_core<K: Borrow<Kind>>(kinds: &[K]) -> Value {
    list(kinds, |group| group.is_empty())
}

/// Returns the aggregated form of `/apis`: all groups but the core group.
pub fn aggregated_groups<K: Borrow<Kind>>(kinds: &[K]) -> Value {
    list(kinds, |group| !group.is_empty())
}

fn list<K: Borrow<Kind>>(kinds: &[K], wanted: impl Fn(&str) -> bool) -> Value {
    let groups = groups(kinds).into_iter().filter(|(group, _)| wanted(group));
    let items: Vec<Value> = groups.map(|(group, versions)| entry(group, &versions)).collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn entry(group: &str, Versions(versions): &Versions<'_>) -> Value {
    let versions = versions.iter().map(|(version, kinds)| {
        let resources: Vec<Value> = kinds.iter().map(|kind| resource(kind)).collect();
        json!({"version": version, "resources": resources, "freshness": "Current"})
    });
    let versions: Vec<Value> = versions.collect();
    match group {
        "" => json!({"metadata": {}, "versions": versions}),
        group => json!({"metadata": {"name": group}, "versions": versions}),
    }
}

fn resource(kind: &Kind) -> Value {
    let mut entry = json!({
        "resource": &*kind.resource,
        "responseKind": response(kind, &kind.gvk),
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": &*kind.singular,
        "verbs": kind.listed_verbs(),
    });
    if !kind.short_names.is_empty() {
        entry["shortNames"] = json!(&kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(&kind.categories);
    }
    if !kind.subresources.is_empty() {
        entry["subresources"] = kind.subresources.iter().map(|sub| subresource(kind, sub)).collect();
    }
    entry
}

fn subresource(kind: &Kind, sub: &Subresource) -> Value {
    json!({"subresource": &*sub.name, "responseKind": response(kind, &sub.gvk), "verbs": &sub.verbs})
}

/// Returns the response kind; group and version are empty if they are the list's.
fn response(kind: &Kind, gvk: &GroupVersionKind) -> Value {
    let (group, version) =
        if gvk.group_version() == kind.group_version() { ("", "") } else { (&*gvk.group, &*gvk.version) };
    json!({"group": group, "version": version, "kind": &*gvk.kind})
}
