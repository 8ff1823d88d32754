//! Looking at many objects again, because a fact that many depend on has changed.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Mutex,
    time::Duration,
};

use portolan_store::{RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{GroupResource, LabelSelector, LogicalClusterId, NamespaceName, Uid};
use tokio::sync::Notify;
use tracing::warn;

use crate::{feed::PAUSES, kinds, queue::Task, scheduler::Inner};

/// Objects that are read at once.
const PAGE: usize = 500;
/// A rescan waits while more tasks than these are queued.
const MAX_QUEUED: usize = 2_000;
/// Larger subtrees are read as one range over all logical clusters.
const MAX_SINGLE_RANGES: usize = 32;
const PAUSE: Duration = Duration::from_millis(5);

/// Which objects are to be looked at again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// Of all logical clusters.
    Everything,
    /// Of a logical cluster and all below it.
    Subtree(LogicalClusterId),
    /// Of one namespace.
    Namespace(LogicalClusterId, NamespaceName),
    /// With a copy on a physical cluster.
    PlacedOn(Uid),
}

/// Scopes that wait, each once.
#[derive(Default)]
pub(crate) struct Rescans {
    waiting: Mutex<BTreeSet<Scope>>,
    changed: Notify,
}

impl Rescans {
    pub(crate) fn add(&self, scope: Scope) {
        self.lock().insert(scope);
        self.changed.notify_one();
    }

    pub(crate) fn everything(&self) {
        self.add(Scope::Everything);
    }

    async fn next(&self) -> Scope {
        loop {
            if let Some(scope) = self.lock().pop_last() {
                return scope;
            }
            self.changed.notified().await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<Scope>> {
        self.waiting.lock().expect("no code panics under this lock")
    }
}

impl Inner {
    pub(crate) async fn run_rescans(&self) {
        let mut pause = PAUSES.0;
        loop {
            let scope = self.rescans.next().await;
            match self.rescan(&scope).await {
                Ok(()) => pause = PAUSES.0,
                Err(error) => {
                    warn!(?scope, %error, ?pause, "could not look at everything again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                    self.rescans.add(scope);
                }
            }
        }
    }

    async fn rescan(&self, scope: &Scope) -> Result<(), StoreError> {
        match scope {
            Scope::PlacedOn(uid) => self.rescan_range(RangeScope::PlacedOn(uid.to_string()), None).await,
            Scope::Everything => self.rescan_all(None).await,
            Scope::Namespace(cluster, namespace) => {
                for resource in self.placeable() {
                    self.rescan_range(RangeScope::Namespace(*cluster, resource, namespace.clone()), None).await?;
                }
                Ok(())
            }
            Scope::Subtree(cluster) => {
                let below = self.tree.subtree(*cluster);
                if below.len() > MAX_SINGLE_RANGES {
                    return self.rescan_all(Some(&below.into_iter().collect())).await;
                }
                for cluster in below {
                    for resource in self.placeable() {
                        self.rescan_range(RangeScope::Cluster(cluster, resource), None).await?;
                    }
                }
                Ok(())
            }
        }
    }

    async fn rescan_all(&self, only: Option<&HashSet<LogicalClusterId>>) -> Result<(), StoreError> {
        for resource in self.placeable() {
            self.rescan_range(RangeScope::AllClusters(resource), only).await?;
        }
        Ok(())
    }

    /// Built-in and custom resources that are placed.
    fn placeable(&self) -> Vec<GroupResource> {
        let custom: Vec<_> = self.custom().iter().cloned().collect();
        kinds::PLACEABLE.iter().map(kinds::Placeable::resource).chain(custom).collect()
    }

    /// Pages are read at the latest state each: an object that is written meanwhile has an event of its own.
    async fn rescan_range(
        &self,
        scope: RangeScope,
        only: Option<&HashSet<LogicalClusterId>>,
    ) -> Result<(), StoreError> {
        let projected = matches!(scope, RangeScope::PlacedOn(_));
        let labels = if projected { LabelSelector::everything() } else { placed_from_here() };
        let mut request = RangeRequest { limit: Some(PAGE), labels, ..RangeRequest::slices(scope).past_damage() };
        loop {
            let page = self.objects.store().range(request.clone()).await?;
            let within = |stored: &&StoredObject| only.is_none_or(|only| only.contains(&stored.key.cluster));
            page.objects.iter().filter(within).for_each(|stored| self.look_at(stored));
            if !page.more {
                return Ok(());
            }
            request.after = page.last;
            while self.queue.len() > MAX_QUEUED {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn look_at(&self, stored: &StoredObject) {
        let key = &stored.key;
        match key.namespace() {
            Some(namespace) if kinds::is_follower(&key.resource) => {
                self.queue.add_followers(key.cluster, namespace, Some(key.clone()));
            }
            _ => self.queue.tasks.add(Task::Object(key.clone())),
        }
    }
}

/// Leaves out what physical clusters made, by its header.
pub(crate) fn placed_from_here() -> LabelSelector {
    let text = format!("!{}", portolan_types::annotations::PROJECTED_FROM);
    LabelSelector::parse(&text).expect("the key is a constant")
}
