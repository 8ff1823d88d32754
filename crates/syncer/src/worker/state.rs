//! What a worker remembers. All of it can be read again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use portolan_types::{ObjectKey, Uid, upstream::ClusterReport};
use tokio::time::Instant;

use super::{
    brake::Brake,
    events::{Allowances, Waiting},
    mirror::Place,
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
    /// What the last apply of a hash made of an object: hash and fingerprint.
    pub(super) settled: HashMap<ObjectKey, (String, String)>,
    /// Downstream objects that are shown above: address there, uid below, fingerprint of what was shown.
    pub(super) shown: HashMap<Place, Shown>,
    /// Events below that have yet to be shown.
    pub(super) events: HashMap<Place, Waiting>,
    pub(super) event_allowances: Allowances,
    /// What is not as it should be with a copy. Most have none.
    pub(super) troubles: HashMap<ObjectKey, Trouble>,
    pub(super) session: Option<Arc<Session>>,
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
    /// When it named a newer syncer, or a later stay, than there is.
    pub(super) forged_at: Option<Instant>,
}

impl State {
    /// Changes what is noted of a copy's troubles.
    pub(super) fn trouble<T>(&mut self, key: &ObjectKey, change: impl FnOnce(&mut Trouble) -> T) -> T {
        let trouble = self.troubles.entry(key.clone()).or_default();
        let result = change(trouble);
        if *trouble == Trouble::default() {
            self.troubles.remove(key);
        }
        result
    }

    pub(super) fn held(&self) -> u64 {
        count(self.troubles.values().filter(|trouble| trouble.is_held))
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
