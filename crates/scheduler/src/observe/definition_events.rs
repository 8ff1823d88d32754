//! Definitions of custom resources that policies are about: read once a policy names their group, and followed then.

use std::{collections::BTreeSet, sync::Arc};

use portolan_store::{ChangeKind, Event, RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Uid, placement::is_governing_group};

use crate::{
    context::SchedulerContext,
    facts::definitions::{CustomKind, DefinitionChange},
    kinds,
    observe::{placement_fields::PlacementFields, tree},
    queue::rescan::RescanScope,
};

/// Number of definitions or placed objects that are read at once.
const PAGE: usize = 100;
/// Larger subtrees are read as one range over all logical clusters.
const MAX_SINGLE_RANGES: usize = 32;

/// Group whose definitions are to be read in a logical cluster and its descendants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DefinitionScan {
    pub(crate) cluster: LogicalClusterId,
    pub(crate) group: Arc<str>,
}

/// Asks for the definitions of the groups that the policies of a logical cluster name, unless they were read before.
pub(crate) fn scan_named_groups(ctx: &SchedulerContext, policy: &ObjectKey, groups: impl Iterator<Item = String>) {
    let mut new = Vec::new();
    {
        let mut facts = ctx.facts();
        for group in groups.filter(|group| is_custom(group)) {
            if facts.definitions.name_group(policy.cluster, &group) {
                new.push(DefinitionScan { cluster: policy.cluster, group: group.into() });
            }
        }
    }
    if !new.is_empty() {
        ctx.scans().extend(new);
        ctx.signals.custom_resources.notify_one();
    }
}

/// Returns true for a group that definitions can be in, and that may go to physical clusters.
fn is_custom(group: &str) -> bool {
    group.contains('.') && !is_governing_group(group)
}

pub(crate) fn observe_definition(ctx: &SchedulerContext, event: &Event) {
    match event.change {
        ChangeKind::Deleted => {
            let before = known_kind(ctx, &event.key);
            ctx.facts().definitions.remove(&event.key);
            recount_if_changed(ctx, &event.key, before.as_deref());
        }
        ChangeKind::Created | ChangeKind::Updated => {
            let scope = match observe_definition_record(ctx, &event.key, &event.record) {
                DefinitionChange::Nothing => return,
                DefinitionChange::New => RescanScope::Cluster(event.key.cluster),
                // Followers depend on the fields that name them.
                DefinitionChange::Different => RescanScope::Subtree(event.key.cluster),
            };
            ctx.arrivals().insert(scope);
            ctx.signals.custom_resources.notify_one();
        }
    }
}

/// Stores the facts of a definition whose group a policy names.
pub(crate) fn observe_definition_record(ctx: &SchedulerContext, key: &ObjectKey, record: &Record) -> DefinitionChange {
    let Some((_, group)) = key.name.split_once('.') else { return DefinitionChange::Nothing };
    let reach = ctx.lineage_of(key.cluster);
    if !ctx.facts().definitions.is_named(&reach, group) {
        return DefinitionChange::Nothing;
    }
    let Some(crd) = tree(record) else { return DefinitionChange::Nothing };
    let before = known_kind(ctx, key);
    let change = ctx.facts().definitions.put(key, &crd);
    recount_if_changed(ctx, key, before.as_deref());
    change
}

/// Returns the resource that a definition is about, by its name.
fn resource_of(key: &ObjectKey) -> Option<GroupResource> {
    key.name.split_once('.').map(|(plural, group)| GroupResource::new(group, plural))
}

/// Returns the kind of a definition, if it is known.
fn known_kind(ctx: &SchedulerContext, key: &ObjectKey) -> Option<Arc<CustomKind>> {
    let resource = resource_of(key)?;
    ctx.facts().definitions.get(key.cluster, &resource).cloned()
}

/// Asks for new sums if other fields count replicas than before: the sums contain the former numbers.
fn recount_if_changed(ctx: &SchedulerContext, key: &ObjectKey, before: Option<&CustomKind>) {
    if known_kind(ctx, key).as_ref().map(|kind| &kind.scale) == before.map(|kind| &kind.scale) {
        return;
    }
    let Some(resource) = resource_of(key) else { return };
    // Until then nothing is decided by them.
    ctx.facts().usage.note_stale((key.cluster, resource.clone()));
    ctx.recounts().insert((key.cluster, resource));
    ctx.signals.custom_resources.notify_one();
}

/// Makes the feeds of resources count their objects again, for resources of which a logical cluster has objects.
pub(crate) async fn request_recounts(
    ctx: &SchedulerContext,
    mut resources: BTreeSet<(LogicalClusterId, GroupResource)>,
) -> Result<(), StoreError> {
    while let Some((cluster, resource)) = resources.first() {
        let scope = RangeScope::Cluster(*cluster, resource.clone());
        let any = RangeRequest { limit: Some(1), ..RangeRequest::all(scope).skip_damaged() };
        match ctx.objects.store().range(any).await {
            Ok(page) => {
                let feed = ctx.feeds().get(resource).cloned().filter(|_| !page.objects.is_empty());
                match feed {
                    Some(feed) => feed.request_recount(),
                    None => ctx.facts().usage.note_fresh(&BTreeSet::from([(*cluster, resource.clone())])),
                }
            }
            Err(error) => {
                ctx.recounts().append(&mut resources);
                return Err(error);
            }
        }
        resources.pop_first();
    }
    Ok(())
}

/// Reads the pending definitions. Those that cannot be read now are tried again.
pub(crate) async fn run_definition_scans(ctx: &SchedulerContext) -> Result<(), StoreError> {
    loop {
        let Some(scan) = ctx.scans().pop_first() else { return Ok(()) };
        if let Err(error) = run_scan(ctx, &scan).await {
            ctx.scans().insert(scan);
            return Err(error);
        }
        ctx.arrivals().insert(RescanScope::Subtree(scan.cluster));
    }
}

async fn run_scan(ctx: &SchedulerContext, scan: &DefinitionScan) -> Result<(), StoreError> {
    let subtree = ctx.tree.subtree(scan.cluster);
    let suffix = format!(".{}", scan.group);
    let scopes = if subtree.len() > MAX_SINGLE_RANGES {
        vec![RangeScope::AllClusters(kinds::definitions())]
    } else {
        subtree.into_iter().map(|cluster| RangeScope::Cluster(cluster, kinds::definitions())).collect()
    };
    for scope in scopes {
        let observe = |stored: &StoredObject| {
            if stored.key.name.ends_with(&suffix) {
                observe_definition_record(ctx, &stored.key, &stored.record);
            }
        };
        for_each_stored(ctx, scope, observe).await?;
    }
    Ok(())
}

/// Asks for the definitions of the custom resources that are placed, also where no policy names them any more: they
/// have to leave then.
pub(crate) async fn scan_groups_of_placed(ctx: &SchedulerContext) -> Result<(), StoreError> {
    let physical: Vec<Uid> = ctx.facts().all_physical().map(|(uid, _, _)| uid.clone()).collect();
    for uid in physical {
        let observe = |stored: &StoredObject| {
            let resource = &stored.key.resource;
            if kinds::placeable(resource).is_none() && !PlacementFields::of(&stored.record).record.is_projected() {
                scan_named_groups(ctx, &stored.key, std::iter::once(resource.group.to_string()));
            }
        };
        for_each_stored(ctx, RangeScope::PlacedOn(uid.to_string()), observe).await?;
    }
    Ok(())
}

async fn for_each_stored(
    ctx: &SchedulerContext,
    scope: RangeScope,
    mut observe: impl FnMut(&StoredObject),
) -> Result<(), StoreError> {
    let mut request = RangeRequest { limit: Some(PAGE), ..RangeRequest::slices(scope).skip_damaged() };
    loop {
        let page = ctx.objects.store().range(request.clone()).await?;
        page.objects.iter().for_each(&mut observe);
        if !page.more {
            return Ok(());
        }
        request.after = page.last;
    }
}
