//! Gives every active namespace its `default` ServiceAccount and the `kube-root-ca.crt` ConfigMap.

use std::sync::Arc;

use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, NamespaceName, ObjectKey, ObjectName, object,
};
use serde_json::{Value, json};

use crate::{
    plane::{Plane, PlaneChange, PlaneError},
    runtime::{Controller, WorkOutcome},
};

const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";

/// The loop of what every namespace has.
pub struct ServiceAccountController {
    plane: Arc<Plane>,
    namespaces: &'static Kind,
    accounts: &'static Kind,
    config_maps: &'static Kind,
    root_ca: String,
}

impl ServiceAccountController {
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
        let found = self.plane.change(self.config_maps, &key, |map| {
            if map.get("data") == Some(&data) {
                PlaneChange::Keep
            } else {
                map["data"] = data.clone();
                PlaneChange::Write(None)
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

impl Controller for ServiceAccountController {
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
            // Only deleted or changed objects need a repair; objects that exist at the start are covered by their
            // namespace.
            ("serviceaccounts", ACCOUNT) if event.change == ChangeKind::Deleted => event.key.namespace().cloned(),
            ("configmaps", ROOT_CA) if event.change != ChangeKind::Created => event.key.namespace().cloned(),
            _ => None,
        };
        namespace.map(|namespace| (event.key.cluster, namespace)).into_iter().collect()
    }

    fn reconcile<'a>(&'a self, (cluster, namespace): &'a Self::Key) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let name: ObjectName = namespace.parse().expect("a DNS label is a path segment");
            let key = ObjectKey::cluster_scoped(*cluster, self.namespaces.group_resource(), name);
            let active = |found: crate::plane::PlaneObject| !object::is_deleting(&found.object);
            if !self.plane.get(&key).await?.is_some_and(active) {
                return Ok(WorkOutcome::Done);
            }
            self.ensure_account(*cluster, namespace).await?;
            self.ensure_root_ca(*cluster, namespace).await?;
            Ok(WorkOutcome::Done)
        })
    }
}

/// Returns true for the objects that this controller makes: they never go downstream.
pub fn is_furniture(object: &Value) -> bool {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    matches!((kind, object::name(object)), ("ServiceAccount", ACCOUNT) | ("ConfigMap", ROOT_CA))
}
