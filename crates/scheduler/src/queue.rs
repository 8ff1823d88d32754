//! What is to be looked at, and which followers of each namespace.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_store::Worklist;
use portolan_types::{
    LogicalClusterId, NamespaceName, ObjectKey, Seams,
    work::{Backoff, WorkKey},
};

const BACKOFF: Backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_secs(30) };

/// What is to be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Task {
    /// An object that has a decision of its own.
    Object(ObjectKey),
    /// Objects of a namespace that follow others; which ones is in [`Queue::take_followers`].
    Followers(LogicalClusterId, NamespaceName),
    /// A physical cluster: its finalizer and whether it is empty.
    Physical(ObjectKey),
    /// Bookkeeping of something that is gone.
    Forget(ObjectKey),
}

impl WorkKey for Task {
    type Tenant = LogicalClusterId;

    fn tenant(&self) -> LogicalClusterId {
        match self {
            Self::Object(key) | Self::Physical(key) | Self::Forget(key) => key.cluster,
            Self::Followers(cluster, _) => *cluster,
        }
    }
}

/// Which followers of a namespace are to be looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) all: bool,
    pub(crate) keys: BTreeSet<ObjectKey>,
}

type Namespace = (LogicalClusterId, NamespaceName);

/// Tasks; rescans wait while there are many.
pub(crate) struct Queue {
    pub(crate) tasks: Worklist<Task>,
    followers: Mutex<HashMap<Namespace, Pending>>,
}

impl Queue {
    pub(crate) fn new(seams: &Seams) -> Self {
        Self { tasks: Worklist::new(BACKOFF, seams), followers: Mutex::default() }
    }

    /// Adds a follower, or all of its namespace.
    pub(crate) fn add_followers(&self, cluster: LogicalClusterId, namespace: &NamespaceName, key: Option<ObjectKey>) {
        let pending = Pending { all: key.is_none(), keys: key.into_iter().collect() };
        self.put_back(cluster, namespace, pending);
        self.tasks.add(Task::Followers(cluster, namespace.clone()));
    }

    /// The followers that were added since the last time.
    pub(crate) fn take_followers(&self, cluster: LogicalClusterId, namespace: &NamespaceName) -> Pending {
        self.followers().remove(&(cluster, namespace.clone())).unwrap_or_default()
    }

    /// Puts followers back after a failure.
    pub(crate) fn put_back(&self, cluster: LogicalClusterId, namespace: &NamespaceName, pending: Pending) {
        let mut followers = self.followers();
        let waiting = followers.entry((cluster, namespace.clone())).or_default();
        waiting.all |= pending.all;
        waiting.keys.extend(pending.keys);
    }

    /// Tasks that wait or are worked on, delayed ones left out.
    pub(crate) fn len(&self) -> usize {
        let sizes = self.tasks.sizes();
        sizes.ready + sizes.busy
    }

    fn followers(&self) -> MutexGuard<'_, HashMap<Namespace, Pending>> {
        self.followers.lock().expect("no code panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followers(queue: &Queue, key: Option<&str>) {
        let namespace: NamespaceName = "shop".parse().unwrap();
        let resource = portolan_types::GroupResource::new("", "configmaps");
        let cluster = LogicalClusterId::ROOT;
        let key = key.map(|name| ObjectKey::namespaced(cluster, resource, namespace.clone(), name.parse().unwrap()));
        queue.add_followers(cluster, &namespace, key);
    }

    #[tokio::test(start_paused = true)]
    async fn followers_of_a_namespace_are_one_task_however_many_wait() {
        let queue = Queue::new(&Seams::seeded(1, jiff::Timestamp::UNIX_EPOCH));
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
