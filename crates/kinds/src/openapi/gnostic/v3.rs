//! The fields of version 3 (`openapiv3/OpenAPIv3.proto`), as far as documents of Kubernetes have them.

use serde_json::Value;

use super::{Form, Message, Rest};

pub(super) static DOCUMENT: Message = Message {
    fields: &[
        ("openapi", 1, Form::Text),
        ("info", 2, Form::Message(&Message { fields: INFO, rest: Rest::None })),
        ("paths", 4, Form::Message(&Message { fields: &[], rest: Rest::Pairs(1, &Form::Message(&PATH_ITEM)) })),
        ("components", 5, Form::Message(&COMPONENTS)),
    ],
    rest: Rest::None,
};

const INFO: &[(&str, u32, Form)] = &[("title", 1, Form::Text), ("version", 6, Form::Text)];

static COMPONENTS: Message = Message {
    fields: &[("schemas", 1, Form::Message(&SCHEMAS)), ("securitySchemes", 7, Form::Message(&SECURITY))],
    rest: Rest::None,
};

static SECURITY: Message = Message { fields: &[], rest: Rest::Pairs(1, &Form::Within(1, &Form::Message(&SCHEME))) };

static SCHEME: Message = Message {
    fields: &[("type", 1, Form::Text), ("description", 2, Form::Text), ("name", 3, Form::Text), ("in", 4, Form::Text)],
    rest: Rest::None,
};

static PATH_ITEM: Message = Message {
    fields: &[
        ("get", 4, Form::Message(&OPERATION)),
        ("put", 5, Form::Message(&OPERATION)),
        ("post", 6, Form::Message(&OPERATION)),
        ("delete", 7, Form::Message(&OPERATION)),
        ("options", 8, Form::Message(&OPERATION)),
        ("head", 9, Form::Message(&OPERATION)),
        ("patch", 10, Form::Message(&OPERATION)),
        ("parameters", 13, PARAMETERS),
    ],
    rest: Rest::Extensions(14),
};

static OPERATION: Message = Message {
    fields: &[
        ("tags", 1, Form::Each(&Form::Text)),
        ("summary", 2, Form::Text),
        ("description", 3, Form::Text),
        ("operationId", 5, Form::Text),
        ("parameters", 6, PARAMETERS),
        ("requestBody", 7, Form::Within(1, &Form::Message(&BODY))),
        ("responses", 8, Form::Message(&RESPONSES)),
        ("deprecated", 10, Form::Flag),
    ],
    rest: Rest::Extensions(13),
};

static BODY: Message = Message {
    fields: &[("description", 1, Form::Text), ("content", 2, Form::Message(&CONTENT)), ("required", 3, Form::Flag)],
    rest: Rest::Extensions(4),
};

static RESPONSES: Message = Message { fields: &[], rest: Rest::Pairs(2, &Form::Within(1, &Form::Message(&RESPONSE))) };

static RESPONSE: Message = Message {
    fields: &[("description", 1, Form::Text), ("content", 3, Form::Message(&CONTENT))],
    rest: Rest::Extensions(5),
};

/// Schemas by media type.
static CONTENT: Message = Message { fields: &[], rest: Rest::Pairs(1, &Form::Message(&MEDIA)) };
static MEDIA: Message = Message { fields: &[("schema", 1, SCHEMA_OR_REFERENCE)], rest: Rest::Extensions(5) };

const PARAMETERS: Form = Form::Each(&Form::Within(1, &Form::Message(&PARAMETER)));
static PARAMETER: Message = Message {
    fields: &[
        ("name", 1, Form::Text),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("required", 4, Form::Flag),
        ("schema", 10, SCHEMA_OR_REFERENCE),
    ],
    rest: Rest::Extensions(14),
};

static SCHEMAS: Message = Message { fields: &[], rest: Rest::Pairs(1, &SCHEMA_OR_REFERENCE) };

static SCHEMA: Message = Message {
    fields: &[
        ("nullable", 1, Form::Flag),
        ("readOnly", 3, Form::Flag),
        ("writeOnly", 4, Form::Flag),
        ("externalDocs", 6, Form::Message(&DOCS)),
        ("example", 7, Form::Any),
        ("deprecated", 8, Form::Flag),
        ("title", 9, Form::Text),
        ("multipleOf", 10, Form::Double),
        ("maximum", 11, Form::Double),
        ("exclusiveMaximum", 12, Form::Flag),
        ("minimum", 13, Form::Double),
        ("exclusiveMinimum", 14, Form::Flag),
        ("maxLength", 15, Form::Count),
        ("minLength", 16, Form::Count),
        ("pattern", 17, Form::Text),
        ("maxItems", 18, Form::Count),
        ("minItems", 19, Form::Count),
        ("uniqueItems", 20, Form::Flag),
        ("maxProperties", 21, Form::Count),
        ("minProperties", 22, Form::Count),
        ("required", 23, Form::Each(&Form::Text)),
        ("enum", 24, Form::Each(&Form::Any)),
        ("type", 25, Form::Text),
        ("allOf", 26, Form::Each(&SCHEMA_OR_REFERENCE)),
        ("oneOf", 27, Form::Each(&SCHEMA_OR_REFERENCE)),
        ("anyOf", 28, Form::Each(&SCHEMA_OR_REFERENCE)),
        ("not", 29, Form::Message(&SCHEMA)),
        ("items", 30, Form::Within(1, &SCHEMA_OR_REFERENCE)),
        ("properties", 31, Form::Message(&SCHEMAS)),
        ("additionalProperties", 32, Form::Choice(schema_or_truth)),
        ("default", 33, Form::Choice(default)),
        ("description", 34, Form::Text),
        ("format", 35, Form::Text),
    ],
    rest: Rest::Extensions(36),
};

static DOCS: Message =
    Message { fields: &[("description", 1, Form::Text), ("url", 2, Form::Text)], rest: Rest::Extensions(3) };

static REFERENCE: Message = Message { fields: &[("$ref", 1, Form::Text)], rest: Rest::None };

const SCHEMA_OR_REFERENCE: Form = Form::Choice(schema_or_reference);
static OF_SCHEMA: Form = Form::Message(&SCHEMA);
static OF_REFERENCE: Form = Form::Message(&REFERENCE);
static OF_EITHER: Form = SCHEMA_OR_REFERENCE;

fn schema_or_reference(own: &Value) -> Option<(u32, &'static Form)> {
    Some(if own["$ref"].is_string() { (2, &OF_REFERENCE) } else { (1, &OF_SCHEMA) })
}

fn schema_or_truth(additional: &Value) -> Option<(u32, &'static Form)> {
    Some(if additional.is_boolean() { (2, &Form::Flag) } else { (1, &OF_EITHER) })
}

/// A default that is a list or an object has no form in the message; that there is one is reported.
fn default(value: &Value) -> Option<(u32, &'static Form)> {
    match value {
        Value::Number(_) => Some((1, &Form::Double)),
        Value::Bool(_) => Some((2, &Form::Flag)),
        Value::String(_) => Some((3, &Form::Text)),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_are_encoded_as_gnostic_does() {
        for (own, expected) in [
            (json!({"$ref": "#/a"}), &b"\x12\x05\x0a\x03#/a"[..]),
            (json!({"type": "string", "nullable": true}), b"\x0a\x0b\x08\x01\xca\x01\x06string"),
            (json!({"default": {}}), b"\x0a\x03\x8a\x02\x00"),
            (json!({"default": 1}), b"\x0a\x0c\x8a\x02\x09\x09\x00\x00\x00\x00\x00\x00\xf0\x3f"),
            (json!({"default": ""}), b"\x0a\x05\x8a\x02\x02\x1a\x00"),
            (json!({"default": "x"}), b"\x0a\x06\x8a\x02\x03\x1a\x01x"),
            (json!({"maxLength": 5, "minLength": 0}), b"\x0a\x02\x78\x05"),
            (json!({"items": {"$ref": "a"}}), b"\x0a\x0a\xf2\x01\x07\x0a\x05\x12\x03\x0a\x01a"),
            (json!({"additionalProperties": true}), b"\x0a\x05\x82\x02\x02\x10\x01"),
            (json!({"additionalProperties": false}), b"\x0a\x05\x82\x02\x02\x10\x00"),
        ] {
            let mut out = Vec::new();
            let (at, form) = schema_or_reference(&own).unwrap();
            form.write(&mut out, at, &own);
            assert_eq!(out, expected, "{own}");
        }
    }

    #[test]
    fn operations_are_encoded_as_gnostic_does() {
        let own = json!({"tags": ["t"], "operationId": "o", "responses": {"200": {"description": "OK"}}});
        let expected = b"\x0a\x01t\x2a\x01o\x42\x0f\x12\x0d\x0a\x03200\x12\x06\x0a\x04\x0a\x02OK";
        assert_eq!(OPERATION.encode(&own), expected);
    }
}
