//! What stands on the physical cluster, as its watches tell.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use portolan_types::{GroupResource, object, placement::Source};
use serde_json::Value;

use crate::client::FIELD_MANAGER;

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
}

impl Observed {
    pub(crate) fn new(mut object: Value) -> Self {
        let managed = object::metadata_mut(&mut object).remove("managedFields");
        let entries = managed.as_ref().and_then(Value::as_array).into_iter().flatten();
        let is_owned_by_create = entries.into_iter().any(is_create_entry);
        Self { object, is_owned_by_create }
    }

    pub(crate) fn uid(&self) -> &str {
        object::meta_text(&self.object, "uid")
    }

    fn version(&self) -> Option<u64> {
        object::meta_text(&self.object, "resourceVersion").parse().ok()
    }
}

/// Field ownership that our own POST left.
pub(crate) fn is_create_entry(entry: &Value) -> bool {
    entry["manager"] == FIELD_MANAGER
        && entry["operation"] == "Update"
        && entry["subresource"].as_str().unwrap_or("").is_empty()
}

#[derive(Default)]
struct Kind {
    is_synced: bool,
    objects: HashMap<(String, String), Arc<Observed>>,
}

/// All watched objects of one physical cluster.
#[derive(Default)]
pub(crate) struct Mirror {
    kinds: Mutex<HashMap<GroupResource, Kind>>,
}

impl Mirror {
    fn kinds(&self) -> MutexGuard<'_, HashMap<GroupResource, Kind>> {
        self.kinds.lock().expect("no code panics under this lock")
    }

    /// Whether a whole list of the resource has been seen.
    pub(crate) fn is_synced(&self, resource: &GroupResource) -> bool {
        self.kinds().get(resource).is_some_and(|kind| kind.is_synced)
    }

    pub(crate) fn get(&self, place: &Place) -> Option<Arc<Observed>> {
        let at = (place.namespace.clone(), place.name.clone());
        self.kinds().get(&place.resource)?.objects.get(&at).cloned()
    }

    /// Takes in an object, unless a newer state of it is known.
    pub(crate) fn put(&self, place: &Place, object: Value) -> Arc<Observed> {
        let observed = Arc::new(Observed::new(object));
        let at = (place.namespace.clone(), place.name.clone());
        let mut kinds = self.kinds();
        let objects = &mut kinds.entry(place.resource.clone()).or_default().objects;
        let is_older = objects.get(&at).is_some_and(|known| {
            known.uid() == observed.uid()
                && known.version().zip(observed.version()).is_some_and(|(known, new)| new < known)
        });
        if !is_older {
            objects.insert(at, observed.clone());
        }
        observed
    }

    /// Takes out an object whose tombstone was seen.
    pub(crate) fn remove(&self, place: &Place, uid: &str) {
        let at = (place.namespace.clone(), place.name.clone());
        if let Some(kind) = self.kinds().get_mut(&place.resource)
            && kind.objects.get(&at).is_some_and(|known| known.uid() == uid)
        {
            kind.objects.remove(&at);
        }
    }

    /// Takes in a whole list. Returns what was known and is not in it.
    pub(crate) fn replace(&self, resource: &GroupResource, list: Vec<Value>) -> Vec<Arc<Observed>> {
        let objects: HashMap<_, _> = list
            .into_iter()
            .map(|object| {
                let at = (object::namespace(&object).to_owned(), object::name(&object).to_owned());
                (at, Arc::new(Observed::new(object)))
            })
            .collect();
        let mut kinds = self.kinds();
        let kind = kinds.entry(resource.clone()).or_default();
        let before = std::mem::replace(&mut kind.objects, objects);
        kind.is_synced = true;
        let gone =
            before.into_iter().filter(|(at, known)| kind.objects.get(at).is_none_or(|now| now.uid() != known.uid()));
        gone.map(|(_, known)| known).collect()
    }

    /// All objects of one resource in a namespace; in every namespace with `None`.
    pub(crate) fn all(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<Observed>> {
        let kinds = self.kinds();
        let objects = kinds.get(resource).into_iter().flat_map(|kind| &kind.objects);
        objects.filter(|((ns, _), _)| namespace.is_none_or(|wanted| wanted == ns)).map(|(_, o)| o.clone()).collect()
    }

    /// Whether any watched object is in the namespace, but for those of `ignored` resources.
    pub(crate) fn is_used(&self, namespace: &str, ignored: impl Fn(&GroupResource) -> bool) -> bool {
        let kinds = self.kinds();
        let mut counted = kinds.iter().filter(|(resource, _)| !ignored(resource));
        counted.any(|(_, kind)| kind.objects.keys().any(|(ns, _)| ns == namespace))
    }

    /// Forgets a namespace that turned out to be gone, so that it is made again.
    pub(crate) fn remove_namespace(&self, name: &str) {
        if let Some(kind) = self.kinds().get_mut(&GroupResource::new("", "namespaces")) {
            kind.objects.remove(&(String::new(), name.to_owned()));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds().values().map(|kind| kind.objects.len()).sum()
    }
}
