//! What Portolan has placed on each physical cluster, and how many objects each policy decides.
//!
//! Sums follow from events, which carry the object before and after a write, so no object is kept. What a worker has decided
//! but nobody has seen yet is reserved until its event comes.

use std::collections::BTreeMap;

use portolan_types::{
    GroupResource, ObjectKey, Uid,
    placement::{PolicyRef, Resources},
    quantity::Quantity,
};

/// Amounts per physical cluster.
pub(crate) type Amounts = Vec<(Uid, Resources)>;

/// Sums over everything that is placed.
#[derive(Default)]
pub(crate) struct Usage {
    placed: BTreeMap<GroupResource, BTreeMap<Uid, Resources>>,
    matched: BTreeMap<GroupResource, BTreeMap<String, u64>>,
    reserved: BTreeMap<ObjectKey, Amounts>,
}

impl Usage {
    /// Starts a resource anew, before it is listed.
    pub(crate) fn clear(&mut self, resource: &GroupResource) {
        self.placed.remove(resource);
        self.matched.remove(resource);
        self.reserved.retain(|key, _| key.resource != *resource);
    }

    /// Replaces what an object took by what it takes.
    pub(crate) fn replace(&mut self, resource: &GroupResource, before: &Amounts, after: &Amounts) {
        let sums = self.placed.entry(resource.clone()).or_default();
        for (uid, amounts) in before {
            let Some(sum) = sums.get_mut(uid) else { continue };
            add(sum, amounts, -1);
        }
        for (uid, amounts) in after {
            add(sums.entry(uid.clone()).or_default(), amounts, 1);
        }
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

    /// How many objects a policy decides.
    pub(crate) fn matched(&self, policy: &PolicyRef) -> u64 {
        let name = name(policy);
        self.matched.values().filter_map(|counts| counts.get(&name)).sum()
    }

    /// Returns the sum of what is placed on a physical cluster.
    pub(crate) fn placed_on(&self, uid: &Uid) -> Resources {
        let mut sum = Resources::new();
        self.placed.values().filter_map(|sums| sums.get(uid)).for_each(|amounts| add(&mut sum, amounts, 1));
        sum
    }

    /// Returns what is taken of a physical cluster, decisions under way included.
    pub(crate) fn of(&self, uid: &Uid) -> Resources {
        let mut sum = self.placed_on(uid);
        let reserved = self.reserved.values().flatten().filter(|(of, _)| of == uid);
        reserved.for_each(|(_, amounts)| add(&mut sum, amounts, 1));
        sum
    }

    /// Reserves what a decision takes beyond what the object took.
    pub(crate) fn reserve(&mut self, key: &ObjectKey, before: &Amounts, after: &Amounts) {
        let mut more: BTreeMap<Uid, Resources> = BTreeMap::new();
        for (uid, amounts) in after {
            add(more.entry(uid.clone()).or_default(), amounts, 1);
        }
        for (uid, amounts) in before {
            add(more.entry(uid.clone()).or_default(), amounts, -1);
        }
        self.reserved.insert(key.clone(), more.into_iter().collect());
    }

    /// An event of the object came, so it is counted now; or the decision came to nothing.
    pub(crate) fn release(&mut self, key: &ObjectKey) {
        self.reserved.remove(key);
    }
}

fn add(sum: &mut Resources, amounts: &Resources, sign: i64) {
    for (name, amount) in amounts {
        let total = sum.entry(name.clone()).or_insert(Quantity::ZERO);
        *total = if sign < 0 { total.minus(*amount) } else { *total + *amount };
    }
}

pub(super) fn name(policy: &PolicyRef) -> String {
    format!("{}/{}/{}", policy.workspace, policy.namespace.as_deref().unwrap_or_default(), policy.name)
}
