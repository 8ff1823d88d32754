//! The one OpenAPI v2 document of all group versions, made from their v3 documents.
//!
//! kubectl reads it where v3 does not answer: for `v1` `List` manifests, and for kinds that no document has. v2 cannot
//! express all of v3, so schemas lose defaults, `nullable` and `oneOf`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{
    document::{CUSTOM_TITLE, TITLE, group_version_kind, release, security, server_versions},
    operations::{ANSWERS, ANYTHING, media_type_rank},
};

const GVK: &str = "x-kubernetes-group-version-kind";
const CUSTOM_RESOURCES: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SELECTABLE: &str = "x-kubernetes-selectable-fields";
/// Properties of every embedded object, which its schema requires last.
const METADATA: [&str; 3] = ["apiVersion", "kind", "metadata"];
const EMBEDDED: [&str; 2] = ["kind", "apiVersion"];
/// The kinds that belong to every version, and where their types are.
const OPTIONS: [&str; 2] = ["DeleteOptions", "WatchEvent"];
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];

/// Returns the v2 document, from all v3 documents.
pub fn swagger<'a>(documents: impl IntoIterator<Item = &'a Value>) -> Value {
    let (mut paths, mut definitions) = (Map::new(), Map::new());
    for document in documents {
        let bodies = if document["info"]["title"] == CUSTOM_TITLE { json!(ANSWERS) } else { json!(ANYTHING) };
        for (path, item) in entries(&document["paths"]) {
            paths.insert(path.clone(), path_item(item, &bodies));
        }
        for (name, schema) in entries(&document["components"]["schemas"]) {
            let fresh = schema_of(schema);
            match definitions.get_mut(name) {
                Some(known) => join_kinds(known, &fresh),
                None => drop(definitions.insert(name.clone(), fresh)),
            }
        }
    }
    if !paths.contains_key(CUSTOM_RESOURCES) {
        forget_field_validation(&mut paths);
    }
    OPTIONS.iter().for_each(|kind| name_all_versions(&mut definitions, kind));
    json!({
        "swagger": "2.0",
        "info": {"title": TITLE, "version": release()},
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": security(),
        "security": [{"BearerToken": []}],
    })
}

/// A kind of every version is named in all that the server knows, not only in those that are served.
fn name_all_versions(definitions: &mut Map<String, Value>, kind: &'static str) {
    let Some(known) = definitions.get_mut(&format!("{META}{kind}")) else { return };
    let all: Vec<Value> = server_versions().map(|version| group_version_kind(&version.kind(kind))).collect();
    join_kinds(known, &json!({GVK: all}));
    if let Some(Value::Array(kinds)) = known.get_mut(GVK) {
        kinds.sort_by_cached_key(|gvk| {
            ["group", "version"].map(|part| gvk[part].as_str().unwrap_or_default().to_owned())
        });
    }
}

/// kubectl takes a Namespace with this parameter for a server that also lists custom resource definitions, and fails on
/// every kind that it does not know when it cannot.
fn forget_field_validation(paths: &mut Map<String, Value>) {
    let patch = paths.get_mut("/api/v1/namespaces/{name}").and_then(|item| item.pointer_mut("/patch/parameters"));
    if let Some(parameters) = patch.and_then(Value::as_array_mut) {
        parameters.retain(|parameter| parameter["name"] != "fieldValidation");
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Merges options kinds, which are in every document with the kind of its own version.
fn join_kinds(known: &mut Value, fresh: &Value) {
    let list = |schema: &Value| schema[GVK].as_array().cloned().unwrap_or_default();
    let mut all = list(known);
    let seen: BTreeSet<String> = all.iter().map(Value::to_string).collect();
    all.extend(list(fresh).into_iter().filter(|gvk| !seen.contains(&gvk.to_string())));
    if !all.is_empty() {
        known[GVK] = all.into();
    }
}

/// Returns the operations at a path. `bodies` are the media types of operations that name none.
fn path_item(item: &Value, bodies: &Value) -> Value {
    let mut out = Map::new();
    for (key, value) in entries(item) {
        let value = if METHODS.contains(&key.as_str()) {
            operation(value, bodies)
        } else {
            value.as_array().into_iter().flatten().map(parameter).collect()
        };
        out.insert(key.clone(), value);
    }
    Value::Object(out)
}

fn operation(from: &Value, bodies: &Value) -> Value {
    let mut out = Map::from_iter([("consumes".to_owned(), bodies.clone())]);
    let mut parameters: Vec<Value> = Vec::new();
    let mut produces = BTreeSet::new();
    for (key, value) in entries(from) {
        match key.as_str() {
            "parameters" => parameters.extend(value.as_array().into_iter().flatten().map(parameter)),
            "requestBody" => {
                let content = &value["content"];
                out.insert("consumes".to_owned(), ranked(entries(content).map(|(media, _)| media.as_str())));
                let schema = entries(content).next().map(|(_, content)| schema_of(&content["schema"]));
                let mut body = json!({"name": "body", "in": "body", "schema": schema});
                if value["required"] == true {
                    body["required"] = true.into();
                }
                parameters.push(body);
            }
            "responses" => {
                let answers = entries(value).map(|(code, answer)| (code.clone(), response(answer, &mut produces)));
                out.insert(key.clone(), Value::Object(answers.collect()));
            }
            _ => drop(out.insert(key.clone(), value.clone())),
        }
    }
    if !parameters.is_empty() {
        parameters.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
        out.insert("parameters".to_owned(), parameters.into());
    }
    let produces = ranked(produces.iter().map(String::as_str));
    if from.get("x-kubernetes-action").is_none() {
        // Paths without a resource: requests have the media types of responses, or none if those are text.
        if out.get("responses").is_some_and(|all| all["200"]["schema"]["$ref"].is_string()) {
            drop(out.insert("consumes".to_owned(), produces.clone()))
        } else {
            drop(out.remove("consumes"))
        }
    }
    out.insert("produces".to_owned(), produces);
    out.insert("schemes".to_owned(), json!(["https"]));
    Value::Object(out)
}

/// Sorts media types in kube-apiserver's order.
fn ranked<'a>(media_types: impl Iterator<Item = &'a str>) -> Value {
    let mut all: Vec<&str> = media_types.collect();
    all.sort_by_key(|media| media_type_rank(media));
    json!(all)
}

fn parameter(from: &Value) -> Value {
    let mut out = from.clone();
    if let Some(Value::Object(schema)) = out.as_object_mut().and_then(|own| own.remove("schema")) {
        for (key, value) in schema {
            out[key] = value;
        }
    }
    out
}

fn response(from: &Value, produces: &mut BTreeSet<String>) -> Value {
    let mut out = json!({"description": from["description"]});
    for (media, content) in entries(&from["content"]) {
        produces.insert(media.clone());
        out["schema"] = schema_of(&content["schema"]);
    }
    out
}

/// Returns a schema in the form of v2.
fn schema_of(from: &Value) -> Value {
    let mut out = Map::new();
    for (key, value) in entries(from) {
        match key.as_str() {
            "default" | "nullable" | "anyOf" | "not" => {}
            // Numbers are strings to v2's readers as well.
            "oneOf" if !says_more(from) => drop(out.insert("type".to_owned(), "string".into())),
            "oneOf" => {}
            "allOf" if !has_reference(value) => {}
            "$ref" => drop(out.insert(key.clone(), reference(value))),
            "allOf" => match value.as_array().map(Vec::as_slice) {
                Some([only]) => out.extend(entries(&schema_of(only)).map(|(key, value)| (key.clone(), value.clone()))),
                _ => drop(out.insert(key.clone(), each(value))),
            },
            "items" | "additionalProperties" if value.is_object() => drop(out.insert(key.clone(), schema_of(value))),
            "properties" => {
                let properties = entries(value).map(|(name, schema)| (name.clone(), schema_of(schema))).collect();
                out.insert(key.clone(), Value::Object(properties));
            }
            _ => drop(out.insert(key.clone(), value.clone())),
        }
    }
    trim(from, &mut out);
    Value::Object(out)
}

/// Removes parts that readers mistake: they take an absent part as unknown, null as a wrong type, and fail on empty
/// lists.
fn trim(from: &Value, out: &mut Map<String, Value>) {
    let is = |name: &str| from[name] == true;
    let (keeps, is_embedded) = (is("x-kubernetes-preserve-unknown-fields"), is("x-kubernetes-embedded-resource"));
    if keeps && from.get(GVK).is_some() {
        out.retain(|key, _| matches!(key.as_str(), GVK | SELECTABLE | "type"));
        return;
    }
    if is("nullable") {
        out.retain(|key, _| !matches!(key.as_str(), "type" | "properties" | "items"));
    } else if keeps {
        out.retain(|key, _| !matches!(key.as_str(), "properties" | "items"));
    }
    let is_open = keeps && from["type"] == "object";
    if is_open || (from["type"] == "array" && !out.contains_key("items")) {
        out.remove("type");
    }
    let is_nullable = |name: &Value| name.as_str().is_some_and(|name| from["properties"][name]["nullable"] == true);
    let (tells_fields, tells_values) =
        (out.contains_key("properties"), from["additionalProperties"]["nullable"] == true);
    if let Some(required) = out.get_mut("required").and_then(Value::as_array_mut) {
        if keeps && is_embedded && required.ends_with(&EMBEDDED.map(Value::from)) {
            required.truncate(required.len() - EMBEDDED.len());
        }
        required.retain(|name| !(tells_values || tells_fields && is_nullable(name)));
        if required.is_empty() {
            out.remove("required");
        }
    }
    if is_embedded && is("nullable") && !keeps {
        let properties = entries(&from["properties"]).filter(|(name, _)| METADATA.contains(&name.as_str()));
        let properties = properties.map(|(name, schema)| (name.clone(), schema_of(schema)));
        out.insert("properties".to_owned(), Value::Object(properties.collect()));
    }
}

/// Returns true if a schema describes its values by other keywords.
fn says_more(schema: &Value) -> bool {
    entries(schema).any(|(key, _)| key == "type" || key.starts_with("x-kubernetes-"))
}

fn has_reference(schemas: &Value) -> bool {
    schemas.as_array().into_iter().flatten().any(|schema| schema.get("$ref").is_some())
}

fn each(schemas: &Value) -> Value {
    schemas.as_array().into_iter().flatten().map(schema_of).collect()
}

fn reference(value: &Value) -> Value {
    value.as_str().map(|text| text.replace("#/components/schemas/", "#/definitions/")).into()
}
