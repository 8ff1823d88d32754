//! What a worker remembers. All of it can be read again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use portolan_types::{ObjectKey, Uid, upstream::ClusterReport};
use tokio::time::Instant;

use super::{
    brake::Brake,
    events::{Allowances, Waiting},
    mirror::Place,
    rates::WriteRates,
    recreation::{Recreation, Repairs},
    session::Session,
};

/// How long the condition of a physical cluster tells of copies that named what upstream does not know of.
const FORGERY_SHOWN: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct State {
    /// Upstream objects that this worker has seen.
    pub(super) known: HashMap<ObjectKey, Uid>,
    /// Fingerprint of the last report about an object.
    pub(super) reported: HashMap<ObjectKey, String>,
    /// Rates of the writes about objects lately.
    pub(super) write_rates: WriteRates,
    /// Repairs of what others have changed downstream.
    pub(super) repairs: Repairs,
    /// What the last apply of a hash made of an object: hash and fingerprint.
    pub(super) settled: HashMap<ObjectKey, (String, String)>,
    /// Downstream objects that are shown above: address there, uid below, fingerprint of what was shown.
    pub(super) shown: HashMap<Place, Shown>,
    /// Events below that have yet to be shown.
    pub(super) events: HashMap<Place, Waiting>,
    pub(super) event_allowances: Allowances,
    /// What is not as it should be with a copy. Most have none.
    troubles: HashMap<ObjectKey, Trouble>,
    /// How many of them are held back; a mass of deletions asks for it each time.
    held: u64,
    /// Namespaces downstream that cannot be used, and why.
    pub(super) namespace_conflicts: BTreeMap<String, String>,
    /// Namespaces downstream with copies of registrations that are gone, and the uids of those.
    pub(super) left_behind: BTreeMap<String, Uid>,
    /// Orders about them, until they are carried out.
    pub(super) left_behind_order: Option<super::LeftBehindOrder>,
    /// Whether other physical clusters are registered, and when that was asked.
    pub(super) registrations: HashMap<Uid, (bool, Instant)>,
    pub(super) session: Option<Arc<Session>>,
    /// The last session ended because the physical cluster has more than is held of it.
    pub(super) is_limit_exceeded: bool,
    /// The connection while the physical cluster has more than is held of it: debts are paid, so that it can come to have less.
    pub(super) limited_session: Option<Arc<Session>>,
    /// What was last said about the physical cluster.
    pub(super) cluster_report: Option<ClusterReport>,
    /// Since when the physical cluster has been out of reach.
    pub(super) unreachable_since: Option<Instant>,
    /// What the last try to reach it came to.
    pub(super) unreachable_why: String,
    pub(super) brake: Brake,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Trouble {
    /// Since when every try has failed.
    pub(super) failing_since: Option<Instant>,
    /// When the API server was last asked whether a copy that ends is gone.
    pub(super) end_asked_at: Option<Instant>,
    /// Its deletion is held back.
    pub(super) is_held: bool,
    /// Since when what it should be has not been let in.
    pub(super) waits_since: Option<Instant>,
    /// Number of times it was made again after it had gone.
    pub(super) recreation: Option<Recreation>,
    /// When it named a newer syncer, or a later stay, than there is.
    pub(super) forged_at: Option<Instant>,
}

impl State {
    /// Before the first connection.
    pub(super) fn new(brake: Brake) -> Self {
        Self { unreachable_since: Some(Instant::now()), brake, ..Self::default() }
    }

    /// Changes what is noted of a copy's troubles.
    pub(super) fn trouble<T>(&mut self, key: &ObjectKey, change: impl FnOnce(&mut Trouble) -> T) -> T {
        let trouble = self.troubles.entry(key.clone()).or_default();
        let before = u64::from(trouble.is_held);
        let result = change(trouble);
        self.held = self.held + u64::from(trouble.is_held) - before;
        if *trouble == Trouble::default() {
            self.troubles.remove(key);
        }
        result
    }

    /// Changes what is noted of a copy's troubles, if it has any.
    pub(super) fn known_trouble(&mut self, key: &ObjectKey, change: impl FnOnce(&mut Trouble)) {
        if self.troubles.contains_key(key) {
            self.trouble(key, change);
        }
    }

    /// Copies whose deletion is held back.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Copies found within the last ten minutes that named a newer syncer or a later stay than upstream knows.
    pub(super) fn forged(&self) -> u64 {
        count(self.troubles.values().filter(|t| t.forged_at.is_some_and(|at| at.elapsed() < FORGERY_SHOWN)))
    }
}

fn count(items: impl Iterator) -> u64 {
    items.map(|_| 1).sum()
}

pub(super) struct Shown {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    pub(super) fingerprint: String,
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, LogicalClusterId};

    use super::*;

    #[test]
    fn held_copies_are_counted_as_they_come_and_go() {
        let key = |name: &str| {
            let resource = GroupResource::new("", "configmaps");
            ObjectKey::namespaced(LogicalClusterId::ROOT, resource, "shop".parse().unwrap(), name.parse().unwrap())
        };
        let mut state = State::default();
        for (case, name, is_held, expected) in [
            ("one is held", "a", true, 1),
            ("and found held again", "a", true, 1),
            ("another", "b", true, 2),
            ("the first is let go", "a", false, 1),
            ("one that was not held is let go", "c", false, 1),
        ] {
            state.trouble(&key(name), |trouble| trouble.is_held = is_held);
            assert_eq!(state.held(), expected, "{case}");
        }
        state.known_trouble(&key("c"), |trouble| trouble.is_held = true);
        assert_eq!(state.held(), 1, "one without trouble gets none");
        state.known_trouble(&key("b"), |trouble| *trouble = Trouble::default());
        assert_eq!((state.held(), state.troubles.len()), (0, 0), "what is forgotten is held no more");
    }
}
