//! The line of requests for the committer's thread, which sleeps as soon as there is none. A channel's receiver first turns and yields
//! for some microseconds: too long for a write that comes alone, and too short for the next one to come.

use std::{
    thread::{self, Thread},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, TrySendError};

use super::Request;

/// Where requests line up.
pub(super) struct Line {
    /// `None` while it is dropped.
    queue: Option<Sender<Request>>,
    thread: Thread,
}

impl Line {
    /// In front of a thread that has the other end.
    pub(super) fn new(queue: Sender<Request>, thread: &Thread) -> Self {
        Self { queue: Some(queue), thread: thread.clone() }
    }

    pub(super) fn try_send(&self, request: Request) -> Result<(), TrySendError<Request>> {
        match &self.queue {
            Some(queue) => queue.try_send(request)?,
            None => return Err(TrySendError::Disconnected(request)),
        }
        self.thread.unpark();
        Ok(())
    }
}

impl Clone for Line {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), thread: self.thread.clone() }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.queue = None;
        // It may have been the last.
        self.thread.unpark();
    }
}

/// Where the thread takes them. Whatever else it waits for may wake it or be woken in its place: before it sleeps, it has looked.
pub(super) struct Requests(Receiver<Request>);

impl Requests {
    pub(super) fn new(queue: Receiver<Request>) -> Self {
        Self(queue)
    }

    /// The next one, `None` when there never will be one.
    pub(super) fn recv(&self) -> Option<Request> {
        loop {
            match self.0.try_recv() {
                Ok(request) => return Some(request),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => thread::park(),
            }
        }
    }

    pub(super) fn recv_timeout(&self, time: Duration) -> Result<Request, RecvTimeoutError> {
        let end = Instant::now() + time;
        loop {
            match self.0.try_recv() {
                Ok(request) => return Ok(request),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            match end.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return Err(RecvTimeoutError::Timeout),
                left => thread::park_timeout(left),
            }
        }
    }

    pub(super) fn try_recv(&self) -> Result<Request, TryRecvError> {
        self.0.try_recv()
    }

    pub(super) fn try_iter(&self) -> impl Iterator<Item = Request> {
        self.0.try_iter()
    }
}
