//! Keys whose time has come: tenants take turns, and each tenant's keys go in the order they came.

use std::collections::{HashMap, VecDeque};

use super::WorkKey;

pub(super) struct Turns<K: WorkKey> {
    /// Never holds an empty one.
    keys: HashMap<K::Tenant, VecDeque<K>>,
    /// Each tenant with keys once, whose turn is next in front.
    order: VecDeque<K::Tenant>,
    len: usize,
}

impl<K: WorkKey> Default for Turns<K> {
    fn default() -> Self {
        Self { keys: HashMap::new(), order: VecDeque::new(), len: 0 }
    }
}

impl<K: WorkKey> Turns<K> {
    pub(super) fn push(&mut self, key: K) {
        let tenant = key.tenant();
        let own = self.keys.entry(tenant.clone()).or_default();
        if own.is_empty() {
            self.order.push_back(tenant);
        }
        own.push_back(key);
        self.len += 1;
    }

    pub(super) fn pop(&mut self) -> Option<K> {
        let tenant = self.order.pop_front()?;
        let own = self.keys.get_mut(&tenant)?;
        let key = own.pop_front()?;
        self.len -= 1;
        match own.is_empty() {
            true => drop(self.keys.remove(&tenant)),
            false => self.order.push_back(tenant),
        }
        Some(key)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn tenants(&self) -> usize {
        self.order.len()
    }
}
