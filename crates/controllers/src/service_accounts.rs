//! Gives every active namespace its `default` ServiceAccount and the `kube-root-ca.crt` ConfigMap.

use std::sync::Arc;

use portolan_machinery::kinds::Kind;
use portolan_store::{Change, Event};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, NamespaceName, ObjectKey, ObjectName, object,
};
use serde_json::{Value, json};

use crate::{
    plane::{Plane, PlaneError, Step},
    runtime::{Controller, Outcome},
};

const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";

/// The loop of what every namespace has.
pub struct ServiceAccounts {
    plane: Arc<Plane>,
    namespaces: &'static Kind,
    accounts: &'static Kind,
    config_maps: &'static Kind,
    root_ca: String,
}

impl ServiceAccounts {
    /// On the objects of `plane`; `root_ca` is PEM.
    pub fn new(plane: Arc<Plane>, root_ca: &str) -> Self {
        let kind = |name| plane.table().kind(&GroupVersionKind::new("", "v1", name)).expect("the table has core/v1");
        let (namespaces, accounts, config_maps) = (kind("Namespace"), kind("ServiceAccount"), kind("ConfigMap"));
        Self { namespaces, accounts, config_maps, root_ca: root_ca.to_owned(), plane }
    }

    async fn ensure_root_ca(&self, cluster: LogicalClusterId, namespace: &str) -> Result<(), PlaneError> {
        let data = json!({"ca.crt": self.root_ca});
        let wanted = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {
                "name": ROOT_CA, "namespace": namespace,
                "annotations": {"kubernetes.io/description": "Holds the certificate authority of the API server of this logical cluster."},
            },
        });
        let key = self.plane.key_of(self.config_maps, cluster, &wanted)?;
        let found = self.plane.change(self.config_maps, &key, |map| match map.get("data") == Some(&data) {
            true => Step::Keep,
            false => {
                map["data"] = data.clone();
                Step::Write(None)
            }
        });
        if found.await?.is_none() {
            self.plane.create_within(self.config_maps, cluster, &wanted).await?;
        }
        Ok(())
    }

    async fn ensure_account(&self, cluster: LogicalClusterId, namespace: &str) -> Result<(), PlaneError> {
        let wanted = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": namespace},
        });
        let key = self.plane.key_of(self.accounts, cluster, &wanted)?;
        if self.plane.get(&key).await?.is_none() {
            self.plane.create_within(self.accounts, cluster, &wanted).await?;
        }
        Ok(())
    }
}

impl Controller for ServiceAccounts {
    type Key = (LogicalClusterId, NamespaceName);

    fn name(&self) -> &'static str {
        "service-accounts"
    }

    fn resources(&self) -> Vec<GroupResource> {
        [self.namespaces, self.accounts, self.config_maps].map(Kind::group_resource).to_vec()
    }

    fn keys(&self, event: &Event) -> Vec<Self::Key> {
        let namespace = match (&*event.key.resource.resource, &*event.key.name) {
            ("namespaces", name) => name.parse().ok(),
            // Only what is gone or changed needs mending; what is there when the loop starts is seen by its namespace.
            ("serviceaccounts", ACCOUNT) if event.change == Change::Deleted => event.key.namespace().cloned(),
            ("configmaps", ROOT_CA) if event.change != Change::Created => event.key.namespace().cloned(),
            _ => None,
        };
        namespace.map(|namespace| (event.key.cluster, namespace)).into_iter().collect()
    }

    fn reconcile<'a>(&'a self, (cluster, namespace): &'a Self::Key) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let name: ObjectName = namespace.parse().expect("a DNS label is a path segment");
            let key = ObjectKey::cluster_scoped(*cluster, self.namespaces.group_resource(), name);
            let active = |found: crate::plane::Found| !object::is_deleting(&found.object);
            if !self.plane.get(&key).await?.is_some_and(active) {
                return Ok(Outcome::Done);
            }
            self.ensure_account(*cluster, namespace).await?;
            self.ensure_root_ca(*cluster, namespace).await?;
            Ok(Outcome::Done)
        })
    }
}

/// Whether an object is one of those that this loop makes: they never go downstream.
pub fn is_furniture(object: &Value) -> bool {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    matches!((kind, object::name(object)), ("ServiceAccount", ACCOUNT) | ("ConfigMap", ROOT_CA))
}
