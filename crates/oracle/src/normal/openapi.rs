//! OpenAPI documents without their equivalent variants.

use serde_json::{Map, Value};

use super::tree::OURS;

/// Removes the descriptions, which have other sources, and inlines parameters, which kube-apiserver shares.
pub(super) fn settle(document: &mut Value) {
    without_texts(document);
    if document.get("swagger").is_some()
        && let Some(Value::Object(shared)) = document.as_object_mut().and_then(|document| document.remove("parameters"))
    {
        with_parameters(document, &shared);
    }
}

fn without_texts(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(without_texts),
        Value::Object(map) => {
            map.retain(|key, value| !(key == "description" && value.is_string()));
            map.retain(|key, _| !["dev.portolan.", "io.kcp.", "dev.pinniped."].iter().any(|own| key.starts_with(own)));
            let kinds = map.get_mut("x-kubernetes-group-version-kind").and_then(Value::as_array_mut);
            kinds.into_iter().for_each(|kinds| kinds.retain(|kind| !is_ours(kind)));
            map.values_mut().for_each(without_texts);
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A kind of options exists in every version, including Portolan's.
fn is_ours(kind: &Value) -> bool {
    kind["group"].as_str().is_some_and(|group| OURS.iter().any(|own| group.ends_with(own)))
}

fn with_parameters(value: &mut Value, shared: &Map<String, Value>) {
    let name = value.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix("#/parameters/"));
    if let Some(parameter) = name.and_then(|name| shared.get(name)) {
        *value = parameter.clone();
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| with_parameters(item, shared)),
        Value::Object(map) => map.values_mut().for_each(|item| with_parameters(item, shared)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shared_parameters_stand_where_they_are_used() {
        let mut shared = json!({
            "swagger": "2.0", "parameters": {"limit": {"name": "limit", "description": "How many."}},
            "paths": {"/api": {"get": {"description": "A text.", "parameters": [{"$ref": "#/parameters/limit"}]}}},
            "definitions": {
                "io.kcp.Tree": {},
                "A": {"$ref": "#/definitions/B"},
                "C": {"x-kubernetes-group-version-kind": [{"group": "tenancy.kcp.io"}, {"group": "apps"}]},
            },
        });
        settle(&mut shared);
        let own = json!({
            "swagger": "2.0", "paths": {"/api": {"get": {"parameters": [{"name": "limit"}]}}},
            "definitions": {
                "A": {"$ref": "#/definitions/B"},
                "C": {"x-kubernetes-group-version-kind": [{"group": "apps"}]},
            },
        });
        assert_eq!(shared, own);
    }
}
