//! Owner references: what they name, and whether that is still there.

use portolan_machinery::{kinds::Kind, lifecycle::FOREGROUND_FINALIZER};
use portolan_store::Event;
use portolan_types::{GroupVersion, ObjectKey, ObjectName, ResourceVersion, Scope, object};
use serde_json::Value;

use crate::plane::{Plane, PlaneError};

/// An owner reference, as it stands on the dependent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnerRef {
    api_version: String,
    kind: String,
    name: String,
    /// Uid of the owner: a namesake is another object.
    pub(super) uid: String,
    /// Whether foreground deletion of the owner waits for this dependent.
    pub(super) blocks: bool,
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

    pub(super) fn all(object: &Value) -> Vec<Self> {
        object::owner_references(object).iter().map(Self::of).collect()
    }

    /// The kind by group and kind: an owner may be named in a version that is not served any more.
    fn kind<'a>(&self, plane: &'a Plane) -> Option<&'a Kind> {
        let version: GroupVersion = self.api_version.parse().ok()?;
        let same = |kind: &&Kind| kind.gvk.group == version.group && *kind.gvk.kind == *self.kind;
        plane.table().kinds().map(|kind| &**kind).find(same)
    }

    /// Where the owner of the object at `dependent` must be: in its namespace, or at cluster scope.
    fn key(&self, plane: &Plane, dependent: &ObjectKey) -> Option<Target> {
        let kind = self.kind(plane)?;
        let scope = match (kind.namespaced, &dependent.scope) {
            (false, _) => Scope::Cluster,
            (true, Scope::Namespace(namespace)) => Scope::Namespace(namespace.clone()),
            (true, Scope::Cluster) => return Some(Target::Impossible),
        };
        let name: ObjectName = self.name.parse().ok()?;
        let resource = kind.storage.group_resource();
        Some(Target::Key(ObjectKey { cluster: dependent.cluster, resource, scope, name }))
    }
}

enum Target {
    Key(ObjectKey),
    /// A cluster-scoped dependent cannot have an owner in a namespace.
    Impossible,
}

/// Whether the owner that `reference` names is there, by name and uid, read from the store itself.
pub(super) async fn state(
    plane: &Plane,
    dependent: &ObjectKey,
    reference: &OwnerRef,
) -> Result<OwnerState, PlaneError> {
    let key = match reference.key(plane, dependent) {
        None | Some(Target::Impossible) => return Ok(OwnerState::Unknown),
        Some(Target::Key(key)) => key,
    };
    let Some(owner) = plane.get(&key).await? else { return Ok(OwnerState::Absent) };
    if object::meta_text(&owner.object, "uid") != reference.uid {
        return Ok(OwnerState::Absent);
    }
    let waiting = object::is_deleting(&owner.object)
        && object::finalizers(&owner.object).any(|finalizer| finalizer == FOREGROUND_FINALIZER);
    Ok(if waiting { OwnerState::Waiting } else { OwnerState::Solid })
}

/// Owners of the object of an event, which may wait for it.
pub(super) fn owners_of(plane: &Plane, event: &Event) -> Vec<ObjectKey> {
    if event.record.header.owners.is_empty() {
        return Vec::new();
    }
    let Ok(object) = event.record.to_value(ResourceVersion::FIRST) else { return Vec::new() };
    let keys = OwnerRef::all(&object).into_iter().filter_map(|reference| reference.key(plane, &event.key));
    keys.filter_map(|target| match target {
        Target::Key(key) => Some(key),
        Target::Impossible => None,
    })
    .collect()
}
