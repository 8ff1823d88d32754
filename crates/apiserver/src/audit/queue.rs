//! Bounded queue of audit events before a sink. Requests never wait for a sink: what does not fit is dropped and
//! counted.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// Limit of queued bytes per sink.
const MAX_BYTES: usize = 64 << 20;

/// Event as a line of JSON, or a request to write everything before it.
pub(super) enum QueuedEvent {
    Line(QueuedLine),
    /// Answered once all earlier events are written or lost.
    Flush(oneshot::Sender<()>),
}

/// Line whose bytes count against the queue until it is dropped.
pub(super) struct QueuedLine {
    pub(super) line: Bytes,
    queued: Arc<AtomicUsize>,
}

impl Drop for QueuedLine {
    fn drop(&mut self) {
        self.queued.fetch_sub(self.line.len(), Ordering::Relaxed);
    }
}

/// Sending end of a queue.
#[derive(Clone)]
pub(super) struct AuditQueue {
    send: mpsc::Sender<QueuedEvent>,
    queued: Arc<AtomicUsize>,
}

impl AuditQueue {
    /// Creates a queue of at most `most` events.
    pub(super) fn new(most: usize) -> (Self, mpsc::Receiver<QueuedEvent>) {
        let (send, receive) = mpsc::channel(most.max(1));
        (Self { send, queued: Arc::default() }, receive)
    }

    /// Queues a line. Returns false if it was dropped.
    pub(super) fn push(&self, line: Bytes) -> bool {
        let length = line.len();
        let before = self.queued.fetch_add(length, Ordering::Relaxed);
        let queued = QueuedLine { line, queued: self.queued.clone() };
        before + length <= MAX_BYTES && self.send.try_send(QueuedEvent::Line(queued)).is_ok()
    }

    /// Waits until all events that are queued now have been handled.
    pub(super) async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        if self.send.send(QueuedEvent::Flush(done)).await.is_ok() {
            // A sink that ended has nothing more to write.
            let _ = wait.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_do_not_fit_are_dropped() {
        let (queue, mut receive) = AuditQueue::new(2);
        let pushed = ["a", "b", "c"].map(|line| queue.push(Bytes::from(line)));
        assert_eq!(pushed, [true, true, false], "by number");
        assert_eq!(queue.queued.load(Ordering::Relaxed), 2, "a dropped event does not count");
        drop(receive.try_recv());
        assert!(!queue.push(vec![0; MAX_BYTES].into()), "by bytes");
        assert!(queue.push(vec![0; MAX_BYTES - 1].into()));
        drop((receive.try_recv(), receive.try_recv()));
        assert_eq!(queue.queued.load(Ordering::Relaxed), 0);
    }
}
