//! Labels of downstream namespaces, so that namespace selectors match the same namespaces downstream as upstream.
//!
//! A downstream namespace has the labels of its upstream namespace under separate keys, and a label with its owner.
//! Only the syncer writes both: no upstream client can set a label on a downstream namespace in another way.

use portolan_types::{
    LogicalClusterId, NamespaceName, annotations,
    labels::{is_subdomain, key_faults},
    object,
    placement::NamespaceMapping,
};
use serde_json::{Map, Value};

use crate::naming::{ReservedNamespace, downstream_namespace, tenant_hash};

/// Domain of the keys of copied labels: `team` becomes `namespace.portolan.dev/team`, and `example.com/team` becomes
/// `example.com.namespace.portolan.dev/team`.
const DOMAIN: &str = "namespace.portolan.dev";

/// Names and labels that the namespaces of a control plane have on a physical cluster.
#[derive(Clone, Debug, Default)]
pub struct NamespaceNaming {
    /// Rules by which names are made.
    pub mapping: NamespaceMapping,
    /// Name of the control plane, if it has one.
    pub plane: Option<String>,
}

impl NamespaceNaming {
    /// Returns the downstream namespace.
    ///
    /// # Errors
    /// Fails for names that Kubernetes reserves.
    pub(crate) fn downstream(
        &self,
        cluster: LogicalClusterId,
        namespace: &NamespaceName,
    ) -> Result<NamespaceName, ReservedNamespace> {
        downstream_namespace(self.mapping, self.plane.as_deref(), cluster, namespace)
    }

    /// Returns the value of [`annotations::DOWN_TENANT`] on all namespaces of a logical cluster, and on no others.
    pub(crate) fn tenant(&self, cluster: LogicalClusterId) -> String {
        tenant_hash(self.plane.as_deref(), &cluster.to_string())
    }

    /// Returns the labels for selectors of the downstream namespace, made from those of its upstream namespace.
    pub(crate) fn labels(&self, cluster: LogicalClusterId, upstream: &Map<String, Value>) -> Map<String, Value> {
        let copied = upstream.iter().filter_map(|(key, value)| Some((downstream_key(key)?, value.clone())));
        copied.chain([(annotations::DOWN_TENANT.to_owned(), self.tenant(cluster).into())]).collect()
    }
}

/// Returns the key downstream of a label of a namespace; `None` where it would be too long for Kubernetes.
pub(crate) fn downstream_key(key: &str) -> Option<String> {
    let key = match key.split_once('/') {
        None => format!("{DOMAIN}/{key}"),
        Some((prefix, name)) => format!("{prefix}.{DOMAIN}/{name}"),
    };
    key_faults(&key).is_empty().then_some(key)
}

/// Returns the key upstream of a label that was copied.
pub(crate) fn upstream_key(key: &str) -> Option<String> {
    let (prefix, name) = key.split_once('/')?;
    let before = prefix.strip_suffix(DOMAIN)?;
    match before.strip_suffix('.') {
        Some(prefix) if is_subdomain(prefix) => Some(format!("{prefix}/{name}")),
        None if before.is_empty() => Some(name.to_owned()),
        Some(_) | None => None,
    }
}

/// Returns the necessary label changes of a downstream namespace as a merge patch; `None` if there are none.
pub(crate) fn label_changes(downstream: &Value, wanted: &Map<String, Value>) -> Option<Map<String, Value>> {
    let own = object::metadata(downstream).get("labels").and_then(Value::as_object);
    let is_stale = |key: &String| upstream_key(key).is_some() && !wanted.contains_key(key);
    let stale = own.into_iter().flatten().filter(|(key, _)| is_stale(key)).map(|(key, _)| (key.clone(), Value::Null));
    let is_new = |(key, value): &(&String, &Value)| own.and_then(|own| own.get(*key)) != Some(*value);
    let new = wanted.iter().filter(is_new).map(|(key, value)| (key.clone(), value.clone()));
    let changes: Map<String, Value> = stale.chain(new).collect();
    (!changes.is_empty()).then_some(changes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_of_copied_labels_are_their_own_and_lead_back() {
        for (upstream, downstream) in [
            ("team", Some("namespace.portolan.dev/team")),
            ("kubernetes.io/metadata.name", Some("kubernetes.io.namespace.portolan.dev/metadata.name")),
            ("sync.portolan.dev/tenant", Some("sync.portolan.dev.namespace.portolan.dev/tenant")),
            ("namespace.portolan.dev/team", Some("namespace.portolan.dev.namespace.portolan.dev/team")),
        ] {
            assert_eq!(downstream_key(upstream).as_deref(), downstream, "{upstream}");
            assert_eq!(downstream.and_then(upstream_key).as_deref(), Some(upstream));
        }
        assert_eq!(downstream_key(&format!("{}/x", "a.".repeat(120) + "example.com")), None, "a prefix of 251 bytes");
        for key in ["team", "portolan.dev/team", "xnamespace.portolan.dev/team", "sync.portolan.dev/tenant"] {
            assert_eq!(upstream_key(key), None, "{key}");
        }
    }

    #[test]
    fn namespace_labels_are_synced_and_foreign_labels_stay() {
        let naming = NamespaceNaming { mapping: NamespaceMapping::Hashed, plane: Some("plane".into()) };
        let wanted = naming.labels(LogicalClusterId::ROOT, &Map::from_iter([("team".to_owned(), json!("blue"))]));
        let namespace = |labels: Value| json!({"metadata": {"labels": labels}});
        let changed = label_changes(
            &namespace(json!({"namespace.portolan.dev/team": "red", "namespace.portolan.dev/old": "x", "theirs": "y"})),
            &wanted,
        );
        let tenant = naming.tenant(LogicalClusterId::ROOT);
        let expected = json!({"namespace.portolan.dev/team": "blue", "namespace.portolan.dev/old": null, "sync.portolan.dev/tenant": tenant});
        assert_eq!(changed.map(Value::Object), Some(expected));
        assert_eq!(label_changes(&namespace(Value::Object(wanted.clone())), &wanted), None);
        let other = NamespaceNaming { plane: Some("other".into()), ..naming.clone() };
        assert_ne!(tenant, other.tenant(LogicalClusterId::ROOT), "another control plane has other tenants");
        assert_ne!(tenant, naming.tenant(LogicalClusterId::new(7)));
    }
}
