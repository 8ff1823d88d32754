//! Metrics of connections and of client certificates.

use prometheus::{Histogram, HistogramOpts, IntCounter};

use super::MetricFactory;

const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;
/// Buckets of the remaining validity of client certificates, in seconds.
const LIFETIMES: [f64; 14] = [
    0.0,
    HOUR / 2.0,
    HOUR,
    2.0 * HOUR,
    6.0 * HOUR,
    12.0 * HOUR,
    DAY,
    2.0 * DAY,
    4.0 * DAY,
    7.0 * DAY,
    30.0 * DAY,
    90.0 * DAY,
    180.0 * DAY,
    360.0 * DAY,
];

/// Metrics of connections.
pub(crate) struct ConnectionMetrics {
    failed: IntCounter,
    refused: IntCounter,
    lifetimes: Histogram,
}

impl ConnectionMetrics {
    pub(super) fn new(make: &MetricFactory) -> Self {
        let lifetimes = HistogramOpts::new(
            "apiserver_client_certificate_expiration_seconds",
            "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.",
        );
        Self {
            failed: make.count(
                "apiserver_tls_handshake_errors_total",
                "[ALPHA] Number of requests dropped with 'TLS handshake error from' error",
            ),
            refused: make.count(
                "portolan_connections_refused_total",
                "Number of connections refused because all slots were taken and no connection could be evicted.",
            ),
            lifetimes: make.keep(Histogram::with_opts(lifetimes.buckets(LIFETIMES.to_vec()))),
        }
    }

    /// Counts a failed TLS handshake.
    pub(crate) fn failed(&self) {
        self.failed.inc();
    }

    /// Counts a connection that got no slot.
    pub(crate) fn refused(&self) {
        self.refused.inc();
    }

    /// Records the remaining validity of a client certificate, in seconds.
    pub(crate) fn certified(&self, seconds: f64) {
        self.lifetimes.observe(seconds);
    }
}
