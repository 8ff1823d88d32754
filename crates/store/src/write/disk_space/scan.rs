//! Scan of the engine's files for free pages.

use std::time::Duration;

use portolan_types::MonotonicInstant;

use super::estimate::estimated_pages;
use crate::{
    engine::{KvResult, KvView},
    write::core::StoreCore,
};

/// Bytes and pairs that one slice of a scan reads, plus up to a pair.
const SCAN_SLICE: (u64, usize) = (8 << 20, 8192);

/// State of the scan for free pages.
pub(super) enum ScanState {
    InProgress(FreePageScan),
    Paused(MonotonicInstant),
}

/// Scan for free pages, in slices: while a state is read, redb cannot reuse the pages that were freed since.
#[derive(Default)]
pub(super) struct FreePageScan {
    /// First key of the next slice.
    pub(super) from: Vec<u8>,
    /// Bytes of pages that the pairs before it take.
    pub(super) needed: u64,
    /// Bytes of pages that were written since the scan began.
    pub(super) written: u64,
    pub(super) took: Duration,
}

impl StoreCore {
    /// Scans the engine's files for free pages while writes are refused: a slice per call, with pauses between scans.
    /// Called by the thread that writes.
    pub(crate) fn scan_free_pages(&self) {
        if !self.gate.is_short_of_room() || !self.kv.uses_files_again() {
            return self.room.cancel_scan();
        }
        let Some(mut scan) = self.room.take_scan() else { return };
        let began = MonotonicInstant::now();
        let is_over = self.scan_slice(&mut scan);
        scan.took += began.elapsed();
        let free_pages = self.room.free_pages(scan.needed + scan.written);
        match is_over {
            Ok(false) if free_pages > 0 => *self.room.scan.lock() = ScanState::InProgress(scan),
            Ok(_) => self.room.end_scan(&scan, Ok(free_pages)),
            Err(error) => self.room.end_scan(&scan, Err(error)),
        }
    }

    /// Scans a slice, and returns true after the last one.
    fn scan_slice(&self, scan: &mut FreePageScan) -> KvResult<bool> {
        let count = |view: &dyn KvView| {
            let mut cursor = view.scan(&scan.from, &[u8::MAX])?;
            let (mut read, mut pairs) = (0, 0);
            while let Some(key) = cursor.key() {
                if read >= SCAN_SLICE.0 || pairs >= SCAN_SLICE.1 {
                    scan.from = key.to_vec();
                    scan.needed += read;
                    return Ok(false);
                }
                (read, pairs) = (read + estimated_pages(key, cursor.value()), pairs + 1);
                cursor.advance()?;
            }
            scan.needed += read;
            Ok(true)
        };
        self.view(count)?
    }
}
