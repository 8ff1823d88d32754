//! Owner references, and the state of the owners.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use portolan_kinds::{Kind, Surface};
use portolan_store::{Event, RangeScope, StoreError};
use portolan_strategy::lifecycle::FOREGROUND_FINALIZER;
use portolan_types::{
    GroupResource, GroupVersion, LogicalClusterId, ObjectKey, ObjectName, ResourceVersion, Scope, Uid, object,
};
use serde_json::Value;

use crate::plane::{ObjectList, Plane, PlaneError};

/// Owner reference of a dependent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnerRef {
    api_version: String,
    kind: String,
    name: String,
    /// Uid of the owner, which tells it from another object of its name.
    pub(super) uid: String,
    /// True if foreground deletion of the owner waits for this dependent.
    pub(super) blocks: bool,
}

/// Owner as its dependents in one scope name it, with or without blocking it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerKey {
    pub(super) cluster: LogicalClusterId,
    /// Scope of the dependents.
    scope: Scope,
    reference: OwnerRef,
}

impl OwnerKey {
    /// Returns the key of the owner; `None` if its kind is not served or the reference is impossible.
    pub(super) async fn find(&self, plane: &Plane) -> Result<Option<ObjectKey>, PlaneError> {
        let kind = self.reference.kind(plane, self.cluster).await?;
        Ok(kind.and_then(|kind| self.reference.key(&kind, self.cluster, &self.scope)))
    }
}

/// State of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// It exists and stays.
    Present,
    /// It is being deleted and waits for its dependents.
    Waiting,
    /// It does not exist.
    Absent,
    /// Unknown: its kind is not served, or it is damaged.
    Unknown,
    /// It would be in a namespace, and its dependent is cluster-scoped.
    Misplaced,
}

/// Owner that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GoneOwner {
    /// Its key.
    pub(super) key: ObjectKey,
    pub(super) uid: Uid,
}

impl GoneOwner {
    /// Returns true if a reference of an object at `dependent` names it.
    fn is(&self, dependent: &ObjectKey, reference: &OwnerRef) -> bool {
        let is_in_reach = matches!(self.key.scope, Scope::Cluster) || self.key.scope == dependent.scope;
        is_in_reach && *self.uid.as_str() == *reference.uid && *self.key.name.as_str() == *reference.name
    }
}

impl OwnerRef {
    pub(super) fn of(reference: &Value) -> Self {
        let text = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            api_version: text("apiVersion"),
            kind: text("kind"),
            name: text("name"),
            uid: text("uid"),
            blocks: reference.get("blockOwnerDeletion").and_then(Value::as_bool).unwrap_or(false),
        }
    }

    /// Returns the reference without the blocking flag.
    pub(super) fn without_blocking(self) -> Self {
        Self { blocks: false, ..self }
    }

    pub(super) fn all(object: &Value) -> Vec<Self> {
        object::owner_references(object).iter().map(Self::of).collect()
    }

    /// Returns the owner as kube-controller-manager's Event names it, for an object in `namespace`.
    pub(super) fn describe_in(&self, namespace: &str) -> String {
        let Self { api_version, kind, name, uid, .. } = self;
        format!("[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]")
    }

    /// Returns the kind by group and kind: the version may not be served any more.
    async fn kind(&self, plane: &Plane, cluster: LogicalClusterId) -> Result<Option<Arc<Kind>>, PlaneError> {
        let Ok(version) = self.api_version.parse::<GroupVersion>() else { return Ok(None) };
        let builtin = Surface::builtin().kind_in_any_version(&version.group, &self.kind);
        let found = match builtin {
            Some(served) => Some(served),
            None => plane.kinds().of(cluster).await?.kind_in_any_version(&version.group, &self.kind),
        };
        Ok(found.map(|served| served.kind))
    }

    /// Returns the key of the owner of an object in `dependent`: in its namespace, or cluster-scoped.
    fn key(&self, kind: &Kind, cluster: LogicalClusterId, dependent: &Scope) -> Option<ObjectKey> {
        let scope = match (kind.namespaced, dependent) {
            (false, _) => Scope::Cluster,
            (true, Scope::Namespace(namespace)) => Scope::Namespace(namespace.clone()),
            // A cluster-scoped dependent cannot have an owner in a namespace.
            (true, Scope::Cluster) => return None,
        };
        let name: ObjectName = self.name.parse().ok()?;
        let resource = kind.storage.group_resource();
        Some(ObjectKey { cluster, resource, scope, name })
    }
}

/// Returns the state of the owner with the name and uid of `reference`. The owner `gone` is known to be deleted, even
/// if the definition of its kind no longer exists.
pub(super) async fn state(
    plane: &Plane,
    dependent: &ObjectKey,
    reference: &OwnerRef,
    gone: Option<&GoneOwner>,
) -> Result<OwnerState, PlaneError> {
    let Some(kind) = reference.kind(plane, dependent.cluster).await? else {
        let is_gone = gone.is_some_and(|gone| gone.is(dependent, reference));
        return Ok(if is_gone { OwnerState::Absent } else { OwnerState::Unknown });
    };
    if kind.namespaced && dependent.namespace().is_none() {
        return Ok(OwnerState::Misplaced);
    }
    let Some(key) = reference.key(&kind, dependent.cluster, &dependent.scope) else { return Ok(OwnerState::Unknown) };
    let owner = match plane.get(&key).await {
        Ok(Some(owner)) => owner,
        // An object that was stored here is not computed.
        Ok(None) if plane.kinds().is_computed(&key) => {
            let is_gone = gone.is_some_and(|gone| gone.is(dependent, reference));
            return Ok(if is_gone { OwnerState::Absent } else { OwnerState::Unknown });
        }
        Ok(None) => return Ok(unstored(plane, &kind, &key, reference)),
        // It exists. When it is deleted, every object is checked again.
        Err(PlaneError::Store(StoreError::Damaged { .. })) => return Ok(OwnerState::Unknown),
        Err(error) => return Err(error),
    };
    if object::meta_text(&owner.object, "uid") != reference.uid {
        return Ok(OwnerState::Absent);
    }
    let waiting = object::is_deleting(&owner.object)
        && object::finalizers(&owner.object).any(|finalizer| finalizer == FOREGROUND_FINALIZER);
    Ok(if waiting { OwnerState::Waiting } else { OwnerState::Present })
}

/// Returns the state of an owner that is not stored. It may be shown nevertheless: roles that all logical clusters
/// share, a logical cluster's own face.
fn unstored(plane: &Plane, kind: &Kind, key: &ObjectKey, reference: &OwnerRef) -> OwnerState {
    match plane.kinds().uid_unstored(key) {
        Some(uid) if uid == reference.uid => OwnerState::Present,
        // The absence of an object cannot be proven while its resource is not served.
        None if !kind.has_verb("get") => OwnerState::Unknown,
        Some(_) | None => OwnerState::Absent,
    }
}

/// Locations of owners in other namespaces than their dependents. They are cached, because a search reads every
/// namespace, an owner may have many dependents, and no other object will ever have its uid.
#[derive(Default)]
pub(super) struct OwnerLocations(Mutex<HashMap<(LogicalClusterId, OwnerRef), Option<Scope>>>);

impl OwnerLocations {
    /// Most cached owners; then all are dropped.
    const MOST: usize = 1024;

    /// Returns true if the owner is in another namespace than its dependent, where it owns nothing.
    pub(super) async fn is_elsewhere(
        &self,
        plane: &Plane,
        dependent: &ObjectKey,
        reference: &OwnerRef,
    ) -> Result<bool, PlaneError> {
        let owner = (dependent.cluster, reference.clone().without_blocking());
        let known = self.lock().get(&owner).cloned();
        let place = match known {
            Some(known) => known,
            None => {
                let found = find(plane, dependent.cluster, reference).await?;
                let mut known = self.lock();
                if known.len() >= Self::MOST {
                    known.clear();
                }
                known.insert(owner, found.clone());
                found
            }
        };
        Ok(place.is_some_and(|place| place != dependent.scope))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(LogicalClusterId, OwnerRef), Option<Scope>>> {
        self.0.lock().expect("no code panics under this lock")
    }
}

/// Searches the namespace of an owner.
async fn find(plane: &Plane, cluster: LogicalClusterId, reference: &OwnerRef) -> Result<Option<Scope>, PlaneError> {
    let kind = reference.kind(plane, cluster).await?;
    let Some(kind) = kind.filter(|kind| kind.namespaced) else { return Ok(None) };
    let mut namespaces = plane.slices(RangeScope::Cluster(cluster, GroupResource::new("", "namespaces")));
    while let Some(ObjectList { found, damaged }) = namespaces.next().await? {
        let names = found.iter().map(|found| &found.key.name).chain(damaged.iter().map(|found| &found.key.name));
        for scope in names.filter_map(|name| name.as_str().parse().ok()).map(Scope::Namespace) {
            let Some(key) = reference.key(&kind, cluster, &scope) else { continue };
            let owner = plane.get(&key).await?;
            if owner.is_some_and(|owner| object::meta_text(&owner.object, "uid") == reference.uid) {
                return Ok(Some(scope));
            }
        }
    }
    Ok(None)
}

/// Returns the owners that the object of an event names, which may wait for it.
pub(super) fn owners_of(event: &Event) -> impl Iterator<Item = OwnerKey> {
    let object =
        if event.record.header.owners.is_empty() { None } else { event.record.to_value(ResourceVersion::FIRST).ok() };
    let references = object.map(|object| OwnerRef::all(&object)).unwrap_or_default();
    references.into_iter().map(|reference| OwnerKey {
        cluster: event.key.cluster,
        scope: event.key.scope.clone(),
        reference: reference.without_blocking(),
    })
}
