//! What definitions weigh that are kept, each once however many logical clusters have it.

use std::{collections::HashMap, sync::Arc};

use portolan_types::LogicalClusterId;

use super::{compiled::Held, known::Known};

/// Counts who has which definition.
#[derive(Default)]
pub(super) struct Weights {
    /// By the addresses of definitions, which live as long as they are counted.
    holders: HashMap<usize, usize>,
    total: usize,
}

impl Weights {
    /// Bytes that all of them take, about.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    pub(super) fn add(&mut self, held: &Arc<Held>) {
        let holders = self.holders.entry(address(held)).or_default();
        if *holders == 0 {
            self.total += held.weight();
        }
        *holders += 1;
    }

    pub(super) fn remove(&mut self, held: &Arc<Held>) {
        let Some(holders) = self.holders.get_mut(&address(held)) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.holders.remove(&address(held));
            self.total -= held.weight();
        }
    }

    pub(super) fn drop_all(&mut self, dropped: impl IntoIterator<Item = (LogicalClusterId, Known)>) {
        for (_, known) in dropped {
            known.definitions.values().for_each(|own| self.remove(&own.held));
        }
    }
}

fn address(held: &Arc<Held>) -> usize {
    Arc::as_ptr(held) as usize
}
