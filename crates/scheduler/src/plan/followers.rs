//! Second part of a plan: objects that follow others.

use portolan_store::{RangeRequest, RangeScope, StoredObject};
use portolan_types::{
    LogicalClusterId, NamespaceName, Uid, object,
    placement::{CopyPhase, PlacedCopy, PlacementRecord},
};

use super::{
    PlanError,
    rows::{PlanRow, PlannedPlace},
    scope::NamespaceSet,
    workloads::PlanRun,
};
use crate::{
    inputs::namespace_places::{NamespacePlaces, read_namespace_places},
    kinds,
    queue::rescan::placed_from_here,
    reconcile::followers::plan_follower,
};

/// Steps of one follower before the last one counts.
const MAX_STEPS: usize = 4;
/// Rounds over the followers of a namespace before the last one counts: some follow other followers.
const MAX_ROUNDS: usize = 4;

impl PlanRun<'_> {
    /// Plans the followers of each namespace in which something would move.
    pub(super) async fn plan_followers(&mut self) -> Result<(), PlanError> {
        let mut namespaces = std::mem::take(&mut self.moved);
        if self.scope.moves_followers {
            for (cluster, more) in self.namespaces_of_followers().await? {
                namespaces.entry(cluster).or_default().extend(more);
            }
        }
        for (cluster, namespaces) in namespaces {
            for namespace in namespaces {
                if self.has_followers(cluster, &namespace).await? {
                    self.plan_namespace(cluster, &namespace).await?;
                }
            }
        }
        Ok(())
    }

    /// Returns true if a namespace has any follower. Its workloads need not be read again otherwise.
    async fn has_followers(&self, cluster: LogicalClusterId, namespace: &NamespaceName) -> Result<bool, PlanError> {
        for resource in kinds::followers() {
            let scope = RangeScope::Namespace(cluster, resource, namespace.clone());
            let request = RangeRequest { limit: Some(1), ..RangeRequest::all(scope).skip_damaged() };
            if !self.shadow.next.ctx.objects.store().range(request).await?.objects.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the namespaces of the scope that have followers.
    async fn namespaces_of_followers(&self) -> Result<NamespaceSet, PlanError> {
        let mut found = NamespaceSet::new();
        let resources: Vec<_> = kinds::followers().collect();
        for range in self.scope.ranges(&resources) {
            let mut next = Some(RangeRequest::slices(range).skip_damaged());
            while let Some(request) = next {
                let page = self.shadow.next.ctx.objects.store().range(request.clone()).await?;
                next = request.next(&page);
                for key in page.objects.iter().map(|stored| &stored.key).filter(|key| self.scope.contains(key)) {
                    found.entry(key.cluster).or_default().extend(key.namespace().cloned());
                }
            }
        }
        Ok(found)
    }

    async fn plan_namespace(&mut self, cluster: LogicalClusterId, namespace: &NamespaceName) -> Result<(), PlanError> {
        for round in 0..MAX_ROUNDS {
            let places = read_namespace_places(&self.shadow.next.ctx, cluster, namespace).await?;
            let mut has_moved = false;
            for resource in kinds::followers() {
                let scope = RangeScope::Namespace(cluster, resource, namespace.clone());
                let labels = placed_from_here();
                let mut next = Some(RangeRequest { labels, ..RangeRequest::slices(scope).skip_damaged() });
                while let Some(request) = next {
                    let page = self.shadow.next.ctx.objects.store().range(request.clone()).await?;
                    next = request.next(&page);
                    for stored in page.objects {
                        if round == 0 {
                            self.count_object()?;
                        }
                        has_moved |= self.plan_one(stored, &places).await?;
                    }
                }
            }
            if !has_moved {
                break;
            }
        }
        Ok(())
    }

    /// Plans one follower until it stays. Returns true if it would move.
    async fn plan_one(&mut self, stored: StoredObject, places: &NamespacePlaces) -> Result<bool, PlanError> {
        let key = stored.key.clone();
        let Ok(object) = stored.to_value() else { return Ok(false) };
        if object::is_deleting(&object) {
            return Ok(false);
        }
        let before = PlacementRecord::of(&object).unwrap_or_default();
        let (mut after, mut reason, mut next) = (before.clone(), None, Some(stored));
        for _ in 0..MAX_STEPS {
            let Some(current) = next.take() else { break };
            let Some(planned) = plan_follower(&self.shadow.next.ctx, current, places, true).await? else { break };
            let mut record = planned.step.record;
            record.clusters.retain(|copy| copy.phase != CopyPhase::Leaving || !self.ends_on(&copy.uid));
            if record.clusters == after.clusters {
                break;
            }
            reason = planned.step.cause.or(reason);
            self.shadow.snapshot.put_placement(&key, record.clone());
            after = record;
            next = self.shadow.next.ctx.objects.store().get(&key).await?;
        }
        if after.clusters == before.clusters {
            return Ok(false);
        }
        let from = self.rows.get(&key).map_or_else(|| places_of(&before), |known| known.from.clone());
        let (kind, to, reason) = (self.kind_of(&object), places_of(&after), reason.unwrap_or_default());
        let row = PlanRow { key: key.clone(), kind, from, to, reason, follows: true };
        if row.is_nothing() {
            self.rows.remove(&key);
        } else {
            self.rows.insert(key, row);
        }
        Ok(true)
    }

    /// Returns true if a leaving copy ends on a physical cluster: it answers, or does not exist.
    fn ends_on(&self, uid: &Uid) -> bool {
        self.shadow.next.ctx.facts().physical(uid).is_none_or(|physical| physical.info.is_ready())
    }
}

fn places_of(record: &PlacementRecord) -> Vec<PlannedPlace> {
    let place = |copy: &PlacedCopy| PlannedPlace { name: copy.name.clone(), uid: copy.uid.clone(), replicas: None };
    record.active().map(place).collect()
}
