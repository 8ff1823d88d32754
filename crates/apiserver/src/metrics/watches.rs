//! Metrics of watches.

use prometheus::{Histogram, IntCounter};
use tokio::time::Instant;

/// Metrics of one watch.
pub(crate) struct WatchMetrics {
    /// Events sent.
    pub(crate) events: IntCounter,
    /// Their sizes.
    pub(crate) sizes: Histogram,
    /// Time to the end of the initial state.
    pub(crate) first_state: Histogram,
    /// All bytes sent.
    pub(crate) sent: usize,
    pub(super) since: Instant,
    /// Durations and sent bytes of ended watches.
    pub(super) durations: Histogram,
    pub(super) lengths: Histogram,
}

impl Drop for WatchMetrics {
    fn drop(&mut self) {
        self.durations.observe(self.since.elapsed().as_secs_f64());
        self.lengths.observe(self.sent as f64);
    }
}
