//! Physical clusters of a run: objects with versions, controllers that make pods ready, and a connection that breaks.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use portolan_types::{ObjectKey, Uid, object, placement::CopyIdentity};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    dice::Dice,
    invariants::{Findings, Invariant},
};

/// Copy of a workload with its pods.
struct RunningCopy {
    object: Value,
    ready: i64,
    /// Ready pods that were reported upstream. A copy that was never reported as ready may leave for another one.
    reported: i64,
}

/// Copy that was written off while its physical cluster did not answer. It is deleted when the connection is back.
#[derive(Clone, Debug)]
pub(crate) struct CopyDebt {
    pub(crate) key: ObjectKey,
    pub(crate) epoch: u64,
}

#[derive(Default)]
struct ClusterState {
    copies: BTreeMap<ObjectKey, RunningCopy>,
    cut_since: Option<Instant>,
    version: u64,
    debts: Vec<CopyDebt>,
}

/// Physical cluster. Its controllers continue while it cannot be reached.
pub(crate) struct PhysicalCluster {
    pub(crate) name: &'static str,
    pub(crate) uid: Uid,
    state: Mutex<ClusterState>,
}

/// Returns the number of replicas that an object wants.
pub(crate) fn wanted(object: &Value) -> i64 {
    object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

impl PhysicalCluster {
    pub(crate) fn new(name: &'static str) -> Self {
        let uid = format!("physicalclusters-{name}").parse().expect("a uid");
        Self { name, uid, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_cut(&self, is_cut: bool) {
        let mut state = self.state();
        state.cut_since = is_cut.then(|| state.cut_since.unwrap_or_else(Instant::now));
    }

    /// Returns the time since when the physical cluster does not answer; `None` while it does.
    pub(crate) fn cut_for(&self) -> Option<Duration> {
        self.state().cut_since.map(|since| since.elapsed())
    }

    pub(crate) fn read(&self, key: &ObjectKey) -> Option<Value> {
        self.state().copies.get(key).map(|copy| copy.object.clone())
    }

    pub(crate) fn keys(&self) -> Vec<ObjectKey> {
        self.state().copies.keys().cloned().collect()
    }

    pub(crate) fn ready(&self, key: &ObjectKey) -> i64 {
        self.state().copies.get(key).map_or(0, |copy| copy.ready)
    }

    /// Records the number of ready pods that was reported upstream.
    pub(crate) fn note_report(&self, key: &ObjectKey, ready: i64) {
        if let Some(copy) = self.state().copies.get_mut(key) {
            copy.reported = ready;
        }
    }

    pub(crate) fn add_debt(&self, debt: CopyDebt) {
        self.state().debts.push(debt);
    }

    pub(crate) fn take_debts(&self) -> Vec<CopyDebt> {
        std::mem::take(&mut self.state().debts)
    }

    fn is_settled(&self) -> bool {
        self.state().copies.values().all(|copy| copy.ready == wanted(&copy.object))
    }

    /// Starts some of the pods that are missing, and stops those that are too many.
    pub(crate) fn run_controllers(&self, dice: &Dice) {
        for copy in self.state().copies.values_mut() {
            let wanted = wanted(&copy.object);
            if copy.ready < wanted && !dice.hits(3) {
                copy.ready += 1;
            }
            copy.ready = copy.ready.min(wanted);
        }
    }
}

/// All physical clusters, with checks of all operations on them.
pub(crate) struct Fleet {
    pub(crate) clusters: [PhysicalCluster; 3],
}

impl Fleet {
    /// Returns the number of pods of an object that are ready anywhere.
    pub(crate) fn ready(&self, key: &ObjectKey) -> i64 {
        self.clusters.iter().map(|cluster| cluster.ready(key)).sum()
    }

    /// Returns true once every copy has as many ready pods as it wants.
    pub(crate) fn is_settled(&self) -> bool {
        self.clusters.iter().all(PhysicalCluster::is_settled)
    }

    /// Creates or replaces a copy, if its version is still the one that was read.
    pub(crate) fn write(&self, cluster: &PhysicalCluster, key: &ObjectKey, mut body: Value, findings: &Findings) {
        let is_known_ready;
        {
            let mut state = cluster.state();
            let known = state.copies.get(key).map(|copy| object::meta_text(&copy.object, "resourceVersion").to_owned());
            let expected = object::meta_text(&body, "resourceVersion");
            if known.as_deref().unwrap_or_default() != expected {
                return;
            }
            state.version += 1;
            let version = state.version.to_string();
            let (ready, reported) = state.copies.get(key).map_or((0, 0), |copy| (copy.ready, copy.reported));
            is_known_ready = ready > 0 && reported > 0;
            let ready = ready.min(wanted(&body));
            let metadata = object::metadata_mut(&mut body);
            metadata.insert("resourceVersion".into(), version.clone().into());
            metadata.entry("uid").or_insert_with(|| format!("{}-{version}", cluster.name).into());
            state.copies.insert(key.clone(), RunningCopy { object: body, ready, reported });
        }
        if is_known_ready {
            self.check_not_emptied(cluster, key, findings);
        }
    }

    /// Deletes a copy of this version. `None` is a copy that was given up: it counted as gone when its physical cluster
    /// did not answer, and continues its return, ready or not.
    pub(crate) fn delete(
        &self,
        cluster: &PhysicalCluster,
        key: &ObjectKey,
        version: Option<&str>,
        findings: &Findings,
    ) {
        let is_known_ready;
        {
            let mut state = cluster.state();
            let Some(known) = state.copies.get(key) else { return };
            if version.is_some_and(|version| object::meta_text(&known.object, "resourceVersion") != version) {
                return;
            }
            is_known_ready = known.ready > 0 && known.reported > 0;
            state.copies.remove(key);
        }
        if version.is_some() && is_known_ready {
            self.check_not_emptied(cluster, key, findings);
        }
    }

    fn check_not_emptied(&self, cluster: &PhysicalCluster, key: &ObjectKey, findings: &Findings) {
        // A StatefulSet ends before it starts elsewhere.
        if self.ready(key) == 0 && &*key.resource.resource == "deployments" {
            findings.report(Invariant::NeverEmpty, format!("{} took the last healthy copy of {key}", cluster.name));
        }
    }
}

/// Returns the epoch that a copy was made for.
pub(crate) fn epoch_of(copy: &Value) -> u64 {
    CopyIdentity::of(copy).map_or(0, |identity| identity.epoch)
}
