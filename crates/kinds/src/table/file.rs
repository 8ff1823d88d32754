//! Format of the data files.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::Value;

/// A whole file.
#[derive(Deserialize)]
pub(super) struct File<'a> {
    #[serde(borrow)]
    pub(super) version: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) types: BTreeMap<&'a str, FileType<'a>>,
    #[serde(borrow)]
    pub(super) objects: Vec<FileObject<'a>>,
    #[serde(borrow)]
    pub(super) kinds: Vec<FileKind<'a>>,
}

/// A line of `types`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileType<'a> {
    pub(super) special: Option<&'a str>,
    pub(super) map: Option<&'a str>,
    pub(super) unions: Option<Value>,
    #[serde(borrow, default)]
    pub(super) fields: Vec<FileField<'a>>,
}

/// A field of a type. Flags: p pointer, o omitempty, z omitzero, i inline, r required, b bare reference.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileField<'a> {
    pub(super) name: &'a str,
    #[serde(default)]
    pub(super) id: u32,
    #[serde(rename = "type")]
    pub(super) kind: &'a str,
    pub(super) go: Option<&'a str>,
    #[serde(default)]
    pub(super) flags: &'a str,
    pub(super) list: Option<&'a str>,
    #[serde(default)]
    pub(super) keys: Vec<&'a str>,
    pub(super) map: Option<&'a str>,
    #[serde(default)]
    pub(super) patch: &'a str,
    #[serde(rename = "mergeKey")]
    pub(super) merge_key: Option<&'a str>,
    pub(super) declared: Option<Value>,
    pub(super) default: Option<Value>,
    #[serde(rename = "enum", borrow, default)]
    pub(super) values: Vec<Cow<'a, str>>,
    pub(super) format: Option<&'a str>,
}

/// A line of `objects`: something with a kind that is not a resource.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileObject<'a> {
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) kind: &'a str,
    #[serde(rename = "type")]
    pub(super) schema: &'a str,
}

/// A line of `kinds`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct FileKind<'a> {
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) kind: &'a str,
    #[serde(rename = "type")]
    pub(super) schema: &'a str,
    pub(super) list: Option<&'a str>,
    pub(super) resource: &'a str,
    pub(super) singular: &'a str,
    #[serde(borrow, default)]
    pub(super) short_names: Vec<&'a str>,
    #[serde(borrow, default)]
    pub(super) categories: Vec<&'a str>,
    pub(super) namespaced: bool,
    pub(super) served: bool,
    pub(super) verbs: Vec<&'a str>,
    #[serde(borrow, default)]
    pub(super) subresources: Vec<FileSubresource<'a>>,
    #[serde(default)]
    pub(super) generation: bool,
    #[serde(default)]
    pub(super) unconditional_update: bool,
    #[serde(default)]
    pub(super) create_on_update: bool,
    pub(super) storage: Option<FileStorage<'a>>,
    #[serde(borrow, default)]
    pub(super) defaults: Vec<FileDefault<'a>>,
}

/// A default of one kind's own.
#[derive(Deserialize)]
pub(super) struct FileDefault<'a> {
    #[serde(borrow)]
    pub(super) path: Vec<&'a str>,
    pub(super) value: Value,
}

/// Resource under which objects are stored, if it is another one.
#[derive(Deserialize)]
pub(super) struct FileStorage<'a> {
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) resource: &'a str,
}

/// A subresource of a kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSubresource<'a> {
    pub(super) name: &'a str,
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) kind: &'a str,
    pub(super) verbs: Vec<&'a str>,
}
