//! Rescans: many objects are queued again because a fact that they depend on has changed.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Mutex,
    time::Duration,
};

use portolan_store::{RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{GroupResource, LabelSelector, LogicalClusterId, NamespaceName, Uid};
use tokio::sync::Notify;
use tracing::warn;

use crate::{context::SchedulerContext, kinds, observe::feed::PAUSES, queue::Task};

/// Objects per page.
const PAGE: usize = 500;
/// A rescan waits while more tasks than these are queued.
const MAX_QUEUED: usize = 2_000;
/// Larger subtrees are read as one range over all logical clusters.
const MAX_SINGLE_RANGES: usize = 32;
const PAUSE: Duration = Duration::from_millis(5);

/// Objects to be queued again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RescanScope {
    /// All objects of all logical clusters.
    Everything,
    /// Objects of a logical cluster and its descendants.
    Subtree(LogicalClusterId),
    /// Custom resources of a logical cluster.
    Cluster(LogicalClusterId),
    /// Objects of one namespace.
    Namespace(LogicalClusterId, NamespaceName),
    /// Objects with a copy on a physical cluster.
    PlacedOn(Uid),
}

/// Scopes that wait, without duplicates.
#[derive(Default)]
pub(crate) struct RescanQueue {
    waiting: Mutex<BTreeSet<RescanScope>>,
    changed: Notify,
}

impl RescanQueue {
    pub(crate) fn add(&self, scope: RescanScope) {
        self.lock().insert(scope);
        self.changed.notify_one();
    }

    pub(crate) fn everything(&self) {
        self.add(RescanScope::Everything);
    }

    async fn next(&self) -> RescanScope {
        loop {
            if let Some(scope) = self.lock().pop_last() {
                return scope;
            }
            self.changed.notified().await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<RescanScope>> {
        self.waiting.lock().expect("no code panics under this lock")
    }
}

pub(crate) async fn run_rescans(ctx: &SchedulerContext) {
    let mut pause = PAUSES.0;
    loop {
        let scope = ctx.rescans.next().await;
        match rescan(ctx, &scope).await {
            Ok(()) => pause = PAUSES.0,
            Err(error) => {
                warn!(?scope, %error, ?pause, "rescan failed, will retry");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
                ctx.rescans.add(scope);
            }
        }
    }
}

async fn rescan(ctx: &SchedulerContext, scope: &RescanScope) -> Result<(), StoreError> {
    match scope {
        RescanScope::PlacedOn(uid) => rescan_range(ctx, RangeScope::PlacedOn(uid.to_string()), None).await,
        RescanScope::Everything => rescan_all(ctx, None).await,
        RescanScope::Namespace(cluster, namespace) => {
            for resource in placeable_resources_of(ctx, *cluster) {
                rescan_range(ctx, RangeScope::Namespace(*cluster, resource, namespace.clone()), None).await?;
            }
            Ok(())
        }
        RescanScope::Cluster(cluster) => {
            for resource in custom_resources_of(ctx, *cluster) {
                rescan_range(ctx, RangeScope::Cluster(*cluster, resource), None).await?;
            }
            Ok(())
        }
        RescanScope::Subtree(cluster) => {
            let subtree = ctx.tree.subtree(*cluster);
            if subtree.len() > MAX_SINGLE_RANGES {
                return rescan_all(ctx, Some(&subtree.into_iter().collect())).await;
            }
            for cluster in subtree {
                for resource in placeable_resources_of(ctx, cluster) {
                    rescan_range(ctx, RangeScope::Cluster(cluster, resource), None).await?;
                }
            }
            Ok(())
        }
    }
}

async fn rescan_all(ctx: &SchedulerContext, only: Option<&HashSet<LogicalClusterId>>) -> Result<(), StoreError> {
    for resource in placeable_resources(ctx) {
        rescan_range(ctx, RangeScope::AllClusters(resource), only).await?;
    }
    Ok(())
}

/// Returns the built-in and custom resources that are placed.
pub(crate) fn placeable_resources(ctx: &SchedulerContext) -> Vec<GroupResource> {
    let mut custom = ctx.custom().clone();
    custom.extend(ctx.facts().definitions.resources().into_iter().cloned());
    kinds::PLACEABLE.iter().map(kinds::Placeable::resource).chain(custom).collect()
}

/// Returns the built-in and custom resources that are placed from a logical cluster.
fn placeable_resources_of(ctx: &SchedulerContext, cluster: LogicalClusterId) -> Vec<GroupResource> {
    kinds::PLACEABLE.iter().map(kinds::Placeable::resource).chain(custom_resources_of(ctx, cluster)).collect()
}

/// Returns the resources of a logical cluster that are placed only by policies.
pub(crate) fn custom_resources_of(ctx: &SchedulerContext, cluster: LogicalClusterId) -> BTreeSet<GroupResource> {
    let mut custom = ctx.custom().clone();
    custom.extend(ctx.facts().definitions.of(cluster).map(|kind| kind.resource.clone()));
    custom
}

/// Queues the objects of a range. Each page is read at the latest revision: an object that is written meanwhile has an
/// event of its own.
async fn rescan_range(
    ctx: &SchedulerContext,
    scope: RangeScope,
    only: Option<&HashSet<LogicalClusterId>>,
) -> Result<(), StoreError> {
    let projected = matches!(scope, RangeScope::PlacedOn(_));
    let labels = if projected { LabelSelector::everything() } else { placed_from_here() };
    let mut request = RangeRequest { limit: Some(PAGE), labels, ..RangeRequest::slices(scope).skip_damaged() };
    loop {
        let page = ctx.objects.store().range(request.clone()).await?;
        let within = |stored: &&StoredObject| only.is_none_or(|only| only.contains(&stored.key.cluster));
        page.objects.iter().filter(within).for_each(|stored| enqueue(ctx, stored));
        if !page.more {
            return Ok(());
        }
        request.after = page.last;
        while ctx.queue.len() > MAX_QUEUED {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn enqueue(ctx: &SchedulerContext, stored: &StoredObject) {
    let key = &stored.key;
    match key.namespace() {
        Some(namespace) if kinds::is_follower(&key.resource) => {
            ctx.queue.add_followers(key.cluster, namespace, Some(key.clone()));
        }
        _ => ctx.queue.tasks.add(Task::Object(key.clone())),
    }
}

/// Returns the selector of objects that no physical cluster made, by their header.
pub(crate) fn placed_from_here() -> LabelSelector {
    let text = format!("!{}", portolan_types::annotations::PROJECTED_FROM);
    LabelSelector::parse(&text).expect("the key is a constant")
}
