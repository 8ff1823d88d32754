//! An OpenAPI v3 document as protobuf: the message `openapi.v3.Document` of gnostic (`openapiv3/OpenAPIv3.proto`), which
//! clients of client-go's `openapi3` may ask for.

use serde_json::Value;

use super::gnostic::{any, extensions, flag, named, part, text_list, texts};
use crate::protobuf::{double, number};

/// The media type of the message. Clients ask for it with `v3@v1.0`, which is no valid media type to answer with.
pub const DOCUMENT_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// Texts, truths and numbers of a schema, by their field numbers; the other parts have forms of their own.
const SCHEMA: &[(&str, u32)] = &[("title", 9), ("pattern", 17), ("type", 25), ("description", 34), ("format", 35)];
const SCHEMA_FLAGS: &[(&str, u32)] = &[
    ("nullable", 1),
    ("readOnly", 3),
    ("writeOnly", 4),
    ("deprecated", 8),
    ("exclusiveMaximum", 12),
    ("exclusiveMinimum", 14),
    ("uniqueItems", 20),
];
const SCHEMA_DOUBLES: &[(&str, u32)] = &[("multipleOf", 10), ("maximum", 11), ("minimum", 13)];
const SCHEMA_COUNTS: &[(&str, u32)] = &[
    ("maxLength", 15),
    ("minLength", 16),
    ("maxItems", 18),
    ("minItems", 19),
    ("maxProperties", 21),
    ("minProperties", 22),
];
const SCHEMA_LISTS: &[(&str, u32)] = &[("allOf", 26), ("oneOf", 27), ("anyOf", 28)];
const OPERATION: &[(&str, u32)] = &[("summary", 2), ("description", 3), ("operationId", 5)];
const METHODS: &[(&str, u32)] =
    &[("get", 4), ("put", 5), ("post", 6), ("delete", 7), ("options", 8), ("head", 9), ("patch", 10)];

/// Encodes what [`super::document`] made.
pub fn document_protobuf(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    texts(&mut out, document, &[("openapi", 1)]);
    part(&mut out, 2, |out| texts(out, &document["info"], &[("title", 1), ("version", 6)]));
    part(&mut out, 4, |out| named(out, 1, &document["paths"], path_item));
    let components = &document["components"];
    part(&mut out, 5, |out| {
        part(out, 1, |out| named(out, 1, &components["schemas"], schema_or_reference));
        if components["securitySchemes"].is_object() {
            part(out, 7, |out| named(out, 1, &components["securitySchemes"], security));
        }
    });
    out
}

fn security(out: &mut Vec<u8>, own: &Value) {
    part(out, 1, |out| texts(out, own, &[("type", 1), ("description", 2), ("name", 3), ("in", 4)]));
}

fn path_item(out: &mut Vec<u8>, item: &Value) {
    for (method, at) in METHODS {
        if item[*method].is_object() {
            part(out, *at, |out| operation(out, &item[*method]));
        }
    }
    parameters(out, 13, &item["parameters"]);
}

fn operation(out: &mut Vec<u8>, own: &Value) {
    text_list(out, 1, &own["tags"]);
    texts(out, own, OPERATION);
    parameters(out, 6, &own["parameters"]);
    let body = &own["requestBody"];
    if body.is_object() {
        part(out, 7, |out| {
            part(out, 1, |out| {
                content(out, 2, &body["content"]);
                flag(out, 3, &body["required"]);
            });
        });
    }
    part(out, 8, |out| {
        named(out, 2, &own["responses"], |out, answer| {
            part(out, 1, |out| {
                texts(out, answer, &[("description", 1)]);
                content(out, 3, &answer["content"]);
            });
        });
    });
    extensions(out, 13, own);
}

fn parameters(out: &mut Vec<u8>, at: u32, list: &Value) {
    for own in list.as_array().into_iter().flatten() {
        part(out, at, |out| {
            part(out, 1, |out| {
                texts(out, own, &[("name", 1), ("in", 2), ("description", 3)]);
                flag(out, 4, &own["required"]);
                part(out, 10, |out| schema_or_reference(out, &own["schema"]));
            });
        });
    }
}

/// Schemas by media type.
fn content(out: &mut Vec<u8>, at: u32, own: &Value) {
    if own.is_object() {
        part(out, at, |out| {
            named(out, 1, own, |out, media| part(out, 1, |out| schema_or_reference(out, &media["schema"])));
        });
    }
}

fn schema_or_reference(out: &mut Vec<u8>, own: &Value) {
    match own["$ref"].is_string() {
        true => part(out, 2, |out| texts(out, own, &[("$ref", 1)])),
        false => part(out, 1, |out| schema(out, own)),
    }
}

fn schema(out: &mut Vec<u8>, own: &Value) {
    SCHEMA_FLAGS.iter().for_each(|(name, at)| flag(out, *at, &own[*name]));
    texts(out, own, SCHEMA);
    for (name, at) in SCHEMA_DOUBLES {
        own[*name].as_f64().into_iter().for_each(|value| double(out, *at, value));
    }
    for (name, at) in SCHEMA_COUNTS {
        own[*name].as_u64().into_iter().for_each(|value| number(out, *at, value));
    }
    text_list(out, 23, &own["required"]);
    own["enum"].as_array().into_iter().flatten().for_each(|value| any(out, 24, value));
    for (name, at) in SCHEMA_LISTS {
        let all = own[*name].as_array().into_iter().flatten();
        all.for_each(|inner| part(out, *at, |out| schema_or_reference(out, inner)));
    }
    if own["not"].is_object() {
        part(out, 29, |out| schema(out, &own["not"]));
    }
    if own["items"].is_object() {
        part(out, 30, |out| part(out, 1, |out| schema_or_reference(out, &own["items"])));
    }
    if own["properties"].is_object() {
        part(out, 31, |out| named(out, 1, &own["properties"], schema_or_reference));
    }
    match &own["additionalProperties"] {
        Value::Bool(allowed) => part(out, 32, |out| number(out, 2, u64::from(*allowed))),
        inner @ Value::Object(_) => part(out, 32, |out| part(out, 1, |out| schema_or_reference(out, inner))),
        _ => {}
    }
    if let Some(value) = own.get("default") {
        part(out, 33, |out| default(out, value));
    }
    extensions(out, 36, own);
}

/// A default that is a list or an object has no form in the message; that there is one is told.
fn default(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Number(_) => value.as_f64().into_iter().for_each(|value| double(out, 1, value)),
        Value::Bool(value) => number(out, 2, u64::from(*value)),
        Value::String(_) => texts(out, &serde_json::json!({"text": value}), &[("text", 3)]),
        Value::Null | Value::Array(_) | Value::Object(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn schemas_are_encoded_as_gnostic_does() {
        for (own, expected) in [
            (json!({"$ref": "#/a"}), &b"\x12\x05\x0a\x03#/a"[..]),
            (json!({"type": "string", "nullable": true}), b"\x0a\x0b\x08\x01\xca\x01\x06string"),
            (json!({"default": {}}), b"\x0a\x03\x8a\x02\x00"),
            (json!({"default": 1}), b"\x0a\x0c\x8a\x02\x09\x09\x00\x00\x00\x00\x00\x00\xf0\x3f"),
            (json!({"default": "x"}), b"\x0a\x06\x8a\x02\x03\x1a\x01x"),
            (json!({"maxLength": 5}), b"\x0a\x02\x78\x05"),
            (json!({"items": {"$ref": "a"}}), b"\x0a\x0a\xf2\x01\x07\x0a\x05\x12\x03\x0a\x01a"),
            (json!({"additionalProperties": true}), b"\x0a\x05\x82\x02\x02\x10\x01"),
        ] {
            assert_eq!(message(|out| schema_or_reference(out, &own)), expected, "{own}");
        }
    }

    #[test]
    fn operations_are_encoded_as_gnostic_does() {
        let own = json!({"tags": ["t"], "operationId": "o", "responses": {"200": {"description": "OK"}}});
        let expected = b"\x0a\x01t\x2a\x01o\x42\x0f\x12\x0d\x0a\x03200\x12\x06\x0a\x04\x0a\x02OK";
        assert_eq!(message(|out| operation(out, &own)), expected);
    }
}
