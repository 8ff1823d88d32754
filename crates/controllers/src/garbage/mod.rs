//! Garbage collection by owner, within one logical cluster: dependents go when their last owner is gone; foreground and
//! orphan deletion; dead references are dropped from objects that keep another owner.

mod owners;

use std::sync::Arc;

pub use owners::OwnerRef;
use owners::OwnerState;
use portolan_machinery::{
    kinds::Kind,
    lifecycle::{DeleteOptions, FOREGROUND_FINALIZER, ORPHAN_FINALIZER, Propagation},
};
use portolan_store::{Change, Event, RangeScope};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectKey, Uid, object, work::WorkKey};
use serde_json::Value;

use crate::{
    plane::{Found, Plane, PlaneError, Step},
    runtime::{Controller, Outcome},
};

/// The garbage loop.
pub struct GarbageCollector {
    plane: Arc<Plane>,
}

/// What may need collecting.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// An object that has owners, or that waits for its dependents.
    Object(ObjectKey),
    /// The owner that the object at a key names.
    OwnerOf(ObjectKey, OwnerRef),
    /// The dependents of an owner that is gone.
    DependentsOf(LogicalClusterId, Uid),
}

impl WorkKey for Key {
    type Tenant = LogicalClusterId;

    fn tenant(&self) -> LogicalClusterId {
        match self {
            Self::Object(key) | Self::OwnerOf(key, _) => key.cluster,
            Self::DependentsOf(cluster, _) => *cluster,
        }
    }
}

impl GarbageCollector {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>) -> Self {
        Self { plane }
    }

    async fn dependents(&self, cluster: LogicalClusterId, owner: &str) -> Result<Vec<Found>, PlaneError> {
        self.plane.list(RangeScope::OwnedBy(cluster, owner.to_owned())).await
    }

    async fn look_at(&self, key: &ObjectKey) -> Result<(), PlaneError> {
        let Some(found) = self.plane.get(key).await? else { return Ok(()) };
        let Some(kind) = self.plane.kind_of(key.cluster, &key.resource).await? else { return Ok(()) };
        let kind = &*kind;
        let waits_for = |finalizer: &str| object::finalizers(&found.object).any(|f| f == finalizer);
        if object::is_deleting(&found.object) && waits_for(ORPHAN_FINALIZER) {
            return self.orphan(kind, &found).await;
        }
        if object::is_deleting(&found.object) && waits_for(FOREGROUND_FINALIZER) {
            self.delete_dependents(kind, &found).await?;
        }
        self.attempt(kind, &found).await
    }

    /// Takes the owner off its dependents, then lets it go.
    async fn orphan(&self, kind: &Kind, owner: &Found) -> Result<(), PlaneError> {
        let uid = object::meta_text(&owner.object, "uid");
        for dependent in self.dependents(owner.key.cluster, uid).await? {
            self.drop_references(&dependent, |reference| reference.uid == uid).await?;
        }
        self.drop_finalizer(kind, &owner.key, ORPHAN_FINALIZER).await
    }

    /// Foreground: dependents first; the owner goes when none is left that blocks it.
    async fn delete_dependents(&self, kind: &Kind, owner: &Found) -> Result<(), PlaneError> {
        let uid = object::meta_text(&owner.object, "uid");
        let mut blocked = false;
        for dependent in self.dependents(owner.key.cluster, uid).await? {
            let own = OwnerRef::all(&dependent.object);
            blocked |= own.iter().any(|reference| reference.uid == uid && reference.blocks);
            self.attempt_dependent(&dependent).await?;
        }
        match blocked {
            true => Ok(()),
            false => self.drop_finalizer(kind, &owner.key, FOREGROUND_FINALIZER).await,
        }
    }

    async fn attempt_dependent(&self, dependent: &Found) -> Result<(), PlaneError> {
        match self.plane.kind_of(dependent.key.cluster, &dependent.key.resource).await? {
            Some(kind) => self.attempt(&kind, dependent).await,
            None => Ok(()),
        }
    }

    /// Deletes an object that has owners and none that keeps it.
    async fn attempt(&self, kind: &Kind, found: &Found) -> Result<(), PlaneError> {
        let references = OwnerRef::all(&found.object);
        if references.is_empty() {
            return Ok(());
        }
        let (mut solid, mut dangling, mut waiting) = (false, Vec::new(), false);
        for reference in &references {
            match owners::state(&self.plane, &found.key, reference).await? {
                OwnerState::Solid | OwnerState::Unknown => solid = true,
                OwnerState::Waiting => waiting = true,
                OwnerState::Absent => dangling.push(reference.uid.clone()),
            }
        }
        if solid {
            if !dangling.is_empty() || waiting {
                let gone = |reference: &OwnerRef| dangling.contains(&reference.uid);
                self.drop_references(found, gone).await?;
            }
            return Ok(());
        }
        if object::is_deleting(&found.object) {
            return Ok(());
        }
        let propagation = match waiting {
            true => self.propagation_below_waiting(found).await?,
            false => Propagation::Background,
        };
        let options = DeleteOptions {
            propagation: Some(propagation),
            uid: Some(object::meta_text(&found.object, "uid").to_owned()),
            ..DeleteOptions::default()
        };
        portolan_types::failpoint!("controllers/garbage-found");
        self.plane.delete(kind, &found.key, &options).await
    }

    /// How an object goes whose owner waits for it: its own dependents first. One of them that waits for this object in turn
    /// would close a circle, so this object then blocks its owners no more.
    async fn propagation_below_waiting(&self, found: &Found) -> Result<Propagation, PlaneError> {
        let dependents = self.dependents(found.key.cluster, object::meta_text(&found.object, "uid")).await?;
        let waits = |dependent: &Found| {
            object::is_deleting(&dependent.object)
                && object::finalizers(&dependent.object).any(|f| f == FOREGROUND_FINALIZER)
        };
        if dependents.iter().any(waits) {
            self.unblock(found).await?;
        }
        Ok(if dependents.is_empty() { Propagation::Background } else { Propagation::Foreground })
    }

    async fn unblock(&self, found: &Found) -> Result<(), PlaneError> {
        self.edit_references(found, |references| {
            let blocking = |r: &&mut Value| r.get("blockOwnerDeletion").and_then(Value::as_bool) == Some(true);
            let mut changed = false;
            for reference in references.iter_mut().filter(blocking) {
                reference["blockOwnerDeletion"] = false.into();
                changed = true;
            }
            changed
        })
        .await
    }

    async fn drop_references(
        &self,
        found: &Found,
        gone: impl Fn(&OwnerRef) -> bool + Send + Sync,
    ) -> Result<(), PlaneError> {
        self.edit_references(found, move |references| {
            let before = references.len();
            references.retain(|reference| !gone(&OwnerRef::of(reference)));
            references.len() != before
        })
        .await
    }

    async fn edit_references(
        &self,
        found: &Found,
        mut edit: impl FnMut(&mut Vec<Value>) -> bool + Send,
    ) -> Result<(), PlaneError> {
        let Some(kind) = self.plane.kind_of(found.key.cluster, &found.key.resource).await? else { return Ok(()) };
        let uid = object::meta_text(&found.object, "uid").to_owned();
        let change = |current: &mut Value| {
            if object::meta_text(current, "uid") != uid {
                return Step::Keep;
            }
            let metadata = object::metadata_mut(current);
            let Some(references) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) else {
                return Step::Keep;
            };
            if !edit(references) {
                return Step::Keep;
            }
            if references.is_empty() {
                metadata.remove("ownerReferences");
            }
            Step::Write(None)
        };
        self.plane.change(&kind, &found.key, change).await.map(drop)
    }

    async fn drop_finalizer(&self, kind: &Kind, key: &ObjectKey, finalizer: &str) -> Result<(), PlaneError> {
        let drop_it = |current: &mut Value| {
            let finalizers = object::metadata_mut(current).get_mut("finalizers").and_then(Value::as_array_mut);
            let Some(finalizers) = finalizers else { return Step::Keep };
            finalizers.retain(|f| f != finalizer);
            Step::Write(None)
        };
        self.plane.change(kind, key, drop_it).await.map(drop)
    }
}

impl Controller for GarbageCollector {
    type Key = Key;

    fn name(&self) -> &'static str {
        "garbage-collector"
    }

    fn resources(&self) -> Vec<GroupResource> {
        let mut all = self.plane.stored_resources();
        all.retain(|resource| &*resource.resource != "events");
        all
    }

    fn follows_defined(&self) -> bool {
        true
    }

    fn keys(&self, event: &Event) -> Vec<Key> {
        let header = &event.record.header;
        let cluster = event.key.cluster;
        let mut keys = Vec::new();
        if event.change == Change::Deleted {
            keys.extend(header.uid().map(|uid| Key::DependentsOf(cluster, uid)));
            keys.extend(owners::owners_of(event).map(|owner| Key::OwnerOf(event.key.clone(), owner)));
        } else if !header.owners.is_empty() || (header.is_deleting && header.has_finalizers) {
            keys.push(Key::Object(event.key.clone()));
            if header.is_deleting {
                // It may have stopped to block its owners.
                keys.extend(owners::owners_of(event).map(|owner| Key::OwnerOf(event.key.clone(), owner)));
            }
        }
        keys
    }

    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            match key {
                Key::Object(key) => self.look_at(key).await?,
                Key::OwnerOf(dependent, owner) => {
                    if let Some(key) = owners::key_of(&self.plane, dependent, owner).await? {
                        self.look_at(&key).await?;
                    }
                }
                Key::DependentsOf(cluster, uid) => {
                    for dependent in self.dependents(*cluster, uid).await? {
                        self.attempt_dependent(&dependent).await?;
                    }
                }
            }
            Ok(Outcome::Done)
        })
    }
}
