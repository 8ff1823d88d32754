//! Cache of the watched objects of a physical cluster, within limits.

mod objects;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use portolan_types::{GroupResource, LogicalClusterId, object};
use serde_json::Value;
use tokio::sync::watch;

pub(crate) use objects::{ObjectRef, ObservedObject, is_create_entry};

use super::limits::{ClusterShares, CopyDemand, HeldObjects};
use crate::{
    client::DownstreamError,
    memory::{MemoryExcess, RegistrationMemory, SyncMemoryCharge},
};

/// Namespace and name.
type NamespacedName = (String, String);

#[derive(Default)]
struct CachedKind {
    is_synced: bool,
    objects: HashMap<NamespacedName, Arc<ObservedObject>>,
}

#[derive(Default)]
struct CacheContents {
    by_resource: HashMap<GroupResource, CachedKind>,
    /// All objects of all kinds.
    held: HeldObjects,
    /// Charge for their bytes.
    charge: SyncMemoryCharge,
    /// Number of objects of lists that have not been read to their end.
    arriving: u64,
    /// Copies by the logical clusters that they are of.
    shares: ClusterShares,
    /// Kinds whose lists have objects that are too large to be read, and why.
    unreadable: HashMap<GroupResource, String>,
}

/// Watched objects of one physical cluster. An object that would exceed the limits is not stored: the cache is then
/// incomplete, and its session ends.
pub(crate) struct ReflectorCache {
    kinds: Mutex<CacheContents>,
    memory: Arc<RegistrationMemory>,
    excess: watch::Sender<Option<MemoryExcess>>,
}

/// List that is being read. Its objects count towards the limits until it is dropped.
pub(crate) struct ArrivingList<'a> {
    cache: &'a ReflectorCache,
    objects: HashMap<NamespacedName, Arc<ObservedObject>>,
    held: HeldObjects,
    charge: SyncMemoryCharge,
}

impl Drop for ArrivingList<'_> {
    fn drop(&mut self) {
        self.cache.kinds().arriving -= self.held.objects;
    }
}

impl ArrivingList<'_> {
    /// Adds a page.
    ///
    /// # Errors
    /// `Excessive`, when all lists on their way exceed the limits.
    pub(crate) fn add(&mut self, page: Vec<Value>) -> Result<(), DownstreamError> {
        for object in page {
            let at = (object::namespace(&object).to_owned(), object::name(&object).to_owned());
            let observed = Arc::new(ObservedObject::new(object));
            let before = self.objects.get(&at).map(|before| before.held()).unwrap_or_default();
            let after = self.held - before + observed.held();
            let arriving = {
                let mut kinds = self.cache.kinds();
                kinds.arriving = kinds.arriving - self.held.objects + after.objects;
                kinds.arriving
            };
            self.held = after;
            let limits = self.cache.memory.limits();
            if arriving > limits.objects {
                return Err(self.cache.exceeded(MemoryExcess::Registration(limits)));
            }
            self.charge.resize(after.bytes).map_err(|excess| self.cache.exceeded(excess))?;
            self.objects.insert(at, observed);
        }
        Ok(())
    }
}

impl ReflectorCache {
    pub(crate) fn new(memory: Arc<RegistrationMemory>) -> Self {
        let kinds = CacheContents { charge: memory.held(), ..CacheContents::default() };
        Self { kinds: Mutex::new(kinds), memory, excess: watch::Sender::new(None) }
    }

    fn kinds(&self) -> MutexGuard<'_, CacheContents> {
        self.kinds.lock().expect("no code panics under this lock")
    }

    fn exceeded(&self, excess: MemoryExcess) -> DownstreamError {
        self.excess.send_replace(Some(excess));
        excess.error()
    }

    /// Notes that something else that is held of the physical cluster has exceeded its bound.
    pub(crate) fn set_exceeded(&self) {
        self.excess.send_replace(Some(MemoryExcess::Registration(self.memory.limits())));
    }

    /// Waits until a bound is exceeded, and returns it.
    pub(crate) async fn until_exceeded(&self) -> MemoryExcess {
        // The sender lives as long as `self`.
        let excess = self.excess.subscribe().wait_for(Option::is_some).await.ok().and_then(|excess| *excess);
        excess.unwrap_or(MemoryExcess::Registration(self.memory.limits()))
    }

    /// Returns the reason that a copy is too large: for the share of its logical cluster, or for the cache of the
    /// physical cluster. A copy that is no larger than its predecessor is never too large.
    pub(crate) fn excess_of_copy(&self, place: &ObjectRef, cluster: LogicalClusterId, body: &Value) -> Option<String> {
        let at = (place.namespace.clone(), place.name.clone());
        let kinds = self.kinds();
        let before = kinds.by_resource.get(&place.resource).and_then(|kind| kind.objects.get(&at));
        let before = before.and_then(|known| known.demand.as_ref()).filter(|demand| demand.cluster == cluster);
        kinds.shares.excess(&self.memory.limits(), kinds.held, &CopyDemand::of(cluster, body), before)
    }

    /// Records that a kind cannot be read because an object is too large, or that it can be read again.
    pub(crate) fn set_unreadable(&self, resource: &GroupResource, why: Option<String>) {
        let unreadable = &mut self.kinds().unreadable;
        match why {
            Some(why) => drop(unreadable.insert(resource.clone(), why)),
            None => drop(unreadable.remove(resource)),
        }
    }

    /// Returns the kinds that cannot be read, and why.
    pub(crate) fn unreadable(&self) -> Option<String> {
        let kinds = self.kinds();
        let mut texts: Vec<String> = kinds.unreadable.iter().map(|(kind, why)| format!("{kind}: {why}")).collect();
        texts.sort_unstable();
        (!texts.is_empty())
            .then(|| format!("not all objects can be read, and these kinds are not synced: {}", texts.join("; ")))
    }

    /// Returns true once a whole list of the resource was read.
    pub(crate) fn is_synced(&self, resource: &GroupResource) -> bool {
        self.kinds().by_resource.get(resource).is_some_and(|kind| kind.is_synced)
    }

    pub(crate) fn get(&self, place: &ObjectRef) -> Option<Arc<ObservedObject>> {
        let at = (place.namespace.clone(), place.name.clone());
        self.kinds().by_resource.get(&place.resource)?.objects.get(&at).cloned()
    }

    /// Stores an object, unless a newer state of it is known, or it exceeds the limits.
    pub(crate) fn put(&self, place: &ObjectRef, object: Value) -> Arc<ObservedObject> {
        let observed = Arc::new(ObservedObject::new(object));
        let at = (place.namespace.clone(), place.name.clone());
        let mut kinds = self.kinds();
        let CacheContents { by_resource, held, charge, shares, .. } = &mut *kinds;
        let objects = &mut by_resource.entry(place.resource.clone()).or_default().objects;
        let is_older = objects.get(&at).is_some_and(|known| {
            known.uid() == observed.uid()
                && known.version().zip(observed.version()).is_some_and(|(known, new)| new < known)
        });
        if is_older {
            return observed;
        }
        let before = objects.get(&at).map(|known| known.held()).unwrap_or_default();
        let after = *held - before + observed.held();
        if let Err(excess) = self.hold(charge, after) {
            drop(kinds);
            self.exceeded(excess);
            return observed;
        }
        *held = after;
        shares.add(observed.demand.as_ref());
        if let Some(before) = objects.insert(at, observed.clone()) {
            shares.remove(before.demand.as_ref());
        }
        observed
    }

    /// Charges for all objects that are held.
    fn hold(&self, charge: &mut SyncMemoryCharge, held: HeldObjects) -> Result<(), MemoryExcess> {
        let limits = self.memory.limits();
        if !limits.permit(held) {
            return Err(MemoryExcess::Registration(limits));
        }
        charge.resize(held.bytes)
    }

    /// Removes an object whose tombstone was seen.
    pub(crate) fn remove(&self, place: &ObjectRef, uid: &str) {
        let at = (place.namespace.clone(), place.name.clone());
        self.remove_if(&place.resource, &at, |known| known.uid() == uid);
    }

    fn remove_if(&self, resource: &GroupResource, at: &NamespacedName, is_it: impl Fn(&ObservedObject) -> bool) {
        let mut kinds = self.kinds();
        let CacheContents { by_resource, held, charge, shares, .. } = &mut *kinds;
        let Some(kind) = by_resource.get_mut(resource) else { return };
        if kind.objects.get(at).is_some_and(|known| is_it(known))
            && let Some(known) = kind.objects.remove(at)
        {
            *held -= known.held();
            charge.shrink(known.held().bytes);
            shares.remove(known.demand.as_ref());
        }
    }

    /// Starts a list.
    pub(crate) fn arriving_list(&self) -> ArrivingList<'_> {
        let (objects, held, charge) = (HashMap::new(), HeldObjects::default(), self.memory.arriving());
        ArrivingList { cache: self, objects, held, charge }
    }

    /// Replaces the objects of a resource by a complete list. Returns those that are not in it.
    ///
    /// # Errors
    /// `Excessive` if all kinds together exceed the limits; the cache then stays unchanged.
    pub(crate) fn replace(
        &self,
        resource: &GroupResource,
        mut list: ArrivingList<'_>,
    ) -> Result<Vec<Arc<ObservedObject>>, DownstreamError> {
        let mut kinds = self.kinds();
        let CacheContents { by_resource, held, charge, shares, .. } = &mut *kinds;
        let kind = by_resource.entry(resource.clone()).or_default();
        let before = kind.objects.values().fold(HeldObjects::default(), |sum, known| sum + known.held());
        let after = *held - before + list.held;
        // From here on its objects count as cached, not as incoming.
        list.charge.shrink(list.held.bytes);
        if let Err(excess) = self.hold(charge, after) {
            drop(kinds);
            return Err(self.exceeded(excess));
        }
        *held = after;
        let before = std::mem::replace(&mut kind.objects, std::mem::take(&mut list.objects));
        kind.is_synced = true;
        kind.objects.values().for_each(|known| shares.add(known.demand.as_ref()));
        before.values().for_each(|known| shares.remove(known.demand.as_ref()));
        let gone =
            before.into_iter().filter(|(at, known)| kind.objects.get(at).is_none_or(|now| now.uid() != known.uid()));
        let gone = gone.map(|(_, known)| known).collect();
        drop(kinds);
        Ok(gone)
    }

    /// All objects of one resource in a namespace; in every namespace with `None`.
    pub(crate) fn all(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<ObservedObject>> {
        let kinds = self.kinds();
        let objects = kinds.by_resource.get(resource).into_iter().flat_map(|kind| &kind.objects);
        objects.filter(|((ns, _), _)| namespace.is_none_or(|wanted| wanted == ns)).map(|(_, o)| o.clone()).collect()
    }

    /// Returns true when a watched object is in the namespace, except those of `ignored` resources.
    pub(crate) fn is_used(&self, namespace: &str, ignored: impl Fn(&GroupResource) -> bool) -> bool {
        let kinds = self.kinds();
        let mut counted = kinds.by_resource.iter().filter(|(resource, _)| !ignored(resource));
        counted.any(|(_, kind)| kind.objects.keys().any(|(ns, _)| ns == namespace))
    }

    /// Removes a namespace that turned out to be gone, so that it is created again.
    pub(crate) fn remove_namespace(&self, name: &str) {
        self.remove_if(&GroupResource::new("", "namespaces"), &(String::new(), name.to_owned()), |_| true);
    }

    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.kinds().held.objects).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests;
