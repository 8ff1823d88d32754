//! Trees without their variable parts.

use serde_json::{Map, Value, json};

use super::text;

/// API groups of Portolan, of workspaces and of credentials from tokens, which no kube-apiserver has.
pub(super) const OURS: [&str; 3] = ["portolan.dev", "kcp.io", "concierge.pinniped.dev"];

/// Verb on the path `/` that enters a logical cluster, as in kcp; all users have it by a rule that kube-apiserver
/// lacks.
const ENTER: &str = "access";

/// Normalizes in place.
pub(super) fn settle(value: &mut Value) {
    if is_collection(value) {
        settle_list_metadata(value);
    }
    without_placement_column(value);
    settle_generated(value);
    if value.get("openapi").is_some() || value.get("swagger").is_some() {
        super::openapi::settle(value);
    }
    walk(value, "");
    if let Value::Array(events) = value {
        events.retain(|event| !is_plain_bookmark(event));
        events.iter_mut().filter(|event| event["type"] == "BOOKMARK").for_each(|event| {
            settle_list_metadata(&mut event["object"]);
        });
    }
}

fn is_collection(value: &Value) -> bool {
    value["kind"].as_str().is_some_and(|kind| kind.ends_with("List") || kind == "Table" || kind == "Status")
}

/// A generated name also appears in labels and elsewhere.
fn settle_generated(object: &mut Value) {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    let (prefix, name) = (text("generateName"), text("name"));
    if !prefix.is_empty() && name.len() == prefix.len() + 5 && name.starts_with(&prefix) {
        replace(object, &name, &format!("{prefix}<5>"));
    }
}

fn replace(value: &mut Value, name: &str, settled: &str) {
    match value {
        Value::String(text) if text == name => settled.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, name, settled)),
        Value::Object(map) => map.values_mut().for_each(|value| replace(value, name, settled)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A list has a revision, and its pages have a continue token.
fn settle_list_metadata(list: &mut Value) {
    if let Some(metadata) = list.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in ["resourceVersion", "continue"] {
            if metadata.get(key).is_some_and(|value| value.as_str().is_some_and(|text| !text.is_empty())) {
                metadata.insert(key.to_owned(), format!("<{key}>").into());
            }
        }
    }
}

/// Servers choose when to send bookmarks, except the one that ends the initial events.
fn is_plain_bookmark(event: &Value) -> bool {
    event["type"] == "BOOKMARK" && event["object"]["metadata"].get("annotations").is_none()
}

fn walk(value: &mut Value, key: &str) {
    match value {
        Value::String(text) => *text = string(text, key),
        Value::Array(items) => list(items, key),
        Value::Object(map) => object(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn object(map: &mut Map<String, Value>) {
    let status_of_rules = map.contains_key("incomplete");
    if map.get("kind").is_some_and(|kind| kind == "Table") {
        settle_cells(map);
    }
    // kube-apiserver lists roles in the order of a cache, and conflicts in that of a Go map.
    let is_conflict = |cause: &Value| cause["reason"] == "FieldManagerConflict";
    for (key, list) in map.iter_mut().filter_map(|(key, value)| Some((key.as_str(), value.as_array_mut()?))) {
        let is_rules = status_of_rules && ["resourceRules", "nonResourceRules"].contains(&key);
        if is_rules {
            list.retain(|rule| *rule != json!({"nonResourceURLs": ["/"], "verbs": [ENTER]}));
        }
        if is_rules || key == "causes" && list.iter().all(is_conflict) {
            list.sort_by_cached_key(Value::to_string);
        }
    }
    if map.get("k8s").is_some_and(|message| message["1"]["2"] == "SelfSubjectRulesReview") {
        map.values_mut().for_each(settle_rules_in_protobuf);
    }
    if let Some(prefix) = map.get("generateName").and_then(Value::as_str).map(str::to_owned)
        && let Some(Value::String(name)) = map.get_mut("name")
        && name.len() == prefix.len() + 5
        && name.starts_with(&prefix)
    {
        *name = format!("{prefix}<5>");
    }
    if map.get("reason").is_some_and(|reason| reason == "Invalid") {
        settle_causes(map);
    }
    map.retain(|key, _| !OURS.iter().any(|own| is_path_of(key, own)));
    for (key, value) in map.iter_mut() {
        walk(value, key);
    }
}

/// Sorts the causes of an invalid custom object or schema: kube-apiserver reports them in the order of a Go map.
fn settle_causes(map: &mut Map<String, Value>) {
    let group = map.get("details").map(|details| details["group"].clone()).unwrap_or_default();
    let is_custom = group.as_str().is_some_and(|group| group.ends_with("example.com"));
    let Some(causes) = map.get_mut("details").and_then(|details| details["causes"].as_array_mut()) else { return };
    if !is_custom {
        return;
    }
    causes.sort_by_cached_key(Value::to_string);
    let text = |cause: &Value, key: &str| cause[key].as_str().unwrap_or_default().to_owned();
    let all: Vec<String> =
        causes.iter().map(|cause| format!("{}: {}", text(cause, "field"), text(cause, "message"))).collect();
    if let Some(Value::String(message)) = map.get_mut("message")
        && let Some((start, _)) = message.split_once(" is invalid: ")
    {
        *message = format!("{start} is invalid: {}", all.join(", "));
    }
}

/// Sorts all lists, since without field names it is unknown which are ordered, and leaves the rule of entry out.
fn settle_rules_in_protobuf(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.retain(|item| *item != json!({"1": ENTER, "2": "/"}));
            items.iter_mut().for_each(settle_rules_in_protobuf);
            items.sort_by_cached_key(Value::to_string);
        }
        Value::Object(map) => map.values_mut().for_each(settle_rules_in_protobuf),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// `apis/portolan.dev/v1alpha1` in the index of OpenAPI.
fn is_path_of(key: &str, group: &str) -> bool {
    key.trim_start_matches('/').starts_with("apis/") && key.contains(group)
}

fn list(items: &mut Vec<Value>, key: &str) {
    if ["items", "groups", "paths"].contains(&key) {
        items.retain(|item| !is_ours(item));
    }
    items.iter_mut().for_each(|item| walk(item, key));
    if key == "managedFields" {
        // Entries of the same second are ordered; those of different seconds are not.
        items.sort_by_cached_key(|entry| {
            ["manager", "operation", "subresource", "apiVersion"]
                .map(|key| entry[key].as_str().unwrap_or_default().to_owned())
        });
    }
}

fn is_ours(item: &Value) -> bool {
    let names = [item, &item["name"], &item["metadata"]["name"]];
    let is_group = item.get("versions").is_some() || item.is_string();
    is_group && names.into_iter().filter_map(Value::as_str).any(|name| OURS.iter().any(|own| name.contains(own)))
}

/// Portolan's tables have a placement column. Only the first event of a watch has the columns.
fn without_placement_column(value: &mut Value) {
    let tables: Vec<&mut Value> = match value {
        Value::Array(events) => events.iter_mut().filter_map(|event| event.get_mut("object")).collect(),
        single => vec![single],
    };
    let mut place = None;
    for table in tables.into_iter().filter(|table| table["kind"] == "Table") {
        if let Some(columns) = table.get_mut("columnDefinitions").and_then(Value::as_array_mut) {
            let found = columns.iter().position(|column| column["name"] == "Clusters" && column["priority"] == 1);
            place = place.or(found);
            found.inspect(|place| drop(columns.remove(*place)));
        }
        for row in table.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
            let cells = row.get_mut("cells").and_then(Value::as_array_mut);
            if let (Some(place), Some(cells)) = (place, cells)
                && place < cells.len()
            {
                cells.remove(place);
            }
        }
    }
}

fn settle_cells(table: &mut Map<String, Value>) {
    let rows = table.get_mut("rows").and_then(Value::as_array_mut);
    let cells = rows.into_iter().flatten().filter_map(|row| row.get_mut("cells")?.as_array_mut());
    for cell in cells.flatten() {
        if cell.as_str().is_some_and(text::is_age) {
            *cell = "<age>".into();
        }
    }
}

fn string(text: &str, key: &str) -> String {
    match key {
        _ if is_token(text) => "<token>".to_owned(),
        "serverAddress" => "<address>".to_owned(),
        "serverRelativeURL" => without_hash(text),
        "hash" => "<hash>".to_owned(),
        _ => super::text::without_varying(text),
    }
}

/// Removes the hash from the address of a document.
pub(super) fn without_hash(text: &str) -> String {
    text.split("hash=").next().unwrap_or_default().to_owned()
}

/// Matches three parts of base64 of which the first begins with `{"`. In protobuf no field name identifies tokens.
fn is_token(text: &str) -> bool {
    text.starts_with("eyJ") && text.bytes().filter(|byte| *byte == b'.').count() == 2 && !text.contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_settled() {
        for (case, value, expected) in [
            (
                "a list is at some revision",
                json!({"kind": "PodList", "metadata": {"resourceVersion": "5", "continue": "x"}}),
                json!({"kind": "PodList", "metadata": {"resourceVersion": "<resourceVersion>", "continue": "<continue>"}}),
            ),
            (
                "a generated name keeps its beginning",
                json!({"metadata": {"generateName": "a-", "name": "a-x2b4z"}}),
                json!({"metadata": {"generateName": "a-", "name": "a-<5>"}}),
            ),
            ("a token is one wherever it stands", json!({"3": {"1": "eyJh.eyJi.c-d"}}), json!({"3": {"1": "<token>"}})),
            (
                "cells show ages",
                json!({"kind": "Table", "rows": [{"cells": ["web", "3s", 1]}]}),
                json!({"kind": "Table", "rows": [{"cells": ["web", "<age>", 1]}]}),
            ),
            (
                "Portolan's own column is left out, also where columns are not repeated",
                json!([
                    {"type": "ADDED", "object": {"kind": "Table", "columnDefinitions": [{"name": "Name"}, {"name": "Clusters", "priority": 1}], "rows": [{"cells": ["a", "east"]}]}},
                    {"type": "ADDED", "object": {"kind": "Table", "rows": [{"cells": ["b", "east"]}]}},
                ]),
                json!([
                    {"type": "ADDED", "object": {"kind": "Table", "columnDefinitions": [{"name": "Name"}], "rows": [{"cells": ["a"]}]}},
                    {"type": "ADDED", "object": {"kind": "Table", "rows": [{"cells": ["b"]}]}},
                ]),
            ),
            (
                "bookmarks are left out but for the one that counts",
                json!([
                    {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "1"}}},
                    {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "1", "annotations": {"a": "b"}}}},
                ]),
                json!([
                    {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "<resourceVersion>", "annotations": {"a": "b"}}}},
                ]),
            ),
            (
                "our own groups are left out of discovery",
                json!({"groups": [{"name": "apps", "versions": []}, {"name": "tenancy.kcp.io", "versions": []}]}),
                json!({"groups": [{"name": "apps", "versions": []}]}),
            ),
            (
                "the rule that lets users enter is left out, and others of its path stay",
                json!({"incomplete": false, "nonResourceRules": [
                    {"nonResourceURLs": ["/"], "verbs": ["access"]}, {"nonResourceURLs": ["/"], "verbs": ["get"]},
                ]}),
                json!({"incomplete": false, "nonResourceRules": [{"nonResourceURLs": ["/"], "verbs": ["get"]}]}),
            ),
            (
                "that rule is left out of protobuf, too",
                json!({"k8s": {"1": {"2": "SelfSubjectRulesReview"}, "2": {"4": {"2": [
                    {"1": "access", "2": "/"}, {"1": "get", "2": "/healthz"},
                ]}}}}),
                json!({"k8s": {"1": {"2": "SelfSubjectRulesReview"}, "2": {"4": {"2": [{"1": "get", "2": "/healthz"}]}}}}),
            ),
        ] {
            let mut settled = value;
            settle(&mut settled);
            assert_eq!(settled, expected, "{case}");
        }
    }
}
