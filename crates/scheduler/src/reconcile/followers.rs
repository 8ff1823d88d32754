//! Reconciles followers. The workloads of a namespace are read once for all its waiting followers.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use portolan_placement::{
    AdmissionRecord, CopyHealth, DecisionOutcome, Demand, LeveledPolicy, MoveGates, MoveStrategy, OverrideInputs,
    PinScope, PlacementStep, Role, follow, is_legal, shares_of, with_shares_and_overrides, with_withdrawn,
};
use portolan_store::{RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{GroupKind, LogicalClusterId, NamespaceName, ObjectKey, Uid, placement::PlacementRecord};
use serde_json::Value;

use crate::{
    commit::{StepCommit, commit_step},
    context::SchedulerContext,
    facts::overruns::record_overruns,
    inputs::namespace_places::{FollowerNeeds, FollowerRef, NamedClusters, NamespacePlaces, read_namespace_places},
    inputs::{DecisionInputs, placement_key, read_inputs},
    kinds,
    queue::PendingFollowers,
    queue::rescan::placed_from_here,
    reconcile::object::reconcile_object,
    scheduler::SchedulerError,
};

/// Followers of one namespace that are written concurrently.
const AT_ONCE: usize = 16;

/// Reconciles the waiting followers of a namespace.
pub(crate) async fn reconcile_followers(
    ctx: &SchedulerContext,
    cluster: LogicalClusterId,
    namespace: &NamespaceName,
) -> Result<(), SchedulerError> {
    let pending = ctx.queue.take_followers(cluster, namespace);
    let done = try_followers(ctx, cluster, namespace, &pending).await;
    if done.is_err() {
        ctx.queue.put_back(cluster, namespace, pending);
    }
    done
}

async fn try_followers(
    ctx: &SchedulerContext,
    cluster: LogicalClusterId,
    namespace: &NamespaceName,
    pending: &PendingFollowers,
) -> Result<(), SchedulerError> {
    let followers = read_followers(ctx, cluster, namespace, pending).await?;
    if followers.is_empty() {
        return Ok(());
    }
    let inhabited = read_namespace_places(ctx, cluster, namespace).await?;
    let place = |stored: StoredObject| {
        let in_passing = pending.all && !pending.keys.contains(&stored.key);
        reconcile_follower(ctx, stored, &inhabited, in_passing)
    };
    stream::iter(followers).map(place).buffer_unordered(AT_ONCE).try_collect::<()>().await
}

/// Reads the objects of a range that no physical cluster made. Returns true if all could be read.
async fn read_range(ctx: &SchedulerContext, scope: RangeScope) -> Result<(Vec<StoredObject>, bool), StoreError> {
    let request = RangeRequest { labels: placed_from_here(), ..RangeRequest::all(scope).skip_damaged() };
    let page = ctx.objects.store().range(request).await?;
    Ok((page.objects, page.damaged.is_empty()))
}

async fn read_followers(
    ctx: &SchedulerContext,
    cluster: LogicalClusterId,
    namespace: &NamespaceName,
    pending: &PendingFollowers,
) -> Result<Vec<StoredObject>, StoreError> {
    let mut found = Vec::new();
    if pending.all {
        for resource in kinds::followers() {
            found.extend(read_range(ctx, RangeScope::Namespace(cluster, resource, namespace.clone())).await?.0);
        }
        return Ok(found);
    }
    for key in &pending.keys {
        match ctx.objects.store().get(key).await {
            Ok(follower) => found.extend(follower),
            // A damaged follower stays in place, and does not keep the others from moving.
            Err(StoreError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Step of one follower, and the inputs that it was planned with.
pub(crate) struct FollowerStep {
    inputs: DecisionInputs,
    policies: Vec<LeveledPolicy>,
    pub(crate) step: PlacementStep,
}

/// Reconciles one follower. With `in_passing`, one that is in place is skipped early.
async fn reconcile_follower(
    ctx: &SchedulerContext,
    stored: StoredObject,
    inhabited: &NamespacePlaces,
    in_passing: bool,
) -> Result<(), SchedulerError> {
    if stored.record.header.is_deleting && kinds::is_follower(&stored.key.resource) {
        return reconcile_object(ctx, &stored.key).await;
    }
    let Some(planned) = plan_follower(ctx, stored, inhabited, in_passing).await? else { return Ok(()) };
    record_overruns(ctx, &planned.inputs, &planned.policies, &planned.step.record);
    commit_follower(ctx, &planned.inputs, &planned.step).await
}

/// Plans the next step of one follower that is not being deleted; `None` if it stays as it is.
pub(crate) async fn plan_follower(
    ctx: &SchedulerContext,
    stored: StoredObject,
    inhabited: &NamespacePlaces,
    in_passing: bool,
) -> Result<Option<FollowerStep>, SchedulerError> {
    let key = &stored.key;
    let Some(builtin) = kinds::placeable(&key.resource) else { return Ok(None) };
    let unplaced = stored.record.header.placed_on.is_empty();
    let reach = ctx.lineage_of(key.cluster);
    let selected = ctx.facts().is_kind_selected(&reach, builtin.group, builtin.kind);
    let is_stale = unplaced && !in_passing && shows_copies(ctx, key).await?;
    if unplaced && !selected && inhabited.anywhere.is_empty() && !is_stale {
        return Ok(None);
    }
    let object = stored.to_value()?;
    let role = portolan_placement::role_of(builtin.group, builtin.kind, &object);
    if !role.follows() {
        return Ok(None);
    }
    let record = PlacementRecord::of(&object).unwrap_or_default();
    let follower = FollowerRef { role, kind: builtin.kind, name: &key.name, object: &object, record: &record };
    let mut needed = inhabited.needs(follower);
    let stays_at = inhabited.stays_at(follower);
    if inhabited.is_partial {
        needed.extend(record.active().map(|copy| (copy.uid.clone(), copy.name.clone())));
    }
    let suits = in_passing && inhabited.suits(&record, &needed, &stays_at);
    let kind = GroupKind { group: builtin.group.into(), kind: builtin.kind.into() };
    let shares = shares_of(&kind, &object, &inhabited.divided);
    let served = inhabited.served(follower);
    let is_published = withdrawn(&record, served.as_ref()) == record.withdrawn;
    let as_written = shares.is_empty()
        && record.suspended.is_empty()
        && record.overrides.is_empty()
        && record.yields.is_empty()
        && is_published;
    if !selected && as_written && !is_stale && (suits || (unplaced && needed.is_empty())) {
        return Ok(None);
    }
    let inputs = read_inputs(ctx, key, object, stored.revision).await?;
    Ok(inputs.map(|inputs| step_follower(ctx, inputs, stays_at, FollowerNeeds { needed, shares, served })))
}

/// Returns the physical clusters whose addresses a Service or Ingress does not publish: it has ready endpoints
/// elsewhere, but none there.
fn withdrawn(record: &PlacementRecord, served: Option<&BTreeSet<Uid>>) -> BTreeSet<Uid> {
    let active: BTreeSet<Uid> = record.active().map(|copy| copy.uid.clone()).collect();
    match served {
        Some(served) if !served.is_disjoint(&active) => &active - served,
        Some(_) | None => BTreeSet::new(),
    }
}

/// Returns true when the `Placement` of an object shows copies.
async fn shows_copies(ctx: &SchedulerContext, of: &ObjectKey) -> Result<bool, StoreError> {
    let placement = ctx.objects.get_value(&placement_key(of)).await?;
    let copies = placement.as_ref().and_then(|(placement, _)| placement.pointer("/status/clusters"));
    Ok(copies.and_then(Value::as_array).is_some_and(|copies| !copies.is_empty()))
}

fn step_follower(
    ctx: &SchedulerContext,
    inputs: DecisionInputs,
    inhabited: BTreeSet<Uid>,
    FollowerNeeds { mut needed, shares, served }: FollowerNeeds,
) -> FollowerStep {
    let role = inputs.workload.role;
    let (wanted, deleting) = wanted_by_policy(ctx, &inputs);
    let pinned = role == Role::Claim && inputs.workload.pin.as_ref().is_some_and(|pin| pin.on == PinScope::Object);
    match (wanted, pinned) {
        (Some(wanted), true) => needed = wanted,
        (Some(wanted), false) => needed.extend(wanted),
        (None, _) => {}
    }
    {
        // A record may name a physical cluster that is gone, because of its volumes: no follower goes there.
        let facts = ctx.facts();
        needed.retain(|uid, _| facts.physical(uid).is_some());
    }
    let demand = Demand { needed, inhabited, deleting, pinned };
    let empty = (BTreeMap::new(), BTreeSet::new());
    let epoch = inputs.revision.get();
    let health = CopyHealth {
        ready: &empty.0,
        up: &empty.1,
        drained: &empty.1,
        gone: &inputs.gone,
        epoch,
        gates: MoveGates::open(),
    };
    let step = follow(role, &inputs.record, &demand, &health);
    let withdrawn = withdrawn(&step.record, served.as_ref());
    let step = with_withdrawn(step, withdrawn);
    let (policies, clusters) = {
        let facts = ctx.facts();
        let clusters = facts.clusters(&inputs.reach, &*ctx.rights, &step.record);
        (facts.policies(&inputs.reach, &inputs.namespace), clusters)
    };
    let by = OverrideInputs { workload: &inputs.workload, policies: &policies, clusters: &clusters };
    let step = with_shares_and_overrides(step, &shares, &by);
    FollowerStep { inputs, policies, step }
}

async fn commit_follower(
    ctx: &SchedulerContext,
    inputs: &DecisionInputs,
    step: &PlacementStep,
) -> Result<(), SchedulerError> {
    let exists = inputs.record.clusters.iter().filter(|c| !inputs.gone.contains(&c.uid)).cloned().collect();
    let previous = PlacementRecord { clusters: exists, ..inputs.record.clone() };
    is_legal(&previous, &step.record)
        .map_err(|step| SchedulerError::Illegal { key: Box::new(inputs.key.clone()), step })?;
    if step.record.clusters.is_empty() && inputs.placement.is_none() {
        return Ok(());
    }
    let change = StepCommit {
        key: &inputs.key,
        object: &inputs.object,
        revision: inputs.revision,
        previous: &inputs.record,
        step,
        decision: None,
        placement: inputs.placement.as_ref(),
        admitted: &AdmissionRecord::default(),
        status: None,
    };
    commit_step(ctx, &change, None).await
}

/// Returns the physical clusters where a policy or a pin wants a follower, and those that are being deleted.
fn wanted_by_policy(ctx: &SchedulerContext, inputs: &DecisionInputs) -> (Option<NamedClusters>, BTreeSet<Uid>) {
    let mut workload = inputs.workload.clone();
    workload.moves = MoveStrategy::Surge;
    workload.pin = workload.pin.filter(|pin| pin.on == PinScope::Object);
    let facts = ctx.facts();
    let policies = facts.policies(&inputs.reach, &inputs.namespace);
    let clusters = facts.clusters(&inputs.reach, &*ctx.rights, &inputs.record);
    let deleting = clusters.iter().filter(|c| c.info.deleting).map(|c| c.info.uid.clone()).collect();
    let selected = policies.iter().any(|p| !p.policy.is_constraint() && p.policy.is_about(&workload));
    if !selected && workload.pin.is_none() {
        return (None, deleting);
    }
    let question = portolan_placement::PlacementInputs {
        workload: &workload,
        policies: &policies,
        clusters: &clusters,
        previous: &inputs.record,
        home: &inputs.home.uids,
        existing: &BTreeMap::new(),
        now: ctx.now(),
    };
    let decision = portolan_placement::place(&question);
    if matches!(decision.outcome, DecisionOutcome::Suspended(_)) {
        let stays = inputs.record.active().map(|copy| (copy.uid.clone(), copy.name.clone()));
        return (Some(stays.collect()), deleting);
    }
    (Some(decision.chosen.into_iter().map(|c| (c.uid, c.name)).collect()), deleting)
}
