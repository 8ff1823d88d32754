//! Keys whose time has come: tenants take turns, and each tenant's keys go in the order they came.

use std::collections::{HashMap, VecDeque};

use super::WorkKey;

pub(super) struct Turns<K: WorkKey> {
    /// Never holds an empty one.
    keys: HashMap<K::Tenant, VecDeque<K>>,
    /// Each tenant with keys once, whose turn is next in front; but for those that have as many in work as they may.
    order: VecDeque<K::Tenant>,
    /// How many keys of a tenant have been taken and not given back. Never holds a zero.
    taken: HashMap<K::Tenant, usize>,
    most_taken: usize,
    len: usize,
}

impl<K: WorkKey> Default for Turns<K> {
    fn default() -> Self {
        Self { keys: HashMap::new(), order: VecDeque::new(), taken: HashMap::new(), most_taken: usize::MAX, len: 0 }
    }
}

impl<K: WorkKey> Turns<K> {
    pub(super) fn at_most(&mut self, taken: usize) {
        self.most_taken = taken.max(1);
    }

    pub(super) fn push(&mut self, key: K) {
        let tenant = key.tenant();
        let may_take = self.may_take(&tenant);
        let own = self.keys.entry(tenant.clone()).or_default();
        if own.is_empty() && may_take {
            self.order.push_back(tenant);
        }
        own.push_back(key);
        self.len += 1;
    }

    /// The next key, to be given back.
    pub(super) fn pop(&mut self) -> Option<K> {
        let tenant = self.order.pop_front()?;
        let own = self.keys.get_mut(&tenant)?;
        let key = own.pop_front()?;
        self.len -= 1;
        if own.is_empty() {
            self.keys.remove(&tenant);
        }
        *self.taken.entry(tenant.clone()).or_default() += 1;
        self.line_up(tenant);
        Some(key)
    }

    /// A key of a tenant that was taken is not worked on any more.
    pub(super) fn give_back(&mut self, tenant: &K::Tenant) {
        let was_held_up = !self.may_take(tenant);
        match self.taken.get_mut(tenant) {
            Some(taken) if *taken > 1 => *taken -= 1,
            _ => drop(self.taken.remove(tenant)),
        }
        if was_held_up {
            self.line_up(tenant.clone());
        }
    }

    fn line_up(&mut self, tenant: K::Tenant) {
        if self.keys.contains_key(&tenant) && self.may_take(&tenant) {
            self.order.push_back(tenant);
        }
    }

    fn may_take(&self, tenant: &K::Tenant) -> bool {
        self.taken.get(tenant).is_none_or(|taken| *taken < self.most_taken)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn tenants(&self) -> usize {
        self.order.len()
    }
}
