//! Inventory of physical clusters for other tools: `ClusterProfile` per physical cluster and `PlacementDecision` per
//! `Placement`, the kinds of `multicluster.x-k8s.io/v1alpha1` (SIG Multicluster's Cluster Inventory API).
//!
//! A logical cluster opts in by the definition of the kind: profiles are written where it defines `ClusterProfile`, and
//! decisions where it defines `PlacementDecision`. The profiles are in one namespace, `default` unless the definition
//! names another by the annotation [`NAMESPACE_ANNOTATION`].
//!
//! Flow: events of definitions keep the set of logical clusters that opted in; other events cost a lookup in it. An
//! owner reference lets the garbage collector delete a profile with its physical cluster, and a decision with its
//! `Placement`. Objects that name another manager are left alone.

mod decisions;
mod profiles;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use portolan_kinds::{Kind, custom};
use portolan_store::{ChangeKind, Event, RangeScope};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectKey, object, work::WorkKey};
use serde_json::{Value, json};

use crate::{
    plane::{Plane, PlaneChange, PlaneError},
    runtime::{Controller, WorkOutcome},
};

/// Group of the inventory's kinds.
const GROUP: &str = "multicluster.x-k8s.io";
/// Name of this cluster manager and scheduler in the objects.
const MANAGER: &str = "portolan";
/// Label of a profile with the name of its cluster manager.
const MANAGER_LABEL: &str = "x-k8s.io/cluster-manager";
/// Namespace of the profiles without the annotation.
const DEFAULT_NAMESPACE: &str = "default";

/// Annotation of the definition of `ClusterProfile`: the namespace of the profiles.
pub const NAMESPACE_ANNOTATION: &str = "portolan.dev/profiles-namespace";

/// Kind of the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum InventoryKind {
    Profile,
    Decision,
}

impl InventoryKind {
    const ALL: [Self; 2] = [Self::Profile, Self::Decision];

    fn resource(self) -> GroupResource {
        GroupResource::new(GROUP, if self == Self::Profile { "clusterprofiles" } else { "placementdecisions" })
    }

    /// Returns the resource of the objects that it is written for.
    fn source(self) -> GroupResource {
        GroupResource::new("portolan.dev", if self == Self::Profile { "physicalclusters" } else { "placements" })
    }

    fn of_definition(key: &ObjectKey) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.resource().to_string() == key.name.as_str())
    }
}

/// Key of a reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InventoryKey {
    /// Physical cluster.
    PhysicalCluster(ObjectKey),
    /// `Placement`.
    Placement(ObjectKey),
    /// All physical clusters of a logical cluster, which has started to define `ClusterProfile`.
    AllPhysicalClusters(LogicalClusterId),
    /// All `Placement`s of a logical cluster, which has started to define `PlacementDecision`.
    AllPlacements(LogicalClusterId),
}

impl WorkKey for InventoryKey {
    type Tenant = LogicalClusterId;

    fn tenant(&self) -> LogicalClusterId {
        match self {
            Self::PhysicalCluster(key) | Self::Placement(key) => key.cluster,
            Self::AllPhysicalClusters(cluster) | Self::AllPlacements(cluster) => *cluster,
        }
    }
}

/// Controller of the inventory.
pub struct InventoryController {
    plane: Arc<Plane>,
    /// CA of this server, PEM: consumers reach a physical cluster through its proxy.
    ca: String,
    defined: Mutex<HashSet<(LogicalClusterId, InventoryKind)>>,
}

impl InventoryController {
    /// Makes the controller. `ca` is the PEM that clients trust this server by.
    pub fn new(plane: Arc<Plane>, ca: &str) -> Self {
        Self { plane, ca: ca.to_owned(), defined: Mutex::default() }
    }

    fn defined(&self) -> MutexGuard<'_, HashSet<(LogicalClusterId, InventoryKind)>> {
        self.defined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_defined(&self, cluster: LogicalClusterId, kind: InventoryKind) -> bool {
        self.defined().contains(&(cluster, kind))
    }

    /// Records the definition of a kind. Returns the key of the objects that are to be written for it.
    fn note_definition(&self, event: &Event) -> Option<InventoryKey> {
        let kind = InventoryKind::of_definition(&event.key)?;
        let cluster = event.key.cluster;
        if event.change == ChangeKind::Deleted {
            self.defined().remove(&(cluster, kind));
            return None;
        }
        self.defined().insert((cluster, kind));
        Some(match kind {
            InventoryKind::Profile => InventoryKey::AllPhysicalClusters(cluster),
            InventoryKind::Decision => InventoryKey::AllPlacements(cluster),
        })
    }

    /// Returns a kind of the inventory as a logical cluster serves it; `None` if it does not.
    async fn served(&self, cluster: LogicalClusterId, kind: InventoryKind) -> Result<Option<Arc<Kind>>, PlaneError> {
        if !self.is_defined(cluster, kind) {
            return Ok(None);
        }
        let served = self.plane.kind_of(cluster, &kind.resource()).await?;
        Ok(served.filter(|served| served.namespaced && &*served.gvk.version == "v1alpha1"))
    }

    /// Returns the namespace of the profiles of a logical cluster.
    async fn profiles_namespace(&self, cluster: LogicalClusterId) -> Result<String, PlaneError> {
        let resource = GroupResource::new(custom::GROUP, custom::RESOURCE);
        let name = InventoryKind::Profile.resource().to_string().parse().expect("it is a DNS subdomain");
        let definition = self.plane.get(&ObjectKey::cluster_scoped(cluster, resource, name)).await?;
        let named = definition.as_ref().and_then(|found| object::annotation(&found.object, NAMESPACE_ANNOTATION));
        Ok(named.unwrap_or(DEFAULT_NAMESPACE).to_owned())
    }

    /// Reconciles all sources of a kind.
    async fn reconcile_all(&self, cluster: LogicalClusterId, kind: InventoryKind) -> Result<(), PlaneError> {
        let mut slices = self.plane.slices(RangeScope::Cluster(cluster, kind.source()));
        while let Some(slice) = slices.next().await? {
            for source in slice.found {
                self.reconcile_source(&source.key, kind).await?;
            }
        }
        Ok(())
    }

    async fn reconcile_source(&self, key: &ObjectKey, kind: InventoryKind) -> Result<(), PlaneError> {
        let Some(served) = self.served(key.cluster, kind).await? else { return Ok(()) };
        let Some(source) = self.plane.get(key).await? else { return Ok(()) };
        if object::is_deleting(&source.object) {
            return Ok(());
        }
        match kind {
            InventoryKind::Profile => self.write_profile(&served, &source).await,
            InventoryKind::Decision => self.write_decisions(&served, &source).await,
        }
    }

    /// Creates an object of the inventory if it is missing, and otherwise changes the fields that `set` writes.
    async fn put(
        &self,
        kind: &Kind,
        cluster: LogicalClusterId,
        wanted: &Value,
        set: impl Fn(&mut Value) + Send + Sync,
    ) -> Result<(), PlaneError> {
        let key = self.plane.key_of(kind, cluster, wanted)?;
        if self.plane.get(&key).await?.is_none() {
            return self.plane.create_within(kind, cluster, wanted).await.map(drop);
        }
        self.update(kind, &key, None, set).await
    }

    /// Changes the fields that `set` writes in an object of the inventory. `subresource` is the one whose fields these
    /// are. An object of another manager stays as it is.
    async fn update(
        &self,
        kind: &Kind,
        key: &ObjectKey,
        subresource: Option<&'static str>,
        set: impl Fn(&mut Value) + Send + Sync,
    ) -> Result<(), PlaneError> {
        let write = |object: &mut Value| {
            let before = object.clone();
            if is_ours(object) {
                set(object);
            }
            if *object == before { PlaneChange::Keep } else { PlaneChange::Write(subresource) }
        };
        self.plane.change(kind, key, write).await.map(drop)
    }
}

/// Returns true if no other manager is named in an object of the inventory.
fn is_ours(object: &Value) -> bool {
    let manager = object.pointer("/spec/clusterManager/name").or_else(|| object.get("schedulerName"));
    manager.is_none_or(|manager| manager == MANAGER)
}

/// Returns a condition of an object's status.
fn condition<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object.pointer("/status/conditions")?.as_array()?.iter().find(|own| own["type"] == name)
}

/// Returns the reference of a dependent to its owner.
fn owner_of(source: &Value) -> Value {
    json!([{
        "apiVersion": source["apiVersion"],
        "kind": source["kind"],
        "name": object::name(source),
        "uid": object::meta_text(source, "uid"),
    }])
}

impl Controller for InventoryController {
    type Key = InventoryKey;

    fn name(&self) -> &'static str {
        "cluster-inventory"
    }

    fn resources(&self) -> Vec<GroupResource> {
        let kinds = InventoryKind::ALL.into_iter().flat_map(|kind| [kind.source(), kind.resource()]);
        kinds.chain([GroupResource::new(custom::GROUP, custom::RESOURCE)]).collect()
    }

    fn keys(&self, event: &Event) -> Vec<InventoryKey> {
        let (key, cluster) = (&event.key, event.key.cluster);
        if key.resource == GroupResource::new(custom::GROUP, custom::RESOURCE) {
            return self.note_definition(event).into_iter().collect();
        }
        let kind = InventoryKind::ALL.into_iter().find(|kind| [kind.source(), kind.resource()].contains(&key.resource));
        let Some(kind) = kind.filter(|kind| self.is_defined(cluster, *kind)) else { return Vec::new() };
        let is_source = key.resource == kind.source();
        vec![match (kind, is_source) {
            (InventoryKind::Profile, true) => InventoryKey::PhysicalCluster(key.clone()),
            // A profile has the name of its physical cluster.
            (InventoryKind::Profile, false) => {
                InventoryKey::PhysicalCluster(ObjectKey::cluster_scoped(cluster, kind.source(), key.name.clone()))
            }
            (InventoryKind::Decision, true) => InventoryKey::Placement(key.clone()),
            (InventoryKind::Decision, false) => {
                InventoryKey::Placement(ObjectKey { resource: kind.source(), ..decisions::first_slice(key) })
            }
        }]
    }

    fn reconcile<'a>(&'a self, key: &'a InventoryKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            match key {
                InventoryKey::PhysicalCluster(key) => self.reconcile_source(key, InventoryKind::Profile).await,
                InventoryKey::Placement(key) => self.reconcile_source(key, InventoryKind::Decision).await,
                InventoryKey::AllPhysicalClusters(cluster) => {
                    self.reconcile_all(*cluster, InventoryKind::Profile).await
                }
                InventoryKey::AllPlacements(cluster) => self.reconcile_all(*cluster, InventoryKind::Decision).await,
            }
            .map(|()| WorkOutcome::Done)
        })
    }
}
