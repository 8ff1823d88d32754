//! Garbage collection by owner, within one logical cluster: dependents are deleted after their last owner; foreground
//! and orphan deletion; references to missing owners are removed from objects that have another owner.

mod owners;
mod refusal_events;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub use owners::{GoneOwner, OwnerRef};
use owners::{OwnerKey, OwnerState};
use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event, RangePage, RangeRequest, RangeScope, StoredObject};
use portolan_strategy::lifecycle::{DeleteOptions, FOREGROUND_FINALIZER, ORPHAN_FINALIZER, Propagation};
use portolan_types::{
    BoxFuture, GroupResource, LogicalClusterId, ObjectKey, event_draft::EventDraft, object, placement::PlacementRecord,
    work::WorkKey,
};
use serde_json::Value;

use crate::{
    concurrency::for_each_concurrently,
    emptying::{CarriedState, REQUEUE_NOW, SHARE},
    plane::{ObjectList, ObjectSlices, Plane, PlaneChange, PlaneError, PlaneObject},
    runtime::{Controller, WorkOutcome},
};

/// Dependents that are searched first for one that still blocks its owner.
const FEW: usize = 8;
/// Delay in which a pass over an owner collects further events.
const LINGER: Duration = Duration::from_millis(20);
/// Longest wait until an owner notices that a dependent released it.
const AGAIN: Duration = Duration::from_secs(2);

/// Delay until failed objects among many are retried together.
const FAILED: Duration = Duration::from_secs(1);

/// Delay until an object is checked again that has an owner of a kind that is not served.
const UNSERVED: Duration = Duration::from_secs(300);

/// Garbage collector.
pub struct GarbageCollector {
    plane: Arc<Plane>,
    whereabouts: owners::OwnerLocations,
    cuts: CarriedState<Key, ScanProgress>,
}

/// Progress of a scan over many objects.
#[derive(Default)]
struct ScanProgress {
    /// Last object of the scan.
    after: Option<ObjectKey>,
    /// True if an object has to be checked again because the state of an owner is unknown.
    again: bool,
    failed: bool,
}

impl ScanProgress {
    /// Returns the outcome of a finished scan.
    fn end(&self) -> WorkOutcome {
        match (self.failed, self.again) {
            (true, _) => WorkOutcome::RequeueAfter(FAILED),
            (false, true) => WorkOutcome::RequeueAfter(UNSERVED),
            (false, false) => WorkOutcome::Done,
        }
    }
}

/// Key of a reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Object that has owners, or that waits for its dependents.
    Object(ObjectKey),
    /// Owner that lost a dependent, or of which one changed: a single key for all its dependents.
    Owner(OwnerKey),
    /// Dependents of an owner that is gone.
    DependentsOf(GoneOwner),
    /// All objects with owners, after the deletion of an object whose uid is unknown.
    AllOwned(LogicalClusterId),
}

impl WorkKey for Key {
    type Tenant = LogicalClusterId;

    fn tenant(&self) -> LogicalClusterId {
        match self {
            Self::Object(key) => key.cluster,
            Self::Owner(owner) => owner.cluster,
            Self::DependentsOf(gone) => gone.key.cluster,
            Self::AllOwned(cluster) => *cluster,
        }
    }
}

impl GarbageCollector {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>) -> Self {
        Self { plane, whereabouts: owners::OwnerLocations::default(), cuts: CarriedState::default() }
    }

    fn dependents(&self, cluster: LogicalClusterId, owner: &str) -> ObjectSlices<'_> {
        self.plane.slices(RangeScope::OwnedBy(cluster, owner.to_owned()))
    }

    async fn reconcile_object(&self, key: &ObjectKey, why: LookReason) -> Result<WorkOutcome, PlaneError> {
        let Some(found) = self.plane.get_reconciled(key).await? else { return Ok(WorkOutcome::Done) };
        let Some(kind) = self.plane.kind_of(key.cluster, &key.resource).await? else { return Ok(WorkOutcome::Done) };
        let kind = &*kind;
        let waits_for = |finalizer: &str| object::finalizers(&found.object).any(|f| f == finalizer);
        if object::is_deleting(&found.object) && waits_for(ORPHAN_FINALIZER) {
            return self.orphan(kind, &found).await;
        }
        if object::is_deleting(&found.object) && waits_for(FOREGROUND_FINALIZER) {
            if let LookReason::Itself(cut) = why {
                let (looking, uid) = (Key::Object(key.clone()), object::meta_text(&found.object, "uid"));
                if self.collect_dependents(&looking, uid, OwnerChange::Checked, cut).await? == REQUEUE_NOW {
                    return Ok(REQUEUE_NOW);
                }
            }
            return self.release(kind, &found).await;
        }
        self.collect(kind, &found, OwnerChange::Checked).await
    }

    /// Removes the owner from its dependents, then releases it; but not while a dependent is damaged, because it would
    /// lose its owner unnoticed.
    ///
    /// An owner with copies on physical clusters waits for their end: its finalizer tells the copies to orphan theirs,
    /// too.
    async fn orphan(&self, kind: &Kind, owner: &PlaneObject) -> Result<WorkOutcome, PlaneError> {
        if PlacementRecord::of(&owner.object).is_some_and(|record| !record.clusters.is_empty()) {
            return Ok(WorkOutcome::Done);
        }
        let uid = object::meta_text(&owner.object, "uid");
        let (mut dependents, mut done, mut looked_at) = (self.dependents(owner.key.cluster, uid), Ok(()), 0);
        while let Some(slice) = dependents.next().await? {
            done = done.and(slice.check());
            looked_at += slice.found.len();
            let dropped = for_each_concurrently(slice.found, |dependent| async move {
                self.drop_references(&dependent, |reference| reference.uid == uid).await
            });
            done = done.and(dropped.await);
            // Dependents that are released now are not in the next slice. A failed one is, and may be followed by any
            // number.
            if looked_at >= SHARE && done.is_ok() && dependents.rest().is_some() {
                return Ok(REQUEUE_NOW);
            }
        }
        done?;
        self.remove_finalizer(kind, owner, ORPHAN_FINALIZER).await
    }

    /// Releases an owner in the foreground, once no dependent blocks it. A dependent that drops its owner reference
    /// does not name its former owner, so the owner is checked again. A damaged dependent may block it.
    async fn release(&self, kind: &Kind, owner: &PlaneObject) -> Result<WorkOutcome, PlaneError> {
        let uid = object::meta_text(&owner.object, "uid");
        let scope = RangeScope::OwnedBy(owner.key.cluster, uid.to_owned());
        let blocks = |dependent: &PlaneObject| {
            OwnerRef::all(&dependent.object).iter().any(|reference| reference.uid == uid && reference.blocks)
        };
        let any_blocks = |listed: &ObjectList| !listed.damaged.is_empty() || listed.found.iter().any(blocks);
        // With many dependents, one blocking dependent among the first is enough.
        let few = self.plane.list_skipping_damaged(scope.clone(), Some(FEW)).await?;
        let mut blocked = any_blocks(&few);
        if few.found.len() + few.damaged.len() >= FEW {
            let mut all = self.plane.slices(scope);
            while !blocked && let Some(slice) = all.next().await? {
                blocked = any_blocks(&slice);
            }
        }
        if blocked {
            Ok(WorkOutcome::RequeueAfter(AGAIN))
        } else {
            self.remove_finalizer(kind, owner, FOREGROUND_FINALIZER).await
        }
    }

    /// Removes a finalizer of the garbage collector.
    async fn remove_finalizer(
        &self,
        kind: &Kind,
        owner: &PlaneObject,
        finalizer: &str,
    ) -> Result<WorkOutcome, PlaneError> {
        let done = self.plane.drop_finalizer(kind, &owner.key, finalizer).await;
        self.report_refusal(owner, &format!("take the finalizer {finalizer} off"), done).await?;
        Ok(WorkOutcome::Done)
    }

    /// Reconciles a share of the dependents of an owner.
    async fn collect_dependents(
        &self,
        looking: &Key,
        owner: &str,
        cause: OwnerChange<'_>,
        mut cut: ScanProgress,
    ) -> Result<WorkOutcome, PlaneError> {
        let scope = RangeScope::OwnedBy(looking.tenant(), owner.to_owned());
        let (mut dependents, mut done, mut looked_at) = (self.plane.slices_behind(scope, cut.after.take()), Ok(()), 0);
        while let Some(slice) = dependents.next().await? {
            let staying = slice.found.into_iter().filter(|dependent| !object::is_deleting(&dependent.object));
            let attempted = self.collect_each(staying.collect(), cause, &mut looked_at, &mut cut).await;
            done = done.and(attempted);
            if looked_at >= SHARE
                && let Some(rest) = dependents.rest()
            {
                return Ok(self.requeue_scan(
                    looking,
                    ScanProgress { after: Some(rest), failed: cut.failed || done.is_err(), ..cut },
                ));
            }
        }
        done.map(|()| cut.end())
    }

    /// Reconciles a share of all objects with owners. A failure does not stop the others.
    async fn collect_all(&self, looking: &Key, mut cut: ScanProgress) -> Result<WorkOutcome, PlaneError> {
        let scope = RangeScope::Everything(looking.tenant());
        let first =
            RangeRequest { after: cut.after.take(), limit: Some(SHARE), ..RangeRequest::slices(scope).skip_damaged() };
        let (mut next, mut done, mut looked_at) = (Some(first), Ok(()), 0);
        while let Some(request) = next {
            let page = self.plane.store().range(request.clone()).await?;
            next = request.next(&page);
            let is_owned = |stored: &StoredObject| {
                let header = &stored.record.header;
                !header.owners.is_empty() && !header.is_deleting
            };
            let owned =
                ObjectList::of(RangePage { objects: page.objects.into_iter().filter(is_owned).collect(), ..page })?;
            // The owners of a damaged object are unknown.
            let attempted = self.collect_each(owned.found, OwnerChange::AnyGone, &mut looked_at, &mut cut).await;
            done = done.and(attempted);
            if looked_at >= SHARE
                && let Some(rest) = next.as_ref().and_then(|next| next.after.clone())
            {
                return Ok(self.requeue_scan(
                    looking,
                    ScanProgress { after: Some(rest), failed: cut.failed || done.is_err(), ..cut },
                ));
            }
        }
        // Objects with an unknown owner are requeued by themselves.
        done.map(|()| ScanProgress { again: false, ..cut }.end())
    }

    fn requeue_scan(&self, looking: &Key, cut: ScanProgress) -> WorkOutcome {
        self.cuts.keep(looking.clone(), cut);
        REQUEUE_NOW
    }

    async fn collect_each(
        &self,
        objects: Vec<PlaneObject>,
        cause: OwnerChange<'_>,
        looked_at: &mut usize,
        cut: &mut ScanProgress,
    ) -> Result<(), PlaneError> {
        *looked_at += objects.len();
        let again = &AtomicBool::new(false);
        let attempted = for_each_concurrently(objects, |found| async move {
            let Some(kind) = self.plane.kind_of(found.key.cluster, &found.key.resource).await? else { return Ok(()) };
            if self.collect(&kind, &found, cause).await? != WorkOutcome::Done {
                again.store(true, Ordering::Relaxed);
            }
            Ok(())
        });
        let done = attempted.await;
        cut.again |= again.load(Ordering::Relaxed);
        done
    }

    /// Deletes an object that has owners, none of which keeps it.
    async fn collect(
        &self,
        kind: &Kind,
        found: &PlaneObject,
        cause: OwnerChange<'_>,
    ) -> Result<WorkOutcome, PlaneError> {
        let references = OwnerRef::all(&found.object);
        if references.is_empty() || object::is_deleting(&found.object) {
            return Ok(WorkOutcome::Done);
        }
        let (mut solid, mut going, mut waiting) = (false, Vec::new(), false);
        for reference in &references {
            let state = owners::state(&self.plane, &found.key, reference, cause.gone()).await?;
            if matches!(cause, OwnerChange::Checked) && matches!(state, OwnerState::Absent | OwnerState::Misplaced) {
                // This is only a report. That it fails because of a damaged object changes nothing.
                if let Err(error) = self.report_misplaced_owner(found, reference).await {
                    tracing::debug!(key = %found.key, %error, "namespace of an owner is unknown");
                }
            }
            match state {
                OwnerState::Present => solid = true,
                OwnerState::Waiting => {
                    waiting = true;
                    going.push(reference.uid.clone());
                }
                OwnerState::Absent => going.push(reference.uid.clone()),
                // Nothing is changed while the state of any owner is unknown.
                OwnerState::Unknown => return Ok(WorkOutcome::RequeueAfter(UNSERVED)),
                OwnerState::Misplaced => return Ok(WorkOutcome::Done),
            }
        }
        if solid {
            // References to waiting owners are removed, too: this object stays, so they would wait forever.
            if !going.is_empty() {
                self.drop_references(found, |reference| going.contains(&reference.uid)).await?;
            }
            return Ok(WorkOutcome::Done);
        }
        let ownership = OwnershipInfo::of(&found.object);
        let goes_first = waiting && self.has_blocking_dependents(found).await?;
        let propagation =
            if goes_first { Propagation::Foreground } else { ownership.asked.unwrap_or(Propagation::Background) };
        let options = DeleteOptions {
            propagation: Some(propagation),
            uid: Some(object::meta_text(&found.object, "uid").to_owned()),
            ..DeleteOptions::default()
        };
        portolan_types::failpoint!("controllers/garbage-found");
        // An object that was adopted since was written, so its key is queued separately.
        let done = self.plane.delete_if(kind, &found.key, &options, |now| OwnershipInfo::of(now) == ownership).await;
        self.report_refusal(found, "delete it, as its owners are gone or going", done).await?;
        Ok(WorkOutcome::Done)
    }

    /// Writes an Event about an object whose owner is in another namespace. The Event outlives the object.
    async fn report_misplaced_owner(&self, found: &PlaneObject, reference: &OwnerRef) -> Result<(), PlaneError> {
        if !self.whereabouts.is_elsewhere(&self.plane, &found.key, reference).await? {
            return Ok(());
        }
        let namespace = found.key.namespace().map_or("", |namespace| namespace.as_str());
        let message =
            format!("ownerRef {} does not exist in namespace {namespace:?}", reference.describe_in(namespace));
        let note = EventDraft {
            component: "garbage-collector-controller",
            name: "owner-ref-invalid-namespace",
            is_warning: true,
            reason: "OwnerRefInvalidNamespace",
            message: &message,
        };
        self.write_note(found, note).await.map(drop)
    }

    /// Returns true if an object whose owner waits for it has dependents that go first. A dependent that waits for
    /// this object in turn would close a cycle, so this object stops blocking its owners then.
    async fn has_blocking_dependents(&self, found: &PlaneObject) -> Result<bool, PlaneError> {
        let mut dependents = self.dependents(found.key.cluster, object::meta_text(&found.object, "uid"));
        let waits = |dependent: &PlaneObject| {
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

    async fn unblock(&self, found: &PlaneObject) -> Result<(), PlaneError> {
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
        found: &PlaneObject,
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
        found: &PlaneObject,
        mut edit: impl FnMut(&mut Vec<Value>) -> bool + Send,
    ) -> Result<(), PlaneError> {
        let Some(kind) = self.plane.kind_of(found.key.cluster, &found.key.resource).await? else { return Ok(()) };
        let uid = object::meta_text(&found.object, "uid").to_owned();
        let change = |current: &mut Value| {
            if object::meta_text(current, "uid") != uid {
                return PlaneChange::Keep;
            }
            let metadata = object::metadata_mut(current);
            let Some(references) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) else {
                return PlaneChange::Keep;
            };
            if !edit(references) {
                return PlaneChange::Keep;
            }
            if references.is_empty() {
                metadata.remove("ownerReferences");
            }
            PlaneChange::Write(None)
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
        if event.change == ChangeKind::Deleted {
            // The uid of a damaged object is unknown.
            let uid = header.uid();
            keys.push(uid.map_or(Key::AllOwned(event.key.cluster), |uid| {
                Key::DependentsOf(GoneOwner { key: event.key.clone(), uid })
            }));
            keys.extend(owners::owners_of(event).map(Key::Owner));
        } else if !header.owners.is_empty() || (header.is_deleting && header.has_finalizers) {
            keys.push(Key::Object(event.key.clone()));
            if header.is_deleting {
                // It may no longer block its owners.
                keys.extend(owners::owners_of(event).map(Key::Owner));
            }
        }
        keys
    }

    fn linger(&self, _: &Event, key: &Key) -> Duration {
        if matches!(key, Key::Owner(_)) { LINGER } else { Duration::ZERO }
    }

    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let cut = self.cuts.take(key).unwrap_or_default();
            match key {
                Key::Object(key) => self.reconcile_object(key, LookReason::Itself(cut)).await,
                Key::Owner(owner) => match owner.find(&self.plane).await? {
                    Some(key) => self.reconcile_object(&key, LookReason::Dependent).await,
                    None => Ok(WorkOutcome::Done),
                },
                Key::DependentsOf(gone) => {
                    self.collect_dependents(key, gone.uid.as_str(), OwnerChange::Gone(gone), cut).await
                }
                Key::AllOwned(_) => self.collect_all(key, cut).await,
            }
        })
    }
}

/// Owners of an object, and the propagation of its deletion.
#[derive(PartialEq, Eq)]
struct OwnershipInfo {
    /// Owners, without their blocking flag.
    owners: Vec<OwnerRef>,
    /// Propagation that its finalizers ask for.
    asked: Option<Propagation>,
}

impl OwnershipInfo {
    fn of(object: &Value) -> Self {
        let has = |name| object::finalizers(object).any(|finalizer| finalizer == name);
        Self {
            owners: OwnerRef::all(object).into_iter().map(OwnerRef::without_blocking).collect(),
            asked: match (has(ORPHAN_FINALIZER), has(FOREGROUND_FINALIZER)) {
                (true, _) => Some(Propagation::Orphan),
                (false, true) => Some(Propagation::Foreground),
                (false, false) => None,
            },
        }
    }
}

/// Cause of a check of owners.
#[derive(Clone, Copy)]
enum OwnerChange<'a> {
    /// It was written, or is deleted with its owner.
    Checked,
    /// This owner has just gone.
    Gone(&'a GoneOwner),
    /// An object that may have been an owner is gone.
    AnyGone,
}

impl<'a> OwnerChange<'a> {
    fn gone(self) -> Option<&'a GoneOwner> {
        match self {
            Self::Gone(gone) => Some(gone),
            Self::Checked | Self::AnyGone => None,
        }
    }
}

/// Reason of a reconcile.
enum LookReason {
    /// It was written. Contains the scan of its dependents so far.
    Itself(ScanProgress),
    /// A dependent was deleted or changed. The others are reconciled separately.
    Dependent,
}

#[cfg(test)]
mod tests;
