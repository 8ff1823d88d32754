//! Damaged objects: their description, and the ledger of the known ones.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use portolan_types::{GroupResource, LogicalClusterId, NamespaceName, ObjectKey};
use prometheus::IntGauge;

use crate::api::damage::{Damage, DamagedObject};

/// Most damaged objects that are known individually. Further ones are neither logged nor counted, except the first of
/// each resource of each logical cluster.
pub const MAX_KNOWN_DAMAGE: usize = 10_000;

/// Ledger of the damaged objects that reads have found since the start. Each is logged once.
///
/// It is bounded, but keeps at least one object of each resource of each logical cluster that has any, so that the
/// answer to "is all of this resource readable?" is never wrong. Damaged addresses belong to no resource.
pub(crate) struct DamageLedger {
    known: Mutex<KnownDamage>,
    count: IntGauge,
}

#[derive(Default)]
struct KnownDamage {
    all: BTreeMap<ObjectKey, Damage>,
    /// Number of damaged objects per resource of a logical cluster. All stand-ins for addresses share one entry, so
    /// that arbitrary bytes on disk do not count as further resources.
    places: HashMap<Option<(LogicalClusterId, GroupResource)>, usize>,
}

fn place(key: &ObjectKey, why: Damage) -> Option<(LogicalClusterId, GroupResource)> {
    (why != Damage::Key).then(|| (key.cluster, key.resource.clone()))
}

impl KnownDamage {
    fn has_room(&self, DamagedObject { key, why }: &DamagedObject) -> bool {
        self.all.len() < MAX_KNOWN_DAMAGE || !self.places.contains_key(&place(key, *why))
    }

    /// Adds an object; returns true if it is new.
    fn add(&mut self, DamagedObject { key, why }: &DamagedObject) -> bool {
        let was_known = self.remove(key);
        self.all.insert(key.clone(), *why);
        *self.places.entry(place(key, *why)).or_default() += 1;
        !was_known
    }

    /// Removes an object; returns true if it was known.
    fn remove(&mut self, key: &ObjectKey) -> bool {
        let why = self.all.remove(key);
        if let Some(why) = why {
            let place = place(key, why);
            match self.places.get_mut(&place) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) | None => drop(self.places.remove(&place)),
            }
        }
        why.is_some()
    }
}

impl DamageLedger {
    /// Creates an empty ledger that reports its size in `count`.
    pub(crate) fn new(count: IntGauge) -> Self {
        Self { known: Mutex::default(), count }
    }

    /// Returns true if no damage is known. Takes no lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    /// Returns true if `found` is new and would be added.
    pub(crate) fn is_new(&self, found: &DamagedObject) -> bool {
        let known = self.known.lock();
        !known.all.contains_key(&found.key) && known.has_room(found)
    }

    /// Returns true if the object is known to be missing although an index names it.
    pub(crate) fn is_known_missing(&self, key: &ObjectKey) -> bool {
        !self.is_empty() && self.known.lock().all.get(key) == Some(&Damage::Missing)
    }

    /// Adds an object and logs it.
    pub(crate) fn add(&self, found: &DamagedObject) {
        let DamagedObject { key, why } = found;
        let mut known = self.known.lock();
        if !known.has_room(found) || !known.add(found) {
            return;
        }
        self.recount(&known);
        tracing::error!(
            cluster = %key.cluster,
            resource = %key.resource,
            namespace = key.namespace().map_or("", NamespaceName::as_str),
            name = %key.name,
            error = %why,
            "a stored object is damaged; reads skip it until it is deleted or a snapshot is restored",
        );
        if known.all.len() == MAX_KNOWN_DAMAGE {
            tracing::error!(
                known = MAX_KNOWN_DAMAGE,
                "too many damaged objects: only the first of each resource and cluster is logged from now on"
            );
        }
    }

    /// Removes an object that was deleted or overwritten.
    pub(crate) fn remove(&self, key: &ObjectKey) {
        if !self.is_empty() {
            let mut known = self.known.lock();
            known.remove(key);
            self.recount(&known);
        }
    }

    /// Removes all objects of a deleted logical cluster.
    pub(crate) fn remove_cluster(&self, cluster: LogicalClusterId) {
        if !self.is_empty() {
            let mut known = self.known.lock();
            let gone: Vec<_> = known.all.keys().filter(|key| key.cluster == cluster).cloned().collect();
            for key in &gone {
                known.remove(key);
            }
            self.recount(&known);
        }
    }

    pub(crate) fn all(&self) -> Vec<DamagedObject> {
        if self.is_empty() {
            return Vec::new();
        }
        self.known.lock().all.iter().map(|(key, why)| DamagedObject { key: key.clone(), why: *why }).collect()
    }

    fn recount(&self, known: &KnownDamage) {
        self.count.set(i64::try_from(known.all.len()).unwrap_or(i64::MAX));
    }
}
