//! Metrics of the store. Series are per store, never per logical cluster.

use std::sync::Arc;

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::engine::OrderedKv;
use portolan_types::MonotonicInstant;

/// Creates the gauge of a cache's bytes, in the family shared by all caches of the process. The caller registers it.
///
/// # Errors
/// Fails if the name is not a valid label value.
pub fn cache_bytes(cache: &str) -> prometheus::Result<IntGauge> {
    let help = "Approximate size of a cache in bytes.";
    IntGauge::with_opts(Opts::new("portolan_cache_bytes", help).const_label("cache", cache))
}

/// Creates the gauge of a cache's entries, like [`cache_bytes`].
///
/// # Errors
/// Fails if the name is not a valid label value.
pub fn cache_entries(cache: &str) -> prometheus::Result<IntGauge> {
    let help = "Number of entries in a cache.";
    IntGauge::with_opts(Opts::new("portolan_cache_entries", help).const_label("cache", cache))
}

/// Registers a collector, unless it is registered already. The metrics of a second store in one registry are not
/// exported.
pub(crate) fn register(registry: &Registry, collector: Box<dyn Collector>) {
    if let Err(error) = registry.register(collector) {
        tracing::debug!(error = %error, "a metric of the store is registered already");
    }
}

/// Collector of the size of an engine's page cache, measured when metrics are read.
pub(crate) struct PageCacheMetrics {
    kv: Arc<dyn OrderedKv>,
    bytes: IntGauge,
}

impl PageCacheMetrics {
    pub(crate) fn of(kv: Arc<dyn OrderedKv>) -> prometheus::Result<Self> {
        Ok(Self { kv, bytes: cache_bytes("pages")? })
    }
}

impl Collector for PageCacheMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.bytes.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // The last value is reported again if it cannot be measured now.
        if let Some(bytes) = self.kv.pages() {
            self.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        self.bytes.collect()
    }
}

/// Metrics of one store.
pub(crate) struct StoreMetrics {
    /// Transactions that wait for the committer.
    pub(crate) queued: IntGauge,
    /// Bytes of these transactions.
    pub(crate) queued_bytes: IntGauge,
    /// Transactions rejected because the queue was full.
    pub(crate) overloaded: IntCounter,
    /// Open watches.
    pub(crate) watchers: IntGauge,
    /// Heavy reads that wait for a thread.
    pub(crate) waiting_reads: IntGauge,
    /// Pairs of a resource and a logical cluster in the in-memory index.
    pub(crate) spread: IntGauge,
    /// Bytes of recent events kept for watches.
    pub(crate) rings: IntGauge,
    /// Bytes of superseded objects that history keeps.
    pub(crate) history: IntGauge,
    /// Known damaged objects.
    pub(crate) damaged: IntGauge,
    /// Known damage other than objects.
    pub(crate) faults: IntGauge,
    writes: IntCounter,
    sync_seconds: Histogram,
}

impl StoreMetrics {
    /// Creates the metrics, and registers them if there is a registry.
    pub(crate) fn new(registry: Option<&Registry>) -> prometheus::Result<Self> {
        let buckets = prometheus::exponential_buckets(0.000_05, 2.0, 16)?;
        let sync = HistogramOpts::new("portolan_store_sync_seconds", "Time to make a batch of writes durable.");
        let metrics = Self {
            queued: IntGauge::new("portolan_store_queued_transactions", "Transactions that wait for the committer.")?,
            queued_bytes: IntGauge::new(
                "portolan_store_queued_bytes",
                "Bytes of transactions that wait for the committer.",
            )?,
            overloaded: IntCounter::new(
                "portolan_store_overloaded_total",
                "Transactions rejected because the queue was full.",
            )?,
            watchers: IntGauge::new("portolan_store_watchers", "Open watches.")?,
            waiting_reads: IntGauge::new("portolan_store_waiting_reads", "Heavy reads that wait for a thread.")?,
            spread: cache_entries("spread")?,
            rings: cache_bytes("watch-rings")?,
            history: IntGauge::new(
                "portolan_store_history_bytes",
                "Bytes of earlier states of objects that history keeps; 0 with etcd, which keeps them itself.",
            )?,
            damaged: IntGauge::new("portolan_store_damaged_objects", "Known stored objects that cannot be read.")?,
            faults: IntGauge::new(
                "portolan_store_faults",
                "Known damaged or unreadable parts of the store other than objects.",
            )?,
            writes: IntCounter::new("portolan_store_object_writes_total", "Objects written.")?,
            sync_seconds: Histogram::with_opts(sync.buckets(buckets))?,
        };
        if let Some(registry) = registry {
            metrics.register(registry);
        }
        Ok(metrics)
    }

    fn register(&self, registry: &Registry) {
        let collectors: [Box<dyn Collector>; 12] = [
            Box::new(self.queued.clone()),
            Box::new(self.queued_bytes.clone()),
            Box::new(self.overloaded.clone()),
            Box::new(self.watchers.clone()),
            Box::new(self.waiting_reads.clone()),
            Box::new(self.spread.clone()),
            Box::new(self.rings.clone()),
            Box::new(self.history.clone()),
            Box::new(self.damaged.clone()),
            Box::new(self.faults.clone()),
            Box::new(self.writes.clone()),
            Box::new(self.sync_seconds.clone()),
        ];
        collectors.into_iter().for_each(|collector| register(registry, collector));
    }

    /// Measures a commit of `writes` objects.
    pub(crate) fn time_sync<T, E>(&self, writes: usize, sync: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = MonotonicInstant::now();
        let done = sync();
        self.committed(writes, start, &done);
        done
    }

    /// Measures a commit by another process, like [`StoreMetrics::time_sync`].
    pub(crate) async fn time_commit<T, E>(
        &self,
        writes: usize,
        commit: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let start = MonotonicInstant::now();
        let done = commit.await;
        self.committed(writes, start, &done);
        done
    }

    fn committed<T, E>(&self, writes: usize, start: MonotonicInstant, done: &Result<T, E>) {
        self.sync_seconds.observe(start.elapsed().as_secs_f64());
        if done.is_ok() {
            self.writes.inc_by(writes as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams};
    use serde_json::json;

    use super::*;
    use crate::{
        api::{Expect, Transaction},
        open::{Engine, StoreConfig, open},
    };

    #[tokio::test]
    async fn a_store_on_disk_tells_its_room_and_its_pages() {
        for (engine, has_pages) in [(Engine::Redb, true), (Engine::Sled, false), (Engine::Memory, false)] {
            let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::new());
            let config = StoreConfig {
                registry: Some(registry.clone()),
                ..StoreConfig::new(engine, Some(dir.path().to_owned()))
            };
            let bound = config.cache_bytes as f64;
            let store = open(config, Seams::system()).unwrap();
            let things = GroupResource::new("", "things");
            let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, things, "a".parse().unwrap());
            let record = Record::of(&json!({"metadata": {"name": "a"}, "data": "x".repeat(100_000)}));
            store.commit(Transaction::one(key.clone(), Expect::Absent, Some(record))).await.unwrap();
            assert!(store.get(&key).await.unwrap().is_some());
            let told = |name: &str, cache: &str| {
                let families = registry.gather();
                let metrics = families.iter().filter(|family| family.name() == name).flat_map(|f| f.get_metric());
                let of = |metric: &&prometheus::proto::Metric| metric.get_label().iter().any(|l| l.value() == cache);
                metrics.filter(|metric| cache.is_empty() || of(metric)).map(|m| m.get_gauge().get_value()).next()
            };
            let pages = told("portolan_cache_bytes", "pages");
            assert_eq!(pages.is_some(), has_pages, "{engine:?}");
            assert!(pages.is_none_or(|bytes| (100_000.0..=bound).contains(&bytes)), "{engine:?}: {pages:?}");
            let is_on_disk = engine != Engine::Memory;
            for name in ["portolan_store_free_bytes", "apiserver_storage_size_bytes"] {
                assert_eq!(
                    told(name, "").map(|bytes| bytes > 100_000.0),
                    is_on_disk.then_some(true),
                    "{engine:?}: {name}"
                );
            }
            store.close().await;
        }
    }
}
