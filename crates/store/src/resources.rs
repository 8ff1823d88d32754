//! Resources as numbers, so that keys are short. A number is given at a resource's first write and never to another one. When
//! nothing of the resource is left, neither objects nor history, it may be taken back (`crate::reclaim`); a resource that comes
//! again gets a new one. What numbers take is bounded by [`MAX_RESOURCES`], about 20 MiB of memory; a plane with so many kinds takes
//! no further one.

use std::collections::{HashMap, HashSet};

use parking_lot::RwLock;
use portolan_types::GroupResource;

use crate::{
    StoreError,
    keys::{self, meta},
    kv::View,
    read::{Marks, backend, damaged, marks},
    spread::Spread,
    value::Damage,
};

/// Most resources that a store knows.
pub(crate) const MAX_RESOURCES: usize = 65_536;

/// All resources that are there, or were not long ago.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    known: RwLock<Inner>,
    spread: Spread,
}

#[derive(Debug, Default)]
struct Inner {
    ids: HashMap<GroupResource, u32>,
    /// Also of numbers that were taken back: who reads an old state still sees them.
    names: HashMap<u32, GroupResource>,
    /// Numbers that were taken back the last time.
    retired: Vec<u32>,
    /// Where the last were taken back: states before it may still have them.
    retired_at: Option<Marks>,
    last: u32,
}

impl Resources {
    /// Where there are objects of them.
    pub(crate) fn spread(&self) -> &Spread {
        &self.spread
    }

    pub(crate) fn id(&self, resource: &GroupResource) -> Option<u32> {
        self.known.read().ids.get(resource).copied()
    }

    /// The number of a resource in a state. Numbers may have been taken back, or given again, after it: then it tells itself.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) fn id_in(&self, view: &dyn View, resource: &GroupResource) -> Result<Option<u32>, StoreError> {
        let (id, retired_at) = {
            let known = self.known.read();
            (known.ids.get(resource).copied(), known.retired_at)
        };
        match retired_at {
            Some(retired_at) if marks(view)?.is_before(retired_at) => number_in(view, resource),
            Some(_) | None => Ok(id),
        }
    }

    pub(crate) fn name(&self, id: u32) -> Option<GroupResource> {
        self.known.read().names.get(&id).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.known.read().ids.len()
    }

    /// Takes over what another reading of the disk found, in a state. Numbers that are not there any more are no longer used: what was
    /// written under them would have no name after the next start.
    pub(crate) fn replace(&self, found: Self, at: Marks) {
        let found = found.known.into_inner().names;
        let gone: Vec<u32> = self.known.read().ids.values().copied().filter(|id| !found.contains_key(id)).collect();
        if !gone.is_empty() {
            self.retire(gone, at);
        }
        found.into_iter().for_each(|(id, resource)| self.add(id, resource));
    }

    /// All numbers but the highest, which tells the next one also after a restart.
    pub(crate) fn reclaimable(&self) -> HashSet<u32> {
        let inner = self.known.read();
        inner.ids.values().copied().filter(|id| *id != inner.last).collect()
    }

    /// Called when numbers are no longer on disk, before a state is shown that has them no more. Their names stay until the next
    /// time: history has been forgotten in between, and with it the states in which they stand.
    pub(crate) fn retire(&self, gone: Vec<u32>, at: Marks) {
        self.spread.forget(&gone, at);
        let mut inner = self.known.write();
        let Inner { ids, names, retired, retired_at, .. } = &mut *inner;
        *retired_at = Some(at);
        for id in &gone {
            if let Some(name) = names.get(id)
                && ids.get(name) == Some(id)
            {
                ids.remove(name);
            }
        }
        for id in std::mem::replace(retired, gone) {
            names.remove(&id);
        }
    }

    /// The number after the highest that was given.
    pub(crate) fn next(&self) -> u32 {
        self.known.read().last + 1
    }

    /// Called with what is on disk, before any view shows a key with it.
    pub(crate) fn add(&self, id: u32, resource: GroupResource) {
        let mut inner = self.known.write();
        inner.last = inner.last.max(id);
        inner.ids.insert(resource.clone(), id);
        inner.names.insert(id, resource);
    }
}

/// Reads the number of a resource from a state.
fn number_in(view: &dyn View, resource: &GroupResource) -> Result<Option<u32>, StoreError> {
    let wanted = encode(resource);
    let mut cursor = view.scan(meta::RESOURCES, &keys::end_of(meta::RESOURCES)).map_err(backend)?;
    while let Some(key) = cursor.key() {
        if cursor.value() == wanted {
            let number = meta::number(key).ok_or(Damage::Key).map_err(damaged)?;
            return Ok(Some(u32::from_be_bytes(number)));
        }
        cursor.advance().map_err(backend)?;
    }
    Ok(None)
}

/// A resource as it stands on disk: the group, a zero byte, the resource.
pub(crate) fn encode(resource: &GroupResource) -> Vec<u8> {
    [resource.group.as_bytes(), &[0], resource.resource.as_bytes()].concat()
}

/// A resource as it stood on disk; `None` for bytes that are none.
pub(crate) fn decode(bytes: &[u8]) -> Option<GroupResource> {
    let (group, resource) = std::str::from_utf8(bytes).ok()?.split_once('\0')?;
    Some(GroupResource::new(group, resource))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_comes_back_as_it_went() {
        for resource in [GroupResource::new("", "pods"), GroupResource::new("apps", "deployments")] {
            assert_eq!(decode(&encode(&resource)), Some(resource));
        }
        assert_eq!(decode(b"pods"), None);
    }

    #[test]
    fn numbers_that_left_the_disk_are_not_used_any_more() {
        let (pods, jobs) = (GroupResource::new("", "pods"), GroupResource::new("batch", "jobs"));
        let (known, found) = (Resources::default(), Resources::default());
        known.add(1, pods.clone());
        known.add(2, jobs.clone());
        found.add(2, jobs.clone());
        known.replace(found, Marks { last: 7, floor: 5 });
        assert_eq!((known.id(&pods), known.id(&jobs), known.next()), (None, Some(2), 3));
        assert_eq!(known.name(1), Some(pods), "states of before still name it");
    }
}
