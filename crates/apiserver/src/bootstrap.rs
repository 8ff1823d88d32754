//! Objects that every logical cluster has without storing them, until it writes to them: roles and bindings, and what extension
//! API servers read to know whom to trust.

use std::sync::{Arc, LazyLock};

use portolan_machinery::rbac::bootstrap;
use portolan_store::StoredObject;
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, Record, ResourceVersion, Scope, object,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{ApiServer, authz::ClusterRoles, directory::LogicalCluster};

const GROUP: &str = "rbac.authorization.k8s.io";
/// The key under which extension API servers look for the authority of client certificates. kube-apiserver writes others only where it
/// has an authority for the certificates of front proxies, which this server has not.
const CLIENT_CA: &str = "client-ca-file";

/// Objects that extension API servers read. Their data follows from the server's keys.
static CONFIG_MAPS: LazyLock<[Value; 1]> = LazyLock::new(|| {
    [json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {},
    })]
});

fn shared(resource: &GroupResource) -> &'static [Value] {
    match (&*resource.group, &*resource.resource) {
        (GROUP, "clusterroles") => &bootstrap().cluster_roles,
        (GROUP, "clusterrolebindings") => &bootstrap().cluster_role_bindings,
        (GROUP, "roles") => &bootstrap().roles,
        ("", "configmaps") => &*CONFIG_MAPS,
        _ => &[],
    }
}

/// Returns true where objects of a resource may be shared ones, in a namespace or in all.
pub(crate) fn has_shared(resource: &GroupResource, namespace: Option<&NamespaceName>) -> bool {
    shared(resource)
        .iter()
        .any(|value| namespace.is_none_or(|namespace| object::namespace(value) == namespace.as_str()))
}

/// Returns true for the key of a shared object.
pub(crate) fn is_shared(key: &ObjectKey) -> bool {
    find(key).is_some()
}

/// Returns true for a shared object that a logical cluster cannot delete. A ConfigMap that it has stored can be: the shared one is
/// shown again.
pub(crate) fn is_undeletable(key: &ObjectKey, is_stored: bool) -> bool {
    is_shared(key) && !(is_stored && *key.resource.resource == *"configmaps")
}

/// The uid that a shared object has in a logical cluster which has not written to it.
pub(crate) fn uid_of(key: &ObjectKey) -> Option<String> {
    is_shared(key).then(|| uid(key.cluster, &key.resource, &key.name))
}

/// The names of shared ClusterRoles that collect the rules of others.
pub(crate) fn aggregated() -> impl Iterator<Item = &'static str> {
    bootstrap().cluster_roles.iter().filter(|role| role.get("aggregationRule").is_some()).map(object::name)
}

fn find(key: &ObjectKey) -> Option<&'static Value> {
    let wanted = (key.namespace().map_or("", |namespace| namespace.as_str()), key.name.as_str());
    let all = shared(&key.resource);
    let at = all.binary_search_by(|value| (object::namespace(value), object::name(value)).cmp(&wanted)).ok()?;
    Some(&all[at])
}

/// A shared object as a logical cluster shows it.
pub(crate) fn one(
    api: &ApiServer,
    cluster: &LogicalCluster,
    key: &ObjectKey,
    roles: &ClusterRoles,
) -> Option<StoredObject> {
    find(key).map(|value| furnished(api, cluster, &key.resource, (value, roles)))
}

/// All shared objects of a resource, in key order.
pub(crate) fn all(
    api: &ApiServer,
    cluster: &LogicalCluster,
    resource: &GroupResource,
    roles: &ClusterRoles,
) -> Vec<StoredObject> {
    shared(resource).iter().map(|value| furnished(api, cluster, resource, (value, roles))).collect()
}

/// A shared object is at the first revision of all, with a uid and a time of the logical cluster's own.
fn furnished(
    api: &ApiServer,
    cluster: &LogicalCluster,
    resource: &GroupResource,
    (value, roles): (&Value, &ClusterRoles),
) -> StoredObject {
    let name = object::name(value);
    let mut value = value.clone();
    if *resource.resource == *"configmaps" {
        value["data"][CLIENT_CA] = api.pki.ca.as_str().into();
    }
    if value.get("aggregationRule").is_some() {
        let rules = serde_json::to_value(roles.rules(name).unwrap_or_default()).expect("strings serialize");
        value["rules"] = rules;
    }
    let metadata = object::metadata_mut(&mut value);
    metadata.insert("uid".into(), uid(cluster.id, resource, name).into());
    metadata.insert("creationTimestamp".into(), cluster.created.as_str().into());
    let name = object::name(&value).parse().expect("names of the shared table are path segments");
    let scope = Scope::from(object::namespace(&value).parse::<NamespaceName>().ok());
    StoredObject {
        key: ObjectKey { cluster: cluster.id, resource: resource.clone(), scope, name },
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
