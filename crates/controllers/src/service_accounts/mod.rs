//! Gives every active namespace its `default` ServiceAccount and the `kube-root-ca.crt` ConfigMap.

mod initial_check;

use std::sync::{Arc, Mutex, MutexGuard};

use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event};
use portolan_strategy::namespace_objects::{DEFAULT_ACCOUNT, ROOT_CA_MAP, default_account, root_ca_map};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, NamespaceName, ObjectKey, ObjectName,
    ResourceVersion, object,
};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneChange, PlaneError},
    runtime::{Controller, WorkOutcome},
};

use initial_check::{InitialCheck, ListedPart};

/// Controller of the objects that every namespace has.
pub struct ServiceAccountController {
    plane: Arc<Plane>,
    namespaces: &'static Kind,
    accounts: &'static Kind,
    config_maps: &'static Kind,
    root_ca: String,
    /// `data` of the ConfigMap.
    data: Value,
    /// Check of the lists at the start; `None` after it.
    initial: Mutex<Option<InitialCheck>>,
}

impl ServiceAccountController {
    /// On the objects of `plane`; `root_ca` is PEM.
    pub fn new(plane: Arc<Plane>, root_ca: &str) -> Self {
        let kind = |name| plane.table().kind(&GroupVersionKind::new("", "v1", name)).expect("the table has core/v1");
        let (namespaces, accounts, config_maps) = (kind("Namespace"), kind("ServiceAccount"), kind("ConfigMap"));
        Self {
            namespaces,
            accounts,
            config_maps,
            root_ca: root_ca.to_owned(),
            data: root_ca_map("", root_ca)["data"].take(),
            plane,
            initial: Mutex::new(Some(InitialCheck::default())),
        }
    }

    fn initial(&self) -> MutexGuard<'_, Option<InitialCheck>> {
        self.initial.lock().expect("no code panics under this lock")
    }

    /// Returns the namespace of which an object is a part as it should be.
    fn found_part(&self, event: &Event) -> Option<NamespaceName> {
        let (key, header) = (&event.key, &event.record.header);
        let is_part = match (part_of(&key.resource), &*key.name) {
            (ListedPart::Namespace, name) => return name.parse().ok().filter(|_| !header.is_deleting),
            (ListedPart::Account, name) => name == DEFAULT_ACCOUNT,
            (ListedPart::RootCa, ROOT_CA_MAP) => {
                let map = event.record.to_value(ResourceVersion::FIRST).ok()?;
                map.get("data") == Some(&self.data)
            }
            (ListedPart::RootCa, _) => false,
        };
        is_part.then(|| key.namespace().cloned()).flatten()
    }

    /// Records an object of the initial lists. Returns true if the check at their end covers it.
    fn note_initial(&self, event: &Event) -> bool {
        if event.change != ChangeKind::Created || self.initial().is_none() {
            return false;
        }
        let (part, found) = (part_of(&event.key.resource), self.found_part(event));
        match (&mut *self.initial(), found) {
            (Some(initial), Some(namespace)) => initial.note(part, event.key.cluster, namespace),
            (Some(_) | None, _) => false,
        }
    }

    /// Returns true if a namespace has both objects, as that of a new workspace does.
    async fn is_complete(&self, cluster: LogicalClusterId, namespace: &NamespaceName) -> Result<bool, PlaneError> {
        let key = |kind: &Kind, name: &str| {
            let name = name.parse().expect("the names are constants");
            ObjectKey::namespaced(cluster, kind.group_resource(), namespace.clone(), name)
        };
        if self.plane.store().get(&key(self.accounts, DEFAULT_ACCOUNT)).await?.is_none() {
            return Ok(false);
        }
        let map = self.plane.get(&key(self.config_maps, ROOT_CA_MAP)).await?;
        Ok(map.is_some_and(|map| map.object.get("data") == Some(&self.data)))
    }

    async fn ensure_root_ca(&self, cluster: LogicalClusterId, namespace: &str) -> Result<(), PlaneError> {
        let wanted = root_ca_map(namespace, &self.root_ca);
        let key = self.plane.key_of(self.config_maps, cluster, &wanted)?;
        let found = self.plane.change(self.config_maps, &key, |map| {
            if map.get("data") == Some(&self.data) {
                PlaneChange::Keep
            } else {
                map["data"] = self.data.clone();
                PlaneChange::Write(None)
            }
        });
        if found.await?.is_none() {
            self.plane.create_within(self.config_maps, cluster, &wanted).await?;
        }
        Ok(())
    }

    async fn ensure_account(&self, cluster: LogicalClusterId, namespace: &str) -> Result<(), PlaneError> {
        let wanted = default_account(namespace);
        let key = self.plane.key_of(self.accounts, cluster, &wanted)?;
        if self.plane.get(&key).await?.is_none() {
            self.plane.create_within(self.accounts, cluster, &wanted).await?;
        }
        Ok(())
    }
}

/// Returns the part of a namespace that objects of a resource are.
fn part_of(resource: &GroupResource) -> ListedPart {
    match &*resource.resource {
        "serviceaccounts" => ListedPart::Account,
        "configmaps" => ListedPart::RootCa,
        _ => ListedPart::Namespace,
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
        if self.note_initial(event) {
            return Vec::new();
        }
        let namespace = match (&*event.key.resource.resource, &*event.key.name) {
            ("namespaces", name) => name.parse().ok(),
            // Only deleted or changed objects need a repair; objects that exist at the start are covered by their
            // namespace.
            ("serviceaccounts", DEFAULT_ACCOUNT) if event.change == ChangeKind::Deleted => {
                event.key.namespace().cloned()
            }
            ("configmaps", ROOT_CA_MAP) if event.change != ChangeKind::Created => event.key.namespace().cloned(),
            _ => None,
        };
        namespace.map(|namespace| (event.key.cluster, namespace)).into_iter().collect()
    }

    fn listing(&self, resource: &GroupResource) {
        let part = part_of(resource);
        self.initial().iter_mut().for_each(|initial| initial.begin(part));
    }

    fn listed(&self, resource: &GroupResource, _: ResourceVersion) -> Vec<Self::Key> {
        let part = part_of(resource);
        let ended = self.initial().take_if(|initial| initial.end(part));
        ended.map(InitialCheck::incomplete).unwrap_or_default()
    }

    fn reconcile<'a>(&'a self, (cluster, namespace): &'a Self::Key) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            if self.is_complete(*cluster, namespace).await? {
                return Ok(WorkOutcome::Done);
            }
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
    matches!((kind, object::name(object)), ("ServiceAccount", DEFAULT_ACCOUNT) | ("ConfigMap", ROOT_CA_MAP))
}
