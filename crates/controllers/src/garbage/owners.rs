//! Owner references: what they name, and whether that is still there.

use std::sync::Arc;

use portolan_machinery::{
    kinds::{Kind, Surface},
    lifecycle::FOREGROUND_FINALIZER,
};
use portolan_store::Event;
use portolan_types::{GroupVersion, LogicalClusterId, ObjectKey, ObjectName, ResourceVersion, Scope, object};
use serde_json::Value;

use crate::plane::{Plane, PlaneError};

/// An owner reference, as it stands on the dependent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnerRef {
    api_version: String,
    kind: String,
    name: String,
    /// Uid of the owner: a namesake is another object.
    pub(super) uid: String,
    /// Whether foreground deletion of the owner waits for this dependent.
    pub(super) blocks: bool,
}

/// What an owner is called by the dependents that it has at one place. Equal for all of them, whether they block it or not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerKey {
    pub(super) cluster: LogicalClusterId,
    /// Of the dependents.
    scope: Scope,
    reference: OwnerRef,
}

impl OwnerKey {
    /// Where the owner is; `None` when its kind is not served or it cannot be anywhere.
    pub(super) async fn find(&self, plane: &Plane) -> Result<Option<ObjectKey>, PlaneError> {
        key_of(plane, self.cluster, &self.scope, &self.reference).await
    }
}

/// Whether the owner keeps its dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// It is there and stays.
    Solid,
    /// It is being deleted and waits for its dependents.
    Waiting,
    /// It is gone, or was never there.
    Absent,
    /// Its kind is not served: nothing is proven.
    Unknown,
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

    /// The same, blocking nothing.
    pub(super) fn whether_blocked_or_not(self) -> Self {
        Self { blocks: false, ..self }
    }

    pub(super) fn all(object: &Value) -> Vec<Self> {
        object::owner_references(object).iter().map(Self::of).collect()
    }

    /// The kind by group and kind: an owner may be named in a version that is not served any more.
    async fn kind(&self, plane: &Plane, cluster: LogicalClusterId) -> Result<Option<Arc<Kind>>, PlaneError> {
        let Ok(version) = self.api_version.parse::<GroupVersion>() else { return Ok(None) };
        let builtin = Surface::builtin().kind_in_any_version(&version.group, &self.kind);
        let found = match builtin {
            Some(served) => Some(served),
            None => plane.kinds().of(cluster).await?.kind_in_any_version(&version.group, &self.kind),
        };
        Ok(found.map(|served| served.kind))
    }

    /// Where the owner of an object in `dependent` must be: in its namespace, or at cluster scope.
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

/// Where the owner is that an object in `dependent` names; `None` when its kind is not served or it cannot be anywhere.
async fn key_of(
    plane: &Plane,
    cluster: LogicalClusterId,
    dependent: &Scope,
    reference: &OwnerRef,
) -> Result<Option<ObjectKey>, PlaneError> {
    let kind = reference.kind(plane, cluster).await?;
    Ok(kind.and_then(|kind| reference.key(&kind, cluster, dependent)))
}

/// Whether the owner that `reference` names is there, by name and uid, read from the store itself.
pub(super) async fn state(
    plane: &Plane,
    dependent: &ObjectKey,
    reference: &OwnerRef,
) -> Result<OwnerState, PlaneError> {
    let Some(key) = key_of(plane, dependent.cluster, &dependent.scope, reference).await? else {
        return Ok(OwnerState::Unknown);
    };
    let Some(owner) = plane.get(&key).await? else { return Ok(OwnerState::Absent) };
    if object::meta_text(&owner.object, "uid") != reference.uid {
        return Ok(OwnerState::Absent);
    }
    let waiting = object::is_deleting(&owner.object)
        && object::finalizers(&owner.object).any(|finalizer| finalizer == FOREGROUND_FINALIZER);
    Ok(if waiting { OwnerState::Waiting } else { OwnerState::Solid })
}

/// Owners that the object of an event names, which may wait for it.
pub(super) fn owners_of(event: &Event) -> impl Iterator<Item = OwnerKey> {
    let object = match event.record.header.owners.is_empty() {
        true => None,
        false => event.record.to_value(ResourceVersion::FIRST).ok(),
    };
    let references = object.map(|object| OwnerRef::all(&object)).unwrap_or_default();
    references.into_iter().map(|reference| OwnerKey {
        cluster: event.key.cluster,
        scope: event.key.scope.clone(),
        reference: reference.whether_blocked_or_not(),
    })
}
