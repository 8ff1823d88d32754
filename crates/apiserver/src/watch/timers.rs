//! Timers of a watch: bookmarks, permission checks, the end.

use std::{pin::Pin, time::Duration};

use tokio::time::{Instant, Sleep};

/// Interval of bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of permission checks.
pub(super) const RECHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Time between the last bookmark and the end.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// Timers of a watch.
pub(super) struct WatchTimers {
    pub(super) alarm: Pin<Box<Sleep>>,
    pub(super) end: Instant,
    pub(super) bookmarks: bool,
    pub(super) next_bookmark: Instant,
    pub(super) next_check: Instant,
    /// True if the permission check comes before the first event.
    pub(super) checks_first: bool,
}

impl WatchTimers {
    pub(super) fn new(end: Instant, bookmarks: bool) -> Self {
        let now = Instant::now();
        let alarm = Box::pin(tokio::time::sleep_until(now));
        let next_check = now + RECHECK_INTERVAL;
        let mut timers = Self { alarm, end, bookmarks, next_bookmark: now, next_check, checks_first: false };
        timers.plan_bookmark(now);
        timers.set_alarm();
        timers
    }

    /// Makes the permission check precede the first event.
    pub(super) fn check_first(&mut self) {
        (self.next_check, self.checks_first) = (Instant::now(), true);
    }

    pub(super) fn plan_bookmark(&mut self, now: Instant) {
        let last = self.end.checked_sub(LAST_BOOKMARK).filter(|last| *last > now);
        self.next_bookmark = match last {
            Some(last) => (now + BOOKMARK_INTERVAL).min(last),
            None => now + BOOKMARK_INTERVAL,
        };
    }

    /// Returns the deadline of the next permission check or end, for a watch that is waiting for a webhook.
    pub(super) fn next_look(&self) -> Instant {
        self.end.min(self.next_check)
    }

    pub(super) fn set_alarm(&mut self) {
        let soonest = self.next_look();
        let soonest = if self.bookmarks { soonest.min(self.next_bookmark) } else { soonest };
        self.alarm.as_mut().reset(soonest);
    }
}
