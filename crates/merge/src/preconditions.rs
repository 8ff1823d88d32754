//! Failed preconditions of a write, as kube-apiserver's storage reports them.

use portolan_types::{Status, object};
use serde_json::Value;

use portolan_kinds::Kind;

/// Returns kube-apiserver's storage key of an object, which a message shows.
fn storage_key(kind: &Kind, object: &Value) -> String {
    let prefix = match &*kind.resource {
        "replicationcontrollers" => "controllers",
        "endpoints" => "services/endpoints",
        "services" => "services/specs",
        "nodes" => "minions",
        "ingresses" => "ingress",
        own => own,
    };
    match (object::namespace(object), object::name(object)) {
        ("", name) => format!("/{prefix}/{name}"),
        (namespace, name) => format!("/{prefix}/{namespace}/{name}"),
    }
}

/// Returns a 409 for a write that is meant for an object with another uid.
pub fn uid_conflict(kind: &Kind, old: &Value, asked: &str) -> Status {
    failed_precondition(kind, old, ("UID", asked, object::meta_text(old, "uid")))
}

/// Returns the 409 of kube-apiserver's storage for an object of this name that is not the requested one.
pub fn failed_precondition(kind: &Kind, old: &Value, (what, asked, own): (&str, &str, &str)) -> Status {
    let key = storage_key(kind, old);
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {what} in precondition: {asked}, {what} in object meta: {own}"
    );
    Status::conflict(&kind.group_resource(), object::name(old), why)
}
