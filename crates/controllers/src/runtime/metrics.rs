//! What loops tell about themselves and what they see.

use std::sync::Arc;

use portolan_store::WorkMetrics;
use prometheus::Registry;

use super::census::{Census, Objects};

/// Numbers of all loops of a process.
#[derive(Clone)]
pub struct LoopMetrics {
    pub(super) work: WorkMetrics,
    pub(super) census: Arc<Census>,
}

impl LoopMetrics {
    /// Registers them: `workqueue_*` by loop, `apiserver_storage_objects` and `apiserver_resource_objects` by resource.
    ///
    /// # Errors
    /// When there is something of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let census = Arc::new(Census::new());
        registry.register(Box::new(Objects::new(census.clone())?))?;
        Ok(Self { work: WorkMetrics::register(registry)?, census })
    }

    /// Those of work queues, for loops of other kinds.
    pub fn work(&self) -> &WorkMetrics {
        &self.work
    }
}
