//! Metrics of controllers.

use std::sync::Arc;

use portolan_store::WorkMetrics;
use prometheus::Registry;

use super::object_counts::{ObjectCountCollector, ObjectCounts};

/// Metrics of all controllers of a process.
#[derive(Clone)]
pub struct LoopMetrics {
    pub(super) work: WorkMetrics,
    pub(super) counts: Arc<ObjectCounts>,
}

impl LoopMetrics {
    /// Registers `workqueue_*` by controller, `apiserver_storage_objects` and `apiserver_resource_objects` by
    /// resource.
    ///
    /// # Errors
    /// If a metric of these names exists already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counts = Arc::new(ObjectCounts::new());
        registry.register(Box::new(ObjectCountCollector::new(counts.clone())?))?;
        Ok(Self { work: WorkMetrics::register(registry)?, counts })
    }

    /// Returns the metrics of work queues, for loops of other kinds.
    pub fn work(&self) -> &WorkMetrics {
        &self.work
    }
}
