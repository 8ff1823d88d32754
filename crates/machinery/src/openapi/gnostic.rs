//! The OpenAPI v2 document as protobuf: the message `openapi.v2.Document` of gnostic (`openapiv2/OpenAPIv2.proto`), which is
//! the only form that client-go reads. Extensions travel in it as YAML texts; JSON is YAML.

use std::convert::Infallible;

use serde_json::Value;

use crate::protobuf::{bytes, message, number};

/// The media type of the message. Clients ask for it with `v2@v1.0`, which is no valid media type to answer with.
pub const SWAGGER_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// What can be said about schemas and parameters, by field number of each message.
const SCHEMA: &[(&str, u32)] = &[("$ref", 1), ("format", 2), ("title", 3), ("description", 4), ("pattern", 13)];
const QUERY: &[(&str, u32)] = &[("in", 2), ("description", 3), ("name", 4), ("type", 6), ("format", 7)];
const PATH: &[(&str, u32)] = &[("in", 2), ("description", 3), ("name", 4), ("type", 5), ("format", 6)];
const BODY: &[(&str, u32)] = &[("description", 1), ("name", 2), ("in", 3)];
const OPERATION: &[(&str, u32)] = &[("summary", 2), ("description", 3), ("operationId", 5)];
const OPERATION_LISTS: &[(&str, u32)] = &[("tags", 1), ("produces", 6), ("consumes", 7), ("schemes", 10)];
const METHODS: &[(&str, u32)] =
    &[("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("options", 6), ("head", 7), ("patch", 8)];

/// Encodes what [`super::swagger`] made.
pub fn swagger_protobuf(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    texts(&mut out, document, &[("swagger", 1)]);
    part(&mut out, 2, |out| texts(out, &document["info"], &[("title", 1), ("version", 2)]));
    part(&mut out, 8, |out| named(out, 2, &document["paths"], path_item));
    part(&mut out, 9, |out| named(out, 1, &document["definitions"], schema));
    part(&mut out, 12, |out| {
        for (name, _) in document["security"].as_array().into_iter().flatten().flat_map(entries) {
            part(out, 1, |out| {
                bytes(out, 1, name.as_bytes());
                part(out, 2, |_| ());
            });
        }
    });
    part(&mut out, 13, |out| {
        named(out, 1, &document["securityDefinitions"], |out, definition| {
            part(out, 2, |out| texts(out, definition, &[("type", 1), ("name", 2), ("in", 3)]));
        });
    });
    out
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// A message within a message.
pub(super) fn part(out: &mut Vec<u8>, at: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let Ok(()) = message(out, at, |out| {
        write(out);
        Ok::<(), Infallible>(())
    });
}

/// The strings of an object that have a field.
pub(super) fn texts(out: &mut Vec<u8>, from: &Value, fields: &[(&str, u32)]) {
    for (name, at) in fields {
        if let Some(text) = from[*name].as_str() {
            bytes(out, *at, text.as_bytes());
        }
    }
}

pub(super) fn text_list(out: &mut Vec<u8>, at: u32, list: &Value) {
    for text in list.as_array().into_iter().flatten().filter_map(Value::as_str) {
        bytes(out, at, text.as_bytes());
    }
}

/// A map as gnostic has it: pairs of name and value.
pub(super) fn named(out: &mut Vec<u8>, at: u32, map: &Value, write: impl Fn(&mut Vec<u8>, &Value)) {
    for (name, value) in entries(map) {
        part(out, at, |out| {
            bytes(out, 1, name.as_bytes());
            part(out, 2, |out| write(out, value));
        });
    }
}

pub(super) fn any(out: &mut Vec<u8>, at: u32, value: &Value) {
    part(out, at, |out| bytes(out, 2, value.to_string().as_bytes()));
}

pub(super) fn extensions(out: &mut Vec<u8>, at: u32, from: &Value) {
    for (name, value) in entries(from).filter(|(name, _)| name.starts_with("x-")) {
        part(out, at, |out| {
            bytes(out, 1, name.as_bytes());
            any(out, 2, value);
        });
    }
}

pub(super) fn flag(out: &mut Vec<u8>, at: u32, value: &Value) {
    if value == &Value::Bool(true) {
        number(out, at, 1);
    }
}

fn path_item(out: &mut Vec<u8>, item: &Value) {
    for (method, at) in METHODS {
        if item[*method].is_object() {
            part(out, *at, |out| operation(out, &item[*method]));
        }
    }
    parameters(out, 9, &item["parameters"]);
}

fn operation(out: &mut Vec<u8>, own: &Value) {
    texts(out, own, OPERATION);
    for (name, at) in OPERATION_LISTS {
        text_list(out, *at, &own[*name]);
    }
    parameters(out, 8, &own["parameters"]);
    part(out, 9, |out| {
        named(out, 1, &own["responses"], |out, answer| {
            part(out, 1, |out| {
                texts(out, answer, &[("description", 1)]);
                if answer["schema"].is_object() {
                    part(out, 2, |out| part(out, 1, |out| schema(out, &answer["schema"])));
                }
            });
        });
    });
    extensions(out, 13, own);
}

fn parameters(out: &mut Vec<u8>, at: u32, list: &Value) {
    for own in list.as_array().into_iter().flatten() {
        part(out, at, |out| part(out, 1, |out| parameter(out, own)));
    }
}

fn parameter(out: &mut Vec<u8>, own: &Value) {
    let plain = |out: &mut Vec<u8>, kind: u32, fields: &[(&str, u32)], unique: u32| {
        part(out, 2, |out| {
            part(out, kind, |out| {
                flag(out, 1, &own["required"]);
                texts(out, own, fields);
                flag(out, unique, &own["uniqueItems"]);
            });
        });
    };
    match own["in"].as_str() {
        Some("body") => part(out, 1, |out| {
            texts(out, own, BODY);
            flag(out, 4, &own["required"]);
            part(out, 5, |out| schema(out, &own["schema"]));
        }),
        Some("path") => plain(out, 4, PATH, 18),
        _ => plain(out, 3, QUERY, 20),
    }
}

fn schema(out: &mut Vec<u8>, own: &Value) {
    texts(out, own, SCHEMA);
    text_list(out, 19, &own["required"]);
    for value in own["enum"].as_array().into_iter().flatten() {
        any(out, 20, value);
    }
    match &own["additionalProperties"] {
        Value::Bool(allowed) => part(out, 21, |out| number(out, 2, u64::from(*allowed))),
        Value::Object(_) => part(out, 21, |out| part(out, 1, |out| schema(out, &own["additionalProperties"]))),
        _ => {}
    }
    if let Some(kind) = own["type"].as_str() {
        part(out, 22, |out| bytes(out, 1, kind.as_bytes()));
    }
    if own["items"].is_object() {
        part(out, 23, |out| part(out, 1, |out| schema(out, &own["items"])));
    }
    for inner in own["allOf"].as_array().into_iter().flatten() {
        part(out, 24, |out| schema(out, inner));
    }
    if own["properties"].is_object() {
        part(out, 25, |out| named(out, 1, &own["properties"], schema));
    }
    extensions(out, 31, own);
}
