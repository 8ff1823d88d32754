//! Downstream objects and their addresses.

use portolan_types::{GroupResource, object, placement::ProjectionSource};
use serde_json::Value;

use crate::{
    client::{FIELD_MANAGER, weight},
    worker::limits::{CopyDemand, HeldObjects},
};

/// Address of a downstream object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectRef {
    pub(crate) resource: GroupResource,
    /// Empty at cluster scope.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ObjectRef {
    pub(crate) fn of(resource: &GroupResource, object: &Value) -> Self {
        Self {
            resource: resource.clone(),
            namespace: object::namespace(object).into(),
            name: object::name(object).into(),
        }
    }

    /// Returns the address of the source of a projected object.
    pub(crate) fn at(resource: &GroupResource, source: &ProjectionSource) -> Self {
        Self { resource: resource.clone(), namespace: source.namespace.clone(), name: source.name.clone() }
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        Some(self.namespace.as_str()).filter(|namespace| !namespace.is_empty())
    }
}

/// Downstream object, without its field ownership.
#[derive(Debug)]
pub(crate) struct ObservedObject {
    pub(crate) object: Value,
    /// Our fields are still owned by the create, not by an apply, which would keep them when they are left out.
    pub(crate) is_owned_by_create: bool,
    /// Bytes of memory that it takes, estimated.
    weight: u64,
    /// Weight that counts towards the share of a logical cluster, when it is a copy.
    pub(super) demand: Option<CopyDemand>,
}

impl ObservedObject {
    pub(crate) fn new(mut object: Value) -> Self {
        let managed = object::metadata_mut(&mut object).remove("managedFields");
        let entries = managed.as_ref().and_then(Value::as_array).into_iter().flatten();
        let is_owned_by_create = entries.into_iter().any(is_create_entry);
        let weight = u64::try_from(weight::of(&object) + size_of::<Self>()).unwrap_or(u64::MAX);
        let demand = CopyDemand::of_copy(&object);
        Self { object, is_owned_by_create, weight, demand }
    }

    pub(crate) fn uid(&self) -> &str {
        object::meta_text(&self.object, "uid")
    }

    pub(super) fn version(&self) -> Option<u64> {
        object::meta_text(&self.object, "resourceVersion").parse().ok()
    }

    pub(in crate::worker) fn held(&self) -> HeldObjects {
        HeldObjects { objects: 1, bytes: self.weight }
    }
}

/// Field ownership that our own POST left.
pub(crate) fn is_create_entry(entry: &Value) -> bool {
    entry["manager"] == FIELD_MANAGER
        && entry["operation"] == "Update"
        && entry["subresource"].as_str().unwrap_or("").is_empty()
}
