//! First part of a plan: objects with decisions of their own, in the order in which the scheduler rescans them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use portolan_store::{RangeRequest, StoreError};
use portolan_types::{GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, placement::MAX_PLANNED_OBJECTS};

use super::{
    PlanError,
    budgets::{DisruptedPods, budget_rows},
    capacity::capacity_rows,
    change::PlannedChange,
    hash::hash_of,
    rows::{Plan, PlanRow, RefusedRow},
    scope::{NamespaceSet, PlanScope},
    shadow::ShadowPair,
};
use crate::{
    context::SchedulerContext,
    kinds,
    queue::rescan::{placeable_resources, placed_from_here},
};

/// Rounds over the objects that wait for others, before the last one counts.
const MAX_ROUNDS: usize = 4;

/// Plan in the making.
pub(super) struct PlanRun<'a> {
    /// The scheduler that runs.
    pub(super) ctx: &'a SchedulerContext,
    pub(super) shadow: ShadowPair,
    pub(super) scope: PlanScope,
    pub(super) rows: BTreeMap<ObjectKey, PlanRow>,
    pub(super) refused: BTreeMap<ObjectKey, RefusedRow>,
    pub(super) disrupted: BTreeMap<ObjectKey, DisruptedPods>,
    /// Namespaces with a workload that would move.
    pub(super) moved: NamespaceSet,
    /// Objects that lack room.
    pub(super) waiting: BTreeSet<ObjectKey>,
    /// Objects whose decisions depend on objects that would move.
    pub(super) again: BTreeSet<ObjectKey>,
    /// True if a copy would leave a physical cluster, so that objects that wait for room may get some.
    pub(super) frees_room: bool,
    /// Objects that may still be decided about.
    pub(super) left: usize,
    pub(super) kinds: Vec<Arc<GroupVersionKind>>,
}

impl<'a> PlanRun<'a> {
    pub(super) async fn start(
        ctx: &'a SchedulerContext,
        home: LogicalClusterId,
        changes: &[PlannedChange],
    ) -> Result<Self, PlanError> {
        let mut scope = PlanScope::of(ctx, home, changes);
        let shadow = ShadowPair::read(ctx, &scope, changes).await?;
        for shadow in [&shadow.base, &shadow.next] {
            scope.add_policies(shadow.ctx.facts().all_policies().map(|(_, policy)| &**policy));
        }
        Ok(Self {
            ctx,
            shadow,
            scope,
            rows: BTreeMap::new(),
            refused: BTreeMap::new(),
            disrupted: BTreeMap::new(),
            moved: NamespaceSet::new(),
            waiting: BTreeSet::new(),
            again: BTreeSet::new(),
            frees_room: false,
            left: MAX_PLANNED_OBJECTS,
            kinds: Vec::new(),
        })
    }

    /// Limits the number of objects.
    pub(super) fn within(self, most: usize) -> Self {
        Self { left: most, ..self }
    }

    /// Decides about all objects. Returns the plan.
    pub(super) async fn finish(mut self) -> Result<Plan, PlanError> {
        self.plan_workloads().await?;
        self.plan_waiting().await?;
        self.plan_followers().await?;
        let budgets = budget_rows(&self.shadow.next.ctx, &self.disrupted).await?;
        let capacity = capacity_rows(&self.shadow, &self.scope);
        let (splits, moves) = self.rows.into_values().partition::<Vec<_>, _>(PlanRow::is_split);
        let refused: Vec<RefusedRow> = self.refused.into_values().collect();
        Ok(Plan {
            revision: Some(self.shadow.at),
            hash: hash_of(&moves, &splits, &refused),
            moves,
            splits,
            refused,
            capacity,
            budgets,
            fences: self.shadow.fences,
        })
    }

    async fn plan_workloads(&mut self) -> Result<(), PlanError> {
        for range in self.scope.ranges(&self.workload_resources()) {
            let request = RangeRequest { labels: placed_from_here(), ..RangeRequest::slices(range).skip_damaged() };
            let mut next = Some(request);
            while let Some(request) = next {
                let page = self.shadow.next.ctx.objects.store().range(request.clone()).await?;
                next = request.next(&page);
                for stored in &page.objects {
                    if self.scope.contains(&stored.key) {
                        self.plan_object(stored).await?;
                    }
                }
                // Reads of a store in memory never wait.
                tokio::task::yield_now().await;
            }
        }
        // An object that would be created is in no range.
        let written: Vec<ObjectKey> = self.scope.objects.iter().cloned().collect();
        for key in written {
            if !kinds::is_follower(&key.resource) && !self.rows.contains_key(&key) {
                self.plan_key(&key).await?;
            }
        }
        Ok(())
    }

    /// Returns the resources with decisions of their own, in the order in which the scheduler rescans them.
    fn workload_resources(&self) -> Vec<GroupResource> {
        let all = placeable_resources(&self.shadow.next.ctx).into_iter();
        all.filter(|resource| !kinds::is_follower(resource)).collect()
    }

    /// Decides again about objects that depend on moved ones, and about those that wait for room, inside and outside
    /// the scope, while the plan frees some. Objects beside the logical cluster of the changes and its descendants are
    /// left out: they would reveal other tenants, and change the hash of a plan that does not affect them.
    async fn plan_waiting(&mut self) -> Result<(), PlanError> {
        let within = self.ctx.tree.subtree(self.scope.home());
        self.waiting.extend(within.into_iter().flat_map(|cluster| self.ctx.without_room.of(cluster, None)));
        for _ in 0..MAX_ROUNDS {
            let mut again = std::mem::take(&mut self.again);
            if std::mem::take(&mut self.frees_room) {
                again.append(&mut self.waiting);
            }
            if again.is_empty() {
                break;
            }
            for key in again {
                self.plan_key(&key).await?;
            }
        }
        Ok(())
    }

    async fn plan_key(&mut self, key: &ObjectKey) -> Result<(), PlanError> {
        match self.shadow.next.ctx.objects.store().get(key).await {
            Ok(Some(stored)) => self.plan_object(&stored).await,
            // A damaged object stays unchanged.
            Ok(None) | Err(StoreError::Damaged { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Counts an object that is decided about.
    pub(super) fn count_object(&mut self) -> Result<(), PlanError> {
        self.left = self.left.checked_sub(1).ok_or(PlanError::TooManyObjects)?;
        Ok(())
    }
}
