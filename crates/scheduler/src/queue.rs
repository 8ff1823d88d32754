//! A queue of tasks: each at most once, none worked on twice at the same time, delays and back-off per task.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_types::{LogicalClusterId, NamespaceName, ObjectKey};
use tokio::{sync::Notify, time::Instant};

/// First delay after a failure; doubles up to [`LONGEST_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(5);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

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

/// Which followers of a namespace are to be looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) all: bool,
    pub(crate) keys: BTreeSet<ObjectKey>,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Task>,
    queued: HashSet<Task>,
    /// Being worked on; `true` when it was added again meanwhile.
    active: HashMap<Task, bool>,
    delayed: BTreeMap<(Instant, u64), Task>,
    sequence: u64,
    failures: HashMap<Task, u32>,
    followers: HashMap<(LogicalClusterId, NamespaceName), Pending>,
}

/// Bounded by the number of distinct keys; rescans wait while it is long.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
    drained: Notify,
}

impl Queue {
    pub(crate) fn add(&self, task: Task) {
        self.lock().add(task);
        self.changed.notify_one();
    }

    pub(crate) fn add_after(&self, task: Task, delay: Duration) {
        self.lock().delay(task, delay);
        self.changed.notify_one();
    }

    /// Adds a follower, or all of its namespace.
    pub(crate) fn add_followers(&self, cluster: LogicalClusterId, namespace: &NamespaceName, key: Option<ObjectKey>) {
        let mut state = self.lock();
        let pending = state.followers.entry((cluster, namespace.clone())).or_default();
        match key {
            Some(key) => drop(pending.keys.insert(key)),
            None => pending.all = true,
        }
        state.add(Task::Followers(cluster, namespace.clone()));
        drop(state);
        self.changed.notify_one();
    }

    /// The followers that were added since the last time.
    pub(crate) fn take_followers(&self, cluster: LogicalClusterId, namespace: &NamespaceName) -> Pending {
        self.lock().followers.remove(&(cluster, namespace.clone())).unwrap_or_default()
    }

    /// Puts followers back after a failure.
    pub(crate) fn put_back(&self, cluster: LogicalClusterId, namespace: &NamespaceName, pending: Pending) {
        let mut state = self.lock();
        let waiting = state.followers.entry((cluster, namespace.clone())).or_default();
        waiting.all |= pending.all;
        waiting.keys.extend(pending.keys);
    }

    /// Waits for a task that nobody works on.
    pub(crate) async fn next(&self) -> Task {
        loop {
            let wake = {
                let mut state = self.lock();
                state.move_due(Instant::now());
                if let Some(task) = state.take() {
                    if !state.ready.is_empty() {
                        self.changed.notify_one();
                    }
                    return task;
                }
                state.delayed.keys().next().map(|(at, _)| *at)
            };
            match wake {
                None => self.changed.notified().await,
                Some(at) => drop(tokio::time::timeout_at(at, self.changed.notified()).await),
            }
        }
    }

    /// The task succeeded.
    pub(crate) fn done(&self, task: &Task) {
        let mut state = self.lock();
        state.failures.remove(task);
        state.finish(task);
        let idle = state.is_idle();
        drop(state);
        self.changed.notify_one();
        if idle {
            self.drained.notify_waiters();
        }
    }

    /// The task failed and comes again, later each time.
    pub(crate) fn failed(&self, task: &Task) {
        let mut state = self.lock();
        let failures = state.failures.entry(task.clone()).or_insert(0);
        *failures += 1;
        let delay = FIRST_BACKOFF.saturating_mul(1 << (*failures - 1).min(16)).min(LONGEST_BACKOFF);
        state.finish(task);
        state.delay(task.clone(), delay);
        drop(state);
        self.changed.notify_one();
    }

    /// Waits until nothing is ready or worked on.
    pub(crate) async fn wait_idle(&self) {
        loop {
            let notified = self.drained.notified();
            if self.lock().is_idle() {
                return;
            }
            notified.await;
        }
    }

    /// Tasks that wait or are worked on, delayed ones left out.
    pub(crate) fn len(&self) -> usize {
        let state = self.lock();
        state.ready.len() + state.active.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics under this lock")
    }
}

impl State {
    fn add(&mut self, task: Task) {
        match self.active.get_mut(&task) {
            Some(again) => *again = true,
            None => {
                if self.queued.insert(task.clone()) {
                    self.ready.push_back(task);
                }
            }
        }
    }

    fn delay(&mut self, task: Task, delay: Duration) {
        self.sequence += 1;
        self.delayed.insert((Instant::now() + delay, self.sequence), task);
    }

    fn move_due(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let task = entry.remove();
            self.add(task);
        }
    }

    fn take(&mut self) -> Option<Task> {
        let task = self.ready.pop_front()?;
        self.queued.remove(&task);
        self.active.insert(task.clone(), false);
        Some(task)
    }

    fn finish(&mut self, task: &Task) {
        if self.active.remove(task) == Some(true) {
            self.add(task.clone());
        }
    }

    fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.active.is_empty()
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
        let queue = Queue::default();
        followers(&queue, Some("a"));
        followers(&queue, Some("b"));
        followers(&queue, None);
        let task = queue.next().await;
        let Task::Followers(cluster, namespace) = &task else { panic!("{task:?}") };
        let pending = queue.take_followers(*cluster, namespace);
        assert_eq!((pending.all, pending.keys.len()), (true, 2));
        followers(&queue, Some("c"));
        queue.put_back(*cluster, namespace, pending);
        queue.failed(&task);
        assert_eq!(queue.next().await, task, "it comes again at once, as more was added meanwhile");
        assert_eq!(queue.take_followers(*cluster, namespace).keys.len(), 3);
        queue.done(&task);
        assert_eq!(queue.next().await, task, "and after the back-off");
    }
}
