//! What becomes of connections before there is a request on them, and the certificates that are shown.

use prometheus::{Histogram, HistogramOpts, IntCounter};

use super::Maker;

const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;
/// Buckets of the time that certificates of clients still hold, in seconds.
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

/// What is counted of connections.
pub(crate) struct ConnectionMetrics {
    failed: IntCounter,
    refused: IntCounter,
    lifetimes: Histogram,
}

impl ConnectionMetrics {
    pub(super) fn new(make: &Maker) -> Self {
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
                "Connections refused because all slots were taken and none of their holders was idle",
            ),
            lifetimes: make.keep(Histogram::with_opts(lifetimes.buckets(LIFETIMES.to_vec()))),
        }
    }

    /// No TLS connection came about.
    pub(crate) fn failed(&self) {
        self.failed.inc();
    }

    /// Counts a connection that found no slot.
    pub(crate) fn refused(&self) {
        self.refused.inc();
    }

    /// A request came with a certificate that holds for so many seconds more.
    pub(crate) fn certified(&self, seconds: f64) {
        self.lifetimes.observe(seconds);
    }
}
