//! Requests that Portolan has placed on each physical cluster, and the number of objects that each policy decides.
//!
//! Sums follow from events, which carry the object before and after a write, so no object is kept. A worker reserves
//! what it has decided until its event arrives.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{
    GroupResource, LogicalClusterId, ObjectKey, ResourceVersion, Uid,
    placement::{PolicyRef, ResourceAmounts},
    quantity::Quantity,
};

/// Amounts per physical cluster.
pub(crate) type UsageByCluster = Vec<(Uid, ResourceAmounts)>;

/// Sums over everything that is placed.
#[derive(Clone, Default)]
pub(crate) struct PlacedUsage {
    placed: BTreeMap<GroupResource, BTreeMap<Uid, ResourceAmounts>>,
    matched: BTreeMap<GroupResource, BTreeMap<String, u64>>,
    /// Number of objects with a decision of their own, by physical cluster.
    workloads: BTreeMap<GroupResource, BTreeMap<Uid, i64>>,
    reserved: BTreeMap<ObjectKey, UsageByCluster>,
    /// Revision up to which the writes of a resource are counted; `None` while it is listed.
    counted: BTreeMap<GroupResource, Option<ResourceVersion>>,
    /// Custom resources of logical clusters that are counted by the fields of an earlier definition.
    stale: BTreeSet<CountedResource>,
}

/// Resource of a logical cluster.
pub(crate) type CountedResource = (LogicalClusterId, GroupResource);

impl PlacedUsage {
    /// Starts a resource again, before it is listed.
    pub(crate) fn clear(&mut self, resource: &GroupResource) {
        self.placed.remove(resource);
        self.matched.remove(resource);
        self.workloads.remove(resource);
        self.reserved.retain(|key, _| key.resource != *resource);
        self.counted.insert(resource.clone(), None);
    }

    /// Replaces the sums of a resource by those of a list at a revision. Reservations stay until their events come.
    pub(crate) fn recount(
        &mut self,
        resource: &GroupResource,
        sums: BTreeMap<Uid, ResourceAmounts>,
        revision: ResourceVersion,
    ) {
        self.placed.insert(resource.clone(), sums);
        self.note_counted(resource, revision);
    }

    /// Notes that the writes of a resource are counted up to a revision, or a later one that was noted before.
    pub(crate) fn note_counted(&mut self, resource: &GroupResource, revision: ResourceVersion) {
        let counted = self.counted.entry(resource.clone()).or_default();
        *counted = (*counted).max(Some(revision));
    }

    /// Returns true if a list has counted a write before its event came.
    pub(crate) fn was_listed(&self, resource: &GroupResource, revision: ResourceVersion) -> bool {
        self.counted.get(resource).is_some_and(|counted| counted.is_some_and(|counted| counted >= revision))
    }

    /// Notes that other fields count the replicas of a custom resource than when it was counted.
    pub(crate) fn note_stale(&mut self, of: CountedResource) {
        self.stale.insert(of);
    }

    /// Returns the logical clusters of which a resource is counted by fields of before.
    pub(crate) fn stale_of(&self, resource: &GroupResource) -> BTreeSet<CountedResource> {
        self.stale.iter().filter(|(_, of)| of == resource).cloned().collect()
    }

    /// Notes that resources are counted by their present fields.
    pub(crate) fn note_fresh(&mut self, of: &BTreeSet<CountedResource>) {
        self.stale.retain(|known| !of.contains(known));
    }

    /// Returns true if the sums contain an object as it is at `revision`, by the present definition of its kind.
    /// Otherwise its room cannot be computed: the sums would be compared with requests that they do not contain.
    pub(crate) fn has_counted(&self, key: &ObjectKey, revision: ResourceVersion) -> bool {
        if !self.stale.is_empty() && self.stale.contains(&(key.cluster, key.resource.clone())) {
            return false;
        }
        match self.counted.get(&key.resource) {
            Some(counted) => counted.is_some_and(|counted| counted >= revision),
            // Nothing is counted of a resource without a feed.
            None => true,
        }
    }

    /// Returns the sums of all resources, decisions under way included, as those of one resource, which are faster to
    /// read. Nothing else is copied.
    pub(crate) fn merged(&self) -> Self {
        let reserved = self.reserved.values().flatten().map(|(uid, _)| uid);
        let uids: BTreeSet<&Uid> = self.placed.values().flat_map(BTreeMap::keys).chain(reserved).collect();
        let sums = uids.into_iter().map(|uid| (uid.clone(), self.of(uid))).collect();
        Self { placed: BTreeMap::from([(merged_resource(), sums)]), ..Self::default() }
    }

    /// Replaces what an object took by what it takes, in merged sums.
    pub(crate) fn replace_merged(&mut self, before: &UsageByCluster, after: &UsageByCluster) {
        self.replace(&merged_resource(), before, after);
    }

    /// Replaces what an object took by what it takes.
    pub(crate) fn replace(&mut self, resource: &GroupResource, before: &UsageByCluster, after: &UsageByCluster) {
        let sums = self.placed.entry(resource.clone()).or_default();
        for (uid, amounts) in before {
            let Some(sum) = sums.get_mut(uid) else { continue };
            add(sum, amounts, -1);
        }
        for (uid, amounts) in after {
            add(sums.entry(uid.clone()).or_default(), amounts, 1);
        }
    }

    /// Counts an object with a decision of its own on the physical clusters that it is on now. Returns true if the
    /// numbers changed.
    pub(crate) fn count_workload(&mut self, resource: &GroupResource, was_on: &[Uid], is_on: &[Uid]) -> bool {
        if was_on == is_on {
            return false;
        }
        let numbers = self.workloads.entry(resource.clone()).or_default();
        for (uids, change) in [(was_on, -1), (is_on, 1)] {
            for uid in uids {
                *numbers.entry(uid.clone()).or_default() += change;
            }
        }
        numbers.retain(|_, number| *number != 0);
        true
    }

    /// Returns the number of objects with a decision of their own on a physical cluster.
    pub(crate) fn workloads_on(&self, uid: &Uid) -> i64 {
        self.workloads.values().filter_map(|numbers| numbers.get(uid)).sum()
    }

    /// Moves an object from one policy's count to another's; whether anything changed.
    pub(crate) fn rematch(
        &mut self,
        resource: &GroupResource,
        before: Option<&PolicyRef>,
        after: Option<&PolicyRef>,
    ) -> bool {
        if before == after {
            return false;
        }
        let counts = self.matched.entry(resource.clone()).or_default();
        if let Some(count) = before.and_then(|p| counts.get_mut(&name(p))) {
            *count = count.saturating_sub(1);
        }
        if let Some(policy) = after {
            *counts.entry(name(policy)).or_insert(0) += 1;
        }
        true
    }

    /// Returns the number of objects that a policy decides.
    pub(crate) fn matched(&self, policy: &PolicyRef) -> u64 {
        let name = name(policy);
        self.matched.values().filter_map(|counts| counts.get(&name)).sum()
    }

    /// Returns the sum of the objects that are placed on a physical cluster.
    pub(crate) fn placed_on(&self, uid: &Uid) -> ResourceAmounts {
        let mut sum = ResourceAmounts::new();
        self.placed.values().filter_map(|sums| sums.get(uid)).for_each(|amounts| add(&mut sum, amounts, 1));
        sum
    }

    /// Returns what is taken of a physical cluster, decisions under way included.
    pub(crate) fn of(&self, uid: &Uid) -> ResourceAmounts {
        let mut sum = self.placed_on(uid);
        let reserved = self.reserved.values().flatten().filter(|(of, _)| of == uid);
        reserved.for_each(|(_, amounts)| add(&mut sum, amounts, 1));
        sum
    }

    /// Reserves what a decision takes beyond what the object took.
    pub(crate) fn reserve(&mut self, key: &ObjectKey, before: &UsageByCluster, after: &UsageByCluster) {
        let mut more: BTreeMap<Uid, ResourceAmounts> = BTreeMap::new();
        for (uid, amounts) in after {
            add(more.entry(uid.clone()).or_default(), amounts, 1);
        }
        for (uid, amounts) in before {
            add(more.entry(uid.clone()).or_default(), amounts, -1);
        }
        self.reserved.insert(key.clone(), more.into_iter().collect());
    }

    /// Releases a reservation: the object's event arrived, so it is counted now, or the decision was not written.
    pub(crate) fn release(&mut self, key: &ObjectKey) {
        self.reserved.remove(key);
    }
}

/// Returns the name of no resource, under which merged sums are.
fn merged_resource() -> GroupResource {
    GroupResource::new("", "")
}

/// Adds amounts to a sum.
pub(crate) fn add_amounts(sum: &mut ResourceAmounts, amounts: &ResourceAmounts) {
    add(sum, amounts, 1);
}

fn add(sum: &mut ResourceAmounts, amounts: &ResourceAmounts, sign: i64) {
    for (name, amount) in amounts {
        let total = sum.entry(name.clone()).or_insert(Quantity::ZERO);
        *total = if sign < 0 { total.minus(*amount) } else { *total + *amount };
    }
}

pub(super) fn name(policy: &PolicyRef) -> String {
    format!("{}/{}/{}", policy.workspace, policy.namespace.as_deref().unwrap_or_default(), policy.name)
}
