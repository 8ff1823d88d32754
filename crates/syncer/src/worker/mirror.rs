//! Mirror of the physical cluster, as its watches show it, within a bound.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use portolan_types::{GroupResource, LogicalClusterId, object, placement::Source};
use serde_json::Value;
use tokio::sync::watch;

use super::limits::{ClusterShares, CopyDemand, HeldObjects, SyncLimits};
use crate::client::{DownstreamError, FIELD_MANAGER, weight};

/// Address of a downstream object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) resource: GroupResource,
    /// Empty at cluster scope.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Place {
    pub(crate) fn of(resource: &GroupResource, object: &Value) -> Self {
        Self {
            resource: resource.clone(),
            namespace: object::namespace(object).into(),
            name: object::name(object).into(),
        }
    }

    /// Where a projected object is.
    pub(crate) fn at(resource: &GroupResource, source: &Source) -> Self {
        Self { resource: resource.clone(), namespace: source.namespace.clone(), name: source.name.clone() }
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        Some(self.namespace.as_str()).filter(|namespace| !namespace.is_empty())
    }
}

/// A downstream object, without its field ownership.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) object: Value,
    /// Our fields are still owned by the create, not by an apply, which would keep them when they are left out.
    pub(crate) is_owned_by_create: bool,
    /// Bytes of memory that it takes, estimated.
    weight: u64,
    /// Weight that counts towards the share of a logical cluster, when it is a copy.
    demand: Option<CopyDemand>,
}

impl Observed {
    pub(crate) fn new(mut object: Value) -> Self {
        let managed = object::metadata_mut(&mut object).remove("managedFields");
        let entries = managed.as_ref().and_then(Value::as_array).into_iter().flatten();
        let is_owned_by_create = entries.into_iter().any(is_create_entry);
        let weight = u64::try_from(weight::of(&object) + size_of::<Self>()).unwrap_or(u64::MAX);
        let demand = CopyDemand::of_copy(&object);
        Self { object, is_owned_by_create, weight, demand }
    }

    pub(crate) fn uid(&self) -> &str {
        object::meta_text(&self.object, "uid")
    }

    fn version(&self) -> Option<u64> {
        object::meta_text(&self.object, "resourceVersion").parse().ok()
    }

    pub(super) fn held(&self) -> HeldObjects {
        HeldObjects { objects: 1, bytes: self.weight }
    }
}

/// Field ownership that our own POST left.
pub(crate) fn is_create_entry(entry: &Value) -> bool {
    entry["manager"] == FIELD_MANAGER
        && entry["operation"] == "Update"
        && entry["subresource"].as_str().unwrap_or("").is_empty()
}

/// Namespace and name.
type Address = (String, String);

#[derive(Default)]
struct Kind {
    is_synced: bool,
    objects: HashMap<Address, Arc<Observed>>,
}

#[derive(Default)]
struct Kinds {
    by_resource: HashMap<GroupResource, Kind>,
    /// All objects of all kinds.
    held: HeldObjects,
    /// Objects of lists that have not been read to their end.
    arriving: HeldObjects,
    /// Copies by the logical clusters that they are of.
    shares: ClusterShares,
    /// Kinds whose lists have objects that are too large to be read, and why.
    unreadable: HashMap<GroupResource, String>,
}

/// All watched objects of one physical cluster. What would exceed the limits is not taken in: the mirror is incomplete from then
/// on, and its session ends.
pub(crate) struct Mirror {
    kinds: Mutex<Kinds>,
    limits: SyncLimits,
    is_exceeded: watch::Sender<bool>,
}

/// A list on its way into a mirror. What it holds counts towards the limits until it is dropped.
pub(crate) struct ArrivingList<'a> {
    mirror: &'a Mirror,
    objects: HashMap<Address, Arc<Observed>>,
    held: HeldObjects,
}

impl Drop for ArrivingList<'_> {
    fn drop(&mut self) {
        self.mirror.kinds().arriving -= self.held;
    }
}

impl ArrivingList<'_> {
    /// Takes in a page.
    ///
    /// # Errors
    /// `Excessive`, when all lists on their way exceed the limits.
    pub(crate) fn add(&mut self, page: Vec<Value>) -> Result<(), DownstreamError> {
        for object in page {
            let at = (object::namespace(&object).to_owned(), object::name(&object).to_owned());
            let observed = Arc::new(Observed::new(object));
            let held = observed.held();
            self.held += held;
            let arriving = {
                let mut kinds = self.mirror.kinds();
                kinds.arriving += held;
                kinds.arriving
            };
            if !self.mirror.limits.permit(arriving) {
                return Err(self.mirror.exceeded());
            }
            if let Some(before) = self.objects.insert(at, observed) {
                self.held -= before.held();
                self.mirror.kinds().arriving -= before.held();
            }
        }
        Ok(())
    }
}

impl Mirror {
    pub(crate) fn new(limits: SyncLimits) -> Self {
        Self { kinds: Mutex::default(), limits, is_exceeded: watch::Sender::new(false) }
    }

    fn kinds(&self) -> MutexGuard<'_, Kinds> {
        self.kinds.lock().expect("no code panics under this lock")
    }

    fn exceeded(&self) -> DownstreamError {
        self.is_exceeded.send_replace(true);
        self.limits.error()
    }

    /// Notes that something else that is held of the physical cluster has exceeded its bound.
    pub(crate) fn set_exceeded(&self) {
        self.is_exceeded.send_replace(true);
    }

    /// Waits until something has exceeded its bound.
    pub(crate) async fn until_exceeded(&self) {
        // The sender lives as long as `self`.
        let _ = self.is_exceeded.subscribe().wait_for(|is_exceeded| *is_exceeded).await;
    }

    /// Returns why a copy is too much: for the share of its logical cluster, or for what is held of the physical cluster. Nothing is
    /// too much that takes no more than what is in its place.
    pub(crate) fn excess_of_copy(&self, place: &Place, cluster: LogicalClusterId, body: &Value) -> Option<String> {
        let at = (place.namespace.clone(), place.name.clone());
        let kinds = self.kinds();
        let before = kinds.by_resource.get(&place.resource).and_then(|kind| kind.objects.get(&at));
        let before = before.and_then(|known| known.demand.as_ref()).filter(|demand| demand.cluster == cluster);
        kinds.shares.excess(&self.limits, kinds.held, &CopyDemand::of(cluster, body), before)
    }

    /// Notes that a kind cannot be read, since an object of it is too large, or that it can.
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

    /// Whether a whole list of the resource has been seen.
    pub(crate) fn is_synced(&self, resource: &GroupResource) -> bool {
        self.kinds().by_resource.get(resource).is_some_and(|kind| kind.is_synced)
    }

    pub(crate) fn get(&self, place: &Place) -> Option<Arc<Observed>> {
        let at = (place.namespace.clone(), place.name.clone());
        self.kinds().by_resource.get(&place.resource)?.objects.get(&at).cloned()
    }

    /// Takes in an object, unless a newer state of it is known, or it exceeds the limits.
    pub(crate) fn put(&self, place: &Place, object: Value) -> Arc<Observed> {
        let observed = Arc::new(Observed::new(object));
        let at = (place.namespace.clone(), place.name.clone());
        let mut kinds = self.kinds();
        let Kinds { by_resource, held, shares, .. } = &mut *kinds;
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
        if !self.limits.permit(after) {
            drop(kinds);
            self.set_exceeded();
            return observed;
        }
        *held = after;
        shares.add(observed.demand.as_ref());
        if let Some(before) = objects.insert(at, observed.clone()) {
            shares.remove(before.demand.as_ref());
        }
        observed
    }

    /// Takes out an object whose tombstone was seen.
    pub(crate) fn remove(&self, place: &Place, uid: &str) {
        let at = (place.namespace.clone(), place.name.clone());
        self.take_out(&place.resource, &at, |known| known.uid() == uid);
    }

    fn take_out(&self, resource: &GroupResource, at: &Address, is_it: impl Fn(&Observed) -> bool) {
        let mut kinds = self.kinds();
        let Kinds { by_resource, held, shares, .. } = &mut *kinds;
        let Some(kind) = by_resource.get_mut(resource) else { return };
        if kind.objects.get(at).is_some_and(|known| is_it(known))
            && let Some(known) = kind.objects.remove(at)
        {
            *held -= known.held();
            shares.remove(known.demand.as_ref());
        }
    }

    /// Begins to take in a whole list.
    pub(crate) fn arriving_list(&self) -> ArrivingList<'_> {
        ArrivingList { mirror: self, objects: HashMap::new(), held: HeldObjects::default() }
    }

    /// Takes in a whole list. Returns what was known and is not in it.
    ///
    /// # Errors
    /// `Excessive`, when all kinds together exceed the limits; what was known stays.
    pub(crate) fn replace(
        &self,
        resource: &GroupResource,
        mut list: ArrivingList<'_>,
    ) -> Result<Vec<Arc<Observed>>, DownstreamError> {
        let mut kinds = self.kinds();
        let Kinds { by_resource, held, shares, .. } = &mut *kinds;
        let kind = by_resource.entry(resource.clone()).or_default();
        let before = kind.objects.values().fold(HeldObjects::default(), |sum, known| sum + known.held());
        let after = *held - before + list.held;
        if !self.limits.permit(after) {
            drop(kinds);
            return Err(self.exceeded());
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
    pub(crate) fn all(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<Observed>> {
        let kinds = self.kinds();
        let objects = kinds.by_resource.get(resource).into_iter().flat_map(|kind| &kind.objects);
        objects.filter(|((ns, _), _)| namespace.is_none_or(|wanted| wanted == ns)).map(|(_, o)| o.clone()).collect()
    }

    /// Whether any watched object is in the namespace, but for those of `ignored` resources.
    pub(crate) fn is_used(&self, namespace: &str, ignored: impl Fn(&GroupResource) -> bool) -> bool {
        let kinds = self.kinds();
        let mut counted = kinds.by_resource.iter().filter(|(resource, _)| !ignored(resource));
        counted.any(|(_, kind)| kind.objects.keys().any(|(ns, _)| ns == namespace))
    }

    /// Forgets a namespace that turned out to be gone, so that it is made again.
    pub(crate) fn remove_namespace(&self, name: &str) {
        self.take_out(&GroupResource::new("", "namespaces"), &(String::new(), name.to_owned()), |_| true);
    }

    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.kinds().held.objects).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pods() -> GroupResource {
        GroupResource::new("", "pods")
    }

    fn pod(name: &str, text: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1"}, "text": text})
    }

    fn put(mirror: &Mirror, name: &str, text: &str) {
        let pod = pod(name, text);
        mirror.put(&Place::of(&pods(), &pod), pod);
    }

    fn list(mirror: &Mirror, names: &[&str]) -> Result<usize, DownstreamError> {
        let mut list = mirror.arriving_list();
        list.add(names.iter().map(|name| pod(name, "")).collect())?;
        mirror.replace(&pods(), list).map(|gone| gone.len())
    }

    #[test]
    fn a_mirror_takes_in_no_more_objects_and_bytes_than_its_limits() {
        let mirror = Mirror::new(SyncLimits { objects: 3, bytes: 100_000 });
        let is_exceeded = || *mirror.is_exceeded.borrow();
        assert_eq!(list(&mirror, &["a", "b"]).unwrap(), 0);
        assert_eq!(list(&mirror, &["b", "c", "d"]).unwrap(), 1, "a list takes the place of the one before");
        mirror.remove(&Place::of(&pods(), &pod("d", "")), "d");
        put(&mirror, "e", "");
        put(&mirror, "e", "changed");
        assert!(!is_exceeded(), "three are there");
        put(&mirror, "f", "");
        assert!(is_exceeded() && mirror.len() == 3, "a fourth is not taken in");
        assert!(list(&mirror, &["a", "b", "c", "d"]).is_err());
        assert_eq!(mirror.len(), 3, "nor is a list of four, and what was known stays");
        assert_eq!(mirror.kinds().arriving, HeldObjects::default(), "a list that was given up counts no more");
        let mirror = Mirror::new(SyncLimits { objects: 100, bytes: 100_000 });
        put(&mirror, "small", "");
        put(&mirror, "large", &"x".repeat(200_000));
        assert!(*mirror.is_exceeded.borrow() && mirror.len() == 1, "bytes count too");
    }
}
