//! The fields of version 2 (`openapiv2/OpenAPIv2.proto`), as far as documents of Kubernetes have them.

use serde_json::Value;

use super::{Form, Message, Rest};

pub(super) static DOCUMENT: Message = Message {
    fields: &[
        ("swagger", 1, Form::Text),
        ("info", 2, Form::Message(&Message { fields: INFO, rest: Rest::None })),
        ("paths", 8, Form::Message(&Message { fields: &[], rest: Rest::Pairs(2, &Form::Message(&PATH_ITEM)) })),
        ("definitions", 9, Form::Message(&SCHEMAS)),
        ("security", 12, Form::Each(&Form::Message(&REQUIREMENT))),
        ("securityDefinitions", 13, Form::Message(&SECURITY)),
    ],
    rest: Rest::None,
};

const INFO: &[(&str, u32, Form)] = &[("title", 1, Form::Text), ("version", 2, Form::Text)];

static REQUIREMENT: Message = Message { fields: &[], rest: Rest::Pairs(1, &Form::Within(1, &Form::Each(&Form::Text))) };

static SECURITY: Message = Message { fields: &[], rest: Rest::Pairs(1, &Form::Within(2, &Form::Message(&API_KEY))) };

static API_KEY: Message = Message {
    fields: &[("type", 1, Form::Text), ("name", 2, Form::Text), ("in", 3, Form::Text), ("description", 4, Form::Text)],
    rest: Rest::None,
};

static PATH_ITEM: Message = Message {
    fields: &[
        ("get", 2, Form::Message(&OPERATION)),
        ("put", 3, Form::Message(&OPERATION)),
        ("post", 4, Form::Message(&OPERATION)),
        ("delete", 5, Form::Message(&OPERATION)),
        ("options", 6, Form::Message(&OPERATION)),
        ("head", 7, Form::Message(&OPERATION)),
        ("patch", 8, Form::Message(&OPERATION)),
        ("parameters", 9, Form::Each(&PARAMETER)),
    ],
    rest: Rest::Extensions(10),
};

static OPERATION: Message = Message {
    fields: &[
        ("tags", 1, Form::Each(&Form::Text)),
        ("summary", 2, Form::Text),
        ("description", 3, Form::Text),
        ("operationId", 5, Form::Text),
        ("produces", 6, Form::Each(&Form::Text)),
        ("consumes", 7, Form::Each(&Form::Text)),
        ("parameters", 8, Form::Each(&PARAMETER)),
        ("responses", 9, Form::Message(&RESPONSES)),
        ("schemes", 10, Form::Each(&Form::Text)),
        ("deprecated", 11, Form::Flag),
    ],
    rest: Rest::Extensions(13),
};

static RESPONSES: Message = Message { fields: &[], rest: Rest::Pairs(1, &Form::Within(1, &Form::Message(&RESPONSE))) };

static RESPONSE: Message = Message {
    fields: &[("description", 1, Form::Text), ("schema", 2, Form::Within(1, &Form::Message(&SCHEMA)))],
    rest: Rest::Extensions(5),
};

/// An item of a list of parameters: one that is written there, of the body or of another place.
static PARAMETER: Form = Form::Within(1, &Form::Choice(by_place));
static BODY: Form = Form::Message(&Message {
    fields: &[
        ("description", 1, Form::Text),
        ("name", 2, Form::Text),
        ("in", 3, Form::Text),
        ("required", 4, Form::Flag),
        ("schema", 5, Form::Message(&SCHEMA)),
    ],
    rest: Rest::Extensions(6),
});
static NOT_OF_BODY: Form = Form::Choice(by_place_outside);
static QUERY: Form = Form::Message(&Message {
    fields: &[
        ("required", 1, Form::Flag),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("name", 4, Form::Text),
        ("type", 6, Form::Text),
        ("format", 7, Form::Text),
        ("uniqueItems", 20, Form::Flag),
    ],
    rest: Rest::Extensions(23),
});
static PATH: Form = Form::Message(&Message {
    fields: &[
        ("required", 1, Form::Flag),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("name", 4, Form::Text),
        ("type", 5, Form::Text),
        ("format", 6, Form::Text),
        ("uniqueItems", 19, Form::Flag),
    ],
    rest: Rest::Extensions(22),
});

fn by_place(parameter: &Value) -> Option<(u32, &'static Form)> {
    Some(if parameter["in"] == "body" { (1, &BODY) } else { (2, &NOT_OF_BODY) })
}

fn by_place_outside(parameter: &Value) -> Option<(u32, &'static Form)> {
    Some(if parameter["in"] == "path" { (4, &PATH) } else { (3, &QUERY) })
}

static SCHEMAS: Message = Message { fields: &[], rest: Rest::Pairs(1, &Form::Message(&SCHEMA)) };

static SCHEMA: Message = Message {
    fields: &[
        ("$ref", 1, Form::Text),
        ("format", 2, Form::Text),
        ("title", 3, Form::Text),
        ("description", 4, Form::Text),
        ("default", 5, Form::Any),
        ("multipleOf", 6, Form::Double),
        ("maximum", 7, Form::Double),
        ("exclusiveMaximum", 8, Form::Flag),
        ("minimum", 9, Form::Double),
        ("exclusiveMinimum", 10, Form::Flag),
        ("maxLength", 11, Form::Count),
        ("minLength", 12, Form::Count),
        ("pattern", 13, Form::Text),
        ("maxItems", 14, Form::Count),
        ("minItems", 15, Form::Count),
        ("uniqueItems", 16, Form::Flag),
        ("maxProperties", 17, Form::Count),
        ("minProperties", 18, Form::Count),
        ("required", 19, Form::Each(&Form::Text)),
        ("enum", 20, Form::Each(&Form::Any)),
        ("additionalProperties", 21, Form::Choice(schema_or_truth)),
        ("type", 22, Form::Within(1, &Form::Text)),
        ("items", 23, Form::Within(1, &Form::Message(&SCHEMA))),
        ("allOf", 24, Form::Each(&Form::Message(&SCHEMA))),
        ("properties", 25, Form::Message(&SCHEMAS)),
        ("readOnly", 27, Form::Flag),
        ("externalDocs", 29, Form::Message(&DOCS)),
        ("example", 30, Form::Any),
    ],
    rest: Rest::Extensions(31),
};

static DOCS: Message =
    Message { fields: &[("description", 1, Form::Text), ("url", 2, Form::Text)], rest: Rest::Extensions(3) };

static OF_SCHEMA: Form = Form::Message(&SCHEMA);

fn schema_or_truth(additional: &Value) -> Option<(u32, &'static Form)> {
    Some(if additional.is_boolean() { (2, &Form::Flag) } else { (1, &OF_SCHEMA) })
}
