//! Retries after write conflicts, until the request times out.

use portolan_types::ObjectKey;
use prometheus::IntCounter;
use tokio::time::Instant;

use crate::sync::{KeyedGuard, KeyedMutex};

/// Conflicts after which a writer waits for the lock of the object. Without it, all but one of many writers would fail
/// every time.
const IMMEDIATE_RETRIES: usize = 3;

/// Locks for writers that have lost several races for an object.
pub(crate) struct ObjectLocks {
    locks: KeyedMutex<ObjectKey>,
    /// Counter of writes that timed out after conflicts.
    given_up: IntCounter,
}

impl ObjectLocks {
    pub(crate) fn new(given_up: IntCounter) -> Self {
        Self { locks: KeyedMutex::default(), given_up }
    }
}

/// Conflicts of one request on one object.
pub(crate) struct ConflictRetry<'a> {
    object_locks: &'a ObjectLocks,
    key: &'a ObjectKey,
    /// Deadline of the request.
    deadline: Instant,
    conflicts: usize,
    turn: Option<KeyedGuard<ObjectKey>>,
    is_over: bool,
}

impl<'a> ConflictRetry<'a> {
    pub(crate) fn new(object_locks: &'a ObjectLocks, key: &'a ObjectKey, deadline: Instant) -> Self {
        Self { object_locks, key, deadline, conflicts: 0, turn: None, is_over: false }
    }

    /// Counts a conflict; after several it waits for the lock of the object. The caller reads the object again.
    pub(crate) async fn record_conflict(&mut self) {
        self.conflicts += 1;
        if self.conflicts >= IMMEDIATE_RETRIES && self.turn.is_none() {
            self.turn = Some(self.object_locks.locks.lock(self.key.clone()).await);
        }
    }

    /// Records that the write has ended, with success or not.
    pub(crate) fn finish(&mut self) {
        self.is_over = true;
    }
}

impl Drop for ConflictRetry<'_> {
    fn drop(&mut self) {
        // A request whose client leaves is dropped before its deadline.
        if self.conflicts > 0 && !self.is_over && self.deadline <= Instant::now() {
            self.object_locks.given_up.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portolan_types::{GroupResource, LogicalClusterId};

    use super::*;

    /// End of a request.
    #[derive(PartialEq)]
    enum RequestEnd {
        Answered,
        TimedOut,
        ClientLeft,
    }

    #[tokio::test(start_paused = true)]
    async fn writes_that_time_out_after_conflicts_are_counted() {
        let object_locks = ObjectLocks::new(IntCounter::new("given_up", "Writes that timed out.").unwrap());
        let maps = GroupResource::new("", "configmaps");
        let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, maps, "a".parse().unwrap());
        let limit = Duration::from_secs(34);
        for (case, count, end, expected) in [
            ("no race was lost", 0, RequestEnd::TimedOut, 0),
            ("it went on after some", 5, RequestEnd::Answered, 0),
            ("its client left", 5, RequestEnd::ClientLeft, 0),
            ("its time was over", 1, RequestEnd::TimedOut, 1),
            ("its time was over while it had its turn", 5, RequestEnd::TimedOut, 2),
        ] {
            let mut conflicts = ConflictRetry::new(&object_locks, &key, Instant::now() + limit);
            for _ in 0..count {
                conflicts.record_conflict().await;
            }
            if end == RequestEnd::TimedOut {
                tokio::time::advance(limit).await;
            }
            if end == RequestEnd::Answered {
                conflicts.finish();
            } else {
                drop(conflicts);
            }
            assert_eq!(object_locks.given_up.get(), expected, "{case}");
        }
    }
}
