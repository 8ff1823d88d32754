//! Sizes of caches: one family of gauges for all, including the store's, measured on each scrape.

use portolan_store::{cache_bytes, cache_entries};
use prometheus::IntGauge;

use super::MetricFactory;

/// Gauge per cache of the server. Their limits are in `docs/operating.md`.
pub(crate) struct CacheMetrics {
    frames: IntGauge,
    definitions: IntGauge,
    documents: IntGauge,
    conversions: IntGauge,
    expressions: IntGauge,
    configuration: IntGauge,
    roles: IntGauge,
    tokens: IntGauge,
    webhooks: IntGauge,
}

impl CacheMetrics {
    pub(super) fn new(make: &MetricFactory) -> Self {
        let bytes = |cache| make.keep(cache_bytes(cache));
        let entries = |cache| make.keep(cache_entries(cache));
        Self {
            frames: bytes("watch-frames"),
            definitions: bytes("definitions"),
            documents: bytes("documents"),
            conversions: bytes("conversions"),
            expressions: bytes("expressions"),
            configuration: bytes("admission-configuration"),
            roles: bytes("roles"),
            tokens: entries("tokens"),
            webhooks: entries("webhook-clients"),
        }
    }

    /// Sets the gauges.
    pub(crate) fn set(&self, sizes: &CacheSizes) {
        for (gauge, size) in [
            (&self.frames, sizes.frames),
            (&self.definitions, sizes.definitions),
            (&self.documents, sizes.documents),
            (&self.conversions, sizes.conversions),
            (&self.expressions, sizes.expressions),
            (&self.configuration, sizes.configuration),
            (&self.roles, sizes.roles),
            (&self.tokens, sizes.tokens),
            (&self.webhooks, sizes.webhooks),
        ] {
            gauge.set(i64::try_from(size).unwrap_or(i64::MAX));
        }
    }
}

/// Sizes of the caches, in bytes or entries.
pub(crate) struct CacheSizes {
    pub(crate) frames: usize,
    pub(crate) definitions: usize,
    pub(crate) documents: usize,
    pub(crate) conversions: usize,
    pub(crate) expressions: usize,
    pub(crate) configuration: usize,
    pub(crate) roles: usize,
    pub(crate) tokens: usize,
    pub(crate) webhooks: usize,
}
