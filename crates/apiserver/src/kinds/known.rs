//! What is in memory of the definitions of logical clusters, and what of it is out of date.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use portolan_types::{LogicalClusterId, ObjectName};

use super::{ServedKinds, compiled::Own, weights::Weights};

/// Logical clusters of each of two ages whose kinds are kept. What was not asked for during a whole age is dropped.
const MAX_KEPT: usize = 2048;
/// Bytes of definitions that are kept, counting once what logical clusters share. What is more is read again when it is asked
/// for.
const MAX_BYTES: usize = 512 * 1024 * 1024;

/// The definitions of one logical cluster.
#[derive(Default)]
pub(super) struct Known {
    /// Tells it from what was known of the same logical cluster before it was dropped.
    pub(super) token: u64,
    /// Whether all have been read; until then `stale` collects what was written meanwhile.
    pub(super) is_whole: bool,
    pub(super) definitions: BTreeMap<ObjectName, Own>,
    /// Written since they were read, each with the number of the write.
    pub(super) stale: HashMap<ObjectName, u64>,
    pub(super) served: Option<Arc<ServedKinds>>,
}

/// What has to be read before an answer.
pub(super) enum Missing {
    /// Everything.
    All,
    /// These definitions.
    Some(Vec<(ObjectName, u64)>),
}

/// All that is kept.
#[derive(Default)]
pub(super) struct State {
    young: HashMap<LogicalClusterId, Known>,
    old: HashMap<LogicalClusterId, Known>,
    /// Definitions that are being written now: what is read of them may be out of date at once.
    changing: HashMap<LogicalClusterId, HashMap<ObjectName, usize>>,
    writes: u64,
    weights: Weights,
    /// Whether the writes of other servers are seen. Nothing is kept unless they are.
    pub(super) is_followed: bool,
}

impl State {
    /// Bytes of definitions that are kept, about.
    pub(super) fn bytes(&self) -> usize {
        self.weights.total()
    }

    /// What is known of a logical cluster, which becomes young by this.
    pub(super) fn known(&mut self, cluster: LogicalClusterId) -> &mut Known {
        if !self.young.contains_key(&cluster) {
            self.writes += 1;
            let fresh = || Known { token: self.writes, ..Known::default() };
            let known = self.old.remove(&cluster).unwrap_or_else(fresh);
            if self.young.len() >= MAX_KEPT {
                let dropped = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
                self.weights.drop_all(dropped);
            }
            self.young.insert(cluster, known);
        }
        self.young.entry(cluster).or_default()
    }

    /// What has to be read before `cluster` can be answered for; `None` when nothing has.
    pub(super) fn missing(&mut self, cluster: LogicalClusterId) -> Option<Missing> {
        if !self.known(cluster).is_whole {
            return Some(Missing::All);
        }
        let changing: Vec<_> = self.changing.get(&cluster).into_iter().flat_map(HashMap::keys).cloned().collect();
        for name in changing {
            // Whoever reads it now already would otherwise read in vain, as would the next.
            if !self.known(cluster).stale.contains_key(&name) {
                self.wrote(cluster, &name);
            }
        }
        let stale = &self.known(cluster).stale;
        let all: Vec<_> = stale.iter().map(|(name, write)| (name.clone(), *write)).collect();
        (!all.is_empty()).then_some(Missing::Some(all))
    }

    /// What `cluster` serves, where nothing has to be read to tell.
    pub(super) fn served(&mut self, cluster: LogicalClusterId) -> Option<Arc<ServedKinds>> {
        match self.missing(cluster) {
            Some(_) => None,
            None => self.known(cluster).served.clone(),
        }
    }

    /// A definition of `cluster`, or that there is none of the name; `None` where something has to be read to tell.
    pub(super) fn definition(&mut self, cluster: LogicalClusterId, name: &ObjectName) -> Option<Option<Own>> {
        match self.missing(cluster) {
            Some(_) => None,
            None => Some(self.known(cluster).definitions.get(name).cloned()),
        }
    }

    /// A definition was written, or may have been.
    pub(super) fn wrote(&mut self, cluster: LogicalClusterId, name: &ObjectName) {
        self.writes += 1;
        let known = self.young.get_mut(&cluster).or_else(|| self.old.get_mut(&cluster));
        if let Some(known) = known {
            known.stale.insert(name.clone(), self.writes);
        }
    }

    /// A write begins.
    pub(super) fn begin(&mut self, cluster: LogicalClusterId, name: &ObjectName) {
        *self.changing.entry(cluster).or_default().entry(name.clone()).or_default() += 1;
        self.wrote(cluster, name);
    }

    /// A write has ended.
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

    /// Keeps what all definitions of a logical cluster are.
    pub(super) fn keep_all(&mut self, cluster: LogicalClusterId, fresh: BTreeMap<ObjectName, Own>) {
        fresh.values().for_each(|own| self.weights.add(&own.held));
        let known = self.known(cluster);
        known.is_whole = true;
        let before = std::mem::replace(&mut known.definitions, fresh);
        before.values().for_each(|own| self.weights.remove(&own.held));
        self.shrink(cluster);
    }

    /// Keeps what one definition is, or that there is none.
    pub(super) fn keep(&mut self, cluster: LogicalClusterId, name: &ObjectName, fresh: Option<Own>) {
        if let Some(own) = &fresh {
            self.weights.add(&own.held);
        }
        let known = self.known(cluster);
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

    /// Drops logical clusters other than this one when all weigh too much, the old ones first.
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

    /// Drops what is known of one logical cluster.
    pub(super) fn forget(&mut self, cluster: LogicalClusterId) {
        for age in [&mut self.young, &mut self.old] {
            self.weights.drop_all(age.remove(&cluster).map(|known| (cluster, known)));
        }
    }

    /// Drops everything: anything may have been written.
    pub(super) fn forget_all(&mut self) {
        self.young.clear();
        self.old.clear();
        self.weights = Weights::default();
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::ResourceVersion;

    use super::super::compiled::Held;
    use super::*;

    fn name() -> ObjectName {
        "widgets.example.dev".parse().unwrap()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let (mut state, cluster) = (State::default(), LogicalClusterId::ROOT);
        assert!(matches!(state.missing(cluster), Some(Missing::All)), "nothing is known at first");
        state.known(cluster).is_whole = true;
        assert!(state.missing(cluster).is_none());
        state.begin(cluster, &name());
        state.known(cluster).stale.clear();
        assert!(
            matches!(state.missing(cluster), Some(Missing::Some(all)) if all.len() == 1),
            "while it is being written"
        );
        let writes = |missing: Option<Missing>| match missing {
            Some(Missing::Some(all)) => all.into_iter().map(|(_, write)| write).collect(),
            Some(Missing::All) | None => Vec::new(),
        };
        let [first, second] = [writes(state.missing(cluster)), writes(state.missing(cluster))];
        assert_eq!((first.len(), &first), (1, &second), "two who read at once read the same");
        state.end(cluster, &name());
        let after = writes(state.missing(cluster));
        assert!(after.len() == 1 && after != second, "and once after");
        state.known(cluster).stale.clear();
        assert!(state.missing(cluster).is_none());
    }

    #[test]
    fn what_nobody_asks_for_is_dropped() {
        let mut state = State::default();
        for id in 1..=(3 * MAX_KEPT as u64) {
            state.known(LogicalClusterId::new(id)).is_whole = true;
            assert!(state.known(LogicalClusterId::new(1)).is_whole || id == 1, "what is asked for stays");
        }
        assert!(state.young.len() + state.old.len() <= 2 * MAX_KEPT + 1);
        assert!(matches!(state.missing(LogicalClusterId::new(2)), Some(Missing::All)));
    }

    /// Keeps `count` definitions of a megabyte each in a logical cluster.
    fn fill(state: &mut State, cluster: u64, definitions: &[Arc<Held>]) {
        let (created, revision) = (ResourceVersion::FIRST, ResourceVersion::FIRST);
        let own = |held: &Arc<Held>| Own { held: held.clone(), created, revision };
        let named =
            definitions.iter().enumerate().map(|(n, held)| (format!("w{n}.example.dev").parse().unwrap(), own(held)));
        state.keep_all(LogicalClusterId::new(cluster), named.collect());
    }

    fn megabytes(count: usize) -> Vec<Arc<Held>> {
        let read = |n| {
            let crd = serde_json::json!({"metadata": {"name": format!("w{n}.example.dev")}});
            let definition = portolan_machinery::custom::Definition::read(&crd, || None);
            Arc::new(Held { definition: Arc::new(definition), spec: 1024 * 1024 })
        };
        (0..count).map(read).collect()
    }

    #[test]
    fn many_large_definitions_are_kept_up_to_a_bound() {
        let mut state = State::default();
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
    fn what_logical_clusters_share_weighs_once() {
        let (mut state, shared) = (State::default(), megabytes(32));
        (1..=1000).for_each(|id| fill(&mut state, id, &shared));
        let once: usize = shared.iter().map(|held| held.weight()).sum();
        assert_eq!((state.weights.total(), state.young.len()), (once, 1000));
        state.keep(LogicalClusterId::new(7), &"w0.example.dev".parse().unwrap(), None);
        (1..=1000).for_each(|id| state.forget(LogicalClusterId::new(id)));
        assert_eq!(state.weights.total(), 0);
    }
}
