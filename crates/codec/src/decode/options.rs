//! Delete options in bodies. They may state the version of any group. The error for a wrong type depends on the types
//! that kube-apiserver's codec for options knows beside them.

use serde::de::DeserializeSeed as _;
use serde_json::Value;

use super::{
    MediaType, decode_any,
    errors::{no_head, stated_type_meta},
    reported_fault,
    syntax::{self, Huge},
    walk::{Walk, zero},
    walk_json, yaml,
};
use crate::protobuf;
use portolan_kinds::{FieldKind, KindTable, TypeId};

const KIND: &str = "DeleteOptions";
const GROUP: &str = "meta.k8s.io";

/// Source of the registered options, which a message shows.
const SCHEME: &str = "pkg/apis/meta/internalversion/scheme/register.go:27";

/// Kinds that kube-apiserver's codec knows in any version.
const ANYWHERE: [&str; 7] =
    ["CreateOptions", "UpdateOptions", "Status", "APIVersions", "APIGroupList", "APIGroup", "APIResourceList"];
/// Kinds that it also knows in `meta.k8s.io/v1`.
const IN_META: [&str; 7] = [
    "ListOptions",
    "GetOptions",
    "PatchOptions",
    "Table",
    "TableOptions",
    "PartialObjectMetadata",
    "PartialObjectMetadataList",
];

/// Returns the `DeleteOptions` in a body, canonical.
///
/// # Errors
/// Reason in kube-apiserver's words.
pub fn delete_options(table: &KindTable, media: MediaType, body: &[u8]) -> Result<Value, String> {
    let schema = table.object_type(GROUP, "v1", KIND).ok_or("no type DeleteOptions")?;
    if media == MediaType::Protobuf {
        let (api_version, kind) = protobuf::type_of(body).map_err(|error| error.to_string())?;
        // A malformed version counts as absent.
        let api_version = if api_version.matches('/').count() > 1 { "" } else { &api_version };
        check_known(DeclaredKind::of(api_version, &kind), || String::from_utf8_lossy(body).into_owned())?;
        return protobuf::decode_raw(body, schema, table).map_err(|error| error.to_string());
    }
    let read = match media {
        MediaType::Yaml => yaml::read(body)?.tree,
        MediaType::Json | MediaType::Protobuf => read_head(body).map_err(|text| no_head(&text))?,
    };
    let read = with_folded_head(read);
    let (api_version, kind) = stated_type_meta(&read)?;
    check_known(DeclaredKind::of(api_version, kind), || String::from_utf8_lossy(body).into_owned())?;
    walked(table, schema, media, body, read)
}

/// Parses JSON only for its apiVersion and kind: numbers that no float holds are allowed.
fn read_head(body: &[u8]) -> Result<Value, String> {
    let read = decode_any(MediaType::Json, body);
    let respelled = || syntax::respelled(body, Huge::AsTexts).filter(|_| syntax::json_error(body).is_none());
    match read.is_err().then(respelled).flatten() {
        Some(respelled) => decode_any(MediaType::Json, &respelled),
        None => read,
    }
}

/// Copies apiVersion and kind from fields in another case, which Go finds as well.
fn with_folded_head(mut read: Value) -> Value {
    let Some(map) = read.as_object_mut() else { return read };
    for name in ["apiVersion", "kind"] {
        let mut folded = map.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        let folded = folded.next_back().map(|(_, value)| value.clone());
        map.extend(folded.map(|value| (name.to_owned(), value)));
    }
    read
}

fn walked(table: &KindTable, schema: TypeId, media: MediaType, body: &[u8], read: Value) -> Result<Value, String> {
    let walk = Walk::new(table);
    let root = FieldKind::Message(schema);
    let walked = match media {
        MediaType::Yaml => walk.seed(&root).deserialize(read).map_err(|error| error.to_string()),
        MediaType::Json | MediaType::Protobuf => walk_json(&walk, &root, body),
    };
    match walked {
        Ok(options) => Ok(options.unwrap_or_else(|| zero(table, &root))),
        Err(text) => {
            let fault = reported_fault(table, &root, media, body).or_else(|| walk.fault());
            Err(fault.map_or(text, |fault| fault.to_string()))
        }
    }
}

/// Version and kind of a body, completed as kube-apiserver does.
struct DeclaredKind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

impl<'a> DeclaredKind<'a> {
    fn of(api_version: &'a str, kind: &'a str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = if kind.is_empty() { KIND } else { kind };
        match (group, version) {
            ("" | GROUP, "") => Self { group: GROUP, version: "v1", kind },
            _ => Self { group, version, kind },
        }
    }

    fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns Go's package of a known type other than delete options.
    fn other_package(&self) -> Option<&'static str> {
        match (self.group, self.version, self.kind) {
            (.., kind) if ANYWHERE.contains(&kind) => Some("v1"),
            (GROUP, "v1", kind) if IN_META.contains(&kind) => Some("v1"),
            (GROUP, "v1beta1", "PartialObjectMetadataList") => Some("v1beta1"),
            (GROUP, "v1beta1", "Table" | "TableOptions" | "PartialObjectMetadata") => Some("v1"),
            _ => None,
        }
    }
}

fn check_known(said: DeclaredKind<'_>, body: impl Fn() -> String) -> Result<(), String> {
    if said.version.is_empty() {
        return Err(format!("Object 'apiVersion' is missing in '{}'", body()));
    }
    match said.other_package() {
        _ if said.kind == KIND => Ok(()),
        Some(package) => Err(format!("converting ({package}.{}) to (v1.{KIND}): unknown conversion", said.kind)),
        None => {
            let (kind, version) = (said.kind, said.api_version());
            Err(format!("no kind {kind:?} is registered for version {version:?} in scheme {SCHEME:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: &str) -> Result<Value, String> {
        delete_options(KindTable::builtin(), MediaType::Json, body.as_bytes())
    }

    #[test]
    fn options_come_under_the_version_of_any_group() {
        for api_version in ["v1", "meta.k8s.io/v1", "apps/v1", "none.example.com/v9", ""] {
            let body = json!({"apiVersion": api_version, "kind": "DeleteOptions", "dryRun": ["All"]});
            assert_eq!(read(&body.to_string()).unwrap()["dryRun"], json!(["All"]), "{api_version}");
        }
        assert_eq!(read(r#"{"gracePeriodSeconds":-0}"#).unwrap()["gracePeriodSeconds"], 0);
    }

    #[test]
    fn invalid_options_have_kube_apiservers_messages() {
        let scheme = format!("in scheme {SCHEME:?}");
        for (body, expected) in [
            ("x", "couldn't get version/kind; json parse error: invalid character 'x' looking for beginning of value".into()),
            (r#"{"kind":5}"#, "couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string".into()),
            (r#"{"kind":"Pod"}"#, format!("no kind \"Pod\" is registered for version \"meta.k8s.io/v1\" {scheme}")),
            (r#"{"Kind":"Pod","ApiVersion":"v1"}"#, format!("no kind \"Pod\" is registered for version \"v1\" {scheme}")),
            (r#"{"apiVersion":"a/b/c"}"#, "unexpected GroupVersion string: a/b/c".into()),
            (r#"{"apiVersion":"apps/"}"#, r#"Object 'apiVersion' is missing in '{"apiVersion":"apps/"}'"#.into()),
            (r#"{"apiVersion":"v1","kind":"Status"}"#, "converting (v1.Status) to (v1.DeleteOptions): unknown conversion".into()),
            (r#"{"apiVersion":"v1","kind":"Table"}"#, format!("no kind \"Table\" is registered for version \"v1\" {scheme}")),
            (r#"{"propagationPolicy":5}"#, "json: cannot unmarshal number into Go struct field DeleteOptions.propagationPolicy of type v1.DeletionPropagation".into()),
            (r#"{"preconditions":{"uid":5}}"#, "json: cannot unmarshal number into Go struct field Preconditions.preconditions.uid of type types.UID".into()),
            (r#"{"gracePeriodSeconds":1e400}"#, "json: cannot unmarshal number 1e400 into Go struct field DeleteOptions.gracePeriodSeconds of type int64".into()),
        ] {
            assert_eq!(read(body).unwrap_err(), expected, "{body}");
        }
    }
}
