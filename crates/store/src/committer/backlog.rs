//! What waits for the committer, bounded and counted.

use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::IntGauge;

use super::QUEUE_BYTES;

/// The transactions that were accepted and are in no batch yet, and their bytes.
pub(super) struct Backlog {
    bytes: AtomicUsize,
    count_gauge: IntGauge,
    bytes_gauge: IntGauge,
}

impl Backlog {
    pub(super) fn new(count_gauge: IntGauge, bytes_gauge: IntGauge) -> Self {
        Self { bytes: AtomicUsize::new(0), count_gauge, bytes_gauge }
    }

    /// Counts a transaction, unless that would be more bytes than may wait.
    pub(super) fn admit(&self, bytes: usize) -> bool {
        let fits = self.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes <= QUEUE_BYTES;
        match fits {
            true => self.count(bytes),
            false => drop(self.bytes.fetch_sub(bytes, Ordering::AcqRel)),
        }
        fits
    }

    /// Counts a transaction that was taken out once and waits again, whatever that comes to.
    pub(super) fn put_back(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        self.count(bytes);
    }

    pub(super) fn take(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.count_gauge.dec();
        self.bytes_gauge.sub(signed(bytes));
    }

    fn count(&self, bytes: usize) {
        self.count_gauge.inc();
        self.bytes_gauge.add(signed(bytes));
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
