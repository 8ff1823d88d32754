//! Definitions behind exported resources: an APIResourceSchema describes a resource as a definition does.

use portolan_types::object;
use serde_json::{Map, Value, json};

/// Returns the definition of a schema, established under its names. Its uid is that of the schema.
pub fn definition_of_schema(schema: &Value) -> Value {
    let part = |pointer: &str| schema.pointer(pointer).unwrap_or(&Value::Null);
    let (group, mut names) = (part("/spec/group").clone(), part("/spec/names").clone());
    complete_names(&mut names);
    let plural = names.get("plural").and_then(Value::as_str).unwrap_or_default();
    let name = format!("{plural}.{}", group.as_str().unwrap_or_default());
    let versions = part("/spec/versions").as_array().map_or(&[][..], Vec::as_slice);
    let stored: Vec<_> = versions.iter().filter(|version| version.get("storage") == Some(&Value::Bool(true))).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name, "uid": object::meta_text(schema, "uid")},
        "spec": {
            "group": group,
            "names": names.clone(),
            "scope": part("/spec/scope"),
            "versions": versions.iter().map(version_of).collect::<Vec<_>>(),
            "conversion": conversion_of(part("/spec/conversion")),
        },
        "status": {
            "acceptedNames": names,
            "conditions": [
                {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts"},
                {"type": "Established", "status": "True", "reason": "InitialNamesAccepted"},
            ],
            "storedVersions": stored.iter().filter_map(|version| version.get("name")).collect::<Vec<_>>(),
        },
    })
}

fn complete_names(names: &mut Value) {
    let Some(fields) = names.as_object_mut() else { return };
    let kind = fields.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut complete = |key: &str, text: String| {
        if fields.get(key).and_then(Value::as_str).unwrap_or_default().is_empty() {
            fields.insert(key.into(), text.into());
        }
    };
    complete("singular", kind.to_lowercase());
    complete("listKind", format!("{kind}List"));
}

fn version_of(version: &Value) -> Value {
    let mut fields: Map<String, Value> = version.as_object().cloned().unwrap_or_default();
    let schema = fields.remove("schema").unwrap_or_default();
    fields.insert("schema".into(), json!({"openAPIV3Schema": schema}));
    if fields.get("subresources").and_then(Value::as_object).is_some_and(Map::is_empty) {
        fields.remove("subresources");
    }
    Value::Object(fields)
}

fn conversion_of(conversion: &Value) -> Value {
    if conversion.is_null() { json!({"strategy": "None"}) } else { conversion.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::custom::{Definition, compile};

    #[test]
    fn a_schema_compiles_as_a_definition() {
        let schema = json!({
            "metadata": {"name": "v1.widgets.example.dev", "uid": "u"},
            "spec": {
                "group": "example.dev", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "schema": {"type": "object"}, "subresources": {},
                }],
            },
        });
        let crd = definition_of_schema(&schema);
        let definition = Definition::read(&crd, || compile(&crd).ok().map(std::sync::Arc::new));
        assert!(definition.is_established && !definition.needs_look(), "{crd}");
        let table = definition.table.expect("it compiles");
        let kind = table.resource("example.dev", "v1", "widgets").expect("its kind");
        assert_eq!((&*kind.singular, kind.list_kind.as_deref()), ("widget", Some("WidgetList")));
    }
}
