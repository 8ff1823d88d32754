//! How much caches take: one family of gauges for all, those of the store among them. They are measured when somebody asks.

use portolan_store::{cache_bytes, cache_entries};
use prometheus::IntGauge;

use super::Maker;
use crate::ApiServer;

/// A gauge for each cache of the server. Their bounds are in `docs/operating.md`.
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
    pub(super) fn new(make: &Maker) -> Self {
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
}

impl ApiServer {
    /// Measures all caches.
    pub(crate) fn measure_caches(&self) {
        let gauges = &self.metrics.caches;
        for (gauge, taken) in [
            (&gauges.frames, self.frames.bytes()),
            (&gauges.definitions, self.kinds.definition_bytes()),
            (&gauges.documents, self.kinds.document_bytes()),
            (&gauges.conversions, self.conversions.bytes()),
            (&gauges.expressions, self.expressions.bytes()),
            (&gauges.configuration, self.configured.bytes()),
            (&gauges.roles, self.rbac.bytes()),
            (&gauges.tokens, self.tokens.remembered()),
            (&gauges.webhooks, self.webhooks.kept()),
        ] {
            gauge.set(i64::try_from(taken).unwrap_or(i64::MAX));
        }
    }
}
