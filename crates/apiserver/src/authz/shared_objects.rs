//! Objects that every logical cluster shares until it writes to them: roles and bindings, and the configuration that
//! extension API servers read.

use std::sync::{Arc, LazyLock};

use portolan_store::StoredObject;
use portolan_strategy::rbac::bootstrap;
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, Record, ResourceVersion, Scope, Status, object,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    directory::LogicalCluster,
    front_proxy::{self, FrontProxies},
};

use super::{ClusterRoles, RbacAuthorizer};

const GROUP: &str = "rbac.authorization.k8s.io";
/// Key under which extension API servers find the authority of client certificates.
const CLIENT_CA: &str = "client-ca-file";
/// Keys under which they find how requests of aggregation name their users, and the values.
const REQUEST_HEADERS: [(&str, &str); 3] = [
    ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
    ("requestheader-username-headers", r#"["X-Remote-User"]"#),
];

/// Objects that extension API servers read. Their data comes from the server's keys.
static CONFIG_MAPS: LazyLock<[Value; 1]> = LazyLock::new(|| {
    [json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {},
    })]
});

/// Types of workspaces that every server has. Only `root` shows them.
static WORKSPACE_TYPES: LazyLock<[Value; 5]> = LazyLock::new(|| {
    let of_root = |name: &str| json!({"name": name, "path": "root"});
    let only = |names: &[&str]| json!({"types": names.iter().map(|name| of_root(name)).collect::<Vec<_>>()});
    let kind = |name: &str, spec: Value| {
        json!({
            "apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "WorkspaceType",
            "metadata": {"name": name, "annotations": {"kcp.io/path": "root"}},
            "spec": spec,
        })
    };
    let child = of_root("universal");
    [
        kind("home", json!({"defaultChildWorkspaceType": child, "limitAllowedParents": {"none": true}})),
        kind("organization", json!({"defaultChildWorkspaceType": child, "limitAllowedParents": only(&["root"])})),
        kind("root", json!({"defaultChildWorkspaceType": child, "limitAllowedParents": {"none": true}})),
        kind(
            "team",
            json!({"defaultChildWorkspaceType": child, "limitAllowedParents": only(&["organization", "team"])}),
        ),
        kind("universal", json!({"defaultChildWorkspaceType": child})),
    ]
});

fn shared(resource: &GroupResource) -> &'static [Value] {
    match (&*resource.group, &*resource.resource) {
        ("tenancy.kcp.io", "workspacetypes") => &*WORKSPACE_TYPES,
        (GROUP, "clusterroles") => &bootstrap().cluster_roles,
        (GROUP, "clusterrolebindings") => &bootstrap().cluster_role_bindings,
        (GROUP, "roles") => &bootstrap().roles,
        ("", "configmaps") => &*CONFIG_MAPS,
        _ => &[],
    }
}

/// Returns the shared objects of a resource in a logical cluster.
fn shared_in(cluster: LogicalClusterId, resource: &GroupResource) -> &'static [Value] {
    let is_of_root = *resource.resource == *"workspacetypes" && *resource.group == *"tenancy.kcp.io";
    if is_of_root && cluster != LogicalClusterId::ROOT { &[] } else { shared(resource) }
}

/// Returns the built-in type of workspaces that a key names.
pub(crate) fn builtin_workspace_type(key: &ObjectKey) -> Option<&'static Value> {
    find(key)
}

/// Returns true if a resource may have shared objects, in a namespace or in all.
pub(crate) fn has_shared(resource: &GroupResource, namespace: Option<&NamespaceName>) -> bool {
    shared(resource)
        .iter()
        .any(|value| namespace.is_none_or(|namespace| object::namespace(value) == namespace.as_str()))
}

/// Returns true for the key of a shared object.
pub(crate) fn is_shared(key: &ObjectKey) -> bool {
    find(key).is_some()
}

/// Returns true for a shared object that a logical cluster cannot delete. A stored ConfigMap can be deleted; then the
/// shared one appears again.
pub(crate) fn is_undeletable(key: &ObjectKey, is_stored: bool) -> bool {
    is_shared(key) && !(is_stored && *key.resource.resource == *"configmaps")
}

/// Returns the uid of a shared object in a logical cluster that has not written to it.
pub(crate) fn uid_of(key: &ObjectKey) -> Option<String> {
    is_shared(key).then(|| uid(key.cluster, &key.resource, &key.name))
}

/// Returns the names of shared ClusterRoles that aggregate others.
pub(crate) fn aggregated() -> impl Iterator<Item = &'static str> {
    bootstrap().cluster_roles.iter().filter(|role| role.get("aggregationRule").is_some()).map(object::name)
}

fn find(key: &ObjectKey) -> Option<&'static Value> {
    let wanted = (key.namespace().map_or("", |namespace| namespace.as_str()), key.name.as_str());
    let all = shared_in(key.cluster, &key.resource);
    let at = all.binary_search_by(|value| (object::namespace(value), object::name(value)).cmp(&wanted)).ok()?;
    Some(&all[at])
}

/// Source of shared objects, as each logical cluster shows them.
pub(crate) struct SharedObjects {
    rbac: Arc<RbacAuthorizer>,
    /// Authority of client certificates, in PEM.
    client_ca: String,
    /// Certificates by which extension API servers believe these headers.
    proxies: FrontProxies,
}

impl SharedObjects {
    /// Creates a source. `proxy_secret` is what the keys of front proxies are derived from.
    pub(crate) fn new(rbac: Arc<RbacAuthorizer>, client_ca: String, proxy_secret: &[u8]) -> Self {
        Self { rbac, client_ca, proxies: FrontProxies::new(proxy_secret) }
    }

    /// Returns the shared object of a key, if there is one.
    ///
    /// # Errors
    /// Failure to read the roles that it aggregates.
    pub(crate) async fn one(&self, cluster: &LogicalCluster, key: &ObjectKey) -> Result<Option<StoredObject>, Status> {
        let Some(value) = find(key) else { return Ok(None) };
        let roles = self.rbac.roles(cluster.id).await?;
        Ok(Some(self.completed(cluster, &key.resource, value, &roles)))
    }

    /// Returns all shared objects of a resource, in key order.
    ///
    /// # Errors
    /// Failure to read the roles that they aggregate.
    pub(crate) async fn all(
        &self,
        cluster: &LogicalCluster,
        resource: &GroupResource,
    ) -> Result<Vec<StoredObject>, Status> {
        let roles = self.rbac.roles(cluster.id).await?;
        Ok(shared_in(cluster.id, resource)
            .iter()
            .map(|value| self.completed(cluster, resource, value, &roles))
            .collect())
    }

    fn completed(
        &self,
        cluster: &LogicalCluster,
        resource: &GroupResource,
        value: &Value,
        roles: &ClusterRoles,
    ) -> StoredObject {
        let mut value = with_rules(value, roles);
        if *resource.resource == *"configmaps" {
            value["data"] = self.extension_data(cluster.id);
        }
        in_cluster(cluster, resource, value)
    }

    /// Returns the configuration that extension API servers read.
    fn extension_data(&self, cluster: LogicalClusterId) -> Value {
        let mut data = json!({CLIENT_CA: self.client_ca});
        if let Some(proxy) = self.proxies.of(cluster) {
            data["requestheader-client-ca-file"] = proxy.pem().into();
            data["requestheader-allowed-names"] = json!([front_proxy::NAME]).to_string().into();
            REQUEST_HEADERS.iter().for_each(|(key, value)| data[*key] = (*value).into());
        }
        data
    }
}

/// Returns a shared ClusterRole with the rules that it aggregates from `roles`.
pub(crate) fn aggregated_role(cluster: &LogicalCluster, key: &ObjectKey, roles: &ClusterRoles) -> Option<StoredObject> {
    find(key).map(|value| in_cluster(cluster, &key.resource, with_rules(value, roles)))
}

fn with_rules(value: &Value, roles: &ClusterRoles) -> Value {
    let mut value = value.clone();
    if value.get("aggregationRule").is_some() {
        let rules = roles.rules(object::name(&value)).unwrap_or_default();
        value["rules"] = serde_json::to_value(rules).expect("strings serialize");
    }
    value
}

/// Returns a shared object with its first revision, and a uid and creation time of the logical cluster's own.
fn in_cluster(cluster: &LogicalCluster, resource: &GroupResource, mut value: Value) -> StoredObject {
    let uid = uid(cluster.id, resource, object::name(&value));
    let metadata = object::metadata_mut(&mut value);
    metadata.insert("uid".into(), uid.into());
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

/// Derives a uid from the address (UUID version 8).
fn uid(cluster: LogicalClusterId, resource: &GroupResource, name: &str) -> String {
    let hash = Sha256::digest(format!("{cluster}\0{resource}\0{name}"));
    let mut b = [0; 16];
    b.copy_from_slice(&hash[..16]);
    (b[6], b[8]) = ((b[6] & 0x0f) | 0x80, (b[8] & 0x3f) | 0x80);
    let hex: String = b.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use portolan_kinds::KindTable;

    use super::*;
    use crate::views::has_shared_objects;

    #[test]
    fn views_know_the_resources_with_shared_objects() {
        for kind in KindTable::builtin().kinds() {
            let resource = kind.group_resource();
            let has_any = has_shared(&resource, None);
            assert!(!has_any || has_shared_objects(&resource), "{resource:?}");
        }
    }
}
