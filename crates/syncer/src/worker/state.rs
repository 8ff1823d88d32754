//! State of a worker. All of it can be rebuilt by reads.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use portolan_types::{
    LogicalClusterId, ObjectKey, Uid,
    placement::CustomKindStatus,
    upstream::{ClusterReport, PodAccessReport},
};
use tokio::time::Instant;

use super::{
    Work,
    deletion_brake::DeletionBrake,
    events::WaitingEvents,
    gone_pods::GonePods,
    heartbeats::HeartbeatState,
    pod_views::{KnownPodAddresses, PodTokenState},
    recreation::{RecreationBackoff, RepairBackoffs},
    reflector_cache::ObjectRef,
    session::Session,
    token_buckets::TokenBuckets,
};
use crate::memory::RegistrationMemory;

/// Time for which the condition of a physical cluster counts a forged copy.
const FORGERY_SHOWN: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct State {
    /// Upstream objects that this worker has seen.
    pub(super) known: HashMap<ObjectKey, Uid>,
    /// Fingerprint of the last report about an object.
    pub(super) reported: HashMap<ObjectKey, String>,
    /// Rates of the writes about objects lately.
    pub(super) write_rates: TokenBuckets<Work>,
    /// Repairs of what others have changed downstream.
    pub(super) repairs: RepairBackoffs,
    /// Hash of the last apply of an object, and fingerprint of its result.
    pub(super) settled: HashMap<ObjectKey, (String, String)>,
    /// Projected downstream objects: their address, uid, and the fingerprint of the last projection.
    pub(super) shown: HashMap<ObjectRef, ProjectedEntry>,
    /// Pods that are gone while EndpointSlices may still name them.
    pub(super) gone_pods: GonePods,
    /// Events downstream that have yet to be shown.
    pub(super) events: WaitingEvents,
    /// Rates of Events, by the logical cluster that they are shown in.
    pub(super) event_rates: TokenBuckets<LogicalClusterId>,
    /// Troubles of copies. Most have none.
    troubles: HashMap<ObjectKey, CopyTrouble>,
    /// Number of copies whose deletion is stopped; cached since a mass of deletions reads it each time.
    held: u64,
    /// Namespaces downstream that cannot be used, and why.
    pub(super) namespace_conflicts: BTreeMap<String, String>,
    /// Downstream namespaces with copies of deleted registrations, with the uids of these registrations.
    pub(super) left_behind: BTreeMap<String, Uid>,
    /// Orders about them, until they are carried out.
    pub(super) left_behind_order: Option<super::LeftBehindOrder>,
    /// Existence of other physical clusters, and the time of the answer.
    pub(super) registrations: HashMap<Uid, (bool, Instant)>,
    /// Tokens of the pods of copies.
    pub(super) pod_tokens: HashMap<ObjectKey, PodTokenState>,
    pub(super) session: Option<Arc<Session>>,
    /// True when the last session ended because a limit was exceeded.
    pub(super) is_limit_exceeded: bool,
    /// Connection while a limit is exceeded. It is used to pay debts, so that the physical cluster can get below the
    /// limit.
    pub(super) limited_session: Option<Arc<Session>>,
    /// Custom kinds that may go there, and how they are served; `None` before the first discovery.
    pub(super) custom_kinds: Option<Vec<CustomKindStatus>>,
    /// Addresses by which pods reach Portolan, as they were last known.
    pub(super) known_pod_addresses: KnownPodAddresses,
    /// Access of the pods there; `None` before the first connection.
    pub(super) pod_access: Option<PodAccessReport>,
    /// Definitions that were to go there and could not, and why.
    pub(super) definition_conflicts: Vec<String>,
    /// Last report about the physical cluster.
    pub(super) cluster_report: Option<ClusterReport>,
    pub(super) heartbeats: HeartbeatState,
    /// Since when the physical cluster has been out of reach.
    pub(super) unreachable_since: Option<Instant>,
    /// Error of the last try to connect.
    pub(super) unreachable_why: String,
    pub(super) brake: DeletionBrake,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct CopyTrouble {
    /// Since when every try has failed.
    pub(super) failing_since: Option<Instant>,
    /// Time of the last read of a copy that is being deleted.
    pub(super) end_asked_at: Option<Instant>,
    /// True if the deletion of the copy is stopped.
    pub(super) is_held: bool,
    /// Time since which upstream admission has refused its desired state.
    pub(super) waits_since: Option<Instant>,
    /// Number of times that it was recreated.
    pub(super) recreation: Option<RecreationBackoff>,
    /// Time at which the copy named a newer syncer, or a later epoch, than upstream knows.
    pub(super) forged_at: Option<Instant>,
}

impl State {
    /// Before the first connection.
    pub(super) fn new(brake: DeletionBrake, memory: &Arc<RegistrationMemory>) -> Self {
        let events = WaitingEvents::charging(memory.held());
        Self { unreachable_since: Some(Instant::now()), brake, events, ..Self::default() }
    }

    /// Changes the recorded trouble of a copy.
    pub(super) fn trouble<T>(&mut self, key: &ObjectKey, change: impl FnOnce(&mut CopyTrouble) -> T) -> T {
        let trouble = self.troubles.entry(key.clone()).or_default();
        let before = u64::from(trouble.is_held);
        let result = change(trouble);
        self.held = self.held + u64::from(trouble.is_held) - before;
        if *trouble == CopyTrouble::default() {
            self.troubles.remove(key);
        }
        result
    }

    /// Changes the recorded trouble of a copy, if there is any.
    pub(super) fn known_trouble(&mut self, key: &ObjectKey, change: impl FnOnce(&mut CopyTrouble)) {
        if self.troubles.contains_key(key) {
            self.trouble(key, change);
        }
    }

    /// Returns the number of copies whose deletion is stopped.
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

pub(super) struct ProjectedEntry {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    pub(super) fingerprint: String,
}

#[cfg(test)]
mod tests {
    use portolan_types::GroupResource;

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
        state.known_trouble(&key("b"), |trouble| *trouble = CopyTrouble::default());
        assert_eq!((state.held(), state.troubles.len()), (0, 0), "what is forgotten is held no more");
    }
}
