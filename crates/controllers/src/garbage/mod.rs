//! Garbage collection by owner, within one logical cluster: dependents go when their last owner is gone; foreground and
//! orphan deletion; dead references are dropped from objects that keep another owner.

mod owners;
mod refusals;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub use owners::{Gone, OwnerRef};
use owners::{OwnerKey, OwnerState};
use portolan_machinery::{
    kinds::Kind,
    lifecycle::{DeleteOptions, FOREGROUND_FINALIZER, ORPHAN_FINALIZER, Propagation},
};
use portolan_store::{Change, Event, RangePage, RangeRequest, RangeScope, StoredObject};
use portolan_types::{
    BoxFuture, GroupResource, LogicalClusterId, ObjectKey, note::Note, object, placement::PlacementRecord,
    work::WorkKey,
};
use serde_json::Value;

use crate::{
    at_once::at_once,
    emptying::{Cuts, GO_ON, SHARE},
    plane::{Found, Listed, Plane, PlaneError, Slices, Step},
    runtime::{Controller, Outcome},
};

/// Dependents among which one that still blocks its owner is looked for first.
const FEW: usize = 8;
/// How long a look at an owner waits for more of its dependents to go.
const LINGER: Duration = Duration::from_millis(20);
/// How long an owner waits at most to see that a dependent has let go of it.
const AGAIN: Duration = Duration::from_secs(2);

/// When those among many that failed are looked at again, together with the others.
const FAILED: Duration = Duration::from_secs(1);

/// When an object is looked at again of which an owner is of a kind that is not served.
const UNSERVED: Duration = Duration::from_secs(300);

/// The garbage loop.
pub struct GarbageCollector {
    plane: Arc<Plane>,
    whereabouts: owners::Whereabouts,
    cuts: Cuts<Key, Cut>,
}

/// What looks at many objects, each of which had its share, came to so far.
#[derive(Default)]
struct Cut {
    /// The last object that was looked at.
    after: Option<ObjectKey>,
    /// Whether an object has to be looked at again for what is not known of its owners.
    again: bool,
    failed: bool,
}

impl Cut {
    /// When all have been looked at.
    fn end(&self) -> Outcome {
        match (self.failed, self.again) {
            (true, _) => Outcome::CheckAgainIn(FAILED),
            (false, true) => Outcome::CheckAgainIn(UNSERVED),
            (false, false) => Outcome::Done,
        }
    }
}

/// What may need collecting.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// An object that has owners, or that waits for its dependents.
    Object(ObjectKey),
    /// An owner of which a dependent has gone or changed: one for all of its dependents.
    Owner(OwnerKey),
    /// The dependents of an owner that is gone.
    DependentsOf(Gone),
    /// All that have owners: one of these is gone, whichever it was.
    AllOf(LogicalClusterId),
}

impl WorkKey for Key {
    type Tenant = LogicalClusterId;

    fn tenant(&self) -> LogicalClusterId {
        match self {
            Self::Object(key) => key.cluster,
            Self::Owner(owner) => owner.cluster,
            Self::DependentsOf(gone) => gone.key.cluster,
            Self::AllOf(cluster) => *cluster,
        }
    }
}

impl GarbageCollector {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>) -> Self {
        Self { plane, whereabouts: owners::Whereabouts::default(), cuts: Cuts::default() }
    }

    fn dependents(&self, cluster: LogicalClusterId, owner: &str) -> Slices<'_> {
        self.plane.slices(RangeScope::OwnedBy(cluster, owner.to_owned()))
    }

    async fn look_at(&self, key: &ObjectKey, why: Why) -> Result<Outcome, PlaneError> {
        let Some(found) = self.plane.get(key).await? else { return Ok(Outcome::Done) };
        let Some(kind) = self.plane.kind_of(key.cluster, &key.resource).await? else { return Ok(Outcome::Done) };
        let kind = &*kind;
        let waits_for = |finalizer: &str| object::finalizers(&found.object).any(|f| f == finalizer);
        if object::is_deleting(&found.object) && waits_for(ORPHAN_FINALIZER) {
            return self.orphan(kind, &found).await;
        }
        if object::is_deleting(&found.object) && waits_for(FOREGROUND_FINALIZER) {
            if let Why::Itself(cut) = why {
                let (looking, uid) = (Key::Object(key.clone()), object::meta_text(&found.object, "uid"));
                if self.attempt_dependents(&looking, uid, Cause::Looked, cut).await? == GO_ON {
                    return Ok(GO_ON);
                }
            }
            return self.release(kind, &found).await;
        }
        self.attempt(kind, &found, Cause::Looked).await
    }

    /// Takes the owner off its dependents, then lets it go; not while a dependent is damaged, which would lose its owner unseen.
    ///
    /// An owner with copies on physical clusters waits for their end: its finalizer is what tells that they leave theirs, too.
    async fn orphan(&self, kind: &Kind, owner: &Found) -> Result<Outcome, PlaneError> {
        if PlacementRecord::of(&owner.object).is_some_and(|record| !record.clusters.is_empty()) {
            return Ok(Outcome::Done);
        }
        let uid = object::meta_text(&owner.object, "uid");
        let (mut dependents, mut done, mut looked_at) = (self.dependents(owner.key.cluster, uid), Ok(()), 0);
        while let Some(slice) = dependents.next().await? {
            done = done.and(slice.check());
            looked_at += slice.found.len();
            let dropped = at_once(slice.found, |dependent| async move {
                self.drop_references(&dependent, |reference| reference.uid == uid).await
            });
            done = done.and(dropped.await);
            // Those that own themselves now are not among the next ones. One that failed is, and may be followed by any number.
            if looked_at >= SHARE && done.is_ok() && dependents.rest().is_some() {
                return Ok(GO_ON);
            }
        }
        done?;
        self.let_go(kind, owner, ORPHAN_FINALIZER).await
    }

    /// Foreground: the owner goes when no dependent is left that blocks it. A dependent that lets go of it says nothing of
    /// its former owner, so that one is looked at again. One that is damaged may block it.
    async fn release(&self, kind: &Kind, owner: &Found) -> Result<Outcome, PlaneError> {
        let uid = object::meta_text(&owner.object, "uid");
        let scope = RangeScope::OwnedBy(owner.key.cluster, uid.to_owned());
        let blocks = |dependent: &Found| {
            OwnerRef::all(&dependent.object).iter().any(|reference| reference.uid == uid && reference.blocks)
        };
        let any_blocks = |listed: &Listed| !listed.damaged.is_empty() || listed.found.iter().any(blocks);
        // While there are many, one of the first says enough.
        let few = self.plane.list_past_damage(scope.clone(), Some(FEW)).await?;
        let mut blocked = any_blocks(&few);
        if few.found.len() + few.damaged.len() >= FEW {
            let mut all = self.plane.slices(scope);
            while !blocked && let Some(slice) = all.next().await? {
                blocked = any_blocks(&slice);
            }
        }
        match blocked {
            true => Ok(Outcome::CheckAgainIn(AGAIN)),
            false => self.let_go(kind, owner, FOREGROUND_FINALIZER).await,
        }
    }

    /// Takes a finalizer of the garbage collector's off.
    async fn let_go(&self, kind: &Kind, owner: &Found, finalizer: &str) -> Result<Outcome, PlaneError> {
        let done = self.plane.drop_finalizer(kind, &owner.key, finalizer).await;
        self.report_refusal(owner, &format!("take the finalizer {finalizer} off"), done).await?;
        Ok(Outcome::Done)
    }

    /// Looks at a share of the dependents of an owner.
    async fn attempt_dependents(
        &self,
        looking: &Key,
        owner: &str,
        cause: Cause<'_>,
        mut cut: Cut,
    ) -> Result<Outcome, PlaneError> {
        let scope = RangeScope::OwnedBy(looking.tenant(), owner.to_owned());
        let (mut dependents, mut done, mut looked_at) = (self.plane.slices_behind(scope, cut.after.take()), Ok(()), 0);
        while let Some(slice) = dependents.next().await? {
            let staying = slice.found.into_iter().filter(|dependent| !object::is_deleting(&dependent.object));
            let attempted = self.attempt_each(staying.collect(), cause, &mut looked_at, &mut cut).await;
            done = done.and(attempted);
            if looked_at >= SHARE
                && let Some(rest) = dependents.rest()
            {
                return Ok(self.go_on(looking, Cut { after: Some(rest), failed: cut.failed || done.is_err(), ..cut }));
            }
        }
        done.map(|()| cut.end())
    }

    /// Looks at a share of all that have owners. One that fails keeps nobody else from being looked at.
    async fn attempt_all(&self, looking: &Key, mut cut: Cut) -> Result<Outcome, PlaneError> {
        let scope = RangeScope::Everything(looking.tenant());
        let first =
            RangeRequest { after: cut.after.take(), limit: Some(SHARE), ..RangeRequest::slices(scope).past_damage() };
        let (mut next, mut done, mut looked_at) = (Some(first), Ok(()), 0);
        while let Some(request) = next {
            let page = self.plane.store().range(request.clone()).await?;
            next = request.next(&page);
            let is_owned = |stored: &StoredObject| {
                let header = &stored.record.header;
                !header.owners.is_empty() && !header.is_deleting
            };
            let owned = Listed::of(RangePage { objects: page.objects.into_iter().filter(is_owned).collect(), ..page })?;
            // What was damaged when it was read has no owners that are known.
            let attempted = self.attempt_each(owned.found, Cause::AnyGone, &mut looked_at, &mut cut).await;
            done = done.and(attempted);
            if looked_at >= SHARE
                && let Some(rest) = next.as_ref().and_then(|next| next.after.clone())
            {
                return Ok(self.go_on(looking, Cut { after: Some(rest), failed: cut.failed || done.is_err(), ..cut }));
            }
        }
        // Those of which an owner is not known are looked at again by themselves.
        done.map(|()| Cut { again: false, ..cut }.end())
    }

    fn go_on(&self, looking: &Key, cut: Cut) -> Outcome {
        self.cuts.keep(looking.clone(), cut);
        GO_ON
    }

    async fn attempt_each(
        &self,
        objects: Vec<Found>,
        cause: Cause<'_>,
        looked_at: &mut usize,
        cut: &mut Cut,
    ) -> Result<(), PlaneError> {
        *looked_at += objects.len();
        let again = &AtomicBool::new(false);
        let attempted = at_once(objects, |found| async move {
            let Some(kind) = self.plane.kind_of(found.key.cluster, &found.key.resource).await? else { return Ok(()) };
            if self.attempt(&kind, &found, cause).await? != Outcome::Done {
                again.store(true, Ordering::Relaxed);
            }
            Ok(())
        });
        let done = attempted.await;
        cut.again |= again.load(Ordering::Relaxed);
        done
    }

    /// Deletes an object that has owners and none that keeps it.
    async fn attempt(&self, kind: &Kind, found: &Found, cause: Cause<'_>) -> Result<Outcome, PlaneError> {
        let references = OwnerRef::all(&found.object);
        if references.is_empty() || object::is_deleting(&found.object) {
            return Ok(Outcome::Done);
        }
        let (mut solid, mut going, mut waiting) = (false, Vec::new(), false);
        for reference in &references {
            let state = owners::state(&self.plane, &found.key, reference, cause.gone()).await?;
            if matches!(cause, Cause::Looked) && matches!(state, OwnerState::Absent | OwnerState::Misplaced) {
                // It is told only; that it cannot be, because something is damaged, changes nothing.
                if let Err(error) = self.tell_if_elsewhere(found, reference).await {
                    tracing::debug!(key = %found.key, %error, "whether an owner is elsewhere is not known");
                }
            }
            match state {
                OwnerState::Solid => solid = true,
                OwnerState::Waiting => {
                    waiting = true;
                    going.push(reference.uid.clone());
                }
                OwnerState::Absent => going.push(reference.uid.clone()),
                // As long as one is not known nothing is touched, whatever the others are.
                OwnerState::Unknown => return Ok(Outcome::CheckAgainIn(UNSERVED)),
                OwnerState::Misplaced => return Ok(Outcome::Done),
            }
        }
        if solid {
            // Also owners that wait for this object, which stays: they would wait for ever.
            if !going.is_empty() {
                self.drop_references(found, |reference| going.contains(&reference.uid)).await?;
            }
            return Ok(Outcome::Done);
        }
        let grounds = Grounds::of(&found.object);
        let goes_first = waiting && self.has_dependents_to_go_first(found).await?;
        let propagation = match goes_first {
            true => Propagation::Foreground,
            false => grounds.asked.unwrap_or(Propagation::Background),
        };
        let options = DeleteOptions {
            propagation: Some(propagation),
            uid: Some(object::meta_text(&found.object, "uid").to_owned()),
            ..DeleteOptions::default()
        };
        portolan_types::failpoint!("controllers/garbage-found");
        // One that has been adopted since is looked at again: it was written.
        let done = self.plane.delete_if(kind, &found.key, &options, |now| Grounds::of(now) == grounds).await;
        self.report_refusal(found, "delete it, as its owners are gone or going", done).await?;
        Ok(Outcome::Done)
    }

    /// Writes an Event about an object whose owner is in another namespace. It outlives the object.
    async fn tell_if_elsewhere(&self, found: &Found, reference: &OwnerRef) -> Result<(), PlaneError> {
        if !self.whereabouts.is_elsewhere(&self.plane, &found.key, reference).await? {
            return Ok(());
        }
        let namespace = found.key.namespace().map_or("", |namespace| namespace.as_str());
        let message = format!("ownerRef {} does not exist in namespace {namespace:?}", reference.told_in(namespace));
        let note = Note {
            component: "garbage-collector-controller",
            name: "owner-ref-invalid-namespace",
            is_warning: true,
            reason: "OwnerRefInvalidNamespace",
            message: &message,
        };
        self.write_note(found, note).await.map(drop)
    }

    /// Whether an object whose owner waits for it has dependents of its own, which go before it. One of them that waits for this
    /// object in turn would close a circle, so this object then blocks its owners no more.
    async fn has_dependents_to_go_first(&self, found: &Found) -> Result<bool, PlaneError> {
        let mut dependents = self.dependents(found.key.cluster, object::meta_text(&found.object, "uid"));
        let waits = |dependent: &Found| {
            object::is_deleting(&dependent.object)
                && object::finalizers(&dependent.object).any(|f| f == FOREGROUND_FINALIZER)
        };
        let mut any = false;
        while let Some(slice) = dependents.next().await? {
            any |= !slice.is_empty();
            if slice.found.iter().any(waits) {
                self.unblock(found).await?;
                break;
            }
        }
        Ok(any)
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
        let done = self.plane.change(&kind, &found.key, change).await.map(drop);
        self.report_refusal(found, "change its ownerReferences", done).await
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
        let mut keys = Vec::new();
        if event.change == Change::Deleted {
            // Of one that was damaged nobody knows the uid.
            let uid = header.uid();
            keys.push(
                uid.map_or(Key::AllOf(event.key.cluster), |uid| {
                    Key::DependentsOf(Gone { key: event.key.clone(), uid })
                }),
            );
            keys.extend(owners::owners_of(event).map(Key::Owner));
        } else if !header.owners.is_empty() || (header.is_deleting && header.has_finalizers) {
            keys.push(Key::Object(event.key.clone()));
            if header.is_deleting {
                // It may have stopped to block its owners.
                keys.extend(owners::owners_of(event).map(Key::Owner));
            }
        }
        keys
    }

    fn linger(&self, _: &Event, key: &Key) -> Duration {
        if matches!(key, Key::Owner(_)) { LINGER } else { Duration::ZERO }
    }

    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let cut = self.cuts.take(key).unwrap_or_default();
            match key {
                Key::Object(key) => self.look_at(key, Why::Itself(cut)).await,
                Key::Owner(owner) => match owner.find(&self.plane).await? {
                    Some(key) => self.look_at(&key, Why::Dependent).await,
                    None => Ok(Outcome::Done),
                },
                Key::DependentsOf(gone) => {
                    self.attempt_dependents(key, gone.uid.as_str(), Cause::Gone(gone), cut).await
                }
                Key::AllOf(_) => self.attempt_all(key, cut).await,
            }
        })
    }
}

/// What an object goes by, and how, when none of its owners keeps it.
#[derive(PartialEq, Eq)]
struct Grounds {
    /// Whether they are blocked makes no difference.
    owners: Vec<OwnerRef>,
    /// What its finalizers already say about its dependents.
    asked: Option<Propagation>,
}

impl Grounds {
    fn of(object: &Value) -> Self {
        let has = |name| object::finalizers(object).any(|finalizer| finalizer == name);
        Self {
            owners: OwnerRef::all(object).into_iter().map(OwnerRef::whether_blocked_or_not).collect(),
            asked: match (has(ORPHAN_FINALIZER), has(FOREGROUND_FINALIZER)) {
                (true, _) => Some(Propagation::Orphan),
                (false, true) => Some(Propagation::Foreground),
                (false, false) => None,
            },
        }
    }
}

/// Why it is looked whether the owners of an object keep it.
#[derive(Clone, Copy)]
enum Cause<'a> {
    /// It was written, or is to go with its owner.
    Looked,
    /// This owner has just gone.
    Gone(&'a Gone),
    /// Something has gone of which nobody knows whether it was an owner.
    AnyGone,
}

impl<'a> Cause<'a> {
    fn gone(self) -> Option<&'a Gone> {
        match self {
            Self::Gone(gone) => Some(gone),
            Self::Looked | Self::AnyGone => None,
        }
    }
}

/// Why an object is looked at.
enum Why {
    /// It was written; its dependents were looked at so far.
    Itself(Cut),
    /// A dependent of it has gone or changed. The others have been seen to, or are being.
    Dependent,
}

#[cfg(test)]
mod tests;
