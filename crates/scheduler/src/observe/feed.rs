//! Listing and watching one resource of all logical clusters.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use portolan_store::{RangeRequest, RangeScope, StoreError, WatchScope};
use portolan_types::{GroupResource, ObjectKey, ResourceVersion};
use tracing::warn;

use crate::{
    context::SchedulerContext,
    facts::usage::add_amounts,
    observe::usage_count::listed_amounts,
    observe::{clear_resource, fact_barrier::FeedProgress, observe_event, observe_listed, observe_unreadable},
    queue::Task,
};

/// Objects that are read at once.
const PAGE: usize = 500;
/// First and longest pause after a failure.
pub(crate) const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Lists a resource and observes its objects, with retries until it succeeds. Returns the revision of the list.
pub(crate) async fn list_with_retry(ctx: &SchedulerContext, resource: &GroupResource) -> ResourceVersion {
    let mut pause = PAUSES.0;
    loop {
        match list_once(ctx, resource).await {
            Ok(revision) => return revision,
            Err(error) => {
                warn!(%resource, %error, ?pause, "list failed, will retry");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }
}

async fn list_once(ctx: &SchedulerContext, resource: &GroupResource) -> Result<ResourceVersion, StoreError> {
    clear_resource(ctx, resource);
    let (mut next, mut marked, mut revision) = (Some(pages_of(resource)), BTreeSet::new(), ResourceVersion::FIRST);
    while let Some(request) = next {
        let page = ctx.objects.store().range(request.clone()).await?;
        // All pages are read at the revision of the first, so that the watch has no gap.
        (next, revision) = (request.next(&page), page.revision);
        let listed = page.objects.iter().filter(|stored| observe_listed(ctx, stored));
        marked.extend(listed.map(|stored| stored.key.clone()));
        // The mark of an object that cannot be read stays.
        marked.extend(page.damaged.iter().map(|found| found.key.clone()));
        page.damaged.iter().for_each(|found| observe_unreadable(ctx, &found.key));
    }
    let mut facts = ctx.facts();
    facts.usage.note_counted(resource, revision);
    facts.drains.keep_marks(resource, &marked);
    Ok(revision)
}

/// Returns the request for the first page of a resource in all logical clusters.
fn pages_of(resource: &GroupResource) -> RangeRequest {
    let scope = RangeScope::AllClusters(resource.clone());
    RangeRequest { limit: Some(PAGE), ..RangeRequest::slices(scope) }.skip_damaged()
}

/// Watches a resource forever. After a gap it lists the resource again and rescans everything.
pub(crate) async fn run_feed(
    ctx: &SchedulerContext,
    resource: GroupResource,
    mut after: ResourceVersion,
    progress: &FeedProgress,
) {
    let mut pause = PAUSES.0;
    loop {
        let before = after;
        match watch_events(ctx, &resource, &mut after, progress).await {
            // A damaged object that was deleted is missing in the new list.
            StoreError::Compacted { .. } | StoreError::FutureRevision { .. } | StoreError::Damaged { .. } => {
                progress.restart();
                after = list_with_retry(ctx, &resource).await;
                progress.reach(after);
                ctx.rescans.everything();
            }
            error => {
                pause = if after > before { PAUSES.0 } else { pause };
                warn!(%resource, %error, ?pause, "watch ended, will retry");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }
}

async fn watch_events(
    ctx: &SchedulerContext,
    resource: &GroupResource,
    after: &mut ResourceVersion,
    progress: &FeedProgress,
) -> StoreError {
    let scope = WatchScope::Resource(resource.clone(), None);
    let mut stream = match ctx.objects.store().watch(scope, Some(*after)).await {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    loop {
        let next = tokio::select! {
            biased;
            next = stream.next() => next,
            () = progress.requested() => {
                progress.reach(stream.progress());
                continue;
            }
            () = progress.recount_requested() => {
                if let Err(error) = recount(ctx, resource).await {
                    progress.request_recount();
                    return error;
                }
                continue;
            }
        };
        match next {
            Ok(batch) => {
                batch.events.iter().for_each(|event| observe_event(ctx, event));
                *after = batch.revision;
                progress.reach(batch.revision);
            }
            Err(error) => return error,
        }
    }
}

/// Counts all objects of a resource again, because the fields that count their replicas have changed. The former sums
/// hold until the new ones are complete. The stream of events continues: those that the new sums contain are not
/// counted again.
async fn recount(ctx: &SchedulerContext, resource: &GroupResource) -> Result<(), StoreError> {
    // Further changes are collected.
    tokio::time::sleep(PAUSES.0).await;
    // A change during the count asks for another one.
    let stale = ctx.facts().usage.stale_of(resource);
    let (mut next, mut sums, mut revision) = (Some(pages_of(resource)), BTreeMap::new(), ResourceVersion::FIRST);
    while let Some(request) = next {
        let page = ctx.objects.store().range(request.clone()).await?;
        (next, revision) = (request.next(&page), page.revision);
        for (uid, amounts) in page.objects.iter().flat_map(|stored| listed_amounts(ctx, &stored.key, &stored.record)) {
            add_amounts(sums.entry(uid).or_default(), &amounts);
        }
    }
    {
        let mut facts = ctx.facts();
        facts.usage.recount(resource, sums, revision);
        facts.usage.note_fresh(&stale);
    }
    let deleting: Vec<ObjectKey> = {
        let facts = ctx.facts();
        facts.all_registered().filter(|(_, known)| known.info.deleting).map(|(_, known)| known.key.clone()).collect()
    };
    deleting.into_iter().for_each(|key| ctx.queue.tasks.add(Task::PhysicalCluster(key)));
    ctx.signals.usage_status.notify_one();
    Ok(())
}
