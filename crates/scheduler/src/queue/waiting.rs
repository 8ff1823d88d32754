//! Objects that wait for a change elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard},
};

use portolan_types::{LogicalClusterId, NamespaceName, ObjectKey};

/// Objects that wait, by logical cluster.
#[derive(Default)]
pub(crate) struct WaitingObjects(Mutex<BTreeMap<LogicalClusterId, BTreeSet<ObjectKey>>>);

impl WaitingObjects {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LogicalClusterId, BTreeSet<ObjectKey>>> {
        self.0.lock().expect("no code panics under this lock")
    }

    pub(crate) fn add(&self, key: &ObjectKey) {
        self.lock().entry(key.cluster).or_default().insert(key.clone());
    }

    pub(crate) fn remove(&self, key: &ObjectKey) {
        let mut waiting = self.lock();
        let Some(own) = waiting.get_mut(&key.cluster) else { return };
        own.remove(key);
        if own.is_empty() {
            waiting.remove(&key.cluster);
        }
    }

    /// Returns the objects of all logical clusters.
    pub(crate) fn all(&self) -> Vec<ObjectKey> {
        self.lock().values().flatten().cloned().collect()
    }

    /// Returns the objects of a logical cluster, or of one namespace.
    pub(crate) fn of(&self, cluster: LogicalClusterId, namespace: Option<&NamespaceName>) -> Vec<ObjectKey> {
        let within = |key: &&ObjectKey| namespace.is_none_or(|namespace| key.namespace() == Some(namespace));
        self.lock().get(&cluster).into_iter().flatten().filter(within).cloned().collect()
    }
}
