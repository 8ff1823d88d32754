//! Roles and bindings that every logical cluster has without storing them, until it writes to them.

use std::sync::Arc;

use portolan_machinery::rbac::bootstrap;
use portolan_store::StoredObject;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, object};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{authz::ClusterRoles, directory::LogicalCluster};

const GROUP: &str = "rbac.authorization.k8s.io";

fn shared(resource: &GroupResource) -> &'static [Value] {
    match (&*resource.group, &*resource.resource) {
        (GROUP, "clusterroles") => &bootstrap().cluster_roles,
        (GROUP, "clusterrolebindings") => &bootstrap().cluster_role_bindings,
        _ => &[],
    }
}

/// Whether objects of a resource may be shared ones.
pub(crate) fn has_shared(resource: &GroupResource) -> bool {
    !shared(resource).is_empty()
}

/// Whether a name is that of a shared object.
pub(crate) fn is_shared(resource: &GroupResource, name: &str) -> bool {
    find(resource, name).is_some()
}

/// The uid that a shared object has in a logical cluster which has not written to it.
pub(crate) fn uid_of(key: &ObjectKey) -> Option<String> {
    is_shared(&key.resource, &key.name).then(|| uid(key.cluster, &key.resource, &key.name))
}

/// The names of shared ClusterRoles that collect the rules of others.
pub(crate) fn aggregated() -> impl Iterator<Item = &'static str> {
    bootstrap().cluster_roles.iter().filter(|role| role.get("aggregationRule").is_some()).map(object::name)
}

fn find(resource: &GroupResource, name: &str) -> Option<&'static Value> {
    let all = shared(resource);
    let at = all.binary_search_by(|value| object::name(value).cmp(name)).ok()?;
    Some(&all[at])
}

/// A shared object as a logical cluster shows it.
pub(crate) fn one(
    cluster: &LogicalCluster,
    resource: &GroupResource,
    name: &str,
    roles: &ClusterRoles,
) -> Option<StoredObject> {
    find(resource, name).map(|value| furnished(cluster, resource, value, roles))
}

/// All shared objects of a resource, in key order.
pub(crate) fn all(cluster: &LogicalCluster, resource: &GroupResource, roles: &ClusterRoles) -> Vec<StoredObject> {
    shared(resource).iter().map(|value| furnished(cluster, resource, value, roles)).collect()
}

/// A shared object is at the first revision of all, with a uid and a time of the logical cluster's own.
fn furnished(cluster: &LogicalCluster, resource: &GroupResource, value: &Value, roles: &ClusterRoles) -> StoredObject {
    let name = object::name(value);
    let mut value = value.clone();
    if value.get("aggregationRule").is_some() {
        let rules = serde_json::to_value(roles.rules(name).unwrap_or_default()).expect("strings serialize");
        value["rules"] = rules;
    }
    let metadata = object::metadata_mut(&mut value);
    metadata.insert("uid".into(), uid(cluster.id, resource, name).into());
    metadata.insert("creationTimestamp".into(), cluster.created.as_str().into());
    let name = object::name(&value).parse().expect("names of the shared table are path segments");
    StoredObject {
        key: ObjectKey::cluster_scoped(cluster.id, resource.clone(), name),
        revision: ResourceVersion::FIRST,
        created: ResourceVersion::FIRST,
        record: Arc::new(Record::of(&value)),
    }
}

/// A uid that follows from the address (UUID version 8).
fn uid(cluster: LogicalClusterId, resource: &GroupResource, name: &str) -> String {
    let hash = Sha256::digest(format!("{cluster}\0{resource}\0{name}"));
    let mut b = [0; 16];
    b.copy_from_slice(&hash[..16]);
    (b[6], b[8]) = ((b[6] & 0x0f) | 0x80, (b[8] & 0x3f) | 0x80);
    let hex: String = b.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
