//! Request queue of the committer's thread, which parks at once when the queue is empty. A channel's receiver spins and
//! yields for some microseconds first: too long for a single write, and too short to catch the next one.

use std::{
    thread::{self, Thread},
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, TrySendError};

use super::CommitterRequest;
use portolan_types::MonotonicInstant;

/// Sending end of the queue.
pub(super) struct RequestSender {
    /// `None` while it is dropped.
    queue: Option<Sender<CommitterRequest>>,
    thread: Thread,
}

impl RequestSender {
    /// Creates the sending end for a thread that has the other one.
    pub(super) fn new(queue: Sender<CommitterRequest>, thread: &Thread) -> Self {
        Self { queue: Some(queue), thread: thread.clone() }
    }

    pub(super) fn try_send(&self, request: CommitterRequest) -> Result<(), TrySendError<CommitterRequest>> {
        match &self.queue {
            Some(queue) => queue.try_send(request)?,
            None => return Err(TrySendError::Disconnected(request)),
        }
        self.thread.unpark();
        Ok(())
    }
}

impl Clone for RequestSender {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), thread: self.thread.clone() }
    }
}

impl Drop for RequestSender {
    fn drop(&mut self) {
        self.queue = None;
        // This may be the last sender.
        self.thread.unpark();
    }
}

/// Receiving end of the queue. A wake-up may be spurious or meant for something else: the thread checks the queue
/// before it parks.
pub(super) struct RequestReceiver(Receiver<CommitterRequest>);

impl RequestReceiver {
    pub(super) fn new(queue: Receiver<CommitterRequest>) -> Self {
        Self(queue)
    }

    /// Waits for the next request; `None` once all senders are gone.
    pub(super) fn recv(&self) -> Option<CommitterRequest> {
        loop {
            match self.0.try_recv() {
                Ok(request) => return Some(request),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => thread::park(),
            }
        }
    }

    pub(super) fn recv_timeout(&self, time: Duration) -> Result<CommitterRequest, RecvTimeoutError> {
        let end = MonotonicInstant::now() + time;
        loop {
            match self.0.try_recv() {
                Ok(request) => return Ok(request),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            match end.saturating_duration_since(MonotonicInstant::now()) {
                Duration::ZERO => return Err(RecvTimeoutError::Timeout),
                left => thread::park_timeout(left),
            }
        }
    }

    pub(super) fn try_recv(&self) -> Result<CommitterRequest, TryRecvError> {
        self.0.try_recv()
    }

    pub(super) fn try_iter(&self) -> impl Iterator<Item = CommitterRequest> {
        self.0.try_iter()
    }
}
