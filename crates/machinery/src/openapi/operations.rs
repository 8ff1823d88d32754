//! Operations: what can be done at a path.

use portolan_types::GroupVersionKind;
use serde_json::{Value, json};

use super::document::group_version_kind;
use crate::kinds::{FieldKind, Scalar, Type};

/// The definition name of patches; the body itself has no type.
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// Media types of answers, and those which only kinds with a protobuf form have.
const ANSWERS: &[&str] = &["application/json", "application/yaml"];
const STREAMS: &[&str] = &["application/json;stream=watch"];
const PROTOBUF: &[&str] = &["application/vnd.kubernetes.protobuf"];
const PROTOBUF_STREAMS: &[&str] = &["application/vnd.kubernetes.protobuf;stream=watch"];

/// Query parameters of writes, and those that only some of them have.
const WRITE: &[(&str, &str)] = &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const FORCE: &[(&str, &str)] = &[("force", "boolean")];
const DELETE: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];
const SELECT: &[(&str, &str)] = &[
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
];
const WATCH: &[(&str, &str)] = &[("allowWatchBookmarks", "boolean"), ("watch", "boolean")];

/// What an operation is about.
pub(super) struct Subject<'a> {
    /// The kind that the operation takes and answers.
    pub(super) gvk: &'a GroupVersionKind,
    /// The type of its objects.
    pub(super) schema: &'a Type,
    /// The definition name of its list's type.
    pub(super) list: Option<&'a str>,
    /// `core_v1` and the like.
    pub(super) tag: &'a str,
}

/// The method and the operation for a verb, without its id. `None` for verbs that have no operation of their own (`watch`).
pub(super) fn operation(verb: &str, subject: &Subject<'_>) -> Option<(&'static str, Value)> {
    let object = &*subject.schema.name;
    let (method, action, parameters, body, answers) = match verb {
        "get" => ("get", "get", vec![], None, vec![(200, object)]),
        "list" => ("get", "list", vec![SELECT, WATCH], None, vec![(200, subject.list?)]),
        "create" => {
            let answers = vec![(200, object), (201, object), (202, object)];
            ("post", "post", vec![WRITE], Some(content(&["*/*"], object)), answers)
        }
        "update" => ("put", "put", vec![WRITE], Some(content(&["*/*"], object)), vec![(200, object), (201, object)]),
        "patch" => ("patch", "patch", vec![WRITE, FORCE], Some(patches(subject)), vec![(200, object), (201, object)]),
        "delete" => {
            let body = content(&["*/*"], DELETE_OPTIONS);
            ("delete", "delete", vec![DELETE], Some(body), vec![(200, STATUS), (202, STATUS)])
        }
        "deletecollection" => {
            let body = content(&["*/*"], DELETE_OPTIONS);
            ("delete", "deletecollection", vec![DELETE, SELECT], Some(body), vec![(200, STATUS)])
        }
        _ => return None,
    };
    let mut operation = json!({
        "tags": [subject.tag],
        "responses": {"401": {"description": "Unauthorized"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": group_version_kind(subject.gvk),
    });
    if !parameters.is_empty() {
        operation["parameters"] = parameters.concat().iter().map(|(name, kind)| query(name, kind)).collect();
    }
    if let Some(body) = body {
        operation["requestBody"] = json!({"content": body});
        if !verb.starts_with("delete") {
            operation["requestBody"]["required"] = true.into();
        }
    }
    for (code, schema) in answers {
        let types = answers_of(verb, subject.schema);
        operation["responses"][code.to_string()] =
            json!({"description": reason(code), "content": content(&types, schema)});
    }
    Some((method, operation))
}

/// The operation for the other verbs of a subresource that is a connection, not an object (`pods/exec`). Its options are the
/// query parameters.
pub(super) fn connection(verb: &str, subject: &Subject<'_>) -> Option<(&'static str, Value)> {
    let method = match verb {
        "create" => "post",
        "delete" => "delete",
        "get" => "get",
        "patch" => "patch",
        "update" => "put",
        _ => return None,
    };
    let options = subject.schema.fields.iter().filter(|field| field.number != 0);
    let parameters = options.map(|field| match field.kind {
        FieldKind::Scalar(Scalar::Bool) => query(&field.name, "boolean"),
        FieldKind::Scalar(Scalar::Int32 | Scalar::Int64) => query(&field.name, "integer"),
        _ => query(&field.name, "string"),
    });
    let operation = json!({
        "tags": [subject.tag],
        "parameters": parameters.collect::<Vec<_>>(),
        "responses": {
            "200": {"description": "OK", "content": {"*/*": {"schema": {"type": "string"}}}},
            "401": {"description": "Unauthorized"},
        },
        "x-kubernetes-action": "connect",
        "x-kubernetes-group-version-kind": group_version_kind(subject.gvk),
    });
    Some((method, operation))
}

fn answers_of(verb: &str, schema: &Type) -> Vec<&'static str> {
    match (verb, schema.wire.is_empty()) {
        ("list", false) => [ANSWERS, PROTOBUF, STREAMS, PROTOBUF_STREAMS].concat(),
        ("list", true) => [ANSWERS, STREAMS].concat(),
        (_, false) => [ANSWERS, PROTOBUF].concat(),
        (_, true) => ANSWERS.to_vec(),
    }
}

/// The bodies of patches. kubectl sends a strategic merge patch where this names it, else a merge patch; as on a real server,
/// the kinds that have it are those with a protobuf form.
fn patches(subject: &Subject<'_>) -> Value {
    let mut types = vec!["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
    if !subject.schema.wire.is_empty() {
        types.push("application/strategic-merge-patch+json");
    }
    content(&types, PATCH)
}

fn content(types: &[&str], schema: &str) -> Value {
    let schema = json!({"schema": {"$ref": format!("#/components/schemas/{schema}")}});
    Value::Object(types.iter().map(|media| (media.to_string(), schema.clone())).collect())
}

/// A query parameter.
pub(super) fn query(name: &str, kind: &str) -> Value {
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}

fn reason(code: u16) -> &'static str {
    match code {
        201 => "Created",
        202 => "Accepted",
        _ => "OK",
    }
}
