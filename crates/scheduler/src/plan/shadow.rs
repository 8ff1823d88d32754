//! Copies of the scheduler that decide on a snapshot: one with the facts as they are, one with the changes.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use portolan_placement::{PlacementDecision, PlacementInputs, Workload, contribution};
use portolan_store::{DynStore, RangeRequest, RangeScope, RevisionHold};
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, ResourceVersion, Uid,
    placement::{MAX_PLAN_FENCES, PlacedCopy, PlacementRecord, plan_fence},
};

use super::{
    PlanError,
    change::PlannedChange,
    planned_drain::PlannedDrain,
    scope::PlanScope,
    snapshot::{PlanSnapshot, read_at},
};
use crate::{
    context::SchedulerContext,
    decide::{DecisionView, decide},
    facts::Facts,
    failover::FailoverTiming,
    inputs::DecisionInputs,
    kinds,
    scheduler::{SchedulerError, SchedulerParts},
};

/// Seconds by which taints that a plan adds are older than the present moment: tolerations with seconds have run out.
const ELAPSED: i64 = 10 * 365 * 86_400;
/// Copy of the scheduler that writes nothing.
pub(super) struct ShadowScheduler {
    pub(super) ctx: SchedulerContext,
    /// View of the last decision. Most objects of a namespace share it.
    view: Mutex<Option<SharedView>>,
    pub(super) drain: PlannedDrain,
}

/// View of all objects of a namespace that are on physical clusters within reach.
struct SharedView {
    cluster: LogicalClusterId,
    namespace: NamespaceName,
    view: DecisionView,
}

impl SharedView {
    /// Returns true if the view belongs to an object.
    fn is_of(&self, inputs: &DecisionInputs) -> bool {
        let is_known = |copy: &PlacedCopy| self.view.clusters.iter().any(|known| known.info.uid == copy.uid);
        self.cluster == inputs.key.cluster
            && self.namespace == inputs.namespace
            && inputs.record.clusters.iter().all(is_known)
    }
}

impl ShadowScheduler {
    /// Decides about an object.
    pub(super) fn decide(&self, inputs: &DecisionInputs) -> PlacementDecision {
        let as_it_is = |_: &PlacementInputs, decision| decision;
        let mut shared = self.view.lock().expect("no code panics under this lock");
        if let Some(known) = shared.as_ref().filter(|known| known.is_of(inputs)) {
            return decide(&self.ctx, inputs, &known.view, as_it_is);
        }
        let view = DecisionView::of(&self.ctx, &self.ctx.facts(), inputs);
        let decision = decide(&self.ctx, inputs, &view, as_it_is);
        let (cluster, namespace) = (inputs.key.cluster, inputs.namespace.clone());
        let is_shared = view.clusters.iter().all(|known| known.in_reach);
        *shared = is_shared.then_some(SharedView { cluster, namespace, view });
        decision
    }

    /// Counts the requests of an object where it would be, in place of where it is.
    pub(super) fn replace_usage(&self, workload: &Workload, before: &PlacementRecord, after: &PlacementRecord) {
        if workload.finished || (before.clusters == after.clusters && before.awaited == after.awaited) {
            return;
        }
        let (took, takes) = (contribution(workload, before), contribution(workload, after));
        let mut shared = self.view.lock().expect("no code panics under this lock");
        let mut facts = self.ctx.facts();
        facts.usage.replace_merged(&took, &takes);
        for known in shared.iter_mut().flat_map(|shared| &mut shared.view.clusters) {
            if took.iter().chain(&takes).any(|(uid, _)| *uid == known.info.uid) {
                known.used = facts.usage.of(&known.info.uid);
            }
        }
    }
}

/// Two schedulers on one snapshot, without and with the changes. Neither writes anything.
pub(super) struct ShadowPair {
    pub(super) base: ShadowScheduler,
    pub(super) next: ShadowScheduler,
    /// Snapshot of `next`, with the changes.
    pub(super) snapshot: Arc<PlanSnapshot>,
    pub(super) at: ResourceVersion,
    pub(super) fences: Vec<(ObjectKey, Option<ResourceVersion>)>,
    _hold: RevisionHold,
}

impl ShadowPair {
    /// Reads the facts at the latest revision, and applies the changes to a copy of them.
    pub(super) async fn read(
        ctx: &SchedulerContext,
        scope: &PlanScope,
        changes: &[PlannedChange],
    ) -> Result<Self, PlanError> {
        let store = ctx.objects.store();
        let first =
            RangeRequest { limit: Some(1), ..RangeRequest::all(RangeScope::AllClusters(kinds::physical_clusters())) };
        let at = store.range(first.skip_damaged()).await?.revision;
        let hold = store.hold(Some(at)).await;
        let mut reader = FactReader { ctx, at, facts: ctx.facts().copy_for_plan() };
        reader.read_physical_clusters().await?;
        reader.read_policies(scope).await?;
        let fences = reader.read_fences(scope).await?;
        let FactReader { facts, .. } = reader;
        let mut planned = facts.copy_for_plan();
        let mut written = Vec::new();
        let now = ctx.now();
        for change in changes {
            let stored = read_at(store, change.key(), at).await?;
            let stored = stored.map(|stored| stored.to_value()).transpose()?;
            written.extend(put_change(&mut planned, change, stored, now));
        }
        let drain = PlannedDrain::of(changes, &mut planned);
        let has_bounds = |facts: &Facts| facts.all_physical().any(|(_, _, bounds)| !bounds.is_empty());
        let shows_placements = has_bounds(&facts) || has_bounds(&planned);
        let snapshot = |shows| Arc::new(PlanSnapshot::new(store.clone(), at, shows));
        let (before, after) = (snapshot(shows_placements), snapshot(shows_placements));
        written.iter().for_each(|(key, object)| after.put(key, object.as_ref()));
        Ok(Self {
            base: shadow_of(ctx, before, facts),
            next: ShadowScheduler { drain, ..shadow_of(ctx, after.clone(), planned) },
            snapshot: after,
            at,
            fences,
            _hold: hold,
        })
    }
}

/// Object as it would be; `None` deletes it.
type PlannedObject = (ObjectKey, Option<serde_json::Value>);

/// Applies a change to the facts. Returns the object for the snapshot, if it is not a fact.
fn put_change(
    facts: &mut Facts,
    change: &PlannedChange,
    stored: Option<serde_json::Value>,
    now: i64,
) -> Option<PlannedObject> {
    let (key, object) = (change.key(), change.apply_to(stored));
    if key.resource == kinds::physical_clusters() {
        if let Some(object) = object {
            facts.put_physical(key, &object, now - ELAPSED);
            if let (PlannedChange::Delete { .. }, Some(uid)) = (change, portolan_types::object::uid(&object)) {
                facts.let_leave(&uid);
            }
        }
        return None;
    }
    if kinds::policies().contains(&key.resource) {
        match object {
            Some(object) => facts.put_policy(key, &object),
            None => facts.remove_policy(key),
        };
        return None;
    }
    Some((key.clone(), object))
}

fn shadow_of(ctx: &SchedulerContext, store: DynStore, facts: Facts) -> ShadowScheduler {
    let shadow = SchedulerContext::new(SchedulerParts {
        store,
        seams: ctx.seams.clone(),
        tree: ctx.tree.clone(),
        rights: ctx.rights.clone(),
        kinds: ctx.kinds.clone(),
        gate: None,
        failover: FailoverTiming::default(),
    });
    let named: BTreeSet<GroupResource> = {
        let policies = facts.all_policies().flat_map(|(_, policy)| policy.kinds().collect::<Vec<_>>());
        let resources = policies.filter_map(|(group, kind)| ctx.kinds.resource_of(group, kind));
        resources.filter(|resource| kinds::placeable(resource).is_none()).collect()
    };
    *shadow.custom() = named;
    *shadow.facts() = facts;
    ShadowScheduler { ctx: shadow, view: Mutex::default(), drain: PlannedDrain::default() }
}

/// Returns the logical clusters in the scope, and their ancestors.
fn logical_clusters(ctx: &SchedulerContext, scope: &PlanScope) -> BTreeSet<LogicalClusterId> {
    let above = ctx.lineage_of(scope.home()).lineage.into_iter().map(|(id, _)| id);
    above.chain(scope.clusters().iter().copied()).collect()
}

/// Reader of the facts at one revision. The sums of placed objects are the ones in memory, which the scheduler also
/// uses.
struct FactReader<'a> {
    ctx: &'a SchedulerContext,
    at: ResourceVersion,
    facts: Facts,
}

impl FactReader<'_> {
    async fn read_physical_clusters(&mut self) -> Result<(), SchedulerError> {
        let known: Vec<(ObjectKey, Uid)> =
            self.facts.all_physical().map(|(uid, key, _)| (key.clone(), uid.clone())).collect();
        let mut there = BTreeSet::new();
        let now = self.ctx.now();
        for (key, object) in self.read(RangeScope::AllClusters(kinds::physical_clusters())).await? {
            there.extend(portolan_types::object::uid(&object));
            self.facts.put_physical(&key, &object, now);
        }
        for (key, uid) in known.iter().filter(|(_, uid)| !there.contains(uid)) {
            self.facts.remove_physical(key, uid);
        }
        Ok(())
    }

    /// Reads the policies of the logical clusters in the scope and of their ancestors. Others do not matter.
    async fn read_policies(&mut self, scope: &PlanScope) -> Result<(), SchedulerError> {
        let clusters = logical_clusters(self.ctx, scope);
        for resource in kinds::policies() {
            let ranges: Vec<_> = if clusters.len() > super::scope::MAX_SINGLE_RANGES {
                vec![RangeScope::AllClusters(resource.clone())]
            } else {
                clusters.iter().map(|cluster| RangeScope::Cluster(*cluster, resource.clone())).collect()
            };
            let mut there = BTreeSet::new();
            for range in ranges {
                for (key, object) in self.read(range).await? {
                    if clusters.contains(&key.cluster) {
                        self.facts.put_policy(&key, &object);
                    }
                    there.insert(key);
                }
            }
            let is_read = |key: &&ObjectKey| key.resource == resource && clusters.contains(&key.cluster);
            let known: Vec<ObjectKey> =
                self.facts.all_policies().map(|(key, _)| key).filter(is_read).cloned().collect();
            known.iter().filter(|key| !there.contains(*key)).for_each(|key| {
                self.facts.remove_policy(key);
            });
        }
        Ok(())
    }

    /// Returns the revisions of the plan fences that tell of a change of the policies and physical clusters that the
    /// plan depends on: those of the logical clusters in the scope and of their ancestors, or that of all if they are
    /// too many. A damaged one is replaced by the next write.
    async fn read_fences(
        &self,
        scope: &PlanScope,
    ) -> Result<Vec<(ObjectKey, Option<ResourceVersion>)>, SchedulerError> {
        let mut of = logical_clusters(self.ctx, scope);
        if of.len() > MAX_PLAN_FENCES {
            of = BTreeSet::from([LogicalClusterId::SYSTEM]);
        }
        let mut fences = Vec::new();
        for key in of.into_iter().map(plan_fence) {
            let scope = RangeScope::Cluster(key.cluster, key.resource.clone());
            let request = RangeRequest { at: Some(self.at), ..RangeRequest::all(scope).skip_damaged() };
            let page = self.ctx.objects.store().range(request).await?;
            fences.push((key, page.objects.first().map(|stored| stored.revision)));
        }
        Ok(fences)
    }

    /// Reads a range, page by page.
    async fn read(&mut self, scope: RangeScope) -> Result<Vec<(ObjectKey, serde_json::Value)>, SchedulerError> {
        let store = self.ctx.objects.store();
        let first = RangeRequest { at: Some(self.at), ..RangeRequest::slices(scope).skip_damaged() };
        let (mut next, mut all) = (Some(first), Vec::new());
        while let Some(request) = next {
            let page = store.range(request.clone()).await?;
            next = request.next(&page);
            page.damaged.iter().for_each(|found| self.facts.put_unreadable(&found.key));
            for stored in page.objects {
                all.push((stored.key.clone(), stored.to_value()?));
            }
        }
        Ok(all)
    }
}
