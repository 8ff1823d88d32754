//! Cache of definitions per logical cluster, and the part of it that is stale.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use portolan_types::{LogicalClusterId, ObjectName};

use super::{
    ServedKinds,
    bound::{all_bound, bound_name, is_bound},
    compiled::LoadedDefinition,
    weights::DefinitionWeights,
};

/// Logical clusters in each of the two generations of the cache. One that is not used for a whole generation is
/// evicted.
const MAX_KEPT: usize = 2048;
/// Most bytes of cached definitions, counting shared ones once. Others are read again when they are needed.
const MAX_BYTES: usize = 512 * 1024 * 1024;

/// Cached definitions of one logical cluster.
#[derive(Default)]
pub(super) struct ClusterDefinitions {
    /// Number of this entry, which distinguishes it from an evicted one.
    pub(super) token: u64,
    /// True once all have been read; until then `stale` collects concurrent writes.
    pub(super) is_whole: bool,
    pub(super) definitions: BTreeMap<ObjectName, LoadedDefinition>,
    /// Names written since they were read, with the number of the write.
    pub(super) stale: HashMap<ObjectName, u64>,
    pub(super) served: Option<Arc<ServedKinds>>,
}

/// Definitions that must be read before an answer.
pub(super) enum MissingDefinitions {
    /// All definitions.
    All,
    /// These definitions.
    Some(Vec<(ObjectName, u64)>),
}

/// State of the cache.
#[derive(Default)]
pub(super) struct DefinitionCache {
    young: HashMap<LogicalClusterId, ClusterDefinitions>,
    old: HashMap<LogicalClusterId, ClusterDefinitions>,
    /// Definitions that are being written: a read of them may already be stale.
    changing: HashMap<LogicalClusterId, HashMap<ObjectName, usize>>,
    writes: u64,
    weights: DefinitionWeights,
    /// Number of resources whose writes by other servers are followed. Nothing is cached unless all are.
    pub(super) followed: usize,
}

impl DefinitionCache {
    /// Returns the estimated bytes of cached definitions.
    pub(super) fn bytes(&self) -> usize {
        self.weights.total()
    }

    /// Returns the entry of a logical cluster and moves it to the young generation.
    pub(super) fn entry(&mut self, cluster: LogicalClusterId) -> &mut ClusterDefinitions {
        if !self.young.contains_key(&cluster) {
            self.writes += 1;
            let fresh = || ClusterDefinitions { token: self.writes, ..ClusterDefinitions::default() };
            let known = self.old.remove(&cluster).unwrap_or_else(fresh);
            if self.young.len() >= MAX_KEPT {
                let dropped = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
                self.weights.drop_all(dropped);
            }
            self.young.insert(cluster, known);
        }
        self.young.entry(cluster).or_default()
    }

    /// Returns the definitions to read before `cluster` is answered; `None` when there are none.
    pub(super) fn missing(&mut self, cluster: LogicalClusterId) -> Option<MissingDefinitions> {
        if !self.entry(cluster).is_whole {
            return Some(MissingDefinitions::All);
        }
        let changing: Vec<_> = self.changing.get(&cluster).into_iter().flat_map(HashMap::keys).cloned().collect();
        for name in changing {
            // Otherwise concurrent and later reads would be discarded as stale too.
            if !self.entry(cluster).stale.contains_key(&name) {
                self.wrote(cluster, &name);
            }
        }
        let stale = &self.entry(cluster).stale;
        let all: Vec<_> = stale.iter().map(|(name, write)| (name.clone(), *write)).collect();
        (!all.is_empty()).then_some(MissingDefinitions::Some(all))
    }

    /// Returns the kinds that `cluster` serves; `None` if definitions must be read first.
    pub(super) fn served(&mut self, cluster: LogicalClusterId) -> Option<Arc<ServedKinds>> {
        match self.missing(cluster) {
            Some(_) => None,
            None => self.entry(cluster).served.clone(),
        }
    }

    /// Returns a definition of `cluster`, if it exists; `None` if it must be read first.
    pub(super) fn definition(
        &mut self,
        cluster: LogicalClusterId,
        name: &ObjectName,
    ) -> Option<Option<LoadedDefinition>> {
        match self.missing(cluster) {
            Some(_) => None,
            None => {
                let known = &self.entry(cluster).definitions;
                let bound = bound_name(name).and_then(|bound| known.get(&bound));
                Some(bound.or_else(|| known.get(name)).cloned())
            }
        }
    }

    /// Records that a definition was written, or may have been.
    pub(super) fn wrote(&mut self, cluster: LogicalClusterId, name: &ObjectName) {
        self.writes += 1;
        let known = self.young.get_mut(&cluster).or_else(|| self.old.get_mut(&cluster));
        if let Some(known) = known {
            known.stale.insert(name.clone(), self.writes);
        }
    }

    /// Records the start of a write.
    pub(super) fn begin(&mut self, cluster: LogicalClusterId, name: &ObjectName) {
        *self.changing.entry(cluster).or_default().entry(name.clone()).or_default() += 1;
        self.wrote(cluster, name);
    }

    /// Records the end of a write.
    pub(super) fn end(&mut self, cluster: LogicalClusterId, name: &ObjectName) {
        self.wrote(cluster, name);
        let Some(all) = self.changing.get_mut(&cluster) else { return };
        if let Some(count) = all.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                all.remove(name);
            }
        }
        if all.is_empty() {
            self.changing.remove(&cluster);
        }
    }

    /// Caches all definitions of a logical cluster.
    pub(super) fn keep_all(&mut self, cluster: LogicalClusterId, fresh: BTreeMap<ObjectName, LoadedDefinition>) {
        fresh.values().for_each(|own| self.weights.add(&own.held));
        let known = self.entry(cluster);
        known.is_whole = true;
        let before = std::mem::replace(&mut known.definitions, fresh);
        before.values().for_each(|own| self.weights.remove(&own.held));
        self.shrink(cluster);
    }

    /// Caches one definition, or its absence.
    pub(super) fn keep(&mut self, cluster: LogicalClusterId, name: &ObjectName, fresh: Option<LoadedDefinition>) {
        if let Some(own) = &fresh {
            self.weights.add(&own.held);
        }
        let known = self.entry(cluster);
        known.stale.remove(name);
        let before = match fresh {
            Some(own) => known.definitions.insert(name.clone(), own),
            None => known.definitions.remove(name),
        };
        if let Some(own) = before {
            self.weights.remove(&own.held);
        }
        self.shrink(cluster);
    }

    /// Caches the definitions of all bindings of a logical cluster.
    pub(super) fn keep_bound(&mut self, cluster: LogicalClusterId, fresh: BTreeMap<ObjectName, LoadedDefinition>) {
        fresh.values().for_each(|own| self.weights.add(&own.held));
        let known = self.entry(cluster);
        known.stale.remove(&all_bound());
        let before: Vec<_> = known.definitions.extract_if(.., |name, _| is_bound(name)).collect();
        known.definitions.extend(fresh);
        before.iter().for_each(|(_, own)| self.weights.remove(&own.held));
        self.shrink(cluster);
    }

    /// Evicts other logical clusters while the cache is too large, old ones first.
    fn shrink(&mut self, cluster: LogicalClusterId) {
        if self.weights.total() > MAX_BYTES {
            self.weights.drop_all(std::mem::take(&mut self.old));
        }
        if self.weights.total() > MAX_BYTES {
            let own = self.young.remove(&cluster);
            self.weights.drop_all(std::mem::take(&mut self.young));
            self.young.extend(own.map(|own| (cluster, own)));
        }
    }

    /// Evicts one logical cluster.
    pub(super) fn forget(&mut self, cluster: LogicalClusterId) {
        for age in [&mut self.young, &mut self.old] {
            self.weights.drop_all(age.remove(&cluster).map(|known| (cluster, known)));
        }
    }

    /// Evicts everything, because any definition may have been written.
    pub(super) fn forget_all(&mut self) {
        self.young.clear();
        self.old.clear();
        self.weights = DefinitionWeights::default();
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::ResourceVersion;

    use super::super::compiled::CachedDefinition;
    use super::*;

    fn name() -> ObjectName {
        "widgets.example.dev".parse().unwrap()
    }

    #[test]
    fn written_settings_are_readable() {
        let (mut state, cluster) = (DefinitionCache::default(), LogicalClusterId::ROOT);
        assert!(matches!(state.missing(cluster), Some(MissingDefinitions::All)), "nothing is known at first");
        state.entry(cluster).is_whole = true;
        assert!(state.missing(cluster).is_none());
        state.begin(cluster, &name());
        state.entry(cluster).stale.clear();
        assert!(
            matches!(state.missing(cluster), Some(MissingDefinitions::Some(all)) if all.len() == 1),
            "while it is being written"
        );
        let writes = |missing: Option<MissingDefinitions>| match missing {
            Some(MissingDefinitions::Some(all)) => all.into_iter().map(|(_, write)| write).collect(),
            Some(MissingDefinitions::All) | None => Vec::new(),
        };
        let [first, second] = [writes(state.missing(cluster)), writes(state.missing(cluster))];
        assert_eq!((first.len(), &first), (1, &second), "two who read at once read the same");
        state.end(cluster, &name());
        let after = writes(state.missing(cluster));
        assert!(after.len() == 1 && after != second, "and once after");
        state.entry(cluster).stale.clear();
        assert!(state.missing(cluster).is_none());
    }

    #[test]
    fn unused_entries_are_evicted() {
        let mut state = DefinitionCache::default();
        for id in 1..=(3 * MAX_KEPT as u64) {
            state.entry(LogicalClusterId::new(id)).is_whole = true;
            assert!(state.entry(LogicalClusterId::new(1)).is_whole || id == 1, "what is asked for stays");
        }
        assert!(state.young.len() + state.old.len() <= 2 * MAX_KEPT + 1);
        assert!(matches!(state.missing(LogicalClusterId::new(2)), Some(MissingDefinitions::All)));
    }

    /// Caches `count` definitions of one megabyte in a logical cluster.
    fn fill(state: &mut DefinitionCache, cluster: u64, definitions: &[Arc<CachedDefinition>]) {
        let (created, revision) = (ResourceVersion::FIRST, ResourceVersion::FIRST);
        let own =
            |held: &Arc<CachedDefinition>| LoadedDefinition { held: held.clone(), created, revision, binding: None };
        let named =
            definitions.iter().enumerate().map(|(n, held)| (format!("w{n}.example.dev").parse().unwrap(), own(held)));
        state.keep_all(LogicalClusterId::new(cluster), named.collect());
    }

    fn megabytes(count: usize) -> Vec<Arc<CachedDefinition>> {
        let read = |n| {
            let crd = serde_json::json!({"metadata": {"name": format!("w{n}.example.dev")}});
            let definition = portolan_kinds::custom::Definition::read(&crd, || None);
            Arc::new(CachedDefinition { definition: Arc::new(definition), spec: 1024 * 1024 })
        };
        (0..count).map(read).collect()
    }

    #[test]
    fn cached_definitions_are_bounded_by_bytes() {
        let mut state = DefinitionCache::default();
        for id in 1..=100 {
            let alive: Vec<_> = megabytes(64);
            let watched = Arc::downgrade(&alive[0]);
            fill(&mut state, id, &alive);
            drop(alive);
            assert!(state.weights.total() <= MAX_BYTES, "{}", state.weights.total());
            assert!(watched.upgrade().is_some(), "what was asked for last is kept");
        }
        state.forget_all();
        assert_eq!(state.weights.total(), 0);
    }

    #[test]
    fn shared_definitions_count_once() {
        let (mut state, shared) = (DefinitionCache::default(), megabytes(32));
        (1..=1000).for_each(|id| fill(&mut state, id, &shared));
        let once: usize = shared.iter().map(|held| held.weight()).sum();
        assert_eq!((state.weights.total(), state.young.len()), (once, 1000));
        state.keep(LogicalClusterId::new(7), &"w0.example.dev".parse().unwrap(), None);
        (1..=1000).for_each(|id| state.forget(LogicalClusterId::new(id)));
        assert_eq!(state.weights.total(), 0);
    }
}
