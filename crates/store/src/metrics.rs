//! What the store tells about itself. Series are per store, never per logical cluster.

use std::{sync::Arc, time::Instant};

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::kv::OrderedKv;

/// How many bytes a cache takes, of the one family that all caches of the process are in. To be registered.
///
/// # Errors
/// When the name is no value of a label.
pub fn cache_bytes(cache: &str) -> prometheus::Result<IntGauge> {
    let help = "Bytes that a cache takes, about.";
    IntGauge::with_opts(Opts::new("portolan_cache_bytes", help).const_label("cache", cache))
}

/// As [`cache_bytes`], of a cache whose entries are counted.
///
/// # Errors
/// When the name is no value of a label.
pub fn cache_entries(cache: &str) -> prometheus::Result<IntGauge> {
    let help = "Entries that a cache has.";
    IntGauge::with_opts(Opts::new("portolan_cache_entries", help).const_label("cache", cache))
}

/// Registers what is not registered already. A second store in one registry keeps its figures to itself.
pub(crate) fn register(registry: &Registry, collector: Box<dyn Collector>) {
    if let Err(error) = registry.register(collector) {
        tracing::debug!(error = %error, "a metric of the store is registered already");
    }
}

/// What an engine's pages take, measured whenever metrics are read.
pub(crate) struct Pages {
    kv: Arc<dyn OrderedKv>,
    bytes: IntGauge,
}

impl Pages {
    pub(crate) fn of(kv: Arc<dyn OrderedKv>) -> prometheus::Result<Self> {
        Ok(Self { kv, bytes: cache_bytes("pages")? })
    }
}

impl Collector for Pages {
    fn desc(&self) -> Vec<&Desc> {
        self.bytes.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // What was told last is told again when it cannot be measured now.
        if let Some(bytes) = self.kv.pages() {
            self.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        self.bytes.collect()
    }
}

/// Counters and gauges of one store.
pub(crate) struct Metrics {
    /// Transactions that wait for the committer.
    pub(crate) queued: IntGauge,
    /// Their bytes.
    pub(crate) queued_bytes: IntGauge,
    /// Transactions that were refused because the queue was full.
    pub(crate) overloaded: IntCounter,
    /// Watches that are open.
    pub(crate) watchers: IntGauge,
    /// Heavy reads that wait for a thread.
    pub(crate) waiting_reads: IntGauge,
    /// Pairs of a resource and a logical cluster that are kept in memory.
    pub(crate) spread: IntGauge,
    /// Bytes of recent events that are kept for watches.
    pub(crate) rings: IntGauge,
    /// Damaged objects that are known.
    pub(crate) damaged: IntGauge,
    /// What else is known to be damaged.
    pub(crate) faults: IntGauge,
    writes: IntCounter,
    sync_seconds: Histogram,
}

impl Metrics {
    /// Registers them, where there is a registry.
    pub(crate) fn new(registry: Option<&Registry>) -> prometheus::Result<Self> {
        let buckets = prometheus::exponential_buckets(0.000_05, 2.0, 16)?;
        let sync = HistogramOpts::new("portolan_store_sync_seconds", "Time to make a batch of writes durable.");
        let metrics = Self {
            queued: IntGauge::new("portolan_store_queued_transactions", "Transactions that wait for the committer.")?,
            queued_bytes: IntGauge::new("portolan_store_queued_bytes", "Bytes of transactions that wait.")?,
            overloaded: IntCounter::new("portolan_store_overloaded_total", "Transactions refused by a full queue.")?,
            watchers: IntGauge::new("portolan_store_watchers", "Watches that are open.")?,
            waiting_reads: IntGauge::new("portolan_store_waiting_reads", "Long reads that wait for a thread.")?,
            spread: cache_entries("spread")?,
            rings: cache_bytes("watch-rings")?,
            damaged: IntGauge::new(
                "portolan_store_damaged_objects",
                "Stored objects that cannot be read, as far as reads have come across them.",
            )?,
            faults: IntGauge::new(
                "portolan_store_faults",
                "What of the store beside its objects is damaged or cannot be read, as far as that is known.",
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
        let collectors: [Box<dyn Collector>; 11] = [
            Box::new(self.queued.clone()),
            Box::new(self.queued_bytes.clone()),
            Box::new(self.overloaded.clone()),
            Box::new(self.watchers.clone()),
            Box::new(self.waiting_reads.clone()),
            Box::new(self.spread.clone()),
            Box::new(self.rings.clone()),
            Box::new(self.damaged.clone()),
            Box::new(self.faults.clone()),
            Box::new(self.writes.clone()),
            Box::new(self.sync_seconds.clone()),
        ];
        collectors.into_iter().for_each(|collector| register(registry, collector));
    }

    /// Measures a commit of `writes` objects.
    pub(crate) fn time_sync<T, E>(&self, writes: usize, sync: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = Instant::now();
        let done = sync();
        self.committed(writes, start, &done);
        done
    }

    /// As [`Metrics::time_sync`], where another process commits.
    pub(crate) async fn time_commit<T, E>(
        &self,
        writes: usize,
        commit: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let start = Instant::now();
        let done = commit.await;
        self.committed(writes, start, &done);
        done
    }

    fn committed<T, E>(&self, writes: usize, start: Instant, done: &Result<T, E>) {
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
    use crate::{Engine, Expect, StoreConfig, Transaction, open};

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
