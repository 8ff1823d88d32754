//! Empties namespaces that are being deleted, pods first, and releases them when nothing is left.

mod conditions;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use conditions::EmptyingReport;

use portolan_kinds::{Kind, Surface, custom};
use portolan_store::{DamagedObject, Event, RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_strategy::lifecycle::{DeleteOptions, Propagation};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, NamespaceName, ObjectKey, object,
    placement::PlacementRecord,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    concurrency::for_each_concurrently,
    emptying::{CarriedState, EmptyingScopes, LINGER, RECHECK, REQUEUE_NOW, SHARE, waits_for_others},
    plane::{Plane, PlaneChange, PlaneError, PlaneObject},
    runtime::{Controller, WorkOutcome},
};

/// Finalizer of this controller in `spec.finalizers`.
const FINALIZER: &str = "kubernetes";

/// Controller of namespaces.
pub struct NamespaceController {
    plane: Arc<Plane>,
    kind: &'static Kind,
    /// Namespaced kinds that all logical clusters have, pods first, events last.
    content: Vec<&'static Kind>,
    emptying: EmptyingScopes<NamespaceAddress, NamespaceAddress>,
    cuts: CarriedState<NamespaceAddress, DeletionCursor>,
}

type NamespaceAddress = (LogicalClusterId, NamespaceName);

/// Position at which the next pass continues.
struct DeletionCursor {
    resource: GroupResource,
    /// Last object of the kind.
    after: Option<ObjectKey>,
}

/// Progress of a pass over one kind.
enum KindProgress {
    /// The pass had its share, up to this object.
    DeletionCursor(ObjectKey),
    /// True if objects are left that no physical cluster makes.
    Whole { waits: bool },
}

/// Progress of a deletion.
enum DeletionProgress {
    /// A share, up to this object.
    DeletionCursor(ObjectKey),
    /// All; true if there were any.
    All { any: bool },
}

impl NamespaceController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>) -> Self {
        let table = plane.table();
        let kind = table.kind(&GroupVersionKind::new("", "v1", "Namespace")).expect("the table has core/v1");
        let mut content: Vec<&Kind> = table.kinds().map(|kind| &**kind).filter(is_content).collect();
        content.sort_by_key(|kind| match (&*kind.gvk.group, &*kind.resource) {
            _ if is_pods(kind) => 0,
            ("", "events") => 2,
            _ => 1,
        });
        Self { plane, kind, content, emptying: EmptyingScopes::default(), cuts: CarriedState::default() }
    }

    /// Deletes a share of the content, from where the last pass stopped. Returns the remaining objects, and where to
    /// continue if this pass stopped as well.
    async fn delete_content(
        &self,
        (cluster, namespace): &NamespaceAddress,
        from: Option<DeletionCursor>,
    ) -> (EmptyingReport, Option<DeletionCursor>) {
        let mut emptied = EmptyingReport::default();
        let surface = match self.plane.kinds().of(*cluster).await {
            Ok(surface) => Some(surface),
            Err(error) => {
                emptied.undiscovered = Some(error);
                None
            }
        };
        let (mut left, mut from) = (SHARE, from);
        let first = from.as_ref().map(|cut| cut.resource.clone());
        let is_before = |kind: &&Kind| first.as_ref().is_some_and(|first| *first != kind.storage.group_resource());
        for kind in self.content_with(surface.as_deref()).skip_while(is_before) {
            let resource = kind.storage.group_resource();
            if left == 0 {
                return (emptied, Some(DeletionCursor { resource, after: None }));
            }
            let scope = RangeScope::Namespace(*cluster, resource.clone(), namespace.clone());
            let after = from.take().and_then(|cut| cut.after);
            // A kind that cannot be deleted does not keep the others.
            let waits = match self.delete_kind(kind, scope, after, &mut left, &mut emptied).await {
                Ok(KindProgress::DeletionCursor(after)) => {
                    return (emptied, Some(DeletionCursor { resource, after: Some(after) }));
                }
                Ok(KindProgress::Whole { waits }) => waits,
                Err(error) => {
                    emptied.failures.push(error);
                    false
                }
            };
            // Pods may need other objects of their namespace while they end (KEP-5080). Pods on a physical cluster are
            // recreated until their owner is gone, so waiting for them first would never end.
            if is_pods(kind) && waits {
                break;
            }
        }
        self.add_undefined(*cluster, namespace, &mut emptied).await;
        (emptied, None)
    }

    /// Returns the namespaced kinds, pods first, custom ones last.
    fn content_with<'a>(&'a self, surface: Option<&'a Surface>) -> impl Iterator<Item = &'a Kind> {
        let own = surface.into_iter().flat_map(Surface::own_kinds).map(|(_, kind)| &**kind);
        self.content.iter().copied().chain(own.filter(is_content))
    }

    /// Deletes all objects of a kind, and records the remaining objects.
    async fn delete_kind(
        &self,
        kind: &Kind,
        scope: RangeScope,
        after: Option<ObjectKey>,
        share: &mut usize,
        emptied: &mut EmptyingReport,
    ) -> Result<KindProgress, PlaneError> {
        let any = match self.delete_all(kind, scope.clone(), after, share).await? {
            DeletionProgress::DeletionCursor(after) => return Ok(KindProgress::DeletionCursor(after)),
            DeletionProgress::All { any } => any,
        };
        let (mut waits, mut known) = (false, Ok(()));
        if any {
            let mut slices = self.plane.slices(scope);
            while let Some(left) = slices.next().await? {
                emptied.add(kind, &left.found);
                waits |= left.found.iter().any(|left| !is_made_downstream(left));
                known = known.and(left.check());
            }
        }
        known.map(|()| KindProgress::Whole { waits })
    }

    /// Records objects of kinds whose definition is damaged: they cannot be deleted.
    async fn add_undefined(&self, cluster: LogicalClusterId, namespace: &NamespaceName, emptied: &mut EmptyingReport) {
        let definitions = self.damaged_definitions(cluster).await.unwrap_or_else(|error| {
            emptied.failures.push(error);
            Vec::new()
        });
        for found in definitions {
            let Some(resource) = custom::instances_named(found.key.name.as_str()) else { continue };
            let scope = RangeScope::Namespace(cluster, resource, namespace.clone());
            match self.plane.list_skipping_damaged(scope, Some(1)).await {
                Ok(left) if left.is_empty() => {}
                Ok(_) => emptied.failures.push(StoreError::from(found).into()),
                Err(error) => emptied.failures.push(error),
            }
        }
    }

    /// Returns damaged definitions. They are read if any damage is known, because the store does not keep all of much
    /// damage.
    async fn damaged_definitions(&self, cluster: LogicalClusterId) -> Result<Vec<DamagedObject>, PlaneError> {
        let mut damaged = Vec::new();
        if self.plane.store().known_damage().is_empty() {
            return Ok(damaged);
        }
        let definitions = RangeScope::Cluster(cluster, GroupResource::new(custom::GROUP, custom::RESOURCE));
        let mut next = Some(RangeRequest::slices(definitions).skip_damaged());
        while let Some(request) = next {
            let page = self.plane.store().range(request.clone()).await?;
            next = request.next(&page);
            damaged.extend(page.damaged);
        }
        Ok(damaged)
    }

    /// Deletes the readable objects of a scope, a slice of them in memory at a time.
    async fn delete_all(
        &self,
        kind: &Kind,
        scope: RangeScope,
        after: Option<ObjectKey>,
        share: &mut usize,
    ) -> Result<DeletionProgress, PlaneError> {
        let options = &DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
        let (mut any, mut done) = (after.is_some(), Ok(()));
        let mut request = RangeRequest { after, limit: Some(SHARE), ..RangeRequest::slices(scope).skip_damaged() };
        loop {
            let page = self.plane.store().range(request.clone()).await?;
            any |= !page.objects.is_empty() || !page.damaged.is_empty();
            let asked: Vec<_> =
                page.objects.into_iter().filter(|stored| !waits_for_others(&stored.record.header)).collect();
            let many = asked.len();
            let delete = |stored: StoredObject| async move { self.plane.delete(kind, &stored.key, options).await };
            let deleted = for_each_concurrently(asked, delete).await;
            // A failed deletion is retried by the next pass, and does not keep this one from the objects behind it.
            *share = share.saturating_sub(if deleted.is_ok() { many } else { 0 });
            done = done.and(deleted);
            let Some(last) = page.last.filter(|_| page.more) else {
                return done.map(|()| DeletionProgress::All { any });
            };
            if *share == 0 {
                return done.map(|()| DeletionProgress::DeletionCursor(last));
            }
            request.after = Some(last);
        }
    }

    /// Returns true if the namespace is empty at one revision: each kind was read at its own, and writers that a
    /// deletion does not stop may have added objects since.
    async fn is_empty(&self, (cluster, namespace): &NamespaceAddress) -> Result<bool, PlaneError> {
        let surface = self.plane.kinds().of(*cluster).await?;
        let mut at = None;
        for kind in self.content_with(Some(&surface)) {
            let scope = RangeScope::Namespace(*cluster, kind.storage.group_resource(), namespace.clone());
            let request = RangeRequest { at, limit: Some(1), ..RangeRequest::all(scope).skip_damaged() };
            let page = self.plane.store().range(request).await?;
            if !page.objects.is_empty() || !page.damaged.is_empty() {
                return Ok(false);
            }
            at = Some(page.revision);
        }
        Ok(true)
    }

    /// Removes its own finalizer; the namespace stays while there are others.
    async fn finalize(&self, key: &ObjectKey) -> Result<(), PlaneError> {
        self.plane
            .change(self.kind, key, |namespace| {
                let others: BTreeSet<_> = held_by(namespace).filter(|held| *held != FINALIZER).collect();
                let others: Vec<Value> = others.into_iter().map(Value::from).collect();
                if let Some(spec) = namespace.get_mut("spec").and_then(Value::as_object_mut) {
                    if others.is_empty() {
                        drop(spec.remove("finalizers"))
                    } else {
                        drop(spec.insert("finalizers".into(), others.into()))
                    }
                }
                PlaneChange::Write(Some("finalize"))
            })
            .await
            .map(drop)
    }

    async fn write_conditions(&self, key: &ObjectKey, emptied: &EmptyingReport) -> Result<(), PlaneError> {
        let now = self.plane.seams().now_text();
        let write_down = |namespace: &mut Value| {
            if emptied.write_to(namespace, &now) { PlaneChange::Write(Some("status")) } else { PlaneChange::Keep }
        };
        self.plane.change(self.kind, key, write_down).await.map(drop)
    }
}

/// Returns `spec.finalizers` of a namespace.
fn held_by(namespace: &Value) -> impl Iterator<Item = &str> {
    let finalizers = namespace.pointer("/spec/finalizers").and_then(Value::as_array);
    finalizers.into_iter().flatten().filter_map(Value::as_str)
}

/// Returns true if the namespace is removed as soon as it is empty.
fn is_ready_to_finalize(namespace: &Value) -> bool {
    held_by(namespace).all(|held| held == FINALIZER) && object::finalizers(namespace).next().is_none()
}

/// Returns true for Kubernetes' Pods, false for a custom resource of that name.
fn is_pods(kind: &Kind) -> bool {
    kind.gvk.group.is_empty() && &*kind.resource == "pods"
}

fn is_made_downstream(found: &PlaneObject) -> bool {
    PlacementRecord::of(&found.object).is_some_and(|record| record.is_projected())
}

/// Returns true for kinds that a namespace is emptied of.
fn is_content(kind: &&Kind) -> bool {
    is_stored(kind) && kind.namespaced && kind.has_verb("delete")
}

/// Returns true if objects are stored as this kind.
fn is_stored(kind: &Kind) -> bool {
    let storage = &kind.storage;
    storage.group == kind.gvk.group && storage.version == kind.gvk.version && storage.resource == kind.resource
}

impl Controller for NamespaceController {
    type Key = NamespaceAddress;

    fn name(&self) -> &'static str {
        "namespaces"
    }

    fn resources(&self) -> Vec<GroupResource> {
        let mut all: Vec<_> = self.content.iter().map(|kind| kind.group_resource()).collect();
        all.push(self.kind.group_resource());
        all
    }

    fn follows_defined(&self) -> bool {
        true
    }

    fn keys(&self, event: &Event) -> Vec<NamespaceAddress> {
        let place = match event.key.namespace() {
            Some(namespace) => self.emptying.key(|| Some((event.key.cluster, namespace.clone()))),
            None if !event.record.header.is_deleting => None,
            None => event.key.name.parse().ok().map(|name| (event.key.cluster, name)),
        };
        place.into_iter().collect()
    }

    fn linger(&self, event: &Event, _: &Self::Key) -> Duration {
        event.key.namespace().map_or(Duration::ZERO, |_| LINGER)
    }

    fn reconcile<'a>(&'a self, place: &'a NamespaceAddress) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let (cluster, name) = place;
            let label = name.parse().expect("a DNS label is a path segment");
            let key = ObjectKey::cluster_scoped(*cluster, self.kind.group_resource(), label);
            let from = self.cuts.take(place);
            let namespace = self.plane.get_reconciled(&key).await?.map(|found| found.object);
            // Other finalizers are not this controller's concern.
            let is_ending = |object: &Value| object::is_deleting(object) && held_by(object).next().is_some();
            let Some(namespace) = namespace.filter(is_ending) else {
                self.emptying.end(place);
                return Ok(WorkOutcome::Done);
            };
            self.emptying.begin(place.clone(), place.clone());
            if let Some(rest) = self.emptying.rest(place) {
                return Ok(WorkOutcome::RequeueAfter(rest));
            }
            portolan_types::failpoint!("controllers/namespace-ending");
            let (began, is_whole) = (Instant::now(), from.is_none());
            let (emptied, cut) = self.delete_content(place, from).await;
            let is_cut = cut.is_some();
            cut.into_iter().for_each(|cut| self.cuts.keep(place.clone(), cut));
            if is_cut || !is_whole {
                return emptied.into_error().map_or(Ok(REQUEUE_NOW), Err);
            }
            if !emptied.is_done() || !is_ready_to_finalize(&namespace) {
                self.write_conditions(&key, &emptied).await?;
            }
            if !emptied.is_done() {
                return match emptied.into_error() {
                    Some(error) => Err(error),
                    None => {
                        self.emptying.record_pass(place, began);
                        Ok(WorkOutcome::RequeueAfter(RECHECK))
                    }
                };
            }
            if !self.is_empty(place).await? {
                return Ok(WorkOutcome::RequeueAfter(LINGER));
            }
            portolan_types::failpoint!("controllers/namespace-empty");
            self.finalize(&key).await?;
            portolan_types::failpoint!("controllers/namespace-finalized");
            self.emptying.end(place);
            Ok(WorkOutcome::Done)
        })
    }
}

#[cfg(test)]
mod tests;
