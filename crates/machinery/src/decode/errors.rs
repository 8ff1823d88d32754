//! What is said about bodies that cannot be decoded. Texts as kube-apiserver has them.

use std::fmt;

use portolan_types::{GroupKind, GroupVersionKind, Status, StatusCause};
use serde::Deserialize;

use super::MediaType;
use crate::kinds::{Kind, KindTable};

/// Why a walk stopped.
pub(super) enum Fault {
    /// The body is no JSON or YAML.
    Syntax(String),
    /// A value of the wrong type.
    Type {
        /// What was found.
        found: String,
        /// Go's name of what was expected.
        wanted: String,
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
            Self::Type { found, wanted, owner, fields } => {
                let path: Vec<&str> = fields.iter().rev().map(String::as_str).collect();
                let path = path.join(".");
                write!(f, "json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {wanted}")
            }
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Head {
    api_version: String,
    kind: String,
}

/// The answer to a body that could not be walked.
pub(super) fn explain(table: &KindTable, kind: &Kind, media: MediaType, body: &[u8], fault: Fault) -> Status {
    if let Fault::Syntax(text) = &fault {
        let what = if media == MediaType::Json { "json parse error" } else { "yaml parse error" };
        let text = format!("couldn't get version/kind; {what}: {text}");
        let start = summary(body);
        let expected = &kind.gvk.kind;
        return Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {expected}): {text} ({start})"
        ));
    }
    let head = match media {
        MediaType::Json => serde_json::from_slice(body).unwrap_or_default(),
        MediaType::Yaml | MediaType::Protobuf => Head::default(),
    };
    let same_version = head.api_version.is_empty() || head.api_version == kind.group_version().to_string();
    let same_kind = head.kind.is_empty() || *head.kind == *kind.gvk.kind;
    match same_version && same_kind {
        true => unhandled(&kind.gvk.kind, &kind.gvk.version, kind, &fault.to_string()),
        false => wrong_type(table, kind, &head.api_version, &head.kind),
    }
}

/// The answer to an object of another type.
pub(super) fn wrong_type(table: &KindTable, kind: &Kind, api_version: &str, name: &str) -> Status {
    let name = if name.is_empty() { &kind.gvk.kind } else { name };
    let own = kind.group_version().to_string();
    let api_version = if api_version.is_empty() { &own } else { api_version };
    let Ok(gvk) = GroupVersionKind::parse(api_version, name) else {
        let why = format!("couldn't get version/kind; json parse error: unexpected GroupVersion string: {api_version}");
        return Status::bad_request(why);
    };
    if table.object_type(&gvk.group, &gvk.version, &gvk.kind).is_none() {
        let scheme = "pkg/api/legacyscheme/scheme.go:30";
        let why = format!("no kind {name:?} is registered for version {api_version:?} in scheme {scheme:?}");
        return unhandled(name, &gvk.version, kind, &why);
    }
    if *name == *kind.gvk.kind && gvk.group == kind.gvk.group {
        return Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({own})"
        ));
    }
    let package = match kind.gvk.group.split('.').next() {
        Some("") | None => "core",
        Some(first) => first,
    };
    let why = format!("converting ({}.{name}) to ({package}.{}): unknown conversion", gvk.version, kind.gvk.kind);
    unhandled(name, &gvk.version, kind, &why)
}

/// The frame around most errors.
pub(super) fn unhandled(name: &str, version: &str, kind: &Kind, why: &str) -> Status {
    Status::bad_request(format!("{name} in version {version:?} cannot be handled as a {}: {why}", kind.gvk.kind))
}

/// Unknown or duplicate fields under `Strict`.
pub(super) fn strict(kind: &Kind, notes: &[String]) -> Status {
    let why = format!("strict decoding error: {}", notes.join(", "));
    unhandled(&kind.gvk.kind, &kind.gvk.version, kind, &why)
}

/// A patched object that is none of its kind.
pub(super) fn patched(why: &str) -> Status {
    let cause = StatusCause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {why}"),
        field: "patch".into(),
    };
    Status::invalid(&GroupKind { group: "".into(), kind: "".into() }, "", vec![cause])
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
