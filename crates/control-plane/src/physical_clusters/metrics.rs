//! Metrics of the syncers, read from them on each scrape.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use portolan_types::ObjectKey;
use prometheus::{
    IntCounterVec, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::RunningSyncer;

/// Collector of two families, with a few series per physical cluster.
pub(crate) struct SyncerMetrics {
    running: Arc<Mutex<HashMap<ObjectKey, RunningSyncer>>>,
    held: IntGaugeVec,
    writes: IntCounterVec,
}

impl SyncerMetrics {
    pub(super) fn new(running: Arc<Mutex<HashMap<ObjectKey, RunningSyncer>>>) -> Self {
        let held = Opts::new(
            "portolan_syncer_deletions_held",
            "Copies whose deletion is held back on a physical cluster, as too many came at once without firm proof.",
        );
        let writes = Opts::new(
            "portolan_syncer_writes_total",
            "Writes to a physical cluster by its present workers; repair is an apply that nothing upstream asked for.",
        );
        let clearly = "names and labels are constants";
        Self {
            running,
            held: IntGaugeVec::new(held, &["cluster", "uid"]).expect(clearly),
            writes: IntCounterVec::new(writes, &["cluster", "uid", "operation"]).expect(clearly),
        }
    }

    fn read(&self) {
        self.held.reset();
        self.writes.reset();
        for running in self.running.lock().expect("no code panics under this lock").values() {
            let (name, uid, stats) = (running.name.as_str(), running.inputs.uid.as_str(), running.handle.stats());
            self.held.with_label_values(&[name, uid]).set(i64::try_from(stats.held).unwrap_or(i64::MAX));
            for (operation, count) in [
                ("create", stats.creates),
                ("apply", stats.applies),
                ("repair", stats.repairs),
                ("delete", stats.deletes),
            ] {
                self.writes.with_label_values(&[name, uid, operation]).inc_by(count);
            }
        }
    }
}

impl Collector for SyncerMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.held.desc().into_iter().chain(self.writes.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read();
        self.held.collect().into_iter().chain(self.writes.collect()).collect()
    }
}
