//! Metrics of the disk.

use std::sync::Arc;

use prometheus::{
    IntGauge,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::*;

/// Gauges that measure the disk at each scrape.
pub(super) struct DiskGauges {
    pub(super) disk: Arc<dyn StorageDisk>,
    pub(super) free: IntGauge,
    pub(super) taken: IntGauge,
}

impl Collector for DiskGauges {
    fn desc(&self) -> Vec<&Desc> {
        [self.free.desc(), self.taken.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let measured = [(&self.free, self.disk.free()), (&self.taken, self.disk.taken())];
        let families = measured.into_iter().filter_map(|(gauge, bytes)| {
            gauge.set(i64::try_from(bytes.ok()?).unwrap_or(i64::MAX));
            Some(gauge.collect())
        });
        families.flatten().collect()
    }
}
