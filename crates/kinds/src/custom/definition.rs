//! Definition without its schemas.

use std::sync::Arc;

use portolan_types::{GroupResource, object};
use serde_json::Value;

use super::{Names, is_builtin_resource, status};
use crate::KindTable;

/// A CustomResourceDefinition, as others see it.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Its name, `<plural>.<group>`.
    pub name: Arc<str>,
    /// The resource that it defines.
    pub resource: GroupResource,
    /// Requested names.
    pub claimed: Names,
    /// The names that it has been given.
    pub accepted: Names,
    /// Its resource is built in: it serves nothing, and objects of that name are not its instances. Such a definition
    /// is refused at create; one that an older server has stored, before it had the resource itself, stays until it is
    /// deleted.
    pub is_builtin: bool,
    /// It is the schema of an export that a binding serves, and no object of the logical cluster.
    pub is_bound: bool,
    /// It is served, also while it is being deleted.
    pub is_established: bool,
    /// It is being deleted.
    pub is_deleting: bool,
    /// True if the status is up to date, judged by this definition alone.
    pub is_settled: bool,
    /// Its kinds, once it is established.
    pub table: Option<Arc<KindTable>>,
}

impl Definition {
    /// Parses a definition. `compile` compiles its kinds when it is established.
    pub fn read(crd: &Value, compile: impl FnOnce() -> Option<Arc<KindTable>>) -> Self {
        let part = |pointer: &str| crd.pointer(pointer).unwrap_or(&Value::Null);
        let group = part("/spec/group").as_str().unwrap_or_default();
        let claimed = Names::of(part("/spec/names"));
        let resource = GroupResource::new(group, claimed.plural.clone());
        let accepted = Names::of(part("/status/acceptedNames"));
        let is_established = status::is_true(crd, "Established");
        let is_builtin = is_builtin_resource(&resource);
        // Clients can write the status, and so name a resource that another definition or the server has.
        let is_served = is_established && !is_builtin && accepted.plural == claimed.plural;
        Self {
            name: object::name(crd).into(),
            resource,
            accepted,
            claimed,
            is_builtin,
            is_bound: false,
            is_established,
            is_deleting: object::is_deleting(crd),
            is_settled: status::is_settled_alone(crd),
            table: if is_served { compile() } else { None },
        }
    }

    /// Returns true if its status may have to change.
    pub fn needs_look(&self) -> bool {
        !self.is_bound && (!self.is_settled || self.claimed != self.accepted || self.is_deleting)
    }
}

/// Returns the resource that a definition of this name defines, or `None` if it is not such a name.
pub fn resource_named(name: &str) -> Option<GroupResource> {
    let (plural, group) = name.split_once('.')?;
    (!plural.is_empty() && !group.is_empty()).then(|| GroupResource::new(group, plural))
}

/// Returns the resource whose objects are instances of a definition of this name; `None` also for names of built-in
/// resources.
pub fn instances_named(name: &str) -> Option<GroupResource> {
    resource_named(name).filter(|resource| !is_builtin_resource(resource))
}
