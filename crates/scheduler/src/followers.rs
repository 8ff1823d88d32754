//! Placing what goes where others go. The workloads of a namespace are read once for all followers that wait.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use portolan_placement::{
    Admitted, Demand, Health, Moves, Overriding, PinOn, Role, Step, follow, is_legal, shares_of,
    with_shares_and_overrides,
};
use portolan_store::{RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{GroupKind, LogicalClusterId, NamespaceName, ObjectKey, Uid, placement::PlacementRecord};
use serde_json::Value;

use crate::{
    commit::Change,
    gather::{Gathered, placement_key},
    inhabited::{Inhabited, Places, Wanted},
    kinds,
    queue::Pending,
    rescan::placed_from_here,
    scheduler::{Inner, SchedulerError},
};

/// Followers of one namespace that are written at once.
const AT_ONCE: usize = 16;

impl Inner {
    /// Looks at the followers of a namespace that wait.
    pub(crate) async fn place_followers(
        &self,
        cluster: LogicalClusterId,
        namespace: &NamespaceName,
    ) -> Result<(), SchedulerError> {
        let pending = self.queue.take_followers(cluster, namespace);
        let done = self.try_followers(cluster, namespace, &pending).await;
        if done.is_err() {
            self.queue.put_back(cluster, namespace, pending);
        }
        done
    }

    async fn try_followers(
        &self,
        cluster: LogicalClusterId,
        namespace: &NamespaceName,
        pending: &Pending,
    ) -> Result<(), SchedulerError> {
        let followers = self.followers(cluster, namespace, pending).await?;
        if followers.is_empty() {
            return Ok(());
        }
        let inhabited = self.inhabited(cluster, namespace).await?;
        let place = |stored: StoredObject| {
            let in_passing = pending.all && !pending.keys.contains(&stored.key);
            self.place_follower(stored, &inhabited, in_passing)
        };
        stream::iter(followers).map(place).buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    /// What is not made below, as far as it can be read, and whether that is all.
    async fn range(&self, scope: RangeScope) -> Result<(Vec<StoredObject>, bool), StoreError> {
        let request = RangeRequest { labels: placed_from_here(), ..RangeRequest::all(scope).past_damage() };
        let page = self.objects.store().range(request).await?;
        Ok((page.objects, page.damaged.is_empty()))
    }

    async fn followers(
        &self,
        cluster: LogicalClusterId,
        namespace: &NamespaceName,
        pending: &Pending,
    ) -> Result<Vec<StoredObject>, StoreError> {
        let mut found = Vec::new();
        if pending.all {
            for resource in kinds::followers() {
                found.extend(self.range(RangeScope::Namespace(cluster, resource, namespace.clone())).await?.0);
            }
            return Ok(found);
        }
        for key in &pending.keys {
            match self.objects.store().get(key).await {
                Ok(follower) => found.extend(follower),
                // It stays where it is, and keeps no other from going where it is needed.
                Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// When `in_passing`, what is where it should be is not looked at further.
    async fn place_follower(
        &self,
        stored: StoredObject,
        inhabited: &Inhabited,
        in_passing: bool,
    ) -> Result<(), SchedulerError> {
        let key = &stored.key;
        let Some(builtin) = kinds::placeable(&key.resource) else { return Ok(()) };
        let unplaced = stored.record.header.placed_on.is_empty();
        let reach = self.reach(key.cluster);
        let selected = self.facts().is_kind_selected(&reach, builtin.group, builtin.kind);
        let is_stale = unplaced && !in_passing && self.shows_copies(key).await?;
        if unplaced && !selected && inhabited.anywhere.is_empty() && !is_stale {
            return Ok(());
        }
        let object = stored.to_value()?;
        let role = portolan_placement::role_of(builtin.group, builtin.kind, &object);
        if !role.follows() {
            return Ok(());
        }
        if portolan_types::object::is_deleting(&object) {
            return self.place_object(key).await;
        }
        let record = PlacementRecord::of(&object).unwrap_or_default();
        let mut needed = inhabited.needs(role, builtin.kind, &key.name, &record);
        let stays_at = inhabited.stays_at(role, builtin.kind, &key.name);
        if inhabited.is_partial {
            needed.extend(record.active().map(|copy| (copy.uid.clone(), copy.name.clone())));
        }
        let suits = in_passing && inhabited.suits(&record, &needed, &stays_at);
        let kind = GroupKind { group: builtin.group.into(), kind: builtin.kind.into() };
        let shares = shares_of(&kind, &object, &inhabited.divided);
        let as_written = shares.is_empty() && record.overrides.is_empty() && record.yields.is_empty();
        if !selected && as_written && !is_stale && (suits || (unplaced && needed.is_empty())) {
            return Ok(());
        }
        let Some(gathered) = self.gather(key, object, stored.revision).await? else { return Ok(()) };
        self.step_follower(gathered, stays_at, Wanted { needed, shares }).await
    }

    /// Returns true when the `Placement` of an object shows copies.
    async fn shows_copies(&self, of: &ObjectKey) -> Result<bool, StoreError> {
        let placement = self.objects.get_value(&placement_key(of)).await?;
        let copies = placement.as_ref().and_then(|(placement, _)| placement.pointer("/status/clusters"));
        Ok(copies.and_then(Value::as_array).is_some_and(|copies| !copies.is_empty()))
    }

    async fn step_follower(
        &self,
        gathered: Gathered,
        inhabited: BTreeSet<Uid>,
        Wanted { mut needed, shares }: Wanted,
    ) -> Result<(), SchedulerError> {
        let role = gathered.workload.role;
        let (wanted, deleting) = self.wanted_by_policy(&gathered);
        let pinned = role == Role::Claim && gathered.workload.pin.as_ref().is_some_and(|pin| pin.on == PinOn::Object);
        match (wanted, pinned) {
            (Some(wanted), true) => needed = wanted,
            (Some(wanted), false) => needed.extend(wanted),
            (None, _) => {}
        }
        {
            // A record may name a physical cluster that is gone, for the volumes that were there: nothing follows to that.
            let facts = self.facts();
            needed.retain(|uid, _| facts.physical(uid).is_some());
        }
        let demand = Demand { needed, inhabited, deleting, pinned };
        let empty = (BTreeMap::new(), BTreeSet::new());
        let epoch = gathered.revision.get();
        let health = Health { ready: &empty.0, up: &empty.1, drained: &empty.1, gone: &gathered.gone, epoch };
        let step = follow(role, &gathered.record, &demand, &health);
        let (policies, clusters) = {
            let facts = self.facts();
            let clusters = facts.clusters(&gathered.reach, &*self.rights, &step.record);
            (facts.policies(&gathered.reach, &gathered.namespace), clusters)
        };
        let by = Overriding { workload: &gathered.workload, policies: &policies, clusters: &clusters };
        let step = with_shares_and_overrides(step, &shares, &by);
        self.note_overruns(&gathered, &policies, &step.record);
        self.write_follower(&gathered, &step).await
    }

    async fn write_follower(&self, gathered: &Gathered, step: &Step) -> Result<(), SchedulerError> {
        let exists = gathered.record.clusters.iter().filter(|c| !gathered.gone.contains(&c.uid)).cloned().collect();
        let previous = PlacementRecord { clusters: exists, ..gathered.record.clone() };
        is_legal(&previous, &step.record)
            .map_err(|step| SchedulerError::Illegal { key: Box::new(gathered.key.clone()), step })?;
        if step.record.clusters.is_empty() && gathered.placement.is_none() {
            return Ok(());
        }
        let change = Change {
            key: &gathered.key,
            object: &gathered.object,
            revision: gathered.revision,
            previous: &gathered.record,
            step,
            decision: None,
            placement: gathered.placement.as_ref(),
            admitted: &Admitted::default(),
            status: None,
        };
        self.write(&change, None).await
    }

    /// Where a policy or a pin wants a follower besides, and which physical clusters are being deleted.
    fn wanted_by_policy(&self, gathered: &Gathered) -> (Option<Places>, BTreeSet<Uid>) {
        let mut workload = gathered.workload.clone();
        workload.moves = Moves::Surge;
        workload.pin = workload.pin.filter(|pin| pin.on == PinOn::Object);
        let facts = self.facts();
        let policies = facts.policies(&gathered.reach, &gathered.namespace);
        let clusters = facts.clusters(&gathered.reach, &*self.rights, &gathered.record);
        let deleting = clusters.iter().filter(|c| c.info.deleting).map(|c| c.info.uid.clone()).collect();
        let selected = policies.iter().any(|p| !p.policy.is_constraint() && p.policy.is_about(&workload));
        if !selected && workload.pin.is_none() {
            return (None, deleting);
        }
        let question = portolan_placement::Question {
            workload: &workload,
            policies: &policies,
            clusters: &clusters,
            previous: &gathered.record,
            home: &gathered.home.uids,
            existing: &BTreeMap::new(),
            now: self.now(),
        };
        let decision = portolan_placement::place(&question);
        (Some(decision.chosen.into_iter().map(|c| (c.uid, c.name)).collect()), deleting)
    }
}
