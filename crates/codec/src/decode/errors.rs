//! Errors about bodies that cannot be decoded, with kube-apiserver's messages.

use std::fmt;

use portolan_types::{
    GroupKind, GroupVersionKind, Reason, Status, StatusCause, json_patch::go_word, object, quoted::go_quoted,
};
use serde_json::Value;

use super::{MediaType, Unfit};
use crate::protobuf::{self, ProtobufError};
use portolan_kinds::{Kind, KindTable, TypeId};

/// Why a walk stopped.
#[derive(Debug, PartialEq)]
pub(super) enum Fault {
    /// The body is not JSON or YAML.
    Syntax(String),
    /// A value of the wrong type.
    Type {
        /// Type that was found.
        found: String,
        /// Type that was expected, in Go's words.
        wanted: String,
        /// Go's name of it, if it has one.
        named: Option<String>,
        /// Go's name of the innermost struct; empty at the top.
        owner: String,
        /// Field names from the innermost outwards.
        fields: Vec<String>,
    },
    /// A value that does not parse.
    Value(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(text) | Self::Value(text) => f.write_str(text),
            Self::Type { found, wanted, owner, .. } if owner.is_empty() => {
                write!(f, "json: cannot unmarshal {found} into Go value of type {wanted}")
            }
            Self::Type { found, wanted, named, owner, fields } => {
                let wanted = named.as_ref().unwrap_or(wanted);
                let path: Vec<&str> = fields.iter().rev().map(String::as_str).collect();
                let path = path.join(".");
                write!(f, "json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {wanted}")
            }
        }
    }
}

impl Fault {
    /// Returns the text of Go's converter from maps.
    pub(super) fn converted(&self) -> String {
        let Self::Type { found, wanted, named, .. } = self else { return self.to_string() };
        let number = found.strip_prefix("number ").map(|text| if text.contains('.') { "float64" } else { "int64" });
        let kind = match found.as_str() {
            "array" => "slice",
            "object" => "map",
            "number" => "int64",
            word => number.unwrap_or(word),
        };
        match (wanted.as_str(), kind) {
            (wanted, kind) if wanted.starts_with("map[") => format!("cannot restore map from {kind}"),
            (wanted, kind) if wanted.starts_with("[]") => format!("cannot restore slice from {kind}"),
            ("string", "int64") => format!("cannot convert int64 to {}", named.as_ref().unwrap_or(wanted)),
            (wanted @ ("int32" | "int64" | "uint32" | "uint64"), "float64") => {
                format!("cannot convert float64 to {wanted}")
            }
            ("string" | "bool" | "int32" | "int64" | "uint32" | "uint64" | "float64", _) => {
                format!("unrecognized type: {wanted}")
            }
            (_, kind) => format!("cannot restore struct from: {kind}"),
        }
    }
}

/// Returns the answer to a body that could not be walked.
pub(super) fn explain(table: &KindTable, kind: &Kind, media: MediaType, body: &[u8], fault: &Fault) -> Status {
    match (fault, media) {
        (Fault::Syntax(text), MediaType::Yaml) => return unrecognized(kind, body, text),
        (Fault::Syntax(text), MediaType::Json | MediaType::Protobuf) => {
            return unrecognized(kind, body, &no_head(text));
        }
        (Fault::Type { .. } | Fault::Value(_), _) => {}
    }
    let read = super::decode_any(media, body).unwrap_or_default();
    let head = match Head::of(&read) {
        Ok(head) => head,
        Err(text) => return unrecognized(kind, body, &no_head(&text)),
    };
    let same_version = head.api_version.is_empty() || head.api_version == kind.group_version().to_string();
    let same_kind = head.kind.is_empty() || *head.kind == *kind.gvk.kind;
    if same_version && same_kind {
        unhandled(&kind.gvk.kind, &kind.gvk.version, kind, &fault.to_string())
    } else {
        wrong_type(table, kind, (head.api_version, head.kind), &read, body)
    }
}

pub(super) fn no_head(text: &str) -> String {
    format!("couldn't get version/kind; json parse error: {text}")
}

/// Version and kind, which are read first of every body.
struct Head<'a> {
    api_version: &'a str,
    kind: &'a str,
}

/// The Go type that a head is read into.
const HEAD: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

impl<'a> Head<'a> {
    fn of(body: &'a Value) -> Result<Self, String> {
        let text = |key: &str| match body.get(key) {
            None | Some(Value::Null) => Ok(""),
            Some(Value::String(text)) => Ok(text.as_str()),
            Some(other) => {
                Err(format!("json: cannot unmarshal {} into Go struct field .{key} of type string", go_word(other)))
            }
        };
        match body {
            Value::Object(_) | Value::Null => Ok(Self { api_version: text("apiVersion")?, kind: text("kind")? }),
            other => Err(format!("json: cannot unmarshal {} into Go value of type {HEAD}", go_word(other))),
        }
    }
}

/// Returns the apiVersion and kind in an object, empty where it has none.
///
/// # Errors
/// Fails if it is not an object, if one of the two is not a string, or if the version has too many parts.
pub fn stated_type_meta(object: &Value) -> Result<(&str, &str), String> {
    let head = Head::of(object).map_err(|text| no_head(&text))?;
    match head.api_version.matches('/').count() {
        0 | 1 => Ok((head.api_version, head.kind)),
        _ => Err(format!("unexpected GroupVersion string: {}", head.api_version)),
    }
}

/// Returns the message for an object without a kind. `shown` is the object.
pub fn missing_kind(shown: &str) -> String {
    format!("Object 'Kind' is missing in '{shown}'")
}

/// Returns the message for an object with a group and no version. `shown` is the object.
pub fn missing_version(shown: &str) -> String {
    format!("Object 'apiVersion' is missing in '{shown}'")
}

/// Returns the type that an object states; missing parts are taken from `expected`.
///
/// # Errors
/// Fails if the stated type is malformed.
pub fn stated_type(expected: &GroupVersionKind, object: &Value) -> Result<GroupVersionKind, String> {
    let head = Head::of(object).map_err(|text| no_head(&text))?;
    let kind = if head.kind.is_empty() { &*expected.kind } else { head.kind };
    match head.api_version {
        "" => Ok(GroupVersionKind { kind: kind.into(), ..expected.clone() }),
        own => GroupVersionKind::parse(own, kind).map_err(|_| format!("unexpected GroupVersion string: {own}")),
    }
}

/// Returns the answer to an object that states another type. `read` is the body, decoded without a schema.
pub(super) fn wrong_type(
    table: &KindTable,
    kind: &Kind,
    (api_version, name): (&str, &str),
    read: &Value,
    body: &[u8],
) -> Status {
    let name = if name.is_empty() { &kind.gvk.kind } else { name };
    let own = kind.group_version().to_string();
    let api_version = if api_version.is_empty() { &own } else { api_version };
    let Ok(gvk) = GroupVersionKind::parse(api_version, name) else {
        return unrecognized(kind, body, &format!("unexpected GroupVersion string: {api_version}"));
    };
    let known = table.object_type(&gvk.group, &gvk.version, &gvk.kind);
    if let Some(why) = known.and_then(|schema| misfit(table, schema, read)) {
        return unhandled(name, &gvk.version, kind, &why);
    }
    let is_same = *name == *kind.gvk.kind && (gvk.group == kind.gvk.group && known.is_some() || is_old_scale(&gvk));
    if is_same {
        return wrong_version(kind, api_version);
    }
    unhandled(name, &gvk.version, kind, &other_type(table, kind, (api_version, name), read))
}

/// Returns true for scales of versions that are not served any more. kube-apiserver still registers them, as the
/// internal type of the current scale.
fn is_old_scale(gvk: &GroupVersionKind) -> bool {
    let old = [("extensions", "v1beta1"), ("apps", "v1beta1"), ("apps", "v1beta2")];
    *gvk.kind == *"Scale" && old.contains(&(&*gvk.group, &*gvk.version))
}

/// Returns the reason why an object does not fit a type.
fn misfit(table: &KindTable, schema: TypeId, object: &Value) -> Option<String> {
    super::canonical(table, schema, object.clone()).err().map(|unfit| unfit.decoded())
}

/// Returns the answer to a custom resource of another version.
pub(super) fn wrong_version(kind: &Kind, api_version: &str) -> Status {
    let own = kind.group_version();
    Status::bad_request(format!(
        "the API version in the data ({api_version}) does not match the expected API version ({own})"
    ))
}

/// Returns the answer to a custom resource without a kind.
pub(super) fn no_kind(kind: &Kind, body: &[u8]) -> Status {
    let shown = String::from_utf8_lossy(&body[..body.len().min(MAX_SHOWN)]);
    unrecognized(kind, body, &missing_kind(&shown))
}

/// Most bytes of a body that a message repeats.
const MAX_SHOWN: usize = 4096;

/// Source of the registered Kubernetes types, as shown in Go's messages.
const SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";

/// The version of Go's inner types.
pub const INNER_VERSION: &str = "__internal";

fn not_registered(api_version: &str, name: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let registered = if version == INNER_VERSION {
        format!("the internal version of group {group:?}")
    } else {
        format!("version {api_version:?}")
    };
    format!("no kind {name:?} is registered for {registered} in scheme {SCHEME:?}")
}

/// Returns the error for an object that states another type: first that it does not fit that type either.
pub fn other_type(table: &KindTable, kind: &Kind, (api_version, name): (&str, &str), object: &Value) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let Some(schema) = table.object_type(group, version, name) else { return not_registered(api_version, name) };
    misfit(table, schema, object).unwrap_or_else(|| {
        format!("converting ({version}.{name}) to ({}.{}): unknown conversion", package(kind), kind.gvk.kind)
    })
}

/// Returns the Go package of a kind's type in kube-apiserver, as shown in messages. Events of both groups have the type
/// of the core.
pub fn package(kind: &Kind) -> &str {
    match &*kind.gvk.group {
        "" | "events.k8s.io" => "core",
        group => group.split('.').next().unwrap_or_default(),
    }
}

/// Returns the answer with errors, for an object of a known type.
pub(super) fn unhandled(name: &str, version: &str, kind: &Kind, why: &str) -> Status {
    Status::bad_request(format!("{name} in version {version:?} cannot be handled as a {}: {why}", kind.gvk.kind))
}

/// Returns the answer with errors, for an object of an unknown type.
fn unrecognized(kind: &Kind, body: &[u8], why: &str) -> Status {
    let (expected, start) = (&kind.gvk.kind, summary(body));
    Status::bad_request(format!("the object provided is unrecognized (must be of type {expected}): {why} ({start})"))
}

/// Returns the answer to a protobuf body that could not be read.
pub(super) fn protobuf(kind: &Kind, body: &[u8], error: &ProtobufError) -> Status {
    match protobuf::type_of(body) {
        Ok((api_version, name)) => {
            let (own, name) = (&kind.gvk, if name.is_empty() { &*kind.gvk.kind } else { &name });
            let version = api_version.rsplit('/').next().filter(|version| !version.is_empty());
            let why = match error {
                ProtobufError::UnknownKind { api_version, kind } => not_registered(api_version, kind),
                other => other.to_string(),
            };
            unhandled(name, version.unwrap_or(&own.version), kind, &why)
        }
        Err(error) => unrecognized(kind, body, &error.to_string()),
    }
}

/// Returns the answer to unknown or duplicate fields under `Strict`.
pub(super) fn strict(kind: &Kind, notes: &[String]) -> Status {
    unhandled(&kind.gvk.kind, &kind.gvk.version, kind, &strict_text(notes))
}

/// Returns the message for unknown or duplicate fields under `Strict`.
pub fn strict_text(notes: &[String]) -> String {
    format!("strict decoding error: {}", notes.join(", "))
}

/// Returns the answer to a patched object that does not fit its kind. `shown` is the object as text, or the patch.
pub fn patched(shown: &str, why: &str) -> Status {
    let cause = StatusCause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {}: {why}", go_quoted(shown)),
        field: "patch".into(),
    };
    Status::invalid(&GroupKind { group: "".into(), kind: "".into() }, "", vec![cause])
}

/// Returns the error for the result of an apply that does not fit its kind. kube-apiserver refuses an applied
/// configuration only when it compares it.
pub(super) fn applied(kind: &Kind, applied: &Value, unfit: &Unfit) -> Status {
    let GroupVersionKind { group, version, kind } = &kind.gvk;
    let (namespace, name) = (object::namespace(applied), object::name(applied));
    let what =
        format!("failed to convert new object ({namespace}/{name}; {group}/{version}, Kind={kind}) to proper version");
    let why = unfit.converted();
    let to = format!("{group}/{version}, Kind={kind}");
    Status::new(Reason::Unknown, format!("{what}: unable to convert unstructured object to {to}: {why}"))
}

const SUMMARY_BYTES: usize = 30;

fn summary(body: &[u8]) -> String {
    let start = &body[..body.len().min(SUMMARY_BYTES)];
    let rest = if body.len() > SUMMARY_BYTES { " ..." } else { "" };
    match body.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{rest}", String::from_utf8_lossy(start)),
        Some(_) => {
            let hex: String = start.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex}{rest}")
        }
    }
}
