//! Empties namespaces that are being deleted, pods first, and lets them go when nothing is left.

use std::{sync::Arc, time::Duration};

use portolan_machinery::{
    kinds::Kind,
    lifecycle::{DeleteOptions, Propagation},
};
use portolan_store::{Event, RangeRequest, RangeScope};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, NamespaceName, ObjectKey, object,
    placement::PlacementRecord,
};
use serde_json::{Value, json};

use crate::{
    at_once::at_once,
    emptying::{Emptying, LINGER, RECHECK},
    plane::{Found, Plane, PlaneError, Step},
    runtime::{Controller, Outcome},
};

/// The namespace loop.
pub struct Namespaces {
    plane: Arc<Plane>,
    kind: &'static Kind,
    /// Kinds of all logical clusters whose objects live in namespaces, pods first, events last.
    content: Vec<&'static Kind>,
    emptying: Emptying<Place, Place>,
}

type Place = (LogicalClusterId, NamespaceName);

impl Namespaces {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>) -> Self {
        let table = plane.table();
        let kind = table.kind(&GroupVersionKind::new("", "v1", "Namespace")).expect("the table has core/v1");
        let stored = |kind: &&Kind| is_stored(kind) && kind.namespaced && kind.has_verb("delete");
        let mut content: Vec<&Kind> = table.kinds().map(|kind| &**kind).filter(stored).collect();
        content.sort_by_key(|kind| match (&*kind.gvk.group, &*kind.resource) {
            ("", "pods") => 0,
            ("", "events") => 2,
            _ => 1,
        });
        Self { plane, kind, content, emptying: Emptying::default() }
    }

    async fn empty(&self, cluster: LogicalClusterId, namespace: &NamespaceName) -> Result<Remaining, PlaneError> {
        let mut remaining = Remaining::default();
        let surface = self.plane.kinds().of(cluster).await?;
        let is_content = |kind: &&Kind| is_stored(kind) && kind.namespaced && kind.has_verb("delete");
        let own = surface.own_kinds().map(|(_, kind)| &**kind).filter(is_content);
        for kind in self.content.iter().copied().chain(own) {
            let scope = RangeScope::Namespace(cluster, kind.storage.group_resource(), namespace.clone());
            let left = match self.delete_all(kind, scope.clone()).await? {
                true => self.plane.list(scope).await?,
                false => Vec::new(),
            };
            remaining.add(kind, &left);
            // Pods may need what else is in their namespace while they end (KEP-5080). Those that a physical cluster makes are
            // made there anew until what they are made from is gone: waiting for their end first would never end.
            if &*kind.resource == "pods" && left.iter().any(|pod| !is_made_below(pod)) {
                break;
            }
        }
        Ok(remaining)
    }

    /// Deletes all objects of a scope, a slice of them in memory at a time. Whether there were any.
    async fn delete_all(&self, kind: &Kind, scope: RangeScope) -> Result<bool, PlaneError> {
        let options = &DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
        let (mut request, mut any) = (RangeRequest::slices(scope), false);
        loop {
            let page = self.plane.store().range(request.clone()).await?;
            any |= !page.objects.is_empty();
            request.after = page.objects.last().map(|stored| stored.key.clone());
            at_once(page.objects, |stored| async move { self.plane.delete(kind, &stored.key, options).await }).await?;
            if !page.more {
                return Ok(any);
            }
        }
    }

    async fn finalize(&self, key: &ObjectKey) -> Result<(), PlaneError> {
        self.plane
            .change(self.kind, key, |namespace| {
                if let Some(spec) = namespace.get_mut("spec").and_then(Value::as_object_mut) {
                    spec.remove("finalizers");
                }
                Step::Write(Some("finalize"))
            })
            .await
            .map(drop)
    }

    async fn tell(&self, key: &ObjectKey, remaining: &Remaining) -> Result<(), PlaneError> {
        let now = self.plane.seams().now_text();
        self.plane
            .change(self.kind, key, |namespace| {
                let top = namespace.as_object_mut().expect("an API object is a JSON object");
                let status = object::child_mut(top, "status");
                let wanted = remaining.conditions();
                if same_conditions(status.get("conditions"), &wanted) {
                    return Step::Keep;
                }
                let timed = wanted.into_iter().map(|mut condition| {
                    condition["lastTransitionTime"] = now.clone().into();
                    condition
                });
                status.insert("conditions".into(), timed.collect());
                Step::Write(Some("status"))
            })
            .await
            .map(drop)
    }
}

fn is_made_below(found: &Found) -> bool {
    PlacementRecord::of(&found.object).is_some_and(|record| record.is_projected())
}

/// Whether objects are stored as this kind.
fn is_stored(kind: &Kind) -> bool {
    let storage = &kind.storage;
    storage.group == kind.gvk.group && storage.version == kind.gvk.version && storage.resource == kind.resource
}

/// What is left in a namespace.
#[derive(Default)]
struct Remaining {
    kinds: Vec<String>,
    finalizers: Vec<String>,
}

impl Remaining {
    fn add(&mut self, kind: &Kind, left: &[Found]) {
        if left.is_empty() {
            return;
        }
        self.kinds.push(format!("{} has {} resource instances", kind.group_resource(), left.len()));
        for finalizer in left.iter().flat_map(|found| object::finalizers(&found.object)) {
            if !self.finalizers.iter().any(|known| known == finalizer) {
                self.finalizers.push(finalizer.to_owned());
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    fn conditions(&self) -> Vec<Value> {
        let condition = |kind: &str, bad: bool, reason: [&str; 2], message: [String; 2]| {
            let at = usize::from(bad);
            json!({
                "type": kind,
                "status": if bad { "True" } else { "False" },
                "reason": reason[at],
                "message": message[at],
            })
        };
        vec![
            condition(
                "NamespaceContentRemaining",
                !self.kinds.is_empty(),
                ["ContentRemoved", "SomeResourcesRemain"],
                [
                    "All content successfully removed".into(),
                    format!("Some resources are remaining: {}", self.kinds.join(", ")),
                ],
            ),
            condition(
                "NamespaceFinalizersRemaining",
                !self.finalizers.is_empty(),
                ["ContentHasNoFinalizers", "SomeFinalizersRemain"],
                [
                    "All content-preserving finalizers finished".into(),
                    format!("Some content in the namespace has finalizers remaining: {}", self.finalizers.join(", ")),
                ],
            ),
        ]
    }
}

fn same_conditions(current: Option<&Value>, wanted: &[Value]) -> bool {
    let current = current.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let same = |a: &Value, b: &Value| ["type", "status", "message"].iter().all(|key| a.get(key) == b.get(key));
    current.len() == wanted.len() && current.iter().zip(wanted).all(|(a, b)| same(a, b))
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
            let namespace = self.plane.get(&key).await?;
            if !namespace.is_some_and(|namespace| object::is_deleting(&namespace.object)) {
                self.emptying.end(place);
                return Ok(Outcome::Done);
            }
            self.emptying.begin(place.clone(), place.clone());
            portolan_types::failpoint!("controllers/namespace-ending");
            let remaining = self.empty(*cluster, name).await?;
            if !remaining.is_empty() {
                self.tell(&key, &remaining).await?;
                return Ok(Outcome::CheckAgainIn(RECHECK));
            }
            portolan_types::failpoint!("controllers/namespace-empty");
            self.finalize(&key).await?;
            portolan_types::failpoint!("controllers/namespace-finalized");
            self.emptying.end(place);
            Ok(Outcome::Done)
        })
    }
}
