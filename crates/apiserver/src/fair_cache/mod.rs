//! Cache of a bounded number of entries, which owners share fairly: beyond the bound, the owner with the most entries
//! loses its oldest one. An owner therefore keeps its entries, regardless of how many others insert, as long as it has
//! at most its share.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher as _},
};

/// Owner of entries, such as a tenant or a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CacheOwner(u64);

impl CacheOwner {
    /// Returns the owner of a value. Two values with one hash share their part.
    pub(crate) fn of(value: &(impl Hash + ?Sized)) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Cache whose owners share its entries.
pub(crate) struct FairCache<K, V> {
    entries: HashMap<K, (CacheOwner, V)>,
    /// Keys of each owner, the oldest first.
    owned: HashMap<CacheOwner, VecDeque<K>>,
    /// Owners by the number of their entries.
    by_count: BTreeSet<(usize, CacheOwner)>,
    capacity: usize,
}

impl<K: Copy + Eq + Hash, V> FairCache<K, V> {
    /// Creates a cache of at most `capacity` entries.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), owned: HashMap::new(), by_count: BTreeSet::new(), capacity }
    }

    /// Returns the entry of a key.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Inserts an entry, or replaces that of the key.
    pub(crate) fn insert(&mut self, owner: CacheOwner, key: K, value: V) {
        if let Some((of, old)) = self.entries.get_mut(&key)
            && *of == owner
        {
            *old = value;
            return;
        }
        self.remove(&key);
        self.entries.insert(key, (owner, value));
        self.change(owner, |keys| keys.push_back(key));
        while self.entries.len() > self.capacity {
            self.remove_oldest_of_largest();
        }
    }

    fn remove(&mut self, key: &K) {
        let Some((owner, _)) = self.entries.remove(key) else { return };
        self.change(owner, |keys| keys.retain(|own| own != key));
    }

    fn remove_oldest_of_largest(&mut self) {
        let Some((_, owner)) = self.by_count.last().copied() else { return };
        let mut oldest = None;
        self.change(owner, |keys| oldest = keys.pop_front());
        if let Some(oldest) = oldest {
            self.entries.remove(&oldest);
        }
    }

    /// Changes the keys of an owner, and counts them again.
    fn change(&mut self, owner: CacheOwner, change: impl FnOnce(&mut VecDeque<K>)) {
        let keys = self.owned.entry(owner).or_default();
        let before = keys.len();
        change(keys);
        let after = keys.len();
        if after == 0 {
            self.owned.remove(&owner);
        }
        self.by_count.remove(&(before, owner));
        if after > 0 {
            self.by_count.insert((after, owner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_fills_the_cache_takes_nothing_from_those_within_their_share() {
        let mut cache = FairCache::new(100);
        let (greedy, small) = (CacheOwner::of("greedy"), CacheOwner::of("small"));
        for key in 0..20 {
            cache.insert(small, key, "small");
        }
        for key in 1000..100_000 {
            cache.insert(greedy, key, "greedy");
        }
        assert_eq!(cache.len(), 100);
        assert!((0..20).all(|key| cache.get(&key) == Some(&"small")), "they stay, though they are the oldest");
        assert!(cache.get(&99_999).is_some() && cache.get(&99_920).is_some() && cache.get(&99_919).is_none());
        for key in 100..200 {
            cache.insert(small, key, "small");
        }
        let kept = (99_000..100_000).filter(|key| cache.get(key).is_some()).count();
        assert_eq!(kept, 50, "two that want more share it equally");
    }

    #[test]
    fn entries_are_replaced_and_move_between_owners() {
        let (mut cache, [one, two]) = (FairCache::new(2), ["one", "two"].map(CacheOwner::of));
        cache.insert(one, 1, 'a');
        cache.insert(one, 1, 'b');
        assert_eq!((cache.get(&1), cache.len()), (Some(&'b'), 1));
        cache.insert(two, 1, 'c');
        cache.insert(two, 2, 'd');
        cache.insert(two, 3, 'e');
        assert_eq!([1, 2, 3].map(|key| cache.get(&key).copied()), [None, Some('d'), Some('e')]);
        assert!(!cache.owned.contains_key(&one) && cache.by_count.len() == 1);
    }
}
