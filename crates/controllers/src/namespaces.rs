//! Empties namespaces that are being deleted, pods first, and lets them go when nothing is left.

mod conditions;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use conditions::Emptied;

use portolan_machinery::{
    custom,
    kinds::{Kind, Surface},
    lifecycle::{DeleteOptions, Propagation},
};
use portolan_store::{Damaged, Event, RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, NamespaceName, ObjectKey, object,
    placement::PlacementRecord,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    at_once::at_once,
    emptying::{Cuts, Emptying, GO_ON, LINGER, RECHECK, SHARE, waits_for_others},
    plane::{Found, Plane, PlaneError, Step},
    runtime::{Controller, Outcome},
};

/// What this loop holds a namespace by, in its `spec.finalizers`.
const FINALIZER: &str = "kubernetes";

/// The namespace loop.
pub struct Namespaces {
    plane: Arc<Plane>,
    kind: &'static Kind,
    /// Kinds of all logical clusters whose objects live in namespaces, pods first, events last.
    content: Vec<&'static Kind>,
    emptying: Emptying<Place, Place>,
    cuts: Cuts<Place, Cut>,
}

type Place = (LogicalClusterId, NamespaceName);

/// Where the next look goes on.
struct Cut {
    resource: GroupResource,
    /// Behind this object of it.
    after: Option<ObjectKey>,
}

/// What one look did about a kind.
enum Pass {
    /// It had its share, up to this object.
    Cut(ObjectKey),
    /// Whether something is left that no physical cluster makes.
    Whole { waits: bool },
}

/// What was asked to go.
enum Deleted {
    /// A share, up to this object.
    Cut(ObjectKey),
    /// Everything; whether there was anything.
    All { any: bool },
}

impl Namespaces {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>) -> Self {
        let table = plane.table();
        let kind = table.kind(&GroupVersionKind::new("", "v1", "Namespace")).expect("the table has core/v1");
        let mut content: Vec<&Kind> = table.kinds().map(|kind| &**kind).filter(is_content).collect();
        content.sort_by_key(|kind| match (&*kind.gvk.group, &*kind.resource) {
            _ if is_pods(kind) => 0,
            ("", "events") => 2,
            _ => 1,
        });
        Self { plane, kind, content, emptying: Emptying::default(), cuts: Cuts::default() }
    }

    /// Asks everything to go, a share of it behind where the last look was cut, and tells what is left; and where the next look
    /// goes on if this one was cut as well.
    async fn empty(&self, (cluster, namespace): &Place, from: Option<Cut>) -> (Emptied, Option<Cut>) {
        let mut emptied = Emptied::default();
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
                return (emptied, Some(Cut { resource, after: None }));
            }
            let scope = RangeScope::Namespace(*cluster, resource.clone(), namespace.clone());
            let after = from.take().and_then(|cut| cut.after);
            // One kind that cannot be deleted keeps no other.
            let waits = match self.empty_of(kind, scope, after, &mut left, &mut emptied).await {
                Ok(Pass::Cut(after)) => return (emptied, Some(Cut { resource, after: Some(after) })),
                Ok(Pass::Whole { waits }) => waits,
                Err(error) => {
                    emptied.failures.push(error);
                    false
                }
            };
            // Pods may need what else is in their namespace while they end (KEP-5080). Those that a physical cluster makes are
            // made there anew until what they are made from is gone: waiting for their end first would never end.
            if is_pods(kind) && waits {
                break;
            }
        }
        self.add_undefined(*cluster, namespace, &mut emptied).await;
        (emptied, None)
    }

    /// The kinds whose objects live in namespaces, pods first, custom ones last.
    fn content_with<'a>(&'a self, surface: Option<&'a Surface>) -> impl Iterator<Item = &'a Kind> {
        let own = surface.into_iter().flat_map(Surface::own_kinds).map(|(_, kind)| &**kind);
        self.content.iter().copied().chain(own.filter(is_content))
    }

    /// Asks all objects of a kind to go, and takes in what is left.
    async fn empty_of(
        &self,
        kind: &Kind,
        scope: RangeScope,
        after: Option<ObjectKey>,
        share: &mut usize,
        emptied: &mut Emptied,
    ) -> Result<Pass, PlaneError> {
        let any = match self.delete_all(kind, scope.clone(), after, share).await? {
            Deleted::Cut(after) => return Ok(Pass::Cut(after)),
            Deleted::All { any } => any,
        };
        let (mut waits, mut known) = (false, Ok(()));
        if any {
            let mut slices = self.plane.slices(scope);
            while let Some(left) = slices.next().await? {
                emptied.add(kind, &left.found);
                waits |= left.found.iter().any(|left| !is_made_below(left));
                known = known.and(left.check());
            }
        }
        known.map(|()| Pass::Whole { waits })
    }

    /// Tells what there is of kinds whose definition is damaged: nobody knows how to delete it.
    async fn add_undefined(&self, cluster: LogicalClusterId, namespace: &NamespaceName, emptied: &mut Emptied) {
        let definitions = self.damaged_definitions(cluster).await.unwrap_or_else(|error| {
            emptied.failures.push(error);
            Vec::new()
        });
        for found in definitions {
            let Some(resource) = custom::instances_named(found.key.name.as_str()) else { continue };
            let scope = RangeScope::Namespace(cluster, resource, namespace.clone());
            match self.plane.list_past_damage(scope, Some(1)).await {
                Ok(left) if left.is_empty() => {}
                Ok(_) => emptied.failures.push(StoreError::from(found).into()),
                Err(error) => emptied.failures.push(error),
            }
        }
    }

    /// Read where anything is known to be damaged: of much damage the store does not know all.
    async fn damaged_definitions(&self, cluster: LogicalClusterId) -> Result<Vec<Damaged>, PlaneError> {
        let mut damaged = Vec::new();
        if self.plane.store().known_damage().is_empty() {
            return Ok(damaged);
        }
        let definitions = RangeScope::Cluster(cluster, GroupResource::new(custom::GROUP, custom::RESOURCE));
        let mut next = Some(RangeRequest::slices(definitions).past_damage());
        while let Some(request) = next {
            let page = self.plane.store().range(request.clone()).await?;
            next = request.next(&page);
            damaged.extend(page.damaged);
        }
        Ok(damaged)
    }

    /// Asks objects of a scope that can be read to go, a slice of them in memory at a time.
    async fn delete_all(
        &self,
        kind: &Kind,
        scope: RangeScope,
        after: Option<ObjectKey>,
        share: &mut usize,
    ) -> Result<Deleted, PlaneError> {
        let options = &DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
        let (mut any, mut done) = (after.is_some(), Ok(()));
        let mut request = RangeRequest { after, limit: Some(SHARE), ..RangeRequest::slices(scope).past_damage() };
        loop {
            let page = self.plane.store().range(request.clone()).await?;
            any |= !page.objects.is_empty() || !page.damaged.is_empty();
            let asked: Vec<_> =
                page.objects.into_iter().filter(|stored| !waits_for_others(&stored.record.header)).collect();
            let many = asked.len();
            let delete = |stored: StoredObject| async move { self.plane.delete(kind, &stored.key, options).await };
            let deleted = at_once(asked, delete).await;
            // What fails is asked again by the next look, and is not to keep it from what comes behind.
            *share = share.saturating_sub(if deleted.is_ok() { many } else { 0 });
            done = done.and(deleted);
            let Some(last) = page.last.filter(|_| page.more) else { return done.map(|()| Deleted::All { any }) };
            if *share == 0 {
                return done.map(|()| Deleted::Cut(last));
            }
            request.after = Some(last);
        }
    }

    /// Whether there is nothing at one state: each kind was looked at at its own, and what has been made of it since by whom no
    /// deletion of a namespace keeps from it is not seen there.
    async fn is_empty(&self, (cluster, namespace): &Place) -> Result<bool, PlaneError> {
        let surface = self.plane.kinds().of(*cluster).await?;
        let mut at = None;
        for kind in self.content_with(Some(&surface)) {
            let scope = RangeScope::Namespace(*cluster, kind.storage.group_resource(), namespace.clone());
            let request = RangeRequest { at, limit: Some(1), ..RangeRequest::all(scope).past_damage() };
            let page = self.plane.store().range(request).await?;
            if !page.objects.is_empty() || !page.damaged.is_empty() {
                return Ok(false);
            }
            at = Some(page.revision);
        }
        Ok(true)
    }

    /// Takes its own finalizer off; the namespace stays while there are others.
    async fn finalize(&self, key: &ObjectKey) -> Result<(), PlaneError> {
        self.plane
            .change(self.kind, key, |namespace| {
                let others: BTreeSet<_> = held_by(namespace).filter(|held| *held != FINALIZER).collect();
                let others: Vec<Value> = others.into_iter().map(Value::from).collect();
                if let Some(spec) = namespace.get_mut("spec").and_then(Value::as_object_mut) {
                    match others.is_empty() {
                        true => drop(spec.remove("finalizers")),
                        false => drop(spec.insert("finalizers".into(), others.into())),
                    }
                }
                Step::Write(Some("finalize"))
            })
            .await
            .map(drop)
    }

    async fn tell(&self, key: &ObjectKey, emptied: &Emptied) -> Result<(), PlaneError> {
        let now = self.plane.seams().now_text();
        let write_down = |namespace: &mut Value| match emptied.write_to(namespace, &now) {
            true => Step::Write(Some("status")),
            false => Step::Keep,
        };
        self.plane.change(self.kind, key, write_down).await.map(drop)
    }
}

/// What holds a namespace in `spec.finalizers`.
fn held_by(namespace: &Value) -> impl Iterator<Item = &str> {
    let finalizers = namespace.pointer("/spec/finalizers").and_then(Value::as_array);
    finalizers.into_iter().flatten().filter_map(Value::as_str)
}

/// Whether it goes as soon as nothing is left in it.
fn goes_when_empty(namespace: &Value) -> bool {
    held_by(namespace).all(|held| held == FINALIZER) && object::finalizers(namespace).next().is_none()
}

/// Kubernetes' own, and no custom resource of that name.
fn is_pods(kind: &Kind) -> bool {
    kind.gvk.group.is_empty() && &*kind.resource == "pods"
}

fn is_made_below(found: &Found) -> bool {
    PlacementRecord::of(&found.object).is_some_and(|record| record.is_projected())
}

/// Whether objects of this kind are what a namespace is emptied of.
fn is_content(kind: &&Kind) -> bool {
    is_stored(kind) && kind.namespaced && kind.has_verb("delete")
}

/// Whether objects are stored as this kind.
fn is_stored(kind: &Kind) -> bool {
    let storage = &kind.storage;
    storage.group == kind.gvk.group && storage.version == kind.gvk.version && storage.resource == kind.resource
}

impl Controller for Namespaces {
    type Key = Place;

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

    fn keys(&self, event: &Event) -> Vec<Place> {
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

    fn reconcile<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let (cluster, name) = place;
            let label = name.parse().expect("a DNS label is a path segment");
            let key = ObjectKey::cluster_scoped(*cluster, self.kind.group_resource(), label);
            let from = self.cuts.take(place);
            let namespace = self.plane.get(&key).await?.map(|found| found.object);
            // What another finalizer holds after this one is done is no concern of this loop.
            let is_ending = |object: &Value| object::is_deleting(object) && held_by(object).next().is_some();
            let Some(namespace) = namespace.filter(is_ending) else {
                self.emptying.end(place);
                return Ok(Outcome::Done);
            };
            self.emptying.begin(place.clone(), place.clone());
            if let Some(rest) = self.emptying.rest(place) {
                return Ok(Outcome::CheckAgainIn(rest));
            }
            portolan_types::failpoint!("controllers/namespace-ending");
            let (began, is_whole) = (Instant::now(), from.is_none());
            let (emptied, cut) = self.empty(place, from).await;
            let is_cut = cut.is_some();
            cut.into_iter().for_each(|cut| self.cuts.keep(place.clone(), cut));
            if is_cut || !is_whole {
                return emptied.into_error().map_or(Ok(GO_ON), Err);
            }
            if !emptied.is_done() || !goes_when_empty(&namespace) {
                self.tell(&key, &emptied).await?;
            }
            if !emptied.is_done() {
                return match emptied.into_error() {
                    Some(error) => Err(error),
                    None => {
                        self.emptying.looked(place, began);
                        Ok(Outcome::CheckAgainIn(RECHECK))
                    }
                };
            }
            if !self.is_empty(place).await? {
                return Ok(Outcome::CheckAgainIn(LINGER));
            }
            portolan_types::failpoint!("controllers/namespace-empty");
            self.finalize(&key).await?;
            portolan_types::failpoint!("controllers/namespace-finalized");
            self.emptying.end(place);
            Ok(Outcome::Done)
        })
    }
}

#[cfg(test)]
mod tests;
