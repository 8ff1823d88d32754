//! Resources as numbers, so that keys are short. A number is assigned at a resource's first write and never reused.
//! Once nothing of the resource is left, neither objects nor history, its number may be reclaimed
//! (`crate::maintenance::resource_ids`); the resource then gets a new one. [`MAX_RESOURCES`] bounds the memory to about
//! 20 MiB; a store with so many resources accepts no further one.

use std::collections::{HashMap, HashSet};

use parking_lot::RwLock;
use portolan_types::GroupResource;

use crate::{
    api::{StoreError, damage::Damage},
    engine::KvView,
    layout::keys::{self, meta},
    read::{
        cluster_index::ResourceClusterIndex,
        state::{StoreMarks, backend, damaged, marks},
    },
};

/// Most resources of a store.
pub(crate) const MAX_RESOURCES: usize = 65_536;

/// Registry of all resources that exist, or existed recently.
#[derive(Debug, Default)]
pub(crate) struct ResourceRegistry {
    known: RwLock<RegistryState>,
    spread: ResourceClusterIndex,
}

#[derive(Debug, Default)]
struct RegistryState {
    ids: HashMap<GroupResource, u32>,
    /// Names by number, including reclaimed numbers: readers of an old state still see them.
    names: HashMap<u32, GroupResource>,
    /// Numbers that the last reclaim removed.
    retired: Vec<u32>,
    /// State in which they were removed: earlier states may still have them.
    retired_at: Option<StoreMarks>,
    last: u32,
}

impl ResourceRegistry {
    /// Returns the index of the logical clusters that have objects of a resource.
    pub(crate) fn cluster_index(&self) -> &ResourceClusterIndex {
        &self.spread
    }

    pub(crate) fn id(&self, resource: &GroupResource) -> Option<u32> {
        self.known.read().ids.get(resource).copied()
    }

    /// Returns the number of a resource in a state. If numbers were reclaimed or assigned again after it, the state
    /// itself is read.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(crate) fn id_in(&self, view: &dyn KvView, resource: &GroupResource) -> Result<Option<u32>, StoreError> {
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

    /// Replaces the registry with what was read from disk in a state. Numbers that are not on disk are dropped: keys
    /// with them would have no name after a restart.
    pub(crate) fn replace(&self, found: Self, at: StoreMarks) {
        let found = found.known.into_inner().names;
        let gone: Vec<u32> = self.known.read().ids.values().copied().filter(|id| !found.contains_key(id)).collect();
        if !gone.is_empty() {
            self.retire(gone, at);
        }
        found.into_iter().for_each(|(id, resource)| self.add(id, resource));
    }

    /// Returns all numbers but the highest, which determines the next one also after a restart.
    pub(crate) fn reclaimable(&self) -> HashSet<u32> {
        let inner = self.known.read();
        inner.ids.values().copied().filter(|id| *id != inner.last).collect()
    }

    /// Drops reclaimed numbers, before a state without them is shown. Their names stay until the next reclaim: by then
    /// the history that contains them is compacted.
    pub(crate) fn retire(&self, gone: Vec<u32>, at: StoreMarks) {
        self.spread.forget(&gone, at);
        let mut inner = self.known.write();
        let RegistryState { ids, names, retired, retired_at, .. } = &mut *inner;
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

    /// Returns the number after the highest assigned one.
    pub(crate) fn next(&self) -> u32 {
        self.known.read().last + 1
    }

    /// Adds a number that is on disk, before any view shows a key with it.
    pub(crate) fn add(&self, id: u32, resource: GroupResource) {
        let mut inner = self.known.write();
        inner.last = inner.last.max(id);
        inner.ids.insert(resource.clone(), id);
        inner.names.insert(id, resource);
    }
}

/// Reads the number of a resource in a state.
fn number_in(view: &dyn KvView, resource: &GroupResource) -> Result<Option<u32>, StoreError> {
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

/// Encodes a resource: the group, a zero byte, the resource.
pub(crate) fn encode(resource: &GroupResource) -> Vec<u8> {
    [resource.group.as_bytes(), &[0], resource.resource.as_bytes()].concat()
}

/// Decodes a resource; `None` for malformed bytes.
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
        let (known, found) = (ResourceRegistry::default(), ResourceRegistry::default());
        known.add(1, pods.clone());
        known.add(2, jobs.clone());
        found.add(2, jobs.clone());
        known.replace(found, StoreMarks { last: 7, floor: 5 });
        assert_eq!((known.id(&pods), known.id(&jobs), known.next()), (None, Some(2), 3));
        assert_eq!(known.name(1), Some(pods), "states of before still name it");
    }
}
