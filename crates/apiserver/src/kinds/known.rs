//! What is in memory of the definitions of logical clusters, and what of it is out of date.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use portolan_machinery::custom::Definition;
use portolan_types::{LogicalClusterId, ObjectName};

use super::ServedKinds;

/// Logical clusters of each of two ages whose kinds are kept. What was not asked for during a whole age is dropped.
const MAX_KEPT: usize = 2048;

/// The definitions of one logical cluster.
#[derive(Default)]
pub(super) struct Known {
    /// Tells it from what was known of the same logical cluster before it was dropped.
    pub(super) token: u64,
    /// Whether all have been read; until then `stale` collects what was written meanwhile.
    pub(super) is_whole: bool,
    pub(super) definitions: BTreeMap<ObjectName, Arc<Definition>>,
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
    /// Whether the writes of other servers are seen. Nothing is kept unless they are.
    pub(super) is_followed: bool,
}

impl State {
    /// What is known of a logical cluster, which becomes young by this.
    pub(super) fn known(&mut self, cluster: LogicalClusterId) -> &mut Known {
        if !self.young.contains_key(&cluster) {
            self.writes += 1;
            let fresh = || Known { token: self.writes, ..Known::default() };
            let known = self.old.remove(&cluster).unwrap_or_else(fresh);
            if self.young.len() >= MAX_KEPT {
                self.old = std::mem::take(&mut self.young);
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
        changing.iter().for_each(|name| self.wrote(cluster, name));
        let stale = &self.known(cluster).stale;
        let all: Vec<_> = stale.iter().map(|(name, write)| (name.clone(), *write)).collect();
        (!all.is_empty()).then_some(Missing::Some(all))
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

    /// Drops what is known of one logical cluster.
    pub(super) fn forget(&mut self, cluster: LogicalClusterId) {
        self.young.remove(&cluster);
        self.old.remove(&cluster);
    }

    /// Drops everything: anything may have been written.
    pub(super) fn forget_all(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
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
        state.end(cluster, &name());
        assert!(matches!(state.missing(cluster), Some(Missing::Some(all)) if all.len() == 1), "and once after");
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
}
