//! Shared APIs of kcp: names that exports, bindings and their readers have in common.

mod claims;

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, ObjectName};

pub use claims::{applied_claims, claimed_resource, claims_of, has_verb, is_same_claim};

/// Group of exports and bindings.
pub const GROUP: &str = "apis.kcp.io";
/// Plural of exports.
pub const EXPORTS: &str = "apiexports";
/// Plural of bindings.
pub const BINDINGS: &str = "apibindings";
/// Plural of schemas.
pub const SCHEMAS: &str = "apiresourceschemas";
/// Plural of endpoint slices.
pub const SLICES: &str = "apiexportendpointslices";
/// Label of a binding that names its export by a hash. It is an index, and no proof.
pub const EXPORT_LABEL: &str = "internal.apis.kcp.io/export";
/// Finalizer that holds a binding until the objects of its resources are gone.
pub const BINDING_FINALIZER: &str = "apis.kcp.io/apibinding-finalizer";
/// Bytes of the hash in [`EXPORT_LABEL`]; in hexadecimal they fit into a label.
const LABEL_BYTES: usize = 28;

/// Returns a resource of the group.
pub fn resource(plural: &str) -> GroupResource {
    GroupResource::new(GROUP, plural)
}

/// Returns the resource of the records of schemas that are or were bound. They live in the logical cluster of their
/// export, named `<plural>.<group>:<uid of the schema>`, and are never changed.
pub fn bound_schemas() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "boundschemas")
}

/// Returns the key of the record of a schema that is or was bound; `None` if the names are not a part of a key.
pub fn bound_schema(cluster: LogicalClusterId, resource: &GroupResource, uid: &str) -> Option<ObjectKey> {
    let name = format!("{}.{}:{uid}", resource.resource, resource.group).parse().ok()?;
    Some(ObjectKey::cluster_scoped(cluster, bound_schemas(), name))
}

/// Returns the resource that such a record describes.
pub fn resource_of_bound_schema(name: &str) -> Option<GroupResource> {
    let (plural, group) = name.split_once(':')?.0.split_once('.')?;
    (!plural.is_empty() && !group.is_empty()).then(|| GroupResource::new(group, plural))
}

/// Returns the resources that a binding serves, from its status.
pub fn bound_resources(binding: &Value) -> impl Iterator<Item = (GroupResource, &Value)> {
    let bound = binding.pointer("/status/boundResources").and_then(Value::as_array);
    bound.into_iter().flatten().map(|own| (claimed_resource(own), own))
}

/// Export that a binding refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExportAddress {
    /// Logical cluster of the export.
    pub cluster: LogicalClusterId,
    /// Name of the export.
    pub name: ObjectName,
}

impl ExportAddress {
    /// Returns the export that a bound binding is bound to, by its status, which only the server writes.
    pub fn of_bound(binding: &Value) -> Option<Self> {
        let cluster = binding.pointer("/status/apiExportClusterName")?.as_str()?.parse().ok()?;
        let name = binding.pointer("/spec/reference/export/name")?.as_str()?.parse().ok()?;
        Some(Self { cluster, name })
    }

    /// Returns the key of the export.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::cluster_scoped(self.cluster, resource(EXPORTS), self.name.clone())
    }

    /// Returns the value of [`EXPORT_LABEL`].
    pub fn label(&self) -> String {
        hex(&Sha256::digest(format!("{}|{}", self.cluster, self.name))[..LABEL_BYTES])
    }
}

/// Returns the identity of an export with this key in its secret.
pub fn identity_of(key: &[u8]) -> String {
    hex(&Sha256::digest(key))
}

/// Reference to an export, as bindings and endpoint slices have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportReference {
    /// Path of the export's workspace; `None` for the workspace of the reference.
    pub path: Option<LogicalClusterPath>,
    /// Name of the export.
    pub name: ObjectName,
}

impl ExportReference {
    /// Parses `{path, name}`; `None` for a malformed one.
    pub fn of(value: &Value) -> Option<Self> {
        let name = value.get("name")?.as_str()?.parse().ok()?;
        let path = match value.get("path").and_then(Value::as_str).unwrap_or_default() {
            "" => None,
            text => Some(text.parse().ok()?),
        };
        Some(Self { path, name })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_have_different_labels_that_fit() {
        let address = |cluster, name: &str| ExportAddress {
            cluster: LogicalClusterId::new(cluster),
            name: name.parse().unwrap(),
        };
        let labels = [address(2, "a").label(), address(3, "a").label(), address(2, "b").label()];
        assert!(labels.iter().all(|label| label.len() <= 63), "{labels:?}");
        assert!(labels[0] != labels[1] && labels[0] != labels[2], "{labels:?}");
    }

    #[test]
    fn references_are_parsed() {
        for (text, expected) in [
            (r#"{"name": "a"}"#, Some(None)),
            (r#"{"name": "a", "path": ""}"#, Some(None)),
            (r#"{"name": "a", "path": "root:b"}"#, Some(Some("root:b"))),
            (r#"{"name": "a", "path": "root::b"}"#, None),
            (r#"{"path": "root"}"#, None),
            (r#"{"name": 7}"#, None),
        ] {
            let found = ExportReference::of(&serde_json::from_str(text).unwrap());
            let path = found.map(|found| found.path.map(|path| path.to_string()));
            assert_eq!(path, expected.map(|path| path.map(str::to_owned)), "{text}");
        }
    }
}
