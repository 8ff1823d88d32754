//! Total weight of the cached definitions, each counted once however many logical clusters have it.

use std::{collections::HashMap, sync::Arc};

use portolan_types::LogicalClusterId;

use super::{compiled::CachedDefinition, definition_cache::ClusterDefinitions};

/// Reference counts of definitions.
#[derive(Default)]
pub(super) struct DefinitionWeights {
    /// Counts by the address of the definition, which is alive while it is counted.
    holders: HashMap<usize, usize>,
    total: usize,
}

impl DefinitionWeights {
    /// Returns the estimated bytes of all of them.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    pub(super) fn add(&mut self, held: &Arc<CachedDefinition>) {
        let holders = self.holders.entry(address(held)).or_default();
        if *holders == 0 {
            self.total += held.weight();
        }
        *holders += 1;
    }

    pub(super) fn remove(&mut self, held: &Arc<CachedDefinition>) {
        let Some(holders) = self.holders.get_mut(&address(held)) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.holders.remove(&address(held));
            self.total -= held.weight();
        }
    }

    pub(super) fn drop_all(&mut self, dropped: impl IntoIterator<Item = (LogicalClusterId, ClusterDefinitions)>) {
        for (_, known) in dropped {
            known.definitions.values().for_each(|own| self.remove(&own.held));
        }
    }
}

fn address(held: &Arc<CachedDefinition>) -> usize {
    Arc::as_ptr(held) as usize
}
