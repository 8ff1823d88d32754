//! Queue of tasks, and the followers of each namespace that wait.

pub(crate) mod budget_turns;
pub(crate) mod rescan;
pub(crate) mod waiting;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_store::AsyncWorkQueue;
use portolan_types::{
    LogicalClusterId, NamespaceName, ObjectKey, Seams,
    work::{Backoff, WorkKey},
};

const BACKOFF: Backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_secs(30) };

/// Key of a reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Task {
    /// Object with a decision of its own.
    Object(ObjectKey),
    /// Followers in a namespace; their keys are in [`SchedulerQueue::take_followers`].
    Followers(LogicalClusterId, NamespaceName),
    /// Physical cluster: its finalizer, and its condition `Drained`.
    PhysicalCluster(ObjectKey),
    /// Drain of physical clusters.
    Drain(ObjectKey),
    /// The scheduler's own record about an object that is gone.
    Bookkeeping(ObjectKey),
}

impl WorkKey for Task {
    type Tenant = LogicalClusterId;

    fn tenant(&self) -> LogicalClusterId {
        match self {
            Self::Object(key) | Self::PhysicalCluster(key) | Self::Drain(key) | Self::Bookkeeping(key) => key.cluster,
            Self::Followers(cluster, _) => *cluster,
        }
    }
}

/// Followers of a namespace that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingFollowers {
    pub(crate) all: bool,
    pub(crate) keys: BTreeSet<ObjectKey>,
}

type NamespaceKey = (LogicalClusterId, NamespaceName);

/// Queue of tasks. Rescans pause while it is long.
pub(crate) struct SchedulerQueue {
    pub(crate) tasks: AsyncWorkQueue<Task>,
    followers: Mutex<HashMap<NamespaceKey, PendingFollowers>>,
}

impl SchedulerQueue {
    pub(crate) fn new(seams: &Seams) -> Self {
        Self { tasks: AsyncWorkQueue::new(BACKOFF, seams), followers: Mutex::default() }
    }

    /// Adds a follower, or all of its namespace.
    pub(crate) fn add_followers(&self, cluster: LogicalClusterId, namespace: &NamespaceName, key: Option<ObjectKey>) {
        let pending = PendingFollowers { all: key.is_none(), keys: key.into_iter().collect() };
        self.put_back(cluster, namespace, pending);
        self.tasks.add(Task::Followers(cluster, namespace.clone()));
    }

    /// Takes the followers that were added since the last call.
    pub(crate) fn take_followers(&self, cluster: LogicalClusterId, namespace: &NamespaceName) -> PendingFollowers {
        self.followers().remove(&(cluster, namespace.clone())).unwrap_or_default()
    }

    /// Puts followers back after a failure.
    pub(crate) fn put_back(&self, cluster: LogicalClusterId, namespace: &NamespaceName, pending: PendingFollowers) {
        let mut followers = self.followers();
        let waiting = followers.entry((cluster, namespace.clone())).or_default();
        waiting.all |= pending.all;
        waiting.keys.extend(pending.keys);
    }

    /// Returns the number of tasks that wait or run, without delayed ones.
    pub(crate) fn len(&self) -> usize {
        let sizes = self.tasks.sizes();
        sizes.ready + sizes.busy
    }

    fn followers(&self) -> MutexGuard<'_, HashMap<NamespaceKey, PendingFollowers>> {
        self.followers.lock().expect("no code panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followers(queue: &SchedulerQueue, key: Option<&str>) {
        let namespace: NamespaceName = "shop".parse().unwrap();
        let resource = portolan_types::GroupResource::new("", "configmaps");
        let cluster = LogicalClusterId::ROOT;
        let key = key.map(|name| ObjectKey::namespaced(cluster, resource, namespace.clone(), name.parse().unwrap()));
        queue.add_followers(cluster, &namespace, key);
    }

    #[tokio::test(start_paused = true)]
    async fn followers_of_a_namespace_are_one_task_however_many_wait() {
        let queue = SchedulerQueue::new(&Seams::seeded(1, jiff::Timestamp::UNIX_EPOCH));
        followers(&queue, Some("a"));
        followers(&queue, Some("b"));
        followers(&queue, None);
        let task = queue.tasks.next().await;
        let Task::Followers(cluster, namespace) = &task else { panic!("{task:?}") };
        let pending = queue.take_followers(*cluster, namespace);
        assert_eq!((pending.all, pending.keys.len()), (true, 2));
        followers(&queue, Some("c"));
        queue.put_back(*cluster, namespace, pending);
        queue.tasks.fail(task.clone());
        assert_eq!(queue.tasks.next().await, task, "it comes again");
        assert_eq!(queue.take_followers(*cluster, namespace).keys.len(), 3);
    }
}
