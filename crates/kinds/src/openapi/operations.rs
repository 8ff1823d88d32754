//! Operations: the methods of a path.

use portolan_types::GroupVersionKind;
use serde_json::{Value, json};

use super::document::group_version_kind;
use crate::{Field, FieldKind, Scalar, Type};

/// The definition name of patches; the body itself has no type.
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";

/// Media types of answers, and those which only kinds with a protobuf form have.
pub(super) const ANSWERS: &[&str] = &["application/json", "application/yaml"];
const STREAMS: &[&str] = &["application/json;stream=watch"];
pub(super) const PROTOBUF: &[&str] = &["application/vnd.kubernetes.protobuf"];
const PROTOBUF_STREAMS: &[&str] = &["application/vnd.kubernetes.protobuf;stream=watch"];
/// Media types of texts that represent objects.
const TEXTS: &[&str] = &["text/plain"];
/// Media types of bodies. Those of custom resources are reported one by one.
pub(super) const ANYTHING: &[&str] = &["*/*"];

/// Query parameters of the options of each verb.
const READ: &[(&str, &str)] = &[("resourceVersion", "string")];
const WRITE: &[(&str, &str)] = &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const FORCE: &[(&str, &str)] = &[("force", "boolean")];
const DELETE: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
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
    ("shardSelector", "string"),
    ("timeoutSeconds", "integer"),
];
const WATCH: &[(&str, &str)] = &[("allowWatchBookmarks", "boolean"), ("watch", "boolean")];

/// Returns the position of a media type in kube-apiserver's order.
pub(super) fn media_type_rank(media: &str) -> usize {
    let all = [TEXTS, ANSWERS, PROTOBUF, STREAMS, PROTOBUF_STREAMS].concat();
    let place = all.iter().position(|known| *known == media).unwrap_or(all.len());
    place + usize::from(media.starts_with("application/apply"))
}

/// Resource and subresource of an operation.
pub(super) struct Subject<'a> {
    /// Kind in the operation's `x-kubernetes-group-version-kind`.
    pub(super) gvk: &'a GroupVersionKind,
    /// The type of the objects that it takes and answers.
    pub(super) schema: &'a Type,
    /// The definition name of its list's type.
    pub(super) list: Option<&'a str>,
    /// `core_v1` and the like.
    pub(super) tag: &'a str,
    /// True for custom resources, whose operations kube-apiserver writes by other code.
    pub(super) is_custom: bool,
    /// True if a delete is answered with the object.
    pub(super) returns_deleted: bool,
}

impl Subject<'_> {
    fn bodies(&self) -> &'static [&'static str] {
        if self.is_custom { ANSWERS } else { ANYTHING }
    }

    /// Returns the media types of answers to a verb.
    fn answers(&self, verb: &str) -> Vec<&'static str> {
        match (verb, self.is_custom || self.schema.wire.is_empty()) {
            ("list", _) if self.is_custom => ANSWERS.to_vec(),
            ("list" | "watch" | "watchlist", false) => [ANSWERS, PROTOBUF, STREAMS, PROTOBUF_STREAMS].concat(),
            ("list" | "watch" | "watchlist", true) => [ANSWERS, STREAMS].concat(),
            (_, false) => [ANSWERS, PROTOBUF].concat(),
            (_, true) => ANSWERS.to_vec(),
        }
    }

    /// Returns the bodies of patches. kubectl sends a strategic merge patch where this names it, else a merge patch; as
    /// on a real server, the kinds that have it are those with a protobuf form.
    fn patches(&self) -> Value {
        let mut types =
            vec!["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
        if !self.is_custom && !self.schema.wire.is_empty() {
            types.push("application/strategic-merge-patch+json");
        }
        content(&types, PATCH)
    }
}

/// Returns the method and the operation for a verb, without its id; `watch` and `watchlist` are the ones with paths of
/// their own. Returns `None` for an unknown verb.
pub(super) fn operation(verb: &str, subject: &Subject<'_>) -> Option<(&'static str, Value)> {
    let object = &*subject.schema.name;
    let body = |schema: &str| Some(content(subject.bodies(), schema));
    let (method, action, parameters, body, answers) = match verb {
        "get" if subject.is_custom => ("get", "get", vec![READ], None, vec![(200, object)]),
        "get" => ("get", "get", vec![], None, vec![(200, object)]),
        "list" => ("get", "list", vec![SELECT, WATCH], None, vec![(200, subject.list?)]),
        "watch" => ("get", "watch", vec![SELECT, WATCH], None, vec![(200, WATCH_EVENT)]),
        "watchlist" => ("get", "watchlist", vec![SELECT, WATCH], None, vec![(200, WATCH_EVENT)]),
        "create" => ("post", "post", vec![WRITE], body(object), vec![(200, object), (201, object), (202, object)]),
        "update" => ("put", "put", vec![WRITE], body(object), vec![(200, object), (201, object)]),
        "patch" => {
            let mut answers = vec![(200, object)];
            answers.extend((!subject.is_custom).then_some((201, object)));
            ("patch", "patch", vec![WRITE, FORCE], Some(subject.patches()), answers)
        }
        "delete" => {
            let left = if subject.returns_deleted { object } else { STATUS };
            ("delete", "delete", vec![DELETE], body(DELETE_OPTIONS), vec![(200, left), (202, left)])
        }
        "deletecollection" if subject.is_custom => {
            ("delete", "deletecollection", vec![SELECT, WATCH], None, vec![(200, STATUS)])
        }
        "deletecollection" => {
            ("delete", "deletecollection", vec![DELETE, SELECT], body(DELETE_OPTIONS), vec![(200, STATUS)])
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
        let mut parameters = parameters.concat();
        parameters.sort_unstable();
        operation["parameters"] = parameters.iter().map(|(name, kind)| query(name, kind)).collect();
    }
    if let Some(body) = body {
        operation["requestBody"] = json!({"content": body});
        if !verb.starts_with("delete") {
            operation["requestBody"]["required"] = true.into();
        }
    }
    for (code, schema) in answers {
        operation["responses"][code.to_string()] =
            json!({"description": reason(code), "content": content(&subject.answers(verb), schema)});
    }
    Some((method, operation))
}

/// Returns the method and the operation for a verb of a subresource that is a connection, not an object (`pods/exec`).
/// Its options are the query parameters.
pub(super) fn connection(verb: &str, subject: &Subject<'_>) -> Option<(&'static str, Value)> {
    let method = match verb {
        "create" => "post",
        "delete" => "delete",
        "get" => "get",
        "head" => "head",
        "options" => "options",
        "patch" => "patch",
        "update" => "put",
        _ => return None,
    };
    let operation = json!({
        "tags": [subject.tag],
        "parameters": options(subject.schema),
        "responses": {
            "200": {"description": "OK", "content": {"*/*": {"schema": {"type": "string"}}}},
            "401": {"description": "Unauthorized"},
        },
        "x-kubernetes-action": "connect",
        "x-kubernetes-group-version-kind": group_version_kind(subject.gvk),
    });
    Some((method, operation))
}

/// Returns the operation that reads a log: a text, by options.
pub(super) fn log(subject: &Subject<'_>, by: &Type) -> Option<(&'static str, Value)> {
    let (method, mut operation) = operation("get", subject)?;
    let types = [TEXTS, &subject.answers("get")].concat();
    let texts = types.iter().map(|media| (media.to_string(), json!({"schema": {"type": "string"}})));
    operation["responses"]["200"]["content"] = Value::Object(texts.collect());
    operation["parameters"] = options(by);
    Some((method, operation))
}

/// Returns the fields of options as query parameters, times left out.
fn options(of: &Type) -> Value {
    let plain = |field: &&Field| !matches!(field.kind, FieldKind::Special(_) | FieldKind::Message(_));
    let options = of.fields.iter().filter(|field| field.number != 0).filter(plain);
    let parameters = options.map(|field| match field.kind.element() {
        FieldKind::Scalar(Scalar::Bool) => query(&field.name, "boolean"),
        FieldKind::Scalar(Scalar::Int32 | Scalar::Int64) => query(&field.name, "integer"),
        _ => query(&field.name, "string"),
    });
    parameters.collect()
}

/// Returns a schema by media type.
pub(super) fn content(types: &[&str], schema: &str) -> Value {
    let schema = json!({"schema": {"$ref": format!("#/components/schemas/{schema}")}});
    Value::Object(types.iter().map(|media| (media.to_string(), schema.clone())).collect())
}

/// Returns a query parameter.
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
