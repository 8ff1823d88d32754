//! Receive windows: the bytes that a peer may send on a stream before they are read.
//!
//! A stream starts with a small window, so that a thousand of them are cheap, and doubles it while its reader keeps up
//! and the session has memory left. So a long download is not limited by the round trip.

use crate::wire::INITIAL_WINDOW;

/// Largest window of a stream, in bytes.
pub const MAX_WINDOW: u32 = 1024 * 1024;
/// Memory of a session for windows beyond the initial ones, in bytes.
pub const WINDOW_POOL: usize = 16 * 1024 * 1024;

/// Memory of a session for windows beyond the initial ones.
pub(super) struct WindowPool {
    free: usize,
}

impl Default for WindowPool {
    fn default() -> Self {
        Self { free: WINDOW_POOL }
    }
}

impl WindowPool {
    fn take(&mut self, bytes: u32) -> bool {
        let Some(rest) = self.free.checked_sub(bytes as usize) else { return false };
        self.free = rest;
        true
    }
}

/// Window of one stream. Its size is the sum of what the peer may send, what is buffered, and what was read since the
/// last grant.
pub(super) struct ReceiveWindow {
    size: u32,
    outstanding: u32,
    consumed: u32,
}

impl Default for ReceiveWindow {
    fn default() -> Self {
        Self { size: INITIAL_WINDOW, outstanding: INITIAL_WINDOW, consumed: 0 }
    }
}

impl ReceiveWindow {
    /// Returns its size in bytes, which is the most that is buffered.
    pub(super) fn size(&self) -> usize {
        self.size as usize
    }

    /// Counts received bytes. Returns false if the peer exceeds its credit.
    #[must_use]
    pub(super) fn receive(&mut self, bytes: usize) -> bool {
        let rest = u32::try_from(bytes).ok().and_then(|bytes| self.outstanding.checked_sub(bytes));
        if let Some(rest) = rest {
            self.outstanding = rest;
        }
        rest.is_some()
    }

    /// Counts bytes that were read; `is_drained` if nothing is buffered any more. Returns the credit to grant once it
    /// is half the window, so that grants are few.
    pub(super) fn consume(&mut self, bytes: u32, is_drained: bool, pool: &mut WindowPool) -> Option<u32> {
        self.consumed += bytes;
        if self.consumed < self.size / 2 {
            return None;
        }
        let grows = is_drained && self.size < MAX_WINDOW && pool.take(self.size);
        let growth = if grows { self.size } else { 0 };
        let credit = self.consumed + growth;
        self.size += growth;
        self.outstanding += credit;
        self.consumed = 0;
        Some(credit)
    }

    /// Returns the memory to the pool. Returns the bytes that the peer may still send, since it does not know yet.
    pub(super) fn release(&self, pool: &mut WindowPool) -> u32 {
        pool.free += (self.size - INITIAL_WINDOW) as usize;
        self.outstanding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_while_its_reader_keeps_up() {
        let (mut window, mut pool) = (ReceiveWindow::default(), WindowPool::default());
        let mut sizes = Vec::new();
        for _ in 0..8 {
            let chunk = window.outstanding;
            assert!(window.receive(chunk as usize));
            assert!(!window.receive(1), "no byte more than the credit");
            window.consume(chunk, true, &mut pool).expect("a whole window was read");
            assert_eq!(window.size, window.outstanding);
            sizes.push(window.size / INITIAL_WINDOW);
        }
        assert_eq!(sizes, [2, 4, 8, 16, 32, 32, 32, 32]);
        assert_eq!(pool.free, WINDOW_POOL - (MAX_WINDOW - INITIAL_WINDOW) as usize);
        assert_eq!(window.release(&mut pool), MAX_WINDOW);
        assert_eq!(pool.free, WINDOW_POOL);
    }

    #[test]
    fn a_slow_reader_and_a_full_session_keep_their_window() {
        let (mut window, mut pool) = (ReceiveWindow::default(), WindowPool::default());
        assert!(window.receive(INITIAL_WINDOW as usize));
        assert_eq!(window.consume(INITIAL_WINDOW / 2 - 1, false, &mut pool), None, "grants are few");
        assert_eq!(window.consume(1, false, &mut pool), Some(INITIAL_WINDOW / 2));
        assert_eq!(window.size, INITIAL_WINDOW);
        pool.free = INITIAL_WINDOW as usize - 1;
        assert_eq!(window.consume(INITIAL_WINDOW / 2, true, &mut pool), Some(INITIAL_WINDOW / 2));
        assert_eq!(window.size, INITIAL_WINDOW, "the session has no memory left");
    }

    #[test]
    fn all_windows_of_a_session_stay_below_its_bound() {
        let mut pool = WindowPool::default();
        let mut windows: Vec<ReceiveWindow> = (0..crate::wire::MAX_STREAMS).map(|_| ReceiveWindow::default()).collect();
        for _ in 0..8 {
            for window in &mut windows {
                let chunk = window.outstanding;
                assert!(window.receive(chunk as usize));
                window.consume(chunk, true, &mut pool);
            }
        }
        let total: usize = windows.iter().map(|window| window.size as usize).sum();
        assert!(total <= crate::session::RECEIVE_BYTES, "{total}");
    }
}
