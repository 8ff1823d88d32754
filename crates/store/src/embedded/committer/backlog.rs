//! Backlog of the committer, bounded and counted.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use prometheus::IntGauge;

use super::{CommitterReply, QUEUE_BYTES};
use crate::{
    api::StoreError,
    metrics::StoreMetrics,
    write::{core::CommitResult, transaction::PreparedTransaction},
};

/// Accepted transactions that are not planned yet, and their bytes.
pub(super) struct Backlog {
    bytes: AtomicUsize,
    count_gauge: IntGauge,
    bytes_gauge: IntGauge,
}

/// Share of the backlog, until it is dropped.
struct BacklogShare {
    backlog: Arc<Backlog>,
    bytes: usize,
}

/// Waiting transaction and its reply channel.
pub(crate) struct WaitingTransaction {
    txn: PreparedTransaction,
    reply: CommitterReply<CommitResult>,
    place: BacklogShare,
}

impl Backlog {
    pub(super) fn of(metrics: &StoreMetrics) -> Arc<Self> {
        let (count_gauge, bytes_gauge) = (metrics.queued.clone(), metrics.queued_bytes.clone());
        Arc::new(Self { bytes: AtomicUsize::new(0), count_gauge, bytes_gauge })
    }

    /// Admits a transaction to the backlog.
    ///
    /// # Errors
    /// `Overloaded` if the backlog would exceed its bytes.
    pub(super) fn admit(
        self: &Arc<Self>,
        txn: PreparedTransaction,
        reply: CommitterReply<CommitResult>,
    ) -> Result<WaitingTransaction, StoreError> {
        let bytes = txn.bytes();
        if self.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes > QUEUE_BYTES {
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
            return Err(StoreError::Overloaded);
        }
        self.count_gauge.inc();
        self.bytes_gauge.add(signed(bytes));
        Ok(WaitingTransaction { txn, reply, place: BacklogShare { backlog: self.clone(), bytes } })
    }
}

impl Drop for BacklogShare {
    fn drop(&mut self) {
        let Self { backlog, bytes } = self;
        backlog.bytes.fetch_sub(*bytes, Ordering::AcqRel);
        backlog.count_gauge.dec();
        backlog.bytes_gauge.sub(signed(*bytes));
    }
}

impl WaitingTransaction {
    pub(super) fn txn(&self) -> &PreparedTransaction {
        &self.txn
    }

    /// Removes the transaction from the backlog to plan it.
    pub(super) fn begin(self) -> (PreparedTransaction, CommitterReply<CommitResult>) {
        let Self { txn, reply, place } = self;
        drop(place);
        (txn, reply)
    }

    /// Answers the caller that nothing was written.
    pub(super) fn refuse(self, error: &StoreError) {
        let (_, reply) = self.begin();
        // An error means that the caller is gone.
        let _ = reply.send(Err(error.clone()));
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
