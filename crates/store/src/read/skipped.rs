//! Damaged objects that a read of many objects skipped.

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey};

use crate::{
    api::damage::{Damage, DamagedObject, stand_in_name},
    layout::keys,
    read::{history::object_key, resources::ResourceRegistry},
};

/// Most entries without an address that a page lists. There may be any number, and they do not count toward the limits
/// of the page.
const MAX_LISTED: usize = 1000;

#[derive(Default)]
pub(crate) struct SkippedObjects {
    found: Vec<DamagedObject>,
    /// Number of further entries without an address.
    unnamed: usize,
    /// Number of entries with an address: these are objects.
    objects: usize,
    /// Lengths of `found` and `unnamed` at the last object, damaged or not.
    upto: (usize, usize),
    /// True if that object is damaged.
    ends_damaged: bool,
}

impl SkippedObjects {
    /// Adds a skipped entry.
    pub(crate) fn add(&mut self, found: DamagedObject) {
        if found.why != Damage::Key {
            self.objects += 1;
            self.found.push(found);
            self.mark_position(true);
        } else if self.found.len() - self.objects < MAX_LISTED {
            self.found.push(found);
        } else {
            self.unnamed += 1;
        }
    }

    /// Records that the read took an undamaged object.
    pub(crate) fn record_read(&mut self) {
        self.mark_position(false);
    }

    fn mark_position(&mut self, ends_damaged: bool) {
        (self.upto, self.ends_damaged) = ((self.found.len(), self.unnamed), ends_damaged);
    }

    /// Returns the number of skipped objects, which count toward the limits of a page.
    pub(crate) fn objects(&self) -> usize {
        self.objects
    }

    /// Returns the last object that was read, if it is damaged: the cursor of the next page. A stand-in for an address
    /// is not a cursor.
    pub(crate) fn last(&self) -> Option<&ObjectKey> {
        let last = self.upto.0.checked_sub(1).filter(|_| self.ends_damaged)?;
        self.found.get(last).map(|found| &found.key)
    }

    /// Returns the skipped entries and the number of further ones. Entries after the last object of a cut page belong
    /// to the next page.
    pub(crate) fn finish(mut self, is_cut: bool) -> (Vec<DamagedObject>, usize) {
        if is_cut {
            self.found.truncate(self.upto.0);
            self.unnamed = self.upto.1;
        }
        (self.found, self.unnamed)
    }
}

/// Describes the damage found under the keys of `suffix`.
pub(crate) fn damaged_object(resources: &ResourceRegistry, suffix: &[u8], why: Damage) -> DamagedObject {
    match keys::parts(suffix).map(|parts| object_key(resources, parts)) {
        Some(Ok(key)) => DamagedObject { key, why },
        _ => DamagedObject { key: stand_in(suffix), why: Damage::Key },
    }
}

/// Returns a stand-in for a damaged address, made of its bytes.
fn stand_in(suffix: &[u8]) -> ObjectKey {
    let cluster = suffix.first_chunk().map_or(0, |cluster| u64::from_be_bytes(*cluster));
    ObjectKey::cluster_scoped(LogicalClusterId::new(cluster), GroupResource::new("", "unknown"), stand_in_name(suffix))
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, LogicalClusterId};

    use super::*;

    fn found(name: &str, why: Damage) -> DamagedObject {
        let resource = GroupResource::new("", "pods");
        DamagedObject { key: ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name.parse().unwrap()), why }
    }

    #[test]
    fn damage_without_an_address_is_counted_and_partly_named() {
        let mut passed = SkippedObjects::default();
        for n in 0..MAX_LISTED + 5 {
            passed.add(found(&format!("x{n}"), Damage::Key));
        }
        assert_eq!((passed.objects(), passed.last()), (0, None), "it is not an object");
        passed.add(found("a", Damage::Checksum));
        passed.add(found("x", Damage::Key));
        assert_eq!((passed.objects(), passed.last().map(|key| &*key.name)), (1, Some("a")));
        let (named, unnamed) = passed.finish(false);
        assert_eq!((named.len(), unnamed), (MAX_LISTED + 1, 6));
    }

    #[test]
    fn skipped_objects_are_reported_once_across_pages() {
        for (is_cut, expected) in [(false, 3), (true, 2)] {
            let mut passed = SkippedObjects::default();
            passed.add(found("x0", Damage::Key));
            passed.add(found("a", Damage::CutOff));
            passed.record_read();
            assert_eq!(passed.last(), None, "a whole one is the last");
            passed.add(found("x1", Damage::Key));
            assert_eq!(passed.finish(is_cut).0.len(), expected);
        }
        let mut many = SkippedObjects::default();
        (0..MAX_LISTED).for_each(|n| many.add(found(&format!("x{n}"), Damage::Key)));
        many.record_read();
        many.add(found("x", Damage::Key));
        assert_eq!(many.finish(true).1, 0);
    }
}
