//! What waits for the committer, bounded and counted.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use prometheus::IntGauge;

use super::{QUEUE_BYTES, Reply};
use crate::{StoreError, core::Answer, metrics::Metrics, plan::PreparedTransaction};

/// The transactions that were accepted and are planned in no batch yet, and their bytes.
pub(super) struct Backlog {
    bytes: AtomicUsize,
    count_gauge: IntGauge,
    bytes_gauge: IntGauge,
}

/// A place in the backlog, until it is dropped.
struct Place {
    backlog: Arc<Backlog>,
    bytes: usize,
}

/// A transaction that waits, and who waits for its answer.
pub(crate) struct Waiting {
    txn: PreparedTransaction,
    reply: Reply<Answer>,
    place: Place,
}

impl Backlog {
    pub(super) fn of(metrics: &Metrics) -> Arc<Self> {
        let (count_gauge, bytes_gauge) = (metrics.queued.clone(), metrics.queued_bytes.clone());
        Arc::new(Self { bytes: AtomicUsize::new(0), count_gauge, bytes_gauge })
    }

    /// Has a transaction wait.
    ///
    /// # Errors
    /// `Overloaded` when that would be more bytes than may wait.
    pub(super) fn admit(
        self: &Arc<Self>,
        txn: PreparedTransaction,
        reply: Reply<Answer>,
    ) -> Result<Waiting, StoreError> {
        let bytes = txn.bytes();
        if self.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes > QUEUE_BYTES {
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
            return Err(StoreError::Overloaded);
        }
        self.count_gauge.inc();
        self.bytes_gauge.add(signed(bytes));
        Ok(Waiting { txn, reply, place: Place { backlog: self.clone(), bytes } })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Self { backlog, bytes } = self;
        backlog.bytes.fetch_sub(*bytes, Ordering::AcqRel);
        backlog.count_gauge.dec();
        backlog.bytes_gauge.sub(signed(*bytes));
    }
}

impl Waiting {
    pub(super) fn txn(&self) -> &PreparedTransaction {
        &self.txn
    }

    /// It waits no more: it is planned now.
    pub(super) fn begin(self) -> (PreparedTransaction, Reply<Answer>) {
        let Self { txn, reply, place } = self;
        drop(place);
        (txn, reply)
    }

    /// Answers whoever waits that nothing was written.
    pub(super) fn refuse(self, error: &StoreError) {
        let (_, reply) = self.begin();
        // An error means that nobody waits any more.
        let _ = reply.send(Err(error.clone()));
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
