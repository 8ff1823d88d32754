//! A schema as OpenAPI documents show it (apiextensions `controller/openapi/builder`).

use serde_json::{Map, Value, json};

use super::Names;

const CONVENTIONS: &str = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
const OBJECT_META: &str = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// Returns the published schema of a version, with the fields that all objects have.
pub(super) fn published(version: &Value) -> Value {
    let schema = version.pointer("/schema/openAPIV3Schema").and_then(Value::as_object);
    let Some(mut schema) = schema.cloned() else { return json!({"type": "object"}) };
    complete(&mut schema);
    let (version_text, kind_text) = texts();
    put_meta(&mut schema, &version_text, &kind_text);
    let selectable = version.get("selectableFields").and_then(Value::as_array).into_iter().flatten();
    let paths = selectable.filter_map(|field| field.get("jsonPath")?.as_str());
    let fields: Vec<Value> = paths.map(|path| json!({"fieldPath": path.trim_start_matches('.')})).collect();
    if !fields.is_empty() {
        schema.insert(SELECTABLE.to_owned(), fields.into());
    }
    Value::Object(schema)
}

/// Returns the schema of lists of objects that have a schema.
pub(super) fn list(names: &Names, name: &str, selectable: &[Box<str>]) -> Value {
    let mut list = Map::from_iter([
        ("description".to_owned(), format!("{} is a list of {}", names.list_kind, names.kind).into()),
        ("required".to_owned(), json!(["items"])),
        ("type".to_owned(), "object".into()),
    ]);
    let (version, kind) = texts();
    put_meta(&mut list, &version, &kind);
    let text = format!("List of {}. More info: {CONVENTIONS}", names.plural);
    list["properties"]["items"] = json!({
        "description": text, "type": "array", "items": {"$ref": format!("#/components/schemas/{name}")},
    });
    list["properties"]["metadata"] = json!({
        "allOf": [{"$ref": LIST_META}], "description": format!("Standard list metadata. More info: {CONVENTIONS}#types-kinds"),
    });
    if !selectable.is_empty() {
        list.insert(SELECTABLE.to_owned(), selectable.iter().map(|path| json!({"fieldPath": path})).collect());
    }
    Value::Object(list)
}

const SELECTABLE: &str = "x-kubernetes-selectable-fields";

/// Returns the descriptions of `apiVersion` and `kind`.
fn texts() -> (String, String) {
    let version = format!(
        "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: {CONVENTIONS}#resources"
    );
    let kind = format!(
        "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: {CONVENTIONS}#types-kinds"
    );
    (version, kind)
}

fn put_meta(schema: &mut Map<String, Value>, version: &str, kind: &str) {
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    properties["apiVersion"] = json!({"type": "string", "description": version});
    properties["kind"] = json!({"type": "string", "description": kind});
    properties["metadata"] = json!({
        "allOf": [{"$ref": OBJECT_META}], "description": format!("Standard object's metadata. More info: {CONVENTIONS}#metadata"),
    });
}

/// Writes extensions out in plain OpenAPI, for readers that do not know them.
fn complete(schema: &mut Map<String, Value>) {
    if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        int_or_string(schema);
    }
    for name in ["items", "additionalProperties"] {
        schema.get_mut(name).and_then(Value::as_object_mut).into_iter().for_each(complete);
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flatten().filter_map(|(_, property)| property.as_object_mut()).for_each(complete);
    if schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)) {
        embedded(schema);
    }
}

fn int_or_string(schema: &mut Map<String, Value>) {
    let both = json!([{"type": "integer"}, {"type": "string"}]);
    let says = schema.get("anyOf") == Some(&both)
        || schema.get("allOf").and_then(|all| all.pointer("/0/anyOf")) == Some(&both);
    if says {
        return;
    }
    if !schema.contains_key("anyOf") {
        schema.insert("anyOf".into(), both);
        return;
    }
    let all = schema.entry("allOf").or_insert_with(|| json!([]));
    if let Some(all) = all.as_array_mut() {
        all.insert(0, json!({"anyOf": both}));
    }
}

fn embedded(schema: &mut Map<String, Value>) {
    let version = format!(
        "apiVersion defines the versioned schema of this representation of an object. More info: {CONVENTIONS}#resources"
    );
    let kind = format!(
        "kind is a string value representing the type of this object. In CamelCase. More info: {CONVENTIONS}#types-kinds"
    );
    put_meta(schema, &version, &kind);
    let required = schema.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut() {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|own| own == name) {
                required.push(name.into());
            }
        }
    }
}
